"""The life of a session over HTTP, and what a step reuses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from service_process import Running, Start

from flide_agent.client import Client
from flide_agent.errors import Conflict, HeadConflict, NotFound
from flide_agent.replies import Reply

QUESTIONS = {
    "failed": {"type": "noul", "instructions": "Did the last command fail?"},
    "next": {"type": "choice", "instructions": "What next?", "criteria": {"edit": None, "test": "run the tests", "stop": None}},
    "risk": {"type": "score", "instructions": "How risky?", "criteria": ["none", "some", "much"]},
}
BRANCH = {"q": QUESTIONS["failed"]}


def message(i: int) -> dict[str, str]:
    role = ("user", "assistant", "tool")[i % 3]
    return {"role": role, "content": f"step {i}: " + " ".join(f"line {i}.{j} of output" for j in range(15))}


def history(topic: str) -> list[dict[str, str]]:
    """A history that shares nothing with those of other topics, so that tests do not reuse each other's checkpoints."""
    return [{"role": "system", "content": f"You fix {topic}. " * 20}, *(message(i) for i in range(12))]


HISTORY = history("bugs")


@pytest.fixture(scope="module")
def client(server: Running) -> Client:
    return server.client()


def grid(tokens: int) -> int:
    return tokens // 64 * 64


def accounted(reply: Reply) -> None:
    """The engine computed exactly what was not reused."""
    step = reply.x_session
    assert step is not None
    assert step.reused_tokens == step.m == reply.usage.x_cached_tokens
    assert reply.usage.input_tokens == step.m + step.computed_tokens
    assert step.m % 64 == 0


def test_life(client: Client) -> None:
    whole = history("lives")
    opened = client.open_session("life", metadata={"task": "t1"})
    assert opened["id"] == "life"
    assert opened["metadata"] == {"task": "t1"}
    first = client.decide("life", append=whole[:5], head=opened["head"], questions=QUESTIONS)
    accounted(first)
    assert first.x_session is not None
    assert (first.x_session.m, first.x_session.reason, first.x_session.step) == (0, "new", 1)

    second = client.decide("life", append=whole[5:9], head=first.x_session.head, questions=QUESTIONS)
    accounted(second)
    assert second.x_session is not None
    assert (second.x_session.m, second.x_session.reason) == (grid(first.x_session.history_tokens), "append")

    again = client.decide("life", append=whole[5:9], head=first.x_session.head, questions=QUESTIONS)
    accounted(again)
    assert again.x_session is not None
    assert (again.x_session.reason, again.x_session.head) == ("repeat", second.x_session.head)
    assert again.answers == second.answers, "a repeat has the same bits"
    assert again.x_session.m == grid(second.x_session.history_tokens)

    at_once = client.decide("life-whole", messages=whole[:9], questions=QUESTIONS)
    assert at_once.answers == second.answers, "append or messages, resumed or not: the same bits"

    listed = client.session("life")
    assert listed["id"] == "life"
    assert listed["head"] == second.x_session.head
    assert [s["number"] for s in listed["steps"]][:2] == [1, 2]
    assert any(c["m"] == first.x_session.history_tokens // 64 * 64 for s in listed["steps"] for c in s["checkpoints"])
    assert {"life", "life-whole"} <= {s["id"] for s in client.sessions()}

    client.delete("life")
    client.delete("life-whole")
    with pytest.raises(NotFound):
        client.session("life")
    with pytest.raises(NotFound):
        client.delete("life")
    fresh = client.decide("life", messages=whole[:9], questions=QUESTIONS)
    assert fresh.x_session is not None
    assert fresh.x_session.m == 0, "what only the session held went with it"
    assert fresh.answers == second.answers, "cold and resumed: the same bits"
    client.delete("life")


def test_a_fork_of_the_history_by_an_old_head(client: Client) -> None:
    whole = history("forks")
    first = client.decide("f", messages=whole[:6], questions=BRANCH)
    assert first.x_session is not None
    client.decide("f", append=whole[6:8], head=first.x_session.head, questions=BRANCH)
    other = client.decide("f", append=[message(50)], head=first.x_session.head, questions=BRANCH)
    assert other.x_session is not None
    assert other.x_session.reason == "fork"
    assert other.x_session.m == grid(first.x_session.history_tokens)
    cold = client.decide("f-cold", messages=[*whole[:6], message(50)], questions=BRANCH)
    assert cold.answers == other.answers


def test_an_edit_in_the_middle_goes_back_to_before_it(client: Client) -> None:
    whole = history("edits")
    base = client.decide("e", messages=whole[:7], questions=BRANCH)
    client.decide("e", messages=whole[:13], questions=BRANCH)
    edited = [*whole[:8], {**whole[8], "content": "another output"}, *whole[9:]]
    reply = client.decide("e", messages=edited, questions=BRANCH)
    assert reply.x_session is not None
    assert base.x_session is not None
    assert reply.x_session.reason == "edit"
    assert reply.x_session.m == grid(base.x_session.history_tokens)
    accounted(reply)


def test_an_unknown_head_names_the_current_one(client: Client) -> None:
    reply = client.decide("h", messages=HISTORY[:3], questions=BRANCH)
    with pytest.raises(HeadConflict) as e:
        client.decide("h", append=[message(1)], head="0" * 32, questions=BRANCH)
    assert reply.x_session is not None
    assert e.value.head == reply.x_session.head


def test_a_forked_session_shares_everything(client: Client) -> None:
    whole = history("copies")
    first = client.decide("a", messages=whole[:9], questions=BRANCH)
    assert first.x_session is not None
    forked = client.fork("a", "b")
    assert (forked["id"], forked["head"]) == ("b", first.x_session.head)
    with pytest.raises(Conflict):
        client.fork("a", "b")
    client.delete("a")
    reply = client.decide("b", append=whole[9:10], head=forked["head"], questions=BRANCH)
    assert reply.x_session is not None
    assert reply.x_session.m == grid(first.x_session.history_tokens), "the fork keeps what it shares"


def test_candidates_are_judged_and_do_not_enter_the_history(client: Client) -> None:
    calls = {"name": "bash", "arguments": '{"command": "rm -rf /"}'}
    candidates = {
        "rm": {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": calls}]}]},
        "wörd 2": {"messages": [message(30), message(31)]},
    }
    reply = client.decide("c", messages=HISTORY[:6], questions=QUESTIONS, candidates=candidates)
    accounted(reply)
    assert reply.x_candidates is not None
    assert set(reply.x_candidates) == {"rm", "wörd 2"}
    as_if = client.decide("c-as-if", messages=[*HISTORY[:6], message(30), message(31)], questions=QUESTIONS)
    # Chunks of a candidate start at its own fork, those of a trunk on the grid: equal up to rounding, not to the bit.
    assert reply.x_candidates["wörd 2"].answers["failed"].noul == pytest.approx(as_if.answers["failed"].noul, abs=1e-4)
    bare = client.decide("c-bare", messages=HISTORY[:6], questions=QUESTIONS)
    assert bare.answers == reply.answers, "candidates beside it change no bit of the bare answers"
    assert reply.x_session is not None
    after = client.decide("c", append=HISTORY[6:7], head=reply.x_session.head, questions=BRANCH)
    plain = client.decide("c-plain", messages=HISTORY[:7], questions=BRANCH)
    assert after.answers == plain.answers


def test_systemone_with_a_session_is_the_same_step(client: Client) -> None:
    whole = history("plain clients")
    first = client.systemone(whole[:6], QUESTIONS, session={"id": "s1"})
    assert first.x_session is not None
    assert first.x_session.id == "s1"
    second = client.systemone(whole[6:8], QUESTIONS, session={"id": "s1", "head": first.x_session.head})
    assert second.x_session is not None
    assert (second.x_session.reason, second.x_session.m) == ("append", grid(first.x_session.history_tokens))
    assert client.decide("s2", messages=whole[:8], questions=QUESTIONS).answers == second.answers
    assert client.systemone(whole[:8], QUESTIONS).answers == second.answers, "no session, the same prompt, the same bits"


def test_a_growing_state_is_reused_without_a_session(client: Client) -> None:
    text = "A log of what happened. " * 60
    first = client.systemone(text, BRANCH)
    assert first.usage.x_cached_tokens == 0
    same = wait_for_reuse(client, text)
    assert same.answers == first.answers
    grown = client.systemone(text + " And then more happened." * 5, BRANCH)
    assert grown.usage.x_cached_tokens == same.usage.x_cached_tokens


def wait_for_reuse(client: Client, text: str) -> Reply:
    """Publishing runs behind the answer."""
    for _ in range(100):
        reply = client.systemone(text, BRANCH)
        if reply.usage.x_cached_tokens:
            return reply
        time.sleep(0.02)
    raise AssertionError("never reused")


def two_steps(start: Start, store: Path, restart: bool) -> Reply:
    """The second of two steps, with kill -9 and a new server between them or without."""
    server = start(store)
    with server.client() as client:
        first = client.decide("r", messages=HISTORY[:9], questions=QUESTIONS)
        assert first.x_session is not None
        durable = [False]
        while not all(durable):  # shown as durable: from here on it survives
            time.sleep(0.02)
            durable = [s["durable"] for s in client.session("r")["steps"]]
    if restart:
        server.kill()
        server = start(store)
    with server.client() as client:
        second = client.decide("r", append=HISTORY[9:], head=first.x_session.head, questions=QUESTIONS)
    assert server.stop() == 0
    assert second.x_session is not None
    assert second.x_session.m == grid(first.x_session.history_tokens)
    return second


def test_a_restart_between_two_steps_keeps_m(start: Start, tmp_path: Path) -> None:
    with_restart, without = two_steps(start, tmp_path / "a", True), two_steps(start, tmp_path / "b", False)
    assert with_restart.x_session is not None
    assert without.x_session is not None
    assert with_restart.x_session.m == without.x_session.m
    assert with_restart.answers == without.answers


@pytest.mark.bars
def test_bar_a_restart_keeps_m(start: Start, tmp_path: Path, bar: Any) -> None:
    with_restart, without = two_steps(start, tmp_path / "a", True), two_steps(start, tmp_path / "b", False)
    assert with_restart.x_session is not None
    assert without.x_session is not None
    bar("restart_moves_m_by", abs(with_restart.x_session.m - without.x_session.m), limit=0, m=without.x_session.m)


def test_ids_of_any_text_come_back(client: Client) -> None:
    ids = ["with space", "dots.and/slash", "😀", "한글", "q" * 300, '"quoted"', "\\", "e\u0301", "é", "\x07"]
    question: dict[str, Any] = dict.fromkeys(ids, QUESTIONS["failed"])
    reply = client.systemone("s", question)
    assert list(reply.answers) == ids
    assert len({reply.answers[i].noul for i in ids}) == 1, "an id is not shown to the model"
    for session in ("with space", "😀 x", "a%2Fb", "q?x=1#y"):
        assert client.decide(session, messages=HISTORY[:1], questions=BRANCH).x_session.id == session  # type: ignore[union-attr]
        assert client.session(session)["id"] == session
