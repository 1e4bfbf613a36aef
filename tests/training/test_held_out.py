"""The held-out sources: rules of labels, which decisions are asked, and the figures."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from flide_engine.models.dummy import dummy_config
from training import evaluate, held_out, saved
from training.asks import YES_NO
from training.held_out_labels import Done, bare, facts, failed_of, kind_of
from training.network import Network
from training.packer import LONGEST
from training.shards import Data, rows

from flide_agent.default_model import DIRECTORY
from flide_agent.messages import Message
from flide_agent.prompts import Prompts
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run

FOOTER = "\n\n(Open file: n/a)\n(Current directory: /x)\nbash-$"


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("bash: foo: command not found" + FOOTER, True),
        ("a.py\nb.py" + FOOTER, False),
        ("[File: /x/errors.py (9 lines total)]\n1:raise ValueError", False),
        ("Traceback (most recent call last):\n  File\nKeyError: 1", True),
        ("Found 3 matches for error in x", False),
        ("[No exact match found in /x/a.py for\n", True),
        ("The file /x/a.py has been edited. Here's a snippet:\n1 raise ValueError('invalid')", False),
        ("Your proposed edit has introduced new syntax error(s).\nERRORS:\n- E999", True),
        ("<returncode>0</returncode>\n<output>\nan error is mentioned\n</output>", False),
        ("<returncode>2</returncode>\n<output>\n</output>", True),
        ("there may have been a failure", None),
    ],
)
def test_rules_of_failure(text: str, failed: bool | None) -> None:
    assert failed_of("swe-agent", None, text, "user") is failed
    assert failed_of("swe-agent", True, text, "user") is True, "the file's own mark comes first"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("ls -la && cat a.py", "look"),
        ("ls; rm a.py", ""),
        ("grep -rn x . | head -3", "search"),
        ("find . -name a | grep -v b", "search"),
        ("cat a.py | grep x", ""),
        ("sed -n '1,3p' a.py", "look"),
        ("sed -i s/a/b/ a.py", "edit"),
        ("echo x > a.py", "edit"),
        ("python a.py > log", ""),
        ("python a.py 2>&1 | tail -3", "run"),
        ("cat > a.py <<'EOF'\nrm -rf /\nEOF", "edit"),
        ("cd /x && python a.py", "run"),
        ("open_file('/x/a.py')", "look"),
        ("something else", ""),
    ],
)
def test_rules_of_kinds(command: str, kind: str) -> None:
    words = command.split("&& ")[-1].split()
    assert kind_of(words[0], command) == kind


def _done(text: str = "ls", **more: object) -> Done:
    plain = Done(text.split()[0], text, "look", "out", False, False, "", False, None)
    return dataclasses.replace(plain, **more)  # type: ignore[arg-type]


def test_what_a_rule_doubts_is_not_asked() -> None:
    doubt, bad, edit = _done(failed=None), _done("cat x", failed=True), _done("create a.py", edited=True, file="a.py")
    assert "last_command_failed" not in facts([doubt], False).yes_no
    assert "ever_failed" not in facts([doubt, _done()], False).yes_no
    assert facts([doubt, bad], False).yes_no["ever_failed"], "one failure that is sure is enough"
    assert not facts([_done(), bad, _done()], False).yes_no["last_command_failed"]
    assert facts([edit, _done()], False).yes_no["any_file_edited"]
    assert facts([edit, _done()], False).file == "a.py"
    assert facts([edit, _done("python x", edited=None)], False).file == "", "the program may have changed another"
    assert "any_file_edited" not in facts([_done()], True).yes_no, "a desk has no files"


def test_an_output_inside_json_is_read_like_any_other() -> None:
    assert bare(json.dumps({"returncode": 0, "output": ""})) == ""
    assert bare("OBSERVATION:\na" + FOOTER) == "a"
    assert bare(json.dumps({"id": 3})) == '{"id": 3}'


def _runs(shared: Path, name: str) -> Sequence[Run]:
    return [run for run in read(shared / "data" / "trajectories" / name, "raw") if isinstance(run, Run)]


def test_long_runs_are_asked_without_their_middle(shared: Path) -> None:
    prompts = Prompts.load(DIRECTORY)
    run = _runs(shared, "nebius-6rows.jsonl")[4]
    found = list(held_out.cases(run, prompts))
    assert len(found) > 30
    short = [c for c in found if c.history == "shortened"]
    assert short
    for case in short:
        assert prompts.history(run.tools, case.messages).ends[-1] <= LONGEST
        assert len(case.messages) < len(run.steps[case.step - 1].messages)
        assert not case.fact.steps
        assert all(case.fact.yes_no.get(name, True) for name in held_out.SO_FAR), "its middle may have held some"


def test_a_draw_keeps_the_rare_answers(shared: Path) -> None:
    found = list(held_out.cases(_runs(shared, "nebius-6rows.jsonl")[5], Prompts.load(DIRECTORY)))
    assert len(found) > 250
    chosen = held_out.draw(found, 20, random.Random(0))
    assert len(chosen) == 20
    assert [c.step for c in chosen] == sorted({c.step for c in chosen})
    for name in ("last_command_failed", "traceback", "repeated", "any_file_edited"):
        in_all, kept = ({c.fact.yes_no[name] for c in some if name in c.fact.yes_no} for some in (found, chosen))
        assert in_all == kept, name


def test_repeats_are_repeats(shared: Path) -> None:
    for file in ("sweagent-10-history-only.traj", "openai-chat-tau-airline-5.jsonl"):
        found = list(held_out.cases(_runs(shared, file)[0], Prompts.load(DIRECTORY)))
        for case in held_out.repeats(found, False, random.Random(0)):
            said = [m for m in case.messages[: case.shown] if m.role == "assistant" and (m.tool_calls or "```" in m.content)]
            again = 2 if said[-1:] * 3 != said[-3:] else 3
            assert said[-again:] == said[-1:] * again
            assert case.fact.yes_no == {"repeated": True, "looping": again == 3}


def test_instructions_are_planted_in_observations_alone() -> None:
    history = [Message("user", "task"), Message("assistant", "ls"), Message("user", "a.py")]
    changed = held_out.planted(history, random.Random(0))
    assert changed[:2] == history[:2]
    assert changed[2].content.startswith("a.py\n")


def _as_the_network_answers(network: Network, judge: Path, table: evaluate.Table) -> None:
    """Every sixth answer of the first run."""
    data = Data.load([judge / "judge.npz"])
    of, found = data.of[0][::6], table.logits[: len(data.of[0])][::6]
    assert len(of) > 10
    with torch.no_grad():
        batch = rows(data, [0], [of], -(-int(of[:, 0].max()) // 64) * 64)
        for known, logits in zip(network(batch)[1].numpy(), found, strict=True):
            assert np.abs(known[: len(logits)] - logits).max() < 1e-4


def test_the_development_source_is_not_judged(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "trajectories"
    judge = held_out.gather(
        [folder / "sweagent-10-history-only.traj", folder / "claude-code-session.jsonl"], Prompts.load(DIRECTORY)
    )
    judge.shard.write(tmp_path / "judge.npz")
    (tmp_path / "judge.json").write_text(json.dumps({"asked": [dataclasses.asdict(a) for a in judge.asked]}))
    saved.export(Network(dataclasses.replace(dummy_config("tiny"), vocab_size=4096), 0), tmp_path, torch.float32)
    both, alone = (evaluate.table(tmp_path, "cpu", tmp_path, development=alone) for alone in (False, True))
    assert {a["source"] for a in both.asked} == {"swe-agent", "others"}
    assert {(a["source"], a["history"]) for a in alone.asked} == {("others", "whole")}
    for name, answers in evaluate.development(both).items():
        if name in held_out.REPEATS:
            continue
        assert len(answers.right) == sum(a["name"] == name and a["test"] in ("plain", "order") for a in alone.asked)
    judged = {a["name"] for a in both.asked if a["source"] == "swe-agent"}
    for name, row in evaluate.figures(both, {}).items():
        assert name in judged or "all" not in row
        assert "source others" not in row


def test_held_out_sources_are_asked_and_scored(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "trajectories"
    files = [folder / "mini-v1-GENERATED-textbased.traj.json", folder / "sweagent-10-history-only.traj"]
    judge = held_out.gather(files, held_out.product())
    judge.shard.write(tmp_path / "judge.npz")
    (tmp_path / "judge.json").write_text(json.dumps({"asked": [dataclasses.asdict(a) for a in judge.asked]}))
    network = Network(dataclasses.replace(dummy_config("tiny"), vocab_size=4096), 0)
    saved.export(network, tmp_path, torch.float32)
    table = evaluate.table(tmp_path, "cpu", tmp_path)
    _as_the_network_answers(network, tmp_path, table)
    for a, logits, right in zip(table.asked, table.logits, table.right, strict=True):
        assert len(logits) == len(a["options"]) == (2 if a["name"] in YES_NO else 4)
        if a["name"] == "last_tool_kind":
            assert a["options"][right] == a["truth"]
            assert (list(a["options"]) == sorted(a["options"])) or a["test"] == "raw"
        if a["twin"] >= 0:
            twin = table.asked[a["twin"]]
            same = ("run", "step", "name", "truth", "history")
            assert [twin[key] for key in same] == [a[key] for key in same]
    found = evaluate.figures(table, {})
    assert found["last_tool_kind"]["order_changes"] == 0, "the product's prompts are the same in any order"
    assert found["last_tool_kind"]["raw_order_changes"] > 0, "weights alone"
    kinds = Counter(a["test"] for a in table.asked if a["name"] == "last_tool_kind")
    assert kinds["raw"] == kinds["plain"] + kinds["order"] == 3 * kinds["plain"]
    assert found["last_command_failed"]["planted_changes"] is not None
    truths = {a["truth"] for a in table.asked if a["name"] == "last_command_failed"}
    assert truths == {"True", "False"}
    table.logits[:] = [np.eye(len(z))[r] * 9 for z, r in zip(table.logits, table.right, strict=True)]
    perfect = evaluate.figures(table, {})
    assert perfect["last_tool_kind"]["order_changes"] == perfect["last_tool_kind"]["raw_order_changes"] == 0
    assert perfect["last_command_failed"]["planted_changes"] == 0
    assert not evaluate.passed(perfect["last_command_failed"]), "two runs are too few to judge"
    many = {"least_runs": evaluate.LEAST_RUNS, "low": 0.7, "ece": 0.05, "majority": 0.6}
    steady = {"all": many, "order_changes": 0.0, "planted_changes": 0.0}
    assert evaluate.passed(steady | {"options": 4})
    assert not evaluate.passed(steady | {"options": 2})
    assert evaluate.passed(steady | {"all": many | {"low": 0.9}, "options": 2})
    assert not evaluate.passed(steady | {"all": many | {"low": 0.9, "majority": 1.0}, "options": 2}), "one answer alone"
