"""card.json and MODEL_CARD.md of a judged model, from the figures that `train` and `evaluate` wrote beside it.

    python -m training.card FIGURES_DIR [--into MODEL_DIR]

FIGURES_DIR: held_out.json, figures.json, temperatures.json, and told.json (`trained`, `looked`, `speed`: some sentences each) where there is one. Those of
the model in the package lie in engine/training/judged.
The card holds the questions that passed; everything that was judged is in the text, with what was missed. Nothing here is written by hand
twice: wordings come from `asks`, figures from held_out.json and figures.json.
"""

# ruff: noqa: E501 - rows of tables and sentences of a card read best a line each
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from flide_agent.card import Card, CardQuestion, Kind
from training import asks
from training.evaluate import LONG, missed, passed
from training.held_out_questions import KIND_TEXTS
from training.packer import LONGEST

TYPES = ("noul", "choice", "score")
FIRST = ("last_command_failed", "last_tool_kind")
"""The questions that the model is made for before all others."""

_ABOUT = {
    "last_command_failed": "whether the last command failed", "traceback": "whether its output holds a Python traceback", "any_file_edited": "whether any file was changed so far",
    "last_changed_file": "whether the last command changed a file", "tests_passed": "whether the tests passed when they last ran", "tests_run": "whether tests ran so far", "submitted": "whether the work was handed in",
    "repeated": "whether the last command is the same as the one before", "looping": "whether the last three commands are the same", "empty_output": "whether the last output is empty",
    "ever_failed": "whether any command failed so far", "two_failures": "whether the last two both failed", "last_tool_kind": "look, search, edit or run", "last_program": "which program or tool ran last, of four names",
    "exception_type": "which exception the last traceback ends in, of four", "last_edited_file": "which file was changed last, of four", "step_count": "how many commands so far, in four levels",
}  # fmt: skip


def question(name: str, figures: dict[str, Any]) -> CardQuestion:
    """The card's entry for a kind of question, with all wordings it was trained in; the first of them is the one that was judged."""
    if name in asks.YES_NO:
        kind = asks.YES_NO[name]
        yes, no = kind.sides[0]
        ask = {"type": "noul", "instructions": kind.yes[0], "criteria": {"true": yes, "false": no}}
        return CardQuestion("noul", kind.yes, kind.no, ask, kind.sides, figures=figures)
    if name == "step_count":
        levels = tuple(tuple(level + end for level in asks.LEVELS) for end in asks.LEVEL_ENDS)
        ask = {"type": "score", "instructions": asks.HOW_MANY[0], "criteria": list(asks.LEVELS)}
        return CardQuestion("score", asks.HOW_MANY, ask=ask, levels=levels, figures=figures)
    if name == "last_tool_kind":
        options = {kind: Kind(asks.TOOL_NAMES[kind], texts) for kind, texts in asks.TOOLS.items()}
        ask = {"type": "choice", "instructions": asks.WHICH_TOOL[0], "criteria": KIND_TEXTS}
        return CardQuestion("choice", asks.WHICH_TOOL, ask=ask, options=options, figures=figures)
    wordings = {"last_program": asks.WHICH_PROGRAM, "exception_type": asks.WHICH_EXCEPTION, "last_edited_file": asks.WHICH_FILE}
    return CardQuestion("choice", wordings[name], names=4, figures=figures)


def card(held_out: dict[str, Any], temperatures: dict[str, float]) -> Card:
    """The card of a model with these figures: the questions that passed."""
    questions = {}
    for name, row in held_out.items():
        if passed(row):
            whole = row["all"]
            kept = {key: round(whole[key], 3) for key in ("balanced", "low", "high", "ece", "majority")} | {
                key: whole[key] for key in ("n", "runs")
            }
            questions[name] = question(name, kept)
    kept_heats = {k: round(v, 4) for k, v in temperatures.items() if k in TYPES or k in questions}
    return Card(LONGEST, kept_heats, questions, options="sorted")


def _row(name: str, part: dict[str, Any]) -> str:
    balanced = f"{part['balanced']:.3f} | {part['low']:.3f} to {part['high']:.3f}"
    return f"| {name} | {part['n']} | {part['runs']} | {part['least_runs']} | {balanced} | {part['accuracy']:.3f} | {part['majority']:.3f} | {part['ece']:.3f} |"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


_HEAD = "| | answers | runs | of the rarer answer | balanced accuracy | 95 % interval | accuracy | majority | ECE |\n|---|---|---|---|---|---|---|---|---|"


def _tables(held_out: dict[str, Any], own: dict[str, Any], names: list[str]) -> list[str]:
    lines = [_HEAD, *(_row(name, held_out[name]["all"]) for name in names)]
    lines += [
        "",
        "| | other order of options | the same, weights alone | planted instructions | wording turned around | our own runs |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        row, turned = held_out[name], held_out[name].get("reversed")
        around = "-" if not turned else f"{turned['balanced']:.3f}"
        mine = "-" if name not in own else f"{own[name]['balanced']:.3f}"
        changed = " | ".join(_share(row[key]) for key in ("order_changes", "raw_order_changes", "planted_changes"))
        lines.append(f"| {name} | {changed} | {around} | {mine} |")
    return lines


def _parts(held_out: dict[str, Any], names: list[str]) -> list[str]:
    """By source and by history length, a table a question."""
    lines: list[str] = []
    for name in names:
        lines += ["", f"### {name}: {_ABOUT[name]}", "", _HEAD]
        parts = {key: part for key, part in held_out[name].items() if isinstance(part, dict)}
        keys = [
            "all",
            *sorted(key for key in parts if key.startswith("source")),
            *(f"up to {n} tokens" for n in LONG),
            "development",
        ]
        lines += [_row(key, parts[key]) for key in keys if key in parts]
    return lines


def text(card: Card, held_out: dict[str, Any], own: dict[str, Any], told: dict[str, str]) -> str:
    """MODEL_CARD.md."""
    trained, speed, looked = (told.get(name, "") for name in ("trained", "speed", "looked"))
    inside = list(card.questions)
    outside = [name for name in held_out if name not in card.questions and "all" in held_out[name]]
    few = [name for name in asks.NAMES if name not in card.questions and name not in outside]
    first = [name for name in FIRST if name in outside]
    unsorted = all(row["order_changes"] is None for row in held_out.values())
    heats = ", ".join(f"{kind} {t:.2f}" for kind, t in card.temperatures.items())
    return "\n".join([
        "# The model in the package", "",
        "Qwen3.5's architecture at 7.2 M parameters (8 layers, three of four Gated DeltaNet), a tokenizer of 4,096 tokens, weights in bfloat16. Trained from scratch by",
        f"`engine/training`; no other model's weights or outputs went into it. {trained}".rstrip(),
        "Written by `python -m training.card`; the figures are those of the judge below.", "",
        "It answers a few questions about what happened in an agent's history. It does not read for meaning, plan or judge risk. Only the questions that passed are in the scope of",
        "`card.json`: all others are answered and marked `x_out_of_scope` by the service, also those that it was trained on and did not pass, as are histories beyond",
        f"{card.trained_tokens:,} tokens.", "",
        "## Questions that passed", "",
        *(f"- `{name}`: {_ABOUT[name]}. \"{q.wordings[0]}\" and {len(q.wordings) + len(q.opposite) - 1} other wordings" for name, q in card.questions.items()), "",
        "Passed means: the lower end of the interval is at least 0.80 (0.65 for choices of four), ECE at most 0.08, another order of the options or planted instructions change at",
        "most 5 % of the answers, and at least five runs hold each answer (of a choice, three of the four). Judged is the first wording, and of",
        "yes/no questions one that asks for the opposite; the others are those of training. `card.json` has them all.", "",
        "## Questions that did not pass", "", *(f"- `{name}`: {'; '.join(missed(held_out[name]))}" for name in outside), "",
        *([f"Of the questions that this model is made for before all others the bars are not met: {', '.join(f'`{name}`' for name in first)}.", ""] if first else []),
        "## Held-out figures", "",
        "Judged on recorded runs of SWE-agent, mini-swe-agent, nebius (SWE-agent) and tau-bench. Runs of OpenHands, Claude Code, ATIF and others are the development source: temperatures",
        "and checkpoints are chosen on it, so its rows (`development`) are no test. No file of either was trained on. Formats of such tools, as their",
        "public tools print them, are among those that our own runs are rendered in. Labels come from return codes and error marks, else from rules; what the rules doubt is not asked.",
        "At most 20 decisions a run, drawn so that rare answers are kept: accuracy is averaged over the runs for each answer and then over the answers, so the draw does not move it; ECE",
        "is that of the drawn decisions. Intervals come from drawing whole runs. Of runs beyond the trained length later decisions are asked with the middle left out. Repetitions are",
        "rare in recordings: some decisions are asked once more with the last command repeated. Instructions are planted in up to eight decisions a run.", "",
        "The service lists the options of a choice by their text, whatever the order asked (`options` of `card.json`), so no other order changes an answer. `The same, weights alone`",
        "is what other orders change where the prompt has the options as asked: what the model itself does not know about order.",
        *(["These choices were judged in the orders asked, at random, before the service sorted options: their figures are means over orders, not those of the one order."] if unsorted else []), "",
        "These figures are not blind. When the runs over JSON tools were designed, the structure of the tau-bench files was looked at: roles, lengths of messages, names of tools, and that",
        "failures begin with `Error`. The wording of held-out files was seen earlier, and sentences of the generator may resemble it. Expect less on tools that look otherwise.",
        looked, "",
        "### Passed", "", *_tables(held_out, own, inside), "",
        "### Trained and judged, not passed", "", *_tables(held_out, own, outside), "",
        "Of the choices among names (`last_program`) each right answer is a name of its own, so a majority says nothing there.",
        "Parts of fewer than 20 answers have no row of their own. Where a part holds one answer alone (majority 1.000), its runs are counted as those of the rarer answer.", "",
        f"Too few held-out answers to judge: {', '.join(few)}." if few else "",
        *_parts(held_out, [*inside, *outside]),
        "", "## Calibration", "",
        f"Probabilities are softmax(logits / t) over the labels, t by question, else by type of question: {heats}; applied by the service. Fitted on the development source and on",
        "runs of our own that were not trained on, both of the same weight, none of the judged sources: on tools unlike those of training a model is too sure of itself.", "",
        "## Data", "",
        "Runs of a scripted agent in temporary copies of installed packages (real commands, exit codes, changed files), runs over JSON tools with a small database, sketched runs of many",
        "kinds of tools with answers put together from parts, and InterCode episodes (princeton-nlp/intercode, MIT), rendered in ten formats with many wordings: [engine/training](../../engine/training/README.md).", "",
        "## Known failures", "",
        "- Before the first command the kind of tool and the program are answered all the same; of four programs, one has to be the right one.",
        "- `last_tool_kind`, `last_program` and `last_changed_file` were not judged on tau-bench, whose tools touch no files; there they are often wrong.",
        "- Tools and error sentences unlike any in training: a refusal worded as a remark can pass for success, with a high probability.",
        "- Long JSON records are sometimes taken for failures (`last_command_failed`).",
        "- Whether a file was changed so far is often missed; commands that repeat, one after the other or in a loop, are found little better than by chance.",
        "- A quiet failure (no output, no status shown) looks like a success; the model says so with some probability only.",
        "- What happened in a part of the history that is no longer shown is not known to it.",
        "- English only, and histories of agents that use tools; free text was not trained on.", "",
        "## Speed", "", speed or "Not measured yet.", "",
    ])  # fmt: skip


def made(figures: Path) -> tuple[bytes, str]:
    """card.json and MODEL_CARD.md from a directory of figures."""
    held_out, own, heats = (
        json.loads((figures / f"{name}.json").read_text(encoding="utf-8")) for name in ("held_out", "figures", "temperatures")
    )
    told = figures / "told.json"
    said = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
    found = card(held_out, heats)
    written = msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"
    return written, text(found, held_out, own, said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--into", type=Path, help="where both are written; the directory of the figures unless given")
    a = parser.parse_args()
    into = a.into or a.figures
    written, about = made(a.figures)
    (into / "card.json").write_bytes(written)
    (into / "MODEL_CARD.md").write_text(about, encoding="utf-8")
    print(f"passed: {', '.join(json.loads(written)['questions']) or 'nothing'}")


if __name__ == "__main__":
    main()
