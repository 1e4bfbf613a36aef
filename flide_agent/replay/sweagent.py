"""SWE-agent `.traj` files, 0.x to 1.1 and later: `history`, `trajectory`, and in newer ones the prompt of each step."""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Any

from flide_agent.replay.messages import action_of, content, message, text_field
from flide_agent.replay.records import ReadError, Step, Wire
from flide_agent.replay.text import Cleaned

_EXIT = re.compile(r"Exit(?:ing)? due to ")
"""How the tool words the step that it writes itself when a run ends in an error; the agent decided nothing there."""


_NEVER = -(10**9)
"""A sum that no way can reach, even after many additions."""


def find(value: Any) -> list[dict[str, Any]] | None:
    """The attempts in a value of this format, else None: one in most files. Retry runs copy the chosen one to the top level."""
    if not isinstance(value, dict):
        return None
    attempts = value.get("attempts")
    if isinstance(attempts, list) and attempts and all(_one(a) for a in attempts):
        return list(attempts)
    return [value] if _one(value) else None


def _one(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    history, trajectory = value.get("history"), value.get("trajectory")
    if isinstance(history, list) and (trajectory is None or isinstance(trajectory, list)):
        return not history or all(isinstance(m, dict) and "role" in m for m in history)
    return isinstance(trajectory, list) and bool(trajectory) and all(isinstance(s, dict) and "action" in s for s in trajectory)


def version(attempt: dict[str, Any]) -> str:
    """The format's name by what its steps hold."""
    steps = attempt.get("trajectory") or []
    if any(isinstance(s, dict) and s.get("query") for s in steps):
        return "swe-agent-1.1"
    if any(isinstance(s, dict) and s.get("messages") for s in steps):
        return "swe-agent-1.0.1" if any("extra_info" in s for s in steps) else "swe-agent-1.0"
    return "swe-agent-0.x" if steps else "swe-agent-history"


def steps(attempt: dict[str, Any], clean: Cleaned, *, as_sent: bool) -> list[Step]:
    """Every decision with what the agent saw before it. Raises ReadError.

    as_sent: take the prompt that was recorded: `query` of the step, or `messages` of the step before (they are the history
    after that step, so the next prompt). Without it, or where nothing was recorded, the whole history up to the decision.
    `info`, `edited_files*`, `replay_config`, and a step's `observation` and `state` are never read into a message. The closing
    word on the last step of a run that has ended (the patch, or why it was ended) is no result either.
    """
    raw_history = attempt.get("history") or []
    history = [message(m, f"history[{i}]", clean) for i, m in enumerate(raw_history)]
    agents = [i for i, m in enumerate(raw_history) if m["role"] == "assistant" and not m.get("is_demo")]
    trajectory = attempt.get("trajectory") or []
    for k, s in enumerate(trajectory):
        if not isinstance(s, dict):
            raise ReadError(f"trajectory[{k}] is not a step")
    ended = bool(text_field(attempt.get("info") or {}, "exit_status")) if isinstance(attempt.get("info"), dict) else False
    if not trajectory:
        out = []
        for n, i in enumerate(agents, 1):
            action = text_field(raw_history[i], "action") or action_of(history[i])
            out.append(Step(n, history[:i], "history", action, _labels(action), None, [history[i]], _until(history, agents, i)))
        return _linked(out, ended)
    places, pairs = _places(trajectory, history, agents)
    out = []
    for k, s in enumerate(trajectory):
        if _by_the_tool(s):
            continue
        recorded = _recorded(trajectory, k) if as_sent else None
        if recorded is not None:
            key, items, where = recorded
            counted = Cleaned() if history else clean  # a prompt repeats the history: count what was replaced once
            seen = [message(m, f"{where}[{i}]", counted) for i, m in enumerate(items)]
        elif history:
            key, seen = "history", history[: places[k]]
        else:
            raise ReadError(f"trajectory[{k}] has no query and the file has no history: nothing says what the agent saw")
        action = text_field(s, "action")
        if k in pairs:
            proposed, result = history[places[k]], _until(history, agents, places[k])
        else:  # a failed try, or a file of prompts alone: only the next prompt can tell what came back
            proposed = {"role": "assistant", "content": content(s.get("response"), f"trajectory[{k}].response", Cleaned())}
            result = _told_later(_recorded(trajectory, k + 1) if as_sent else None, seen)
        out.append(Step(len(out) + 1, seen, key, action, _labels(action), None, [proposed], result))
    return _linked(out, ended)


def _until(history: list[Wire], agents: list[int], place: int) -> list[Wire]:
    """What follows an agent message up to the next one."""
    return history[place + 1 : next((i for i in agents if i > place), len(history))]


def _told_later(recorded: tuple[str, list[Any], str] | None, seen: list[Wire]) -> list[Wire]:
    """What the next prompt holds beyond what this step saw and said; nothing where that prompt was rewritten."""
    if recorded is None or len(recorded[1]) < len(seen) + 2:
        return []
    later = [message(m, f"{recorded[2]}[{i}]", Cleaned()) for i, m in enumerate(recorded[1])]
    return later[len(seen) + 1 :] if later[: len(seen)] == seen and later[len(seen)]["role"] == "assistant" else []


def _linked(steps: list[Step], ended: bool) -> list[Step]:
    """The labels of each step as those that the step before has once its result is there."""
    for one, following in pairwise(steps):
        one.then.update(following.labels)
    if steps and ended:
        steps[-1].result.clear()
    return steps


def _labels(action: str) -> dict[str, str]:
    """The first word of an action is its tool."""
    words = action.split(maxsplit=1)
    return {"next_tool": Cleaned().sent(words[0])} if words else {}


def _by_the_tool(step: dict[str, Any]) -> bool:
    """Whether the tool wrote this step when the run ended in an error: no action, no prompt, its own words."""
    return not text_field(step, "action") and not step.get("query") and bool(_EXIT.match(text_field(step, "response")))


def _recorded(trajectory: list[dict[str, Any]], k: int) -> tuple[str, list[Any], str] | None:
    if k == len(trajectory):
        return None
    query = trajectory[k].get("query")
    if isinstance(query, list) and query:
        return "query", query, f"trajectory[{k}].query"
    before = trajectory[k - 1].get("messages") if k else None
    if isinstance(before, list) and before:
        return "messages", before, f"trajectory[{k - 1}].messages"
    return None


def _places(trajectory: list[dict[str, Any]], history: list[Wire], agents: list[int]) -> tuple[list[int], dict[int, int]]:
    """For each step the index in the history of its agent message; for a failed try, which is not there, that of the next.

    And the steps that are there: step -> number of its agent message.

    The agent messages of the history are a subsequence of the steps: an answer that could not be run (bad format, blocked,
    bash syntax) is asked again and stays in `trajectory` alone. So they are matched by content, in the way that finds most
    observations again (they tell equal answers apart), and at equality with the later try, the one that counted.
    """
    said = [content(s.get("response"), f"trajectory[{k}].response", Cleaned()).strip() for k, s in enumerate(trajectory)]
    texts = [history[i]["content"].strip() for i in agents]
    pairs = _embed(said, texts, lambda k, j: _observed(trajectory[k], history, agents[j]))
    if pairs is None and len(said) == len(texts):
        pairs = {k: k for k in range(len(said))}
    if pairs is None:
        blocks = SequenceMatcher(None, said, texts, autojunk=False).get_matching_blocks()
        pairs = {b.a + i: b.b + i for b in blocks for i in range(b.size)}
    places: list[int] = []
    place = len(history)
    for k in reversed(range(len(trajectory))):
        if k in pairs:
            place = agents[pairs[k]]
        places.append(place)
    return places[::-1], pairs


def _embed(said: list[str], texts: list[str], observed: Callable[[int, int], int]) -> dict[int, int] | None:
    """step -> agent message such that every agent message finds a step of the same text, in order; None when there is no such way.

    The way of the largest sum of `observed`. Best sums are worked out from the end: best[e] is that of the messages from j on
    with the steps from j + e on, and e never passes the number of steps left over.
    """
    spare = len(said) - len(texts)
    if spare < 0:
        return None
    best = [0] * (spare + 1)
    taken: list[list[bool]] = []
    for j in reversed(range(len(texts))):
        row, took = [_NEVER] * (spare + 2), [False] * (spare + 1)
        for e in reversed(range(spare + 1)):
            row[e] = row[e + 1]
            if said[j + e] == texts[j] and best[e] + observed(j + e, j) > row[e]:
                row[e], took[e] = best[e] + observed(j + e, j), True
        best = row[:-1]
        taken.append(took)
    if best[0] <= _NEVER // 2:
        return None
    pairs: dict[int, int] = {}
    e = 0
    for j, took in enumerate(reversed(taken)):
        while not took[e]:
            e += 1
        pairs[j + e] = j
    return pairs


def _observed(step: dict[str, Any], history: list[Wire], place: int) -> int:
    """1 when the message after `place` holds the step's observation (its start: long ones are clipped in the history), else 0."""
    start = text_field(step, "observation").strip()[:200]
    return int(bool(start) and place + 1 < len(history) and start in history[place + 1]["content"])
