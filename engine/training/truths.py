"""What the recorded facts of a run answer, up to an observation: True, False, or None where they do not decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.facts import TRACEBACK, Action


@dataclass(frozen=True, slots=True)
class View:
    """What can be asked about: the actions up to the last observation, and the outputs as they are shown.

    partial: there were actions before these, so what none of these did may have been done all the same."""

    source: str
    actions: Sequence[Action]
    outputs: Sequence[str | None]
    cut: Sequence[bool]
    shows_code: bool
    partial: bool = False

    def some(self, found: bool) -> bool | None:
        """`found` in any action of the run: what is not shown may hold it."""
        return True if found else None if self.partial else False

    def failed(self, i: int = -1) -> bool | None:
        """Whether action i failed, None where what is shown does not tell."""
        action = self.actions[i]
        if self.shows_code:
            return action.code != 0
        return None if self.cut[i] and action.failed else action.failed


Truth = Callable[[View], bool | None]


def failed(v: View) -> bool | None:
    return v.failed()


def traceback(v: View) -> bool | None:
    return TRACEBACK in (v.outputs[-1] or "")


def edited(v: View) -> bool | None:
    if v.source != "package":  # a desk has records and no files
        return None
    return v.some(any(a.edited for a in v.actions))


def last_edited(v: View) -> bool | None:
    return bool(v.actions[-1].edited) if v.source == "package" else None


def passed(v: View) -> bool | None:
    ran = [a for a in v.actions if a.tests]
    return ran[-1].tests == "passed" if ran else None


def tested(v: View) -> bool | None:
    return v.some(any(a.tests for a in v.actions)) if v.source == "package" else None


def submitted(v: View) -> bool | None:
    return v.actions[-1].kind == "submit"


def repeated(v: View) -> bool | None:
    return len(v.actions) > 1 and v.actions[-1].command == v.actions[-2].command


def looping(v: View) -> bool | None:
    return len(v.actions) > 2 and len({a.command for a in v.actions[-3:]}) == 1


def empty(v: View) -> bool | None:
    silent = not v.actions[-1].output.strip()
    if v.actions[-1].kind == "submit" or (silent and (v.outputs[-1] or "").strip()):
        return None  # what stands in an empty output's place was planted there
    return silent


def ever_failed(v: View) -> bool | None:
    told = [None if v.outputs[i] is None else v.failed(i) for i in range(len(v.actions))]
    if True in told:
        return True
    return None if None in told else v.some(False)


def two_failed(v: View) -> bool | None:
    if len(v.actions) < 2 or v.outputs[-2] is None:
        return None
    a, b = v.failed(), v.failed(-2)
    return None if a is None or b is None else a and b
