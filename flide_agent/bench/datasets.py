"""The real sets of the paper, built as its appendix C says, from the files as they are published. Nothing is downloaded.

Samples are drawn with a fixed seed over sorted rows; the paper does not publish its own draw, so rows differ from the paper's.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from flide_agent.bench.sources import Row

T = TypeVar("T")
Count = Callable[[str], int]
"""Tokens of a text."""

SAMPLE, DI_SAMPLE = 256, 760
CUT_TOKENS = 3600
MOST_QUESTIONS, MOST_OPTIONS = 64, 26
SEED = 0
_DEV = re.compile(r"\bdev\b")
_MARKUP = re.compile(r"<b>Sent \d+: ?</b>|</?[A-Za-z][^<>]{0,80}>")


def load(name: str, folder: Path, count: Count) -> dict[str, list[Row]]:
    """Workloads of one set by name: race, quality, multirc or di. Raises ValueError when the folder does not hold its files."""
    try:
        build = SETS[name]
    except KeyError:
        raise ValueError(f"{name!r} is none of {', '.join(SETS)}") from None
    try:
        found = build(folder, count)
    except (KeyError, TypeError, IndexError, AttributeError) as e:
        raise ValueError(f"{folder}: not the published format of {name} ({type(e).__name__}: {e})") from e
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"{folder}: {e}") from e
    if not any(found.values()):
        raise ValueError(f"{folder}: no rows of {name}; it needs {FILES[name]}")
    return found


def race(folder: Path, count: Count) -> dict[str, list[Row]]:
    """race_one: 256 questions with their passages. race_all: 256 passages with all their questions."""
    files = sorted(
        p for p in folder.rglob("*.txt") if p.parent.name == "middle" and (p.parent.parent.name in ("test", folder.name))
    )
    passages = [msgspec.json.decode(p.read_bytes()) for p in files]
    single = [(p["article"], q, o) for p in passages for q, o in zip(p["questions"], p["options"], strict=True)]
    one = [Row(article, {"q0": _choice(q, o)}) for article, q, o in _sample(single, SAMPLE)]
    return {"race_one": one, "race_all": [_passage(p) for p in _sample(passages, SAMPLE)]}


def _passage(p: dict[str, Any]) -> Row:
    pairs = enumerate(zip(p["questions"], p["options"], strict=True))
    return Row(p["article"], {f"q{i}": _choice(q, o) for i, (q, o) in pairs})


def _choice(question: str, options: Sequence[str]) -> dict[str, Any]:
    """Options that the model would read as the same text are told apart by their number."""
    criteria: dict[str, None] = {}
    for i, option in enumerate(options):
        known = {" ".join(name.split()) for name in criteria}
        name = option if option.strip() and " ".join(option.split()) not in known else f"{option} ({i + 1})".strip()
        criteria[name] = None
    return {"type": "choice", "instructions": question, "criteria": criteria}


def quality(folder: Path, count: Count) -> dict[str, list[Row]]:
    """quality_one: 256 questions, each article cut at a line's end. quality_all: all articles whole, with all their questions.

    An article stands once for each set of questions written about it; its questions are put together.
    """
    articles: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    files = [p for p in folder.rglob("*") if p.is_file() and _DEV.search(p.name)]
    for path in sorted([p for p in files if "htmlstripped" in p.name] or files):  # the other file is the same with HTML in it
        for line in _lines(path):
            articles.setdefault(line["article_id"], (_MARKUP.sub("", line["article"]), []))[1].extend(line["questions"])
    single = [(text, q) for _, (text, questions) in sorted(articles.items()) for q in questions]
    one = [Row(_cut(text, q, count), {"q0": _choice(q["question"], q["options"])}) for text, q in _sample(single, SAMPLE)]
    whole = [
        Row(text, {f"q{i}": _choice(q["question"], q["options"]) for i, q in enumerate(questions[:MOST_QUESTIONS])})
        for _, (text, questions) in sorted(articles.items())
    ]
    return {"quality_one": one, "quality_all": whole}


def _cut(text: str, question: dict[str, Any], count: Count) -> str:
    """The most leading lines with which article, question and longest option have at most CUT_TOKENS tokens."""
    room = CUT_TOKENS - count(question["question"]) - max(count(option) for option in question["options"])
    lines = text.splitlines(keepends=True)
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high + 1) // 2
        if count("".join(lines[:middle])) <= room:
            low = middle
        else:
            high = middle - 1
    return "".join(lines[:low])


def multirc(folder: Path, count: Count) -> dict[str, list[Row]]:
    """Every candidate answer becomes a yes-or-no question; whole questions are added while a paragraph has at most 64."""
    rows = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and re.search(r"\b(val|dev)", p.name) and "json" in p.name):
        for paragraph in _paragraphs(path):
            asked: dict[str, dict[str, Any]] = {}
            for question in paragraph["questions"]:
                answers = question["answers"]
                if len(asked) + len(answers) > MOST_QUESTIONS:
                    break
                for answer in answers:
                    text = f'{question["question"]} Is "{answer["text"]}" a correct answer?'
                    asked[f"q{len(asked)}"] = {"type": "noul", "instructions": text}
            if asked:
                rows.append(Row(_MARKUP.sub("", paragraph["text"]), asked))
    return {"multirc": rows}


def _paragraphs(path: Path) -> Iterator[dict[str, Any]]:
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        for line in _lines(path):
            yield line["passage"]
    else:
        for entry in msgspec.json.decode(path.read_bytes())["data"]:
            yield entry["paragraph"]


def decision_index(folder: Path, count: Count) -> dict[str, list[Row]]:
    """760 requests of the public rows, less those with a choice of more than 26 options."""
    files = sorted(p for p in folder.rglob("*rows*.jsonl*") if p.is_file())
    found = [Row(line["state"], dict(line["questions"])) for path in files for line in _lines(path)]
    sample = _sample(found, DI_SAMPLE)
    kept = [r for r in sample if r.state and 0 < len(r.questions) <= MOST_QUESTIONS and all(map(_fits, r.questions.values()))]
    return {"di": kept}


def _fits(question: dict[str, Any]) -> bool:
    return question["type"] != "choice" or len(question["criteria"]) <= MOST_OPTIONS


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
        for line in lines:
            if line.strip():
                yield msgspec.json.decode(line)


def _sample(rows: Sequence[T], n: int) -> list[T]:
    """`n` of the rows in their order, or all of them."""
    if len(rows) <= n:
        return list(rows)
    return [rows[i] for i in sorted(random.Random(SEED).sample(range(len(rows)), n))]


FILES = {
    "race": "test/middle/*.txt, each one JSON object: article, questions, options, answers",
    "quality": "QuALITY.v1.0.1.htmlstripped.dev, a JSON object a line: article_id, article, questions with options",
    "multirc": 'the validation set, {"data": [{"paragraph": {text, questions}}]} or lines {"passage": {text, questions}}',
    "di": "the Decision Index' selected-rows.jsonl and added-rows.jsonl (.gz as well): state and questions as on the wire",
}
SETS: dict[str, Callable[[Path, Count], dict[str, list[Row]]]] = {
    "race": race,
    "quality": quality,
    "multirc": multirc,
    "di": decision_index,
}
