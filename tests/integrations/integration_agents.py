"""Small agents for the tests: scripted chats, tools that note that they ran, a guard."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import httpx
import numpy as np
from langchain.agents import create_agent
from langchain_core.decisions import Noul, Question
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langchain_flide import FailPolicy, FlideDecisionModel, FlideMiddleware, GuardPolicy
from langchain_flide.testing import ScriptedChat

from flide_agent.default_model import DIRECTORY
from flide_agent.messages import canonical_all
from flide_agent.prompts import Prompts

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


class Recorder(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Passes requests on to a real service (or a fake) and keeps bodies and replies. seconds, cpu: spent below, all requests."""

    def __init__(self, below: Any = None) -> None:
        self.below = below or httpx.HTTPTransport()
        self.steps: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.seconds = self.cpu = 0.0
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        start, cpu = time.perf_counter(), time.process_time()
        response = self.below.handle_request(request)
        content = response.read()
        answer = httpx.Response(response.status_code, content=content, request=request)
        with self._lock:
            self.steps.append((json.loads(request.content), json.loads(content)))
            self.seconds += time.perf_counter() - start  # a real transport makes its response below too
            self.cpu += time.process_time() - cpu
        return answer

    def model(self, url: str = "http://below") -> FlideDecisionModel:
        return FlideDecisionModel(base_url=url, timeout=60, transport=self)

    @property
    def sent(self) -> list[list[dict[str, Any]]]:
        return [body["messages"] for body, _ in self.steps]

    @property
    def reuse(self) -> list[dict[str, Any]]:
        return [reply["x_session"] for _, reply in self.steps]


def watched(url: str, recorder: Recorder | None = None, **given: Any) -> FlideMiddleware:
    """A middleware that guards and watches every step and stops nothing."""
    decisions = FlideDecisionModel(base_url=url, timeout=60, transport=recorder)
    policy = GuardPolicy(questions=RISKY, block_at=None, review_at=None)
    return FlideMiddleware(**{"decisions": decisions, "guard": policy, "watch": STUCK, "fail": FailPolicy(timeout=60)} | given)


@cache
def prompts() -> Prompts:
    return Prompts.load(DIRECTORY)


def tokens_of(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Any:
    """The trunk that the service reads for these messages."""
    return prompts().history(tools or [], canonical_all(messages)).tokens


def common(a: Any, b: Any) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def best(history: Any, earlier: list[Any]) -> int:
    """The deepest grid position that any earlier history allows."""
    return max((common(history, e) for e in earlier), default=0) // 64 * 64
