"""The HTML report: what it holds, and in a browser what it shows."""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, complaints, requested, scheme, shot
from counting_service import EXAMPLE, CountingService, copies
from typer.testing import CliRunner

from flide_agent import cli
from flide_agent.replay import page
from flide_agent.replay.totals import Totals
from flide_agent.replies import Choice, Noul, Score

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><!--\x1b[31m\x00\u2028"


class Wavy(CountingService):
    """Answers that change from step to step."""

    def answer(self, question: Mapping[str, Any], yes: float = 0.25) -> Noul | Choice | Score:
        n = len(self.asked) + len(question["instructions"])
        wave = 0.5 + 0.45 * math.sin(n / 9)
        if question["type"] == "noul":
            return Noul(wave)
        names = (
            list(question["criteria"]) if question["type"] == "choice" else [str(i) for i in range(len(question["criteria"]))]
        )
        raw = [1.0 + math.cos(n / 5 + i) for i in range(len(names))]
        p = {name: x / sum(raw) for name, x in zip(names, raw, strict=True)}
        if question["type"] == "choice":
            return Choice(max(p, key=p.__getitem__), p, 0.5)
        return Score(sum(i * x for i, x in enumerate(p.values())), {}, p, 0.5)


@pytest.fixture
def wavy(monkeypatch: pytest.MonkeyPatch, service: CountingService) -> None:
    monkeypatch.setattr(CountingService, "answer", Wavy.answer)


def report(path: Path, *arguments: object) -> dict[str, Any]:
    """Replay into a report; the data in it by the id of its element."""
    result = CliRunner().invoke(cli.app, ["replay", *map(str, arguments), "--html", str(path)], catch_exceptions=False)
    assert result.exit_code in (0, 1), result.output
    text = path.read_text(encoding="utf-8")
    return {
        name: json.loads(raw) for name, raw in re.findall(r'<script type="application/json" id="([\w-]+)">(.*?)</script>', text)
    }


def labels_file(tmp_path: Path) -> Path:
    """Before which of the example's steps the last command had failed."""
    path = tmp_path / "labels.csv"
    path.write_text("run,step,last_failed\n" + "".join(f"{EXAMPLE.stem},{i},{i in (6, 8, 11, 15)}\n" for i in range(2, 21)))
    return path


def evil_file(tmp_path: Path) -> Path:
    path = tmp_path / "evil.json"
    messages = [{"role": "user", "content": EVIL}, {"role": "assistant", "content": EVIL}, {"role": "user", "content": EVIL * 2},
                {"role": "assistant", "content": "end"}]  # fmt: skip
    path.write_text(json.dumps({"instance_id": EVIL, "messages": messages}))
    return path


def test_the_data_of_a_report(wavy: None, tmp_path: Path) -> None:
    found = report(tmp_path / "r.html", *copies(tmp_path, 2), "no/such", "--labels", labels_file(tmp_path))
    summary, run = found["summary"], found["run-1"]
    assert [r["steps"] for r in summary["runs"]] == [20, 20]
    assert summary["totals"]["decisions"] == 40
    assert len(summary["points"]) == 40
    assert sum(r["computed"] for s in run["steps"] for r in s["requests"]) * 2 == summary["totals"]["computed_tokens"]
    assert summary["problems"] == [{"file": "no/such", "line": None, "message": "no such file"}]
    assert sum(summary["histograms"]["last_command_failed"].values()) == 40
    assert any("last_command_failed" in s["fired"] for s in run["steps"])
    seen = [i for s in run["steps"] for i in s["new"]]
    assert seen == list(range(len(run["messages"])))  # each message is there once
    assert summary["scores"]["last_command_failed"]["n"] == 38


PACK = {
    "risky": {"type": "noul", "instructions": "Is it risky?", "moment": "proposed", "threshold": 0.0},
    "failed": {"type": "noul", "instructions": "Did it fail?", "moment": "after"},
    "stuck": {"type": "noul", "instructions": "Is it stuck?"},
}


def test_moments_in_a_report(wavy: None, tmp_path: Path, browser: Any) -> None:
    (tmp_path / "pack.json").write_text(json.dumps(PACK))
    found = report(tmp_path / "r.html", EXAMPLE, "--steps", "1-4", "--questions", tmp_path / "pack.json")
    summary, steps = found["summary"], found["run-1"]["steps"]
    assert [r["moments"] for s in steps for r in s["requests"]] == [
        ["before", "proposed"],
        ["after 1", "before", "proposed"],
        ["after 2", "before", "proposed"],
        ["after 3", "before", "proposed"],
        ["after 4"],
    ]
    assert all(set(s["answers"]) == set(PACK) for s in steps)
    assert sum(r["computed"] for s in steps for r in s["requests"]) == summary["totals"]["computed_tokens"]
    assert (len(summary["points"]), summary["totals"]["requests"], summary["totals"]["decisions"]) == (5, 5, 12)
    assert [bool(s.get("result")) for s in steps] == [False, False, False, True]
    opened(browser, tmp_path / "r.html")
    assert "risky, proposed" in text(browser, "#timeline")
    assert "after 1, before, proposed: " not in text(browser, "#step")
    press(browser, "l")
    assert "after 1, before, proposed: " in text(browser, "#step")
    assert [r.split()[:2] for r in text(browser, "#step table").splitlines()[1:]] == [
        ["risky", "proposed"],
        ["failed", "after"],
        ["stuck", "before"],
    ]
    assert "What came back" not in text(browser, "#step")
    press(browser, "l", "l")
    assert "What came back" in text(browser, "#step")
    quiet(browser)


def test_a_failed_command_is_marked_by_what_labels_say(wavy: None, tmp_path: Path, browser: Any) -> None:
    """A label file has text alone: "no" is no."""
    (tmp_path / "l.csv").write_text(
        "file,step,last_failed\nfix_slugify.traj,2,no\nfix_slugify.traj,3,yes\nfix_slugify.traj,5,1\n"
    )
    found = report(tmp_path / "r.html", EXAMPLE, "--labels", tmp_path / "l.csv")
    assert [s["step"] for s in found["run-1"]["steps"] if s["failed"]] == [3, 5]
    opened(browser, tmp_path / "r.html")
    assert number(browser, "#timeline .failed") == 2
    assert "first failed command: step 3" in text(browser, "#jumps")
    quiet(browser)


def test_sizes_stand_in_their_order() -> None:
    totals = Totals()
    for size in ("warm, over 12k", "warm, under 4k", "cold, 4k to 8k", "warm, 8k to 12k"):
        totals.by_size[size] = array("d", [1.0])
    order = ["cold, 4k to 8k", "warm, under 4k", "warm, 8k to 12k", "warm, over 12k"]
    assert list(totals.record()["milliseconds_by_size"]) == order


def test_a_report_holds_nothing_that_could_end_its_elements(service: CountingService, tmp_path: Path) -> None:
    found = report(tmp_path / "r.html", evil_file(tmp_path))
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert text.count("</script>") == len(found) + 1
    assert "<!--" not in text.partition("<body>")[2]
    assert "\x1b" not in json.dumps(found)
    assert not re.search(r"(?:src|href)=\"(?!data:)|https?://(?!www\.w3\.org)|@import|url\(", text)


def test_points_and_texts_are_bounded(wavy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_POINTS", 16)
    monkeypatch.setattr(page, "MOST_TEXT", 5000)
    found = report(tmp_path / "r.html", *copies(tmp_path, 3))
    assert len(found["summary"]["points"]) <= 16
    assert found["summary"]["every"] == 4
    assert found["summary"]["without_text"]
    assert found["run-1"]["messages"]
    assert not found["run-3"]["messages"]
    assert len(found["run-3"]["steps"]) == 20


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driven:
        yield driven


def opened(browser: Any, path: Path, name: str = "light") -> None:
    complaints(browser), requested(browser)
    scheme(browser, name)
    browser.get("about:blank")
    browser.get(path.as_uri())


def text(browser: Any, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0]).innerText", selector))


def number(browser: Any, selector: str) -> int:
    return int(browser.execute_script("return document.querySelectorAll(arguments[0]).length", selector))


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    for key in keys:
        ActionChains(browser).send_keys(key).perform()


def quiet(browser: Any) -> None:
    assert complaints(browser) == []
    assert requested(browser) == []


def test_plots_steps_filter_and_keys(wavy: None, tmp_path: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    report(tmp_path / "r.html", EXAMPLE, evil_file(tmp_path), "--labels", labels_file(tmp_path))
    opened(browser, tmp_path / "r.html")
    assert number(browser, "#runs li") == 2
    assert number(browser, "#timeline svg") == 4
    assert number(browser, ".curve") == 4
    assert number(browser, ".threshold") == 1
    assert number(browser, ".fire") > 0
    assert number(browser, ".band") == 19, "nothing was used before the first step"
    assert number(browser, ".reused") == 20
    box = browser.execute_script("return document.querySelector('.curve').getBBox()")
    assert box["width"] > 800
    assert box["height"] > 20
    assert number(browser, "#steps .row") == 20
    assert text(browser, "#step h2") == "Step 1"
    press(browser, Keys.ARROW_RIGHT, "l")
    assert text(browser, "#step h2") == "Step 3"
    assert browser.current_url.endswith("#run-1-step-3")
    press(browser, Keys.END)
    assert text(browser, "#step h2") == "Step 20"
    browser.find_element(By.ID, "row-6").click()
    assert text(browser, "#step h2") == "Step 7"
    browser.execute_script("document.querySelector('[data-step=\"4\"]').dispatchEvent(new MouseEvent('click'))")
    assert text(browser, "#step h2") == "Step 5"
    press(browser, Keys.END, "p")
    assert "fires" in text(browser, "#step table")
    press(browser, "]")
    assert "</script>" in text(browser, "#run-title")
    assert "onerror" in text(browser, "#step")
    assert browser.title == "flide-agent replay"
    press(browser, "/")
    browser.switch_to.active_element.send_keys("slugify")
    assert number(browser, "#runs li") == 1
    press(browser, Keys.ESCAPE, "o")
    assert number(browser, "#overall .point") == 2 * 22
    assert number(browser, "#overall .bin") > 40
    assert number(browser, "#scores tr") >= 2
    press(browser, "t")
    assert browser.execute_script("return document.documentElement.dataset.theme") == "dark"
    press(browser, "?")
    assert number(browser, "dialog[open]") == 1
    quiet(browser)
    opened(browser, Path(f"{tmp_path}/r.html"))
    browser.get("about:blank")  # else it is the same page still, and only its fragment changes
    browser.get((tmp_path / "r.html").as_uri() + "#run-1-step-9")
    assert text(browser, "#step h2") == "Step 9"
    quiet(browser)


@pytest.mark.parametrize("name", ["light", "dark"])
def test_three_hundred_steps_in_light_and_dark(wavy: None, shared: Path, tmp_path: Path, browser: Any, name: str) -> None:
    report(tmp_path / "r.html", shared / "data/trajectories/nebius-6rows.jsonl")
    opened(browser, tmp_path / "r.html", name)
    press(browser, "]", "]", "]", "]", "]")
    assert number(browser, "#steps .row") == 298
    press(browser, "n", "n")
    folder = Path(os.environ.get("FLIDE_SHOTS", tmp_path))
    assert browser.execute_script("return window.scrollY") == 0  # lists scroll, the page stays
    shot(browser, folder / f"run-{name}.png")
    browser.execute_script("window.scrollTo(0, 700)")
    shot(browser, folder / f"steps-{name}.png")
    press(browser, "o")
    browser.execute_script("window.scrollTo(0, 0)")
    shot(browser, folder / f"overall-{name}.png")
    back = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 3 * 128) == (name == "dark")
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    quiet(browser)


def test_an_empty_report_opens(service: CountingService, tmp_path: Path, browser: Any) -> None:
    report(tmp_path / "r.html", "no/such")
    opened(browser, tmp_path / "r.html")
    assert number(browser, "#problems tr") == 1
    quiet(browser)
