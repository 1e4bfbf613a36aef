"""A first decision with the Python client, and a second one that computes only what is new.

    flide-agent serve                      # in another terminal
    python examples/first_decision.py [URL]

Needs the base install alone: pip install flide-agent
"""

from __future__ import annotations

import sys
from typing import Any

from flide_agent.client import DEFAULT_URL, Client
from flide_agent.errors import FlideError
from flide_agent.replies import Reply

QUESTIONS = {
    "failed": {"type": "noul", "instructions": "Did the last command that the agent ran fail?"},
    "next": {
        "type": "choice",
        "instructions": "Which kind of tool will the agent use next?",
        "criteria": {"look": "read a file or list a folder", "edit": "change a file", "run": "run a program", "submit": None},
    },
    "risk": {
        "type": "score",
        "instructions": "How risky is it to let the agent go on?",
        "criteria": ["it only reads", "its changes are easy to undo", "it may lose work"],
    },
}

HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "You fix bugs in a small repository, one command at a time."},
    {"role": "user", "content": "The tests of slugs fail. Find out why and fix it."},
    {"role": "assistant", "content": "I run the tests first."},
    {"role": "tool", "content": "FAILED tests/test_slugify.py: 'rock---roll' != 'rock-roll'"},
]


def show(reply: Reply) -> None:
    """Print the answers, and what the step reused and computed."""
    for name, answer in reply.answers.items():
        print(f"  {name}: {answer}")
    step = reply.x_session
    if step is not None:
        print(
            f"  {step.reason}: {step.history_tokens} tokens of history, {step.reused_tokens} reused from m = {step.m}, ", end=""
        )
        print(f"{step.computed_tokens} computed, {step.latency.total:.1f} ms")
    if reply.x_out_of_scope:
        print(f"  out of scope of the model's card, so a guess: {', '.join(sorted(reply.x_out_of_scope))}")
    if reply.x_untrained:
        print("  untrained: random weights, so these answers mean nothing yet")


def main() -> int:
    with Client(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URL) as client:
        try:
            session = client.open_session()["id"]
            print("The history so far:")
            first = client.decide(session, messages=HISTORY, questions=QUESTIONS)
            show(first)
            print("One message more, sent alone after the head of the reply before:")
            assert first.x_session is not None
            more = [{"role": "assistant", "content": "The split leaves empty words. I look at the function."}]
            show(client.decide(session, append=more, head=first.x_session.head, questions=QUESTIONS))
            client.delete(session)
        except FlideError as e:
            print(f"{type(e).__name__}: {e.message}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
