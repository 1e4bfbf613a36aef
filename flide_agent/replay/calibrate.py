"""`flide-agent calibrate`: from recorded decisions and labels to a temperature and a threshold for each question."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from flide_agent.replay.labels import Labels, expected
from flide_agent.replay.moments import BEFORE, Plan
from flide_agent.replay.pack import DEFAULT_PACK, Pack, load, pack_of, probabilities, written
from flide_agent.replay.paths import keep_apart
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.scoring import Sample, score, temperature_of
from flide_agent.replay.text import line
from flide_agent.replay.totals import counted

LEAST = 20
"""Labelled answers that a temperature is taken from."""


def run(files: list[Path], questions: Path | None, labels: Path | None, target_error: float, output: Path) -> int:
    """Read decisions (`replay --json`), write the pack with what was found; returns the exit code: 0, or 2 with nothing written."""
    say = Console(stderr=True, highlight=False, markup=False, emoji=False)
    try:
        read = {"--questions": questions, "--labels": labels}
        given = [(option, path) for option, path in read.items() if path is not None]
        keep_apart([("--output", output)], [*given, *(("the input", path) for path in files)])
        pack = load(questions) if questions else recorded_pack(files)
        table = Labels.load(labels) if labels else Labels()
        samples = gather(files, pack, table)
        if labels:
            told = table.use(pack)
            for text in told.unread() + told.unasked():
                say.print(line(text, 400), soft_wrap=True)
            if not told.matched:
                raise QuestionsError(f"{labels}: no label in it is about an answer here")
        if not any(len(sample) for sample in samples.values()):
            raise QuestionsError("no answer has a label: give --labels, or a pack with references by --questions")
        out, lines = calibrated(pack, samples, target_error)
        output.write_text(written(out), encoding="utf-8")
    except (QuestionsError, OSError) as e:
        say.print(f"flide-agent calibrate: {line(str(e), 1000)}", soft_wrap=True)
        return 2
    for text in lines:
        say.print(line(text, 400), soft_wrap=True)
    say.print(f"written to {line(str(output), 300)}", soft_wrap=True)
    return 0


def gather(files: list[Path], pack: Pack, labels: Labels) -> dict[str, Sample]:
    """The labelled answers of every question of the pack. Raises QuestionsError."""
    samples = {name: Sample(q["type"]) for name, q in pack.questions.items()}
    runs: dict[tuple[Any, ...], int] = {}
    for record in _decisions(files):
        place = (record["file"], record["row"], record["run"])
        number = runs.setdefault(place, len(runs))
        known = labels.of(*place, record["step"], record.get("moment", BEFORE), record.get("labels") or {})
        for name, question in pack.questions.items():
            answer = record["answers"].get(name)
            right = expected(pack.readings[name], question, known)
            if answer is not None and right is not None and answer.get("type") == question["type"]:
                samples[name].add(number, probabilities(answer), right)
    return samples


def calibrated(pack: Pack, samples: dict[str, Sample], target_error: float) -> tuple[Pack, list[str]]:
    """The pack with temperatures and thresholds, and a line for each question. A question of too few labels stays as it is."""
    readings = dict(pack.readings)
    lines = []
    for name, sample in samples.items():
        if len(sample) < LEAST or len(set(sample.right)) < 2:
            have = f"{counted(len(sample), 'labelled answer')}, {counted(len(set(sample.right)), 'kind')} of label"
            lines.append(f"{name}: {have}; it stays as it is: {LEAST} of 2 kinds are needed")
            continue
        t, after, before = temperature_of(sample)
        found = score(sample, temperature=t, target_error=target_error)
        cut = found.get("threshold")
        readings[name] = replace(readings[name], temperature=round(t, 4), threshold=None if cut is None else cut["value"])
        text = f"{name}: n {len(sample)}, temperature {t:.3f} (loss {before:.3f} -> {after:.3f}), ECE {found['ece']:.3f}"
        lines.append(
            text
            + (
                f", threshold {cut['value']:.3f}, error {cut['error']:.3f}"
                if cut
                else f", no threshold keeps the error at {target_error:g}"
            )
        )
    return Pack(pack.questions, readings), lines


def recorded_pack(files: list[Path]) -> Pack:
    """The pack that the decisions were asked with, out of the summaries. Raises QuestionsError where it is not told."""
    found: dict[str, Pack] = {}
    for path in files:
        pack, digests = None, set()
        for number, record in _records(path):
            if record.get("kind") == "decision":
                digests.add(str(record.get("questions")))
            elif record.get("kind") == "summary" and "pack" in record:
                pack = pack_of(record["pack"], f"{path}:{number}")
        if pack is None and digests == {_asked(DEFAULT_PACK)}:
            pack = DEFAULT_PACK
        if pack is None or digests - {_asked(pack)}:
            raise QuestionsError(f"{path}: does not hold the questions that it answers; give their pack with --questions")
        found[written(pack)] = pack
    if len(found) != 1:
        raise QuestionsError("the files were written with different packs; give the one to calibrate with --questions")
    return found.popitem()[1]


def _asked(pack: Pack) -> str:
    return Plan(pack.questions, pack.moments).digest


def _decisions(files: list[Path]) -> Iterator[dict[str, Any]]:
    for path in files:
        for number, record in _records(path):
            if record.get("kind") == "decision":
                if not all(k in record for k in ("file", "row", "run", "step", "answers")):
                    raise QuestionsError(f"{path}:{number}: a decision without file, row, run, step or answers")
                yield record


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What a killed process left of a last line is left out."""
    number = 0
    try:
        with path.open(encoding="utf-8") as f:
            for number, text in enumerate(f, 1):
                try:
                    record = json.loads(text)
                except ValueError:
                    if number > 1 and not text.endswith("\n"):
                        return
                    raise
                if isinstance(record, dict):
                    yield number, record
    except OSError as e:
        raise QuestionsError(f"{path}: cannot be read: {e.strerror or e}") from e
    except QuestionsError:
        raise
    except (ValueError, RecursionError) as e:
        raise QuestionsError(f"{path}:{number}: not the output of `replay --json`: {e}") from e
