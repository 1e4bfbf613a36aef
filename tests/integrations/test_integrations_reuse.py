"""What a run of an agent reuses, step by step, against a real service; and what the middleware itself costs."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import pytest
from integration_agents import (
    RISKY,
    STUCK,
    Body,
    Recorder,
    agent,
    best,
    calling,
    says,
    thread,
    tokens_of,
    unanswered,
    watched,
)
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.messages import ToolMessage
from langchain_flide import FailPolicy, FlideMiddleware, GuardPolicy
from langchain_flide.testing import FakeFlide, ScriptedChat, call

OUTPUT = "collected 12 items, 3 failed: test_slug, test_join, test_split. See the log for the details of each. " * 3
SUMMARY = "So far: the tests fail."


def script(steps: int, mark: str) -> list[Any]:
    return [calling(call("run", arg=f"{mark} {i}"), text=f"Step {i} of {mark}.") for i in range(steps)] + ["Done."]


@dataclass
class Run:
    """One run: messages and step of each dispatch, and what the chat model saw."""

    sent: list[list[dict[str, Any]]]
    steps: list[dict[str, Any]]
    chat: ScriptedChat

    @property
    def expected(self) -> list[tuple[str, int]]:
        """Reason and the best possible m of each dispatch, from what was sent alone."""
        rows: list[tuple[str, int]] = []
        earlier: list[Any] = []
        for i, messages in enumerate(self.sent):
            last = self.sent[i - 1] if i else None
            if last is None:
                reason = "new"
            elif messages == last:
                reason = "repeat"
            else:
                reason = "append" if messages[: len(last)] == last else "edit"
            rows.append((reason, best(tokens_of(messages), earlier)))
            earlier.append(tokens_of(messages))
        return rows

    @property
    def summarised(self) -> list[int]:
        """The dispatches whose history begins with a summary that the one before had not."""
        begins = [next(m for m in messages if m["role"] == "user")["content"] for messages in self.sent]
        return [i for i, text in enumerate(begins) if SUMMARY in text and self.sent[i][:3] != self.sent[i - 1][:3]]

    @property
    def cleared(self) -> list[int]:
        """How many tool results of each model call had been cleared."""
        return [
            sum(isinstance(m, ToolMessage) and "context_editing" in m.response_metadata for m in messages)
            for messages in self.chat.seen
        ]


def run(url: str, steps: int, mark: str, *stack: Any) -> Run:
    recorder, chat = Recorder(), ScriptedChat(script(steps, mark))
    judge = watched(url, recorder, system=f"You fix {mark}. " * 12)
    found = agent(chat, Body(OUTPUT).tools("run"), *stack, judge).invoke(
        says(f"Fix {mark}."), {**thread(mark), "recursion_limit": 1000}
    )
    assert unanswered(found["messages"]) == set()
    assert len(recorder.steps) == 2 * steps + 1  # a watch before each model call, the guard after each that calls a tool
    for messages, step in zip(recorder.sent, recorder.reuse, strict=True):
        assert step["history_tokens"] == len(tokens_of(messages))  # the service read what is compared here
    return Run(recorder.sent, recorder.reuse, chat)


def share(done: Run) -> tuple[float, int]:
    """What was reused of the best possible from step 2 on, and that in tokens."""
    possible = sum(m for _, m in done.expected[2:])
    return sum(step["m"] for step in done.steps[2:]) / possible, possible


def each_step_is_the_best(done: Run) -> None:
    assert [(step["reason"], step["m"]) for step in done.steps] == done.expected
    assert all(m > 0 for _, m in done.expected[1:])


def plain(done: Run) -> None:
    each_step_is_the_best(done)
    assert [reason for reason, _ in done.expected[1:]] == ["repeat", "append"] * (len(done.expected) // 2)


class Edits:
    """Summaries of the state, and cleared results in what the chat model sees."""

    def __init__(self, trigger: int, keep: int) -> None:
        self.chat = ScriptedChat(lambda _: SUMMARY)
        self.stack = [
            SummarizationMiddleware(self.chat, trigger=("messages", trigger), keep=("messages", keep)),
            ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=300, keep=2)]),
        ]

    def happened(self, done: Run, summarised: list[int], cleared: int) -> None:
        """At these dispatches and no others the history was rewritten; so many model calls at least saw cleared results."""
        each_step_is_the_best(done)
        assert [i for i, (reason, _) in enumerate(done.expected) if reason == "edit"] == done.summarised == summarised
        assert len(self.chat.seen) == len(summarised)
        assert sum(n > 0 for n in done.cleared) >= cleared
        # Clearing is the chat model's view alone: no decision saw it.
        assert not any("[cleared]" in m["content"] for messages in done.sent for m in messages)


def test_reuse_of_a_short_run(url: str) -> None:
    plain(run(url, 8, "short"))


def test_reuse_of_a_short_run_with_summaries_and_edits(url: str) -> None:
    edits = Edits(9, 4)
    edits.happened(run(url, 8, "short edited", *edits.stack), summarised=[8, 12, 16], cleared=3)


@pytest.mark.bars
def test_bar_reuse_over_40_steps(url: str, bar: Any) -> None:
    done = run(url, 40, "long")
    plain(done)
    got, possible = share(done)
    bar("langchain_reuse_40_steps", got, at_least=0.95, tokens=possible)


@pytest.mark.bars
def test_bar_reuse_over_40_steps_with_summaries_and_edits(url: str, bar: Any) -> None:
    edits = Edits(30, 10)
    done = run(url, 40, "long edited", *edits.stack)
    edits.happened(done, summarised=[30, 50, 70], cleared=30)
    got, possible = share(done)
    bar("langchain_reuse_40_steps_summarised", got, at_least=0.95, tokens=possible, summaries=len(done.summarised))


@dataclass
class Added:
    """Milliseconds that guard and watch add to a step. least: from the fastest of several runs without and with them, since other work on
    the machine only ever adds; median: of the differences of pairs; cpu: the same of this process's CPU time."""

    least: float
    median: float
    cpu: float


def added(steps: int, rounds: int, *, latency: float = 0.0, wasted: float = 0.0) -> Added:
    """Of each run with them, the time inside the service is taken off: that is what is below the transport, here a service in this process
    that needs `latency` seconds more for each answer. wasted: seconds that the middleware sleeps at each step."""

    class Slow(FlideMiddleware):
        def after_model(self, state: Any, runtime: Any) -> Any:
            time.sleep(wasted)
            return super().after_model(state, runtime)

    def seconds(*middleware: Any) -> tuple[float, float]:
        acts = agent(script(steps, "timed"), Body(OUTPUT).tools("run"), *middleware)
        wall, cpu = time.perf_counter(), time.process_time()
        acts.invoke(says("Go."), {**thread("timed"), "recursion_limit": 1000})
        return time.perf_counter() - wall, time.process_time() - cpu

    bare, whole = [], []
    for _ in range(rounds):
        recorder = Recorder(FakeFlide(latency=latency).transport)
        policy = GuardPolicy(questions=RISKY, block_at=None, review_at=None)
        judge = (Slow if wasted else FlideMiddleware)(
            decisions=recorder.model(), guard=policy, watch=STUCK, fail=FailPolicy(timeout=60)
        )
        bare.append(seconds())
        wall, cpu = seconds(judge)
        assert len(recorder.steps) == 2 * steps + 1
        whole.append((wall - recorder.seconds, cpu - recorder.cpu))
    pairs = [(w[0] - b[0], w[1] - b[1]) for w, b in zip(whole, bare, strict=True)]
    figures = (
        min(w for w, _ in whole) - min(b for b, _ in bare),
        statistics.median(wall for wall, _ in pairs),
        statistics.median(cpu for _, cpu in pairs),
    )
    return Added(*(1e3 * figure / steps for figure in figures))


@pytest.mark.bars
def test_bar_added_latency_per_step(bar: Any) -> None:
    """The bar, and the measure itself: it must see what the middleware wastes, and not what the service needs."""
    found = added(40, 15)
    wasting, waiting = added(40, 7, wasted=0.005), added(40, 7, latency=0.005)
    details = {"of_medians": found.median, "cpu": found.cpu, "seen_of_5": wasting.least - found.least}
    details["seen_of_service"] = waiting.least - found.least
    assert 4.5 < details["seen_of_5"] < 8, details
    assert abs(details["seen_of_service"]) < 1.5, details
    rounded = {key: round(value, 3) for key, value in details.items()}
    bar("langchain_added_ms_per_step", found.least, limit=2.0, dispatches_per_step=2, **rounded)
