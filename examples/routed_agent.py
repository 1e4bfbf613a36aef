"""An agent whose chat model is chosen at every step, by a question about the whole history.

    flide-agent serve                      # in another terminal
    python examples/routed_agent.py [URL]

Both chat models are scripted, so that this runs without a key; agent, routing and service are real. Needs `flide-agent[langchain]`.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_flide import FlideDecisionModel, FlideEvent, FlideMiddleware, ModelChoice, RoutePolicy
from langchain_flide.testing import ScriptedChat, call
from toy_tools import lay_out, tools_in

from flide_agent.client import DEFAULT_URL

LINES: list[Any] = [
    AIMessage("I look at the function.", tool_calls=[call("read_file", path="slugs/slugify.py")]),
    AIMessage("And at the tests.", tool_calls=[call("read_file", path="tests/test_slugify.py")]),
    AIMessage("Which of them fail?", tool_calls=[call("run_tests")]),
    "The split leaves empty words; dropping them would fix two of the failures.",
]


def chat(label: str) -> ScriptedChat:
    """A model that says the next line, whoever said the one before, and who it is."""

    def say(messages: list[BaseMessage]) -> Any:
        line = LINES[sum(isinstance(m, AIMessage) for m in messages)]
        return line.model_copy(update={"name": label}) if isinstance(line, AIMessage) else AIMessage(line, name=label)

    return ScriptedChat(say, label)


def show(event: FlideEvent) -> None:
    said = f"{event.data['label']} ({event.status})"
    shares = ", ".join(f"{label} {p:.2f}" for label, p in event.data["probabilities"].items())
    reuse = (
        f"   [{event.reuse.reason}, {event.reuse.reused_tokens} of {event.reuse.history_tokens} tokens reused]"
        if event.reuse
        else ""
    )
    print(f"  {said}: {shares}{reuse}{'   untrained' if event.untrained else ''}")


def main() -> int:
    url = sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URL
    route = RoutePolicy(
        choices={
            "small": ModelChoice(chat("small"), "The next step is plain: read a file, run the tests, repeat a known pattern."),
            "large": ModelChoice(chat("large"), "The next step needs thought: find a cause, design a change, weigh a risk."),
        },
        instructions="Which model should take the agent's next step?",
        default="large",  # when unsure, rather pay
        switch_margin=0.1,
    )
    middleware = FlideMiddleware(decisions=FlideDecisionModel(base_url=url), route=route, on_decision=show)
    with tempfile.TemporaryDirectory() as folder:
        lay_out(Path(folder))
        agent = create_agent(chat("large"), tools_in(Path(folder)), middleware=[middleware])
        task = HumanMessage("Why do the tests of slugs fail?")
        found = agent.invoke({"messages": [task]}, {"configurable": {"thread_id": uuid.uuid4().hex}})
    for message in found["messages"]:
        if isinstance(message, AIMessage):
            print(f"{message.name}: {message.text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
