"""What the model in the package promises: its figures, and again through the service; steady answers; a fast step on a CPU."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flide_engine.engine import Engine
from flide_engine.segments import Kind, Readout, Request, Round, Segment
from training.evaluate import JUDGED as JUDGED_SOURCES
from training.evaluate import LEAST_RUNS, missed, passed
from training.held_out import cases, draw, planted
from training.held_out_labels import source_of

from flide_agent.bench.beside import Yardstick
from flide_agent.card import Card
from flide_agent.default_model import DIRECTORY
from flide_agent.local import LocalService
from flide_agent.messages import Message
from flide_agent.prompts import Prompts
from flide_agent.replay.questions import DEFAULT
from flide_agent.replay.reading import read
from flide_agent.replay.records import Run
from flide_agent.replies import Answer, Noul
from flide_agent.settings import Settings

pytestmark = pytest.mark.bars
CARD = Card.read(DIRECTORY)
JUDGED = Path(__file__).parents[2] / "engine" / "training" / "judged"
A_RUN, LONGEST = 4, 4096
"""Decisions of a run that are asked here, and the most messages' tokens: the judge of engine/training asks them all."""


@dataclass(frozen=True)
class Asked:
    run: str
    messages: list[Message]
    truths: dict[str, bool]
    kind: str


@pytest.fixture(scope="module")
def asked(shared: Path) -> list[Asked]:
    prompts = Prompts.load(DIRECTORY)
    found = []
    for path in sorted((shared / "data" / "trajectories").iterdir()):
        runs = read(path, "raw") if path.suffix in (".traj", ".json", ".jsonl") else []
        for run in runs:
            if (
                not isinstance(run, Run)
                or len(run.steps) < 2
                or run.tools
                or "DERIVED" in path.name
                or "langchain" in path.name
                or source_of(run) not in JUDGED_SOURCES
            ):
                continue
            rng = random.Random(f"{path.name}-{run.row}")
            for case in draw([c for c in cases(run, prompts) if c.history == "whole"], A_RUN, rng):
                messages = case.messages[: case.shown]
                if prompts.history((), messages).ends[-1] <= LONGEST:
                    found.append(Asked(f"{source_of(run)} {path.name}:{run.row}", messages, case.fact.yes_no, case.fact.kind))
    return found


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    with LocalService(Settings(store=tmp_path_factory.mktemp("bars"))) as found:
        yield found


def _named(answer: Answer) -> str:
    """The answer that is given, as text."""
    if isinstance(answer, Noul):
        return "yes" if answer.noul >= 0.5 else "no"
    return max(answer.probabilities, key=lambda name: answer.probabilities[name])


def _answers(service: LocalService, messages: list[Message], questions: dict[str, Any]) -> dict[str, str]:
    reply = service.systemone([_wire(m) for m in messages], questions)
    assert CARD is not None
    assert reply.x_out_of_scope == {name: "question" for name in questions if name not in CARD.questions}
    return {name: _named(answer) for name, answer in reply.answers.items()}


def _wire(m: Message) -> dict[str, Any]:
    calls = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in m.tool_calls]
    more = {"name": m.name, "tool_call_id": m.tool_call_id, "tool_calls": calls}
    return {"role": m.role, "content": m.content, **{k: v for k, v in more.items() if v}}


@pytest.mark.parametrize("name", DEFAULT)
def test_a_default_question_on_held_out_runs(name: str, bar: Callable[..., None]) -> None:
    """The judge's figures of the weights in the package, which its card is made of."""
    row = json.loads((JUDGED / "held_out.json").read_text(encoding="utf-8"))[name]
    whole, least = row["all"], 0.65 if row["options"] > 2 else 0.80
    told = {"balanced": whole["balanced"], "ece": whole["ece"], "least_runs": whole["least_runs"], "missed": missed(row)}
    print(f"\n{name}: {'; '.join(missed(row)) or 'passed'}")
    bar(f"held-out lower end, {name}", whole["low"], at_least=least, **told)
    bar(f"held-out ECE, {name}", whole["ece"], limit=0.08, **told)
    bar(f"held-out runs of the rarer answer, {name}", whole["least_runs"], at_least=LEAST_RUNS, **told)
    assert passed(row), missed(row)


def test_the_service_gives_the_answers_that_the_figures_speak_of(
    service: LocalService, asked: list[Asked], bar: Callable[..., None]
) -> None:
    hits: dict[str, dict[object, list[bool]]] = {}
    for a in asked:
        said = _answers(service, a.messages, DEFAULT)
        for name, truth in a.truths.items():
            if name in said:
                hits.setdefault(name, {}).setdefault(truth, []).append((said[name] == "yes") == truth)
        if a.kind:
            hits.setdefault("last_tool_kind", {}).setdefault(a.kind, []).append(said["last_tool_kind"] == a.kind)
    found = {name: float(np.mean([np.mean(part) for part in parts.values()])) for name, parts in sorted(hits.items())}
    print(f"\naccuracy through the service: {found}")
    for name, accuracy in found.items():
        bar(f"held-out accuracy, {name}", accuracy, at_least=0.75, decisions=len(asked))


def _order_changes(service: LocalService, asked: list[Asked]) -> list[bool]:
    """Of three other orders of each choice on each decision, whether the answer is another."""
    choices = {name: q for name, q in DEFAULT.items() if q["type"] == "choice"}
    assert choices
    rng, changed = random.Random(0), []
    for a in asked:
        first = _answers(service, a.messages, choices)
        for _ in range(3):
            orders = {}
            for name, q in choices.items():
                options = list(q["criteria"].items())
                rng.shuffle(options)
                orders[name] = q | {"criteria": dict(options)}
            again = _answers(service, a.messages, orders)
            changed += [again[name] != first[name] for name in choices]
    return changed


def test_another_order_of_options_changes_few_answers(
    service: LocalService, asked: list[Asked], bar: Callable[..., None], tmp_path: Path
) -> None:
    """None, since the service sorts them; beside it what the same weights do with the options as asked."""
    shutil.copytree(DIRECTORY, tmp_path / "alone", ignore=shutil.ignore_patterns("__pycache__"))
    card = json.loads((DIRECTORY / "card.json").read_bytes()) | {"options": "asked"}
    (tmp_path / "alone" / "card.json").write_text(json.dumps(card), encoding="utf-8")
    with LocalService(Settings(model=str(tmp_path / "alone"), store=tmp_path / "s")) as alone:
        raw = float(np.mean(_order_changes(alone, asked)))
    changed = _order_changes(service, asked)
    print(f"\nthe weights alone, options as asked: {raw:.3f}")
    told = {"shuffles": len(changed), "weights_alone": raw}
    bar("answers that another order of options changes", float(np.mean(changed)), limit=0.05, **told)


def test_planted_instructions_change_few_answers(service: LocalService, asked: list[Asked], bar: Callable[..., None]) -> None:
    rng, changed = random.Random(0), []
    for a in asked:
        first, again = (_answers(service, some, DEFAULT) for some in (a.messages, planted(a.messages, rng)))
        changed += [again[name] != first[name] for name in first]
    bar("answers that a planted instruction changes", float(np.mean(changed)), limit=0.05, answers=len(changed))


def test_a_resumed_step_on_two_cores(bar: Callable[..., None]) -> None:
    """A history of 8,192 tokens, 300 new ones, 5 questions of 60; beside it the same round's products and attention alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine = Engine.load(str(DIRECTORY), device="cpu", dtype=torch.float32, memory_bytes=256 << 20)
        rng = np.random.default_rng(0)

        def tokens(n: int) -> np.ndarray:
            return rng.integers(0, 4000, n).astype(np.int32)

        made = engine.run(Round((Request((Segment(tokens(8192), saves=(8192,)),)),)))
        checkpoint = made.results[0].checkpoints[0, 8192]
        branches = [Segment(tokens(60), 0, Kind.LOCAL, readouts=(Readout(59, (30, 31)),)) for _ in range(5)]
        step = Round((Request((Segment(tokens(300)), *branches), checkpoint=checkpoint),))
        times = []
        for _ in range(9):
            begun = time.perf_counter()
            engine.run(step)
            times.append(1e3 * (time.perf_counter() - begun))
        beside = Yardstick(engine).measure(step)
        checkpoint.release()
    finally:
        torch.set_num_threads(threads)
    milliseconds = statistics.median(times)
    print(
        f"\nresumed step: {milliseconds:.1f} ms; products alone {beside.products_ms:.1f}, attention alone {beside.attention_ms:.1f}"
    )
    bar(
        "resumed step of 8k history on a CPU, ms",
        milliseconds,
        limit=150.0,
        products_ms=beside.products_ms,
        attention_ms=beside.attention_ms,
    )
