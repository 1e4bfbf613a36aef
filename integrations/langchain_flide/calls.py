"""Verdicts for calls met in a tool's task: edited ones, and those of graphs without `create_agent`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables.config import ensure_config
from langgraph.prebuilt.tool_node import ToolCallRequest

from langchain_flide.asking import Asker
from langchain_flide.connection import Inquiry
from langchain_flide.guarding import Call, Docket, Guard, last_calls
from langchain_flide.history import history_of
from langchain_flide.identity import session_of
from langchain_flide.memo import Memo
from langchain_flide.questions import checked
from langchain_flide.verdicts import Verdict, call_key

Inquire = Callable[[Sequence[Any], dict[str, Any], dict[str, Any] | None], Inquiry]
Verdicts = dict[str, Verdict]


class CallJudge:
    """Asks about calls inside tools' tasks, each once.

    together: the first task asks about all calls of the message in one dispatch; otherwise each asks about its own.
    """

    def __init__(
        self, guard: Guard, asker: Asker, inquire: Inquire, *, messages_key: str = "messages", together: bool = False
    ) -> None:
        self.guard, self.asker, self.inquire = guard, asker, inquire
        self.messages_key, self.together = messages_key, together
        self._questions = checked(guard.policy.questions, "guard.questions")
        self._memo: Memo[Verdicts] = Memo()

    def judge(self, request: ToolCallRequest) -> Verdict:
        """The verdict on the request's call as it is now."""
        history, calls, place = self._case(request)
        if self.together and (found := self._memo.get((place, "all"), lambda: self._ask(history, calls, request))) is not None:
            verdict = found.get(call_key(request.tool_call))
            if verdict is not None:
                return verdict
        key = call_key(request.tool_call)
        return self._memo.get((place, key), lambda: self._ask(history, [request.tool_call], request))[key]

    async def ajudge(self, request: ToolCallRequest) -> Verdict:
        """`judge` for asyncio."""
        history, calls, place = self._case(request)
        if self.together:
            found = await self._memo.aget((place, "all"), lambda: self._aask(history, calls, request))
            verdict = found.get(call_key(request.tool_call))
            if verdict is not None:
                return verdict
        key = call_key(request.tool_call)
        return (await self._memo.aget((place, key), lambda: self._aask(history, [request.tool_call], request)))[key]

    def _case(self, request: ToolCallRequest) -> tuple[Sequence[BaseMessage], list[Call], str]:
        """The history before the message that makes the call, that message's open calls, and a name for the two in this thread."""
        state = request.state
        messages = state if isinstance(state, list) else state.get(self.messages_key, [])
        at, calls = last_calls(messages)
        history = messages if at < 0 else messages[:at]
        config = ensure_config()
        thread = session_of(config, None, "") or ""
        # Without an id of the message only the content tells one history from another.
        made_by = (messages[at].id if at >= 0 else None) or repr(history_of(history).trunk)
        named = f"{thread}\n{made_by}\n{len(messages)}\n{[call_key(c) for c in calls]}"
        place = hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()
        return history, calls, place

    def _docket(self, calls: Sequence[Call], request: ToolCallRequest) -> Docket:
        state: Any = request.state
        docket = self.guard.docket(calls, state if isinstance(state, Mapping) else {self.messages_key: state})
        return docket

    def _ask(self, history: Sequence[Any], calls: Sequence[Call], request: ToolCallRequest) -> Verdicts:
        docket = self._docket(calls, request)
        heard = self.asker.ask(self.inquire(history, self._questions, docket.candidates)) if docket.open else None
        return self.guard.verdicts(docket, heard)

    async def _aask(self, history: Sequence[Any], calls: Sequence[Call], request: ToolCallRequest) -> Verdicts:
        docket = self._docket(calls, request)
        heard = await self.asker.aask(self.inquire(history, self._questions, docket.candidates)) if docket.open else None
        return self.guard.verdicts(docket, heard)
