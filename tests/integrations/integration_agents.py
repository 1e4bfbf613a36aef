"""Small agents for the tests: scripted chats, tools that note that they ran, a guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.decisions import Noul, Question
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langchain_flide.testing import ScriptedChat

RISKY: dict[str, Question] = {"risky": Noul(instructions="Is the last action risky?")}
STUCK: dict[str, Question] = {"stuck": Noul(instructions="Is the agent stuck?")}
ALWAYS, NEVER = {"block_at": 0.0, "review_at": None}, {"block_at": None, "review_at": None}
"""Thresholds that any probability reaches, and that none does."""
REVIEW = {"block_at": None, "review_at": 0.0}


class Body:
    """Tools by name; `ran` has name and arguments of each body that ran, in order."""

    def __init__(self, result: str = "done") -> None:
        self.ran: list[tuple[str, str]] = []
        self.result = result

    def tool(self, name: str) -> BaseTool:
        @tool(name)
        def body(arg: str = "") -> str:
            """A tool."""
            self.ran.append((name, arg))
            return f"{self.result} {arg}"

        return body

    def tools(self, *names: str) -> list[BaseTool]:
        return [self.tool(name) for name in names]


def agent(script: Any, tools: Sequence[BaseTool], *middleware: Any, saver: Any = None, **more: Any) -> Any:
    chat = script if isinstance(script, ScriptedChat) else ScriptedChat(script)
    return create_agent(chat, list(tools), middleware=list(middleware), checkpointer=saver, **more)


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def says(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def calling(*calls: Any, text: str = "I act.") -> AIMessage:
    return AIMessage(text, tool_calls=list(calls))


def results(messages: Sequence[BaseMessage]) -> list[ToolMessage]:
    return [m for m in messages if isinstance(m, ToolMessage)]


def unanswered(messages: Sequence[BaseMessage]) -> set[str | None]:
    made = {c["id"] for m in messages if isinstance(m, AIMessage) for c in m.tool_calls}
    return made - {m.tool_call_id for m in results(messages)}
