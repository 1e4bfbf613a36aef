"""Which reader takes a value: found by its shape, never by the file's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from flide_agent.replay import atif, chat, claude_code, inspect_log, langchain, nebius, openhands, openhands_sdk, sweagent
from flide_agent.replay.files import Document, documents
from flide_agent.replay.messages import text_field
from flide_agent.replay.records import Problem, ReadError, Run, Step
from flide_agent.replay.text import Cleaned, line
from flide_agent.replay.totals import counted
from flide_agent.replay.turns import Turns, tools_of

READS = (
    "SWE-agent, mini-swe-agent, nebius rows, OpenHands (events, output.jsonl, SDK), chat messages (OpenAI, Anthropic), "
    "Claude Code sessions, ATIF, LangChain dumps, Inspect logs"
)
MODES = ("as-sent", "raw")


def read(path: Path, mode: str = "as-sent") -> Iterator[Run | Problem]:
    """Every run of a file, row by row, and a Problem for the file or each row that cannot be read. Never raises for content.

    path: a file, a folder of single events, or "-" for stdin. mode: "as-sent" takes the prompt that the agent was sent where
    the file recorded it (elided observations, summaries in place of what they replace); "raw" takes the whole history up to
    each decision, which only grows.
    """
    as_sent = mode == "as-sent"
    sessions: dict[str, list[dict[str, Any]]] = {}
    events: list[dict[str, Any]] = []
    replaced = 0
    for found in documents(path):
        if isinstance(found, Problem):
            yield found
        elif claude_code.is_event(found.value):  # one session over many lines
            sessions.setdefault(text_field(found.value, "sessionId"), []).append(found.value)
            replaced += found.replaced
        elif openhands_sdk.is_event(found.value):
            events.append(found.value)
            replaced += found.replaced
        else:
            yield from _told(str(path), found.line if found.rows else None, _runs, found, str(path), as_sent)
    before = _undecodable(replaced)
    if events:
        yield from _told(str(path), None, _sdk, events, str(path), 1, as_sent, before)
    row = 0
    for name, some in sessions.items():
        if not name and len(sessions) > 1 and all(e.get("type") == "summary" for e in some):
            continue
        some, lost = _straight(some)
        if lost:
            yield Problem(str(path), f"{f'session {line(name, 40)}: ' if name else ''}{lost}")
        for chain in claude_code.chains(some):
            row += 1
            yield from _told(str(path), None, _claude, chain, name, row, str(path), as_sent, before)


def all_runs(found: Iterable[Path | Problem], mode: str, limit: int | None) -> Iterator[Run | Problem]:
    """Runs and problems of all `sources`, at most `limit` runs."""
    left = limit
    for path in found:
        for item in (path,) if isinstance(path, Problem) else read(path, mode):
            if isinstance(item, Run):
                if left == 0:
                    return
                left = None if left is None else left - 1
            yield item


def _told(file: str, row: int | None, runs: Callable[..., Iterator[Run]], *arguments: Any) -> Iterator[Run | Problem]:
    """The runs that a reader yields, and the problem that ends them."""
    try:
        yield from runs(*arguments)
    except ReadError as e:
        yield Problem(file, line(str(e)), row)
    except RecursionError:
        yield Problem(file, "nested too deeply to be a trajectory", row)


def _runs(found: Document, file: str, as_sent: bool) -> Iterator[Run]:
    value = found.value
    before = _undecodable(found.replaced)
    row = found.line if found.rows else 1

    def made(
        n: int,
        name: str,
        form: str,
        turns: Turns | list[Step],
        clean: Cleaned,
        tools: Any = None,
        more: list[str] | None = None,
    ) -> Run:
        steps = turns.steps if isinstance(turns, Turns) else turns
        sent = tools_of(tools, clean)
        return Run(file, n, line(name, 80), form, steps, before + (more or []) + clean.notes(), sent)

    attempts = sweagent.find(value)
    if attempts is not None:
        for n, attempt in enumerate(attempts, 1):
            clean = Cleaned()
            steps = sweagent.steps(attempt, clean, as_sent=as_sent)
            number = found.line if found.rows else n
            yield made(number, _name(attempt) or _name(value), sweagent.version(attempt), steps, clean)
        return
    if isinstance(value, list) and value and all(openhands_sdk.is_event(e) for e in value):
        yield from _sdk(value, file, row, as_sent, before)
        return
    if isinstance(value, list) and value and all(claude_code.is_event(e) for e in value):
        some, lost = _straight(value)
        for n, chain in enumerate(claude_code.chains(some), row):
            yield from _claude(chain, "", n, file, as_sent, before)
        if lost:
            raise ReadError(lost)
        return
    if isinstance(value, dict) and atif.is_trajectory(value):
        for n, one in enumerate(atif.all_of(value)):
            turns = Turns(Cleaned())
            atif.read(one, turns, as_sent=as_sent)
            form = line(text_field(one, "schema_version"), 30).lower() or "atif"
            yield made(
                row if found.rows else row + n, atif.name(one), form, turns, turns.clean, atif.tools(one), atif.notes(one)
            )
        return
    samples = inspect_log.find(value)
    if samples is not None:
        for n, sample in enumerate(samples, row):
            turns = Turns(Cleaned())
            inspect_log.read(sample, turns)
            yield made(n, inspect_log.name(sample), "inspect", turns, turns.clean, inspect_log.tools(sample))
        return
    turns = Turns(Cleaned())
    if (items := nebius.find(value)) is not None:
        nebius.read(items, turns)
        yield made(row, _name(value), "nebius", turns, turns.clean)
    elif (items := openhands.find(value)) is not None:
        tools = openhands.read(items, turns, as_sent=as_sent)
        yield made(row, _name(value), "openhands", turns, turns.clean, tools)
    elif (items := langchain.find(value)) is not None:
        langchain.read(items, turns)
        yield made(row, _name(value), "langchain", turns, turns.clean, value.get("tools") if isinstance(value, dict) else None)
    elif (items := chat.find(value)) is not None:
        chat.read(value, items, turns)
        yield made(row, _name(value), chat.form(value), turns, turns.clean, chat.tools(value))
    else:
        raise ReadError(f"no trajectory: {_shape(value)}; replay reads {READS}")


def _sdk(events: list[dict[str, Any]], file: str, row: int, as_sent: bool, before: list[str]) -> Iterator[Run]:
    turns = Turns(Cleaned())
    tools = openhands_sdk.read(events, turns, as_sent=as_sent)
    yield Run(file, row, "", "openhands-sdk", turns.steps, before + turns.clean.notes(), tools)


def _claude(chain: claude_code.Chain, session: str, row: int, file: str, as_sent: bool, before: list[str]) -> Iterator[Run]:
    turns, skipped = claude_code.read(chain, Cleaned(), as_sent=as_sent)
    notes = before + ([f"events without a message that can be read, left out: {skipped}"] if skipped else [])
    name = line(" ".join(t for t in (session, chain.name) if t), 80)
    yield Run(file, row, name, "claude-code", turns.steps, notes + turns.clean.notes())


def _straight(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The events of a Claude Code session without those whose parents run in a circle, and a line about these."""
    lost = claude_code.circular(events)
    if not lost:
        return events, ""
    first = next(i for i, e in enumerate(events, 1) if text_field(e, "uuid") in lost)
    told = f"{counted(len(lost), 'event')} left out whose parents run in a circle; the first is event {first}"
    return [e for e in events if text_field(e, "uuid") not in lost], told


def _undecodable(replaced: int) -> list[str]:
    return [f"bytes that are not UTF-8, replaced by U+FFFD: {replaced}"] if replaced else []


def _name(value: Any) -> str:
    if not isinstance(value, dict):
        return ""
    for key in ("instance_id", "trajectory_id", "environment", "task_id", "id"):
        if isinstance(value.get(key), (str, int)) and not isinstance(value[key], bool):
            return line(str(value[key]), 80)
    issue = value.get("issue")
    return line(f"issue {issue['number']}", 80) if isinstance(issue, dict) and isinstance(issue.get("number"), int) else ""


def _shape(value: Any) -> str:
    if isinstance(value, dict):
        return "an object with the keys " + (", ".join(line(k, 30) for k in list(value)[:6]) or "(none)")
    if isinstance(value, list):
        return f"a list of {len(value)} without a role each" if value else "an empty list"
    return "a single value"
