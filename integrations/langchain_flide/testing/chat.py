"""A chat model that says what its script says."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import Field, PrivateAttr

Line = AIMessage | str
Script = Sequence[Line] | Callable[[list[BaseMessage]], Line]


def call(name: str, id: str = "", **args: Any) -> ToolCall:
    """A tool call, for scripts."""
    return ToolCall(name=name, args=args, id=id or f"{name}-{uuid.uuid4().hex[:8]}", type="tool_call")


class ScriptedChat(BaseChatModel):
    """script: what to say at each call in turn, or a function of the messages. seen: the messages of every call."""

    script: Any
    label: str = Field(default="scripted")
    _next: int = PrivateAttr(default=0)
    _seen: list[list[BaseMessage]] = PrivateAttr(default_factory=list)
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    def __init__(self, script: Script, label: str = "scripted") -> None:
        given: dict[str, Any] = {"script": script, "label": label}
        super().__init__(**given)

    @property
    def seen(self) -> list[list[BaseMessage]]:
        return self._seen

    @property
    def _llm_type(self) -> str:
        return self.label

    def bind_tools(self, tools: Any, **_: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        with self._lock:
            self._seen.append(list(messages))
            if callable(self.script):
                line = self.script(messages)
            elif self._next < len(self.script):
                line = self.script[self._next]
            else:
                raise IndexError(f"the script has {len(self.script)} lines and was asked for one more")
            self._next += 1
        message = AIMessage(line) if isinstance(line, str) else line.model_copy(deep=True)
        return ChatResult(generations=[ChatGeneration(message=message)])
