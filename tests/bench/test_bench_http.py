"""What is measured through HTTP, on real server processes; and that wrong answers, wrong sizes and refusals do not pass."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from lying_server import lying
from typer.testing import CliRunner

from flide_agent.bench import agents, levels, states, whole
from flide_agent.bench.command import app
from flide_agent.bench.report import Report
from flide_agent.bench.shapes import Shape
from flide_agent.bench.sources import Generated
from flide_agent.bench.target import Target
from flide_agent.bench.texts import Texts


@pytest.fixture(autouse=True)
def short_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "WARM_SECONDS", 0.2)
    monkeypatch.setattr(levels, "SECONDS", 0.5)


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_all_on_a_server_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(whole, "STATE", 100)
    monkeypatch.setattr(whole, "REPEATS", 2)
    sizes = {
        "short": [{"state": 60, "questions": [40]}, {"state": 100, "questions": [44, 50]}],
        "long": [{"state": 300, "questions": [40]}],
        "agents": [{"steps": [{"append": 150}, {"append": 40}]}],
        "agent_questions": [40],
    }
    (tmp_path / "sizes.json").write_text(json.dumps(sizes))
    path = tmp_path / "all.json"
    result = bench("all", "--device", "cpu", "--memory", "128MiB", "--workloads", str(tmp_path / "sizes.json"), "--clients", "1,3",
                   "--per-client", "2", "--warm-up", "1", "--again", "long", "--counts", "1", "--agents", "1,2",
                   "--json", str(path))  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(path.read_text())
    assert found["complete"]
    assert found["settings"]["workloads"] == "sizes.json"
    assert found["facts"]["ready_seconds"] > 0
    tables = found["tables"]
    rows = tables["server"]
    assert [(r["workload"], r["clients"]) for r in rows] == [("short", 1), ("short", 3), ("long", 1), ("long", 3)]
    assert [r["requests"] for r in rows[::2]] == [2, 2]
    assert all(
        6 <= r["requests"] <= 2 * levels.MOST_COPIES for r in rows[1::2]
    )  # more where the machine is fast: a level has a length
    for row in rows:
        assert row["failed"] == 0
        assert row["exact"] == row["cold"] == 1.0
        assert row["memory_bytes"] > 100 << 20
        assert 0 < row["engine_share"] <= 1
        assert row["compared_with"] == "one client, cold"
    assert [r["equal"] for r in rows] == [None, 1.0, None, 1.0]
    assert rows[0]["ratio"] == pytest.approx(rows[0]["median_ms"] / rows[0]["products_ms"])
    assert tables["recurring"][0]["reused"] == 256
    assert tables["questions"][0]["rows"] == 189
    assert [r["equal"] for r in tables["agents"]] == [None, 1.0]
    for row in (*rows, *tables["recurring"], *tables["questions"], tables["histories"][0]):
        assert row["products_ms"] > 0
        assert row["attention_ms"] > 0
    assert "100 %" in result.output


def test_start_up_is_timed_to_the_first_answer(tmp_path: Path) -> None:
    path = tmp_path / "start.json"
    result = bench("start", "--device", "cpu", "--memory", "128MiB", "--json", str(path))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(path.read_text())["tables"]["start"]
    assert row["seconds"] > row["ready_seconds"] > row["first_answer_ms"] / 1e3 > 0


@pytest.mark.parametrize(
    ("seconds", "batches"),
    [
        ([0.3, 0.29], 2),  # long enough, and as fast as before
        ([0.15, 0.15, 0.15], 2),
        ([60.0, 0.1, 0.1, 0.1], 3),  # the first one compiles
        ([0.3, 0.1, 3.0, 0.1, 0.11, 0.1], 5),  # others too
        ([0.3, 0.1] * 9, levels.MOST_BATCHES),  # a pace that never settles
        ([0.001] * 99, 10),  # no more texts than there are lanes for
    ],
)
def test_a_level_is_warmed_up_until_its_pace_has_settled(
    monkeypatch: pytest.MonkeyPatch, texts: Texts, seconds: list[float], batches: int
) -> None:
    monkeypatch.setattr(levels, "MOST_WARM", 40)
    taken = iter(seconds)
    asked: list[int] = []

    def ask(jobs: list[Any], clients: int) -> tuple[list[Any], list[float]]:
        asked.append(len(jobs))
        return [], [100.0, 0.0, 100.0 + next(taken, 1.0)]

    measured = levels.Levels(
        Target("http://127.0.0.1:9", ["k"] * 64, None, True, None), Report("test", {}), None, per_client=1, warm_up=4
    )
    monkeypatch.setattr(measured, "_ask", ask)
    pace = measured._warm(Generated([Shape(60, (40,))], texts, 0), 2)
    assert asked == [4] * batches
    assert pace == pytest.approx(4 / seconds[batches - 1])
    assert measured._warm(Generated([Shape(60, (40,))], texts, 0), 1) == 0.0, "one client: one batch"
    assert len(asked) == batches + 1


def test_levels_agents_questions_and_states_on_one_server(own: Target, texts: Texts) -> None:
    report = Report("test", {})
    source = Generated([Shape(700, (40,)), Shape(200, (50, 40))], texts, 5)
    levels.Levels(own, report, None, per_client=1, warm_up=0).workload("few", source, [4])
    (row,) = report.tables["server"]
    assert (row["equal"], row["cold"], row["exact"]) == (1.0, 1.0, 1.0)  # compared although no level had one client

    states.recurring(own, report, None, "few", Generated([Shape(700, (40,)), Shape(330, (50, 40))], texts, 6), [1, 2])
    for row in report.tables["recurring"]:
        assert row["states_reused"] == 1.0
        assert row["reused"] == (640 + 320) / 2
        assert row["computed"] == (60 + 40 + 10 + 90) / 2
        assert row["equal"] == 1.0

    states.questions(own, report, None, texts, state=100, size=40, counts=[1, 4], repeats=2)
    one, four = report.tables["questions"]
    assert (one["rows"], four["rows"]) == (140, 260)
    assert four["over_one"] == pytest.approx(four["median_ms"] / one["median_ms"])

    own.restart()
    walks = agents.Agents(own, report, None, texts, [[200, 90, 70], [150, 80]], (40, 50), 10)
    walks.run([1, 2])
    single, two = report.tables["agents"]
    assert (single["sessions"], single["steps"]) == (2, 5)
    assert (two["sessions"], two["steps"]) == (4, 10)
    assert single["resumed"] == two["resumed"] == 1.0
    assert two["equal"] == 1.0
    assert [r["steps"] for r in report.tables["histories"]] == [3, 6]
    assert report.failures == []


def test_a_server_that_runs_already_is_asked_by_its_url(own: Target, texts: Texts, tmp_path: Path) -> None:
    """One tenant: each copy has texts of its own, and the single client asks afterwards."""
    path = tmp_path / "server.json"
    key = own.fresh().headers.partition("Bearer ")[2].strip()
    result = bench("server", "--device", "cpu", "--url", own.url, "--api-key", key, "--rows", "2", "--scale", "0.2", "--only", "di",
                   "--clients", "1,2", "--per-client", "2", "--warm-up", "1", "--json", str(path))  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(path.read_text())["tables"]["server"]
    assert [(r["equal"], r["cold"], r["exact"]) for r in rows] == [(1.0, 1.0, 1.0)] * 2
    assert rows[0]["compared_with"] == "one client, afterwards, resumed"
    assert "products_ms" not in rows[0]


def test_answers_that_change_under_load_fail_the_run(tmp_path: Path) -> None:
    """The negative control: the last bits of answers differ when the server holds more than one request."""
    path = tmp_path / "server.json"
    with lying() as url:
        result = bench("server", "--device", "cpu", "--url", url, "--rows", "2", "--scale", "0.2", "--only", "race_one",
                       "--clients", "1,4", "--per-client", "2", "--warm-up", "0", "--json", str(path))  # fmt: skip
    assert result.exit_code == 1
    found = json.loads(path.read_text())
    alone, loaded = found["tables"]["server"]
    assert alone["equal"] == 1.0
    assert loaded["equal"] < 1.0
    assert any("4 clients" in f and "bits" in f for f in found["failures"])
    assert any("token count" in f for f in found["failures"])  # it says 7 tokens whatever it is sent


def test_refused_requests_fail_the_run(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    with lying(refuse=True) as url:
        result = bench("server", "--device", "cpu", "--url", url, "--rows", "2", "--scale", "0.2", "--only", "race_one",
                       "--clients", "2", "--per-client", "1", "--json", str(path))  # fmt: skip
        assert result.exit_code == 1
        (row,) = json.loads(path.read_text())["tables"]["server"]
        assert (row["failed"], row["per_second"]) == (2, 0.0)
        assert "429" in row["failure"]
        result = bench("questions", "--device", "cpu", "--url", url, "--counts", "1", "--state", "64", "--question", "40")
        assert result.exit_code == 1
        assert bench("questions", "--device", "cpu", "--url", url, "--no-graphs").exit_code == 2
        result = bench("agents", "--device", "cpu", "--url", url, "--agents", "1", "--scale", "0.05", "--steps", "2")
        assert result.exit_code == 1


def test_a_server_that_cannot_start_is_told_with_its_words(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    result = bench("server", "--device", "cpu", "--model", "dummy:tiny", "--rows", "1", "--only", "race_one", "--clients", "1",
                   "--json", str(path))  # fmt: skip
    assert result.exit_code == 1
    (failure,) = json.loads(path.read_text())["failures"]
    assert "did not get ready" in failure
    assert "tokenizer has" in failure


def test_a_server_ends_with_the_run_that_started_it() -> None:
    """Also when the run is killed: no process may stay on the GPU."""
    code = (
        "import time\nfrom flide_agent.bench.target import OwnServer\n"
        "with OwnServer({'device': 'cpu', 'memory_bytes': 64 << 20}, 1) as target:\n"
        "    print(target.pid, flush=True)\n    time.sleep(600)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    server = int(run.stdout.readline())
    assert alive(server)
    run.send_signal(signal.SIGKILL)
    run.wait(10)
    ended = time.monotonic() + 20
    while alive(server) and time.monotonic() < ended:
        time.sleep(0.1)
    assert not alive(server)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_lanes_run_out_rather_than_repeat() -> None:
    target = Target("http://127.0.0.1:1", ["a", "b"], None, True)
    assert target.fresh() != target.fresh()
    with pytest.raises(ValueError, match="more than 2 lanes"):
        target.fresh()


def test_growth_is_read_beside_what_steps_append() -> None:
    steps = [
        agents.Taken(1, appended, history, 0, 5 + 0.01 * appended + 0.2 * history / 1000, 0.0, b"")
        for history in range(1000, 20_000, 1000)
        for appended in (100, 900)
    ]
    assert agents.growth(steps) == pytest.approx(0.2)
    assert agents.growth(steps[:4]) is None
