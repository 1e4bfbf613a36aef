"""FlideDecider: a tool with which an agent asks typed questions about its own history."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
from langchain_core.decisions import Question
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from pydantic import ConfigDict, Field

from langchain_flide.connection import Inquiry
from langchain_flide.decision_model import FlideDecisionModel
from langchain_flide.errors import FlideAuthenticationError, FlideLangChainError, FlideQuestionError
from langchain_flide.history import Ephemeral, History, history_of
from langchain_flide.questions import certainty, checked, shown
from langchain_flide.responses import FlideResponse
from langchain_flide.specs import args_schema, correction, escaped, plain, read_specs
from langchain_flide.states import Seen

DESCRIPTION = (
    "Ask typed questions about this conversation so far and get answers with probabilities: yes/no (noul), one of several options "
    "(choice), or a level (score). Use it before a consequential decision. The conversation is read for you: ask only the questions."
)
FOCUS = "focus"
NO_HISTORY = "history: none"
Content = tuple[str, dict[str, Any]]


class FlideDecider(BaseTool):
    """Answers an agent's questions about its history. The history is injected by LangGraph and hidden from the model.

        agent = create_agent(model, [FlideDecider(presets={"done": Noul(instructions="Is the task done?")})])

    Content: one line an answer, `id: label (p=0.83)`. Artifact: answers, verdicts, reuse, latency_ms, model, session, status.
    When the service is unavailable the tool abstains, so that the agent goes on (`on_unavailable`: error lets the model see a failed
    call, raise stops the run). Malformed questions are answered with what is wrong, so that the model can correct itself.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    name: str = "flide_decide"
    description: str = DESCRIPTION
    response_format: Literal["content", "content_and_artifact"] = "content_and_artifact"
    handle_tool_error: Any = True
    handle_validation_error: Any = correction

    decisions: FlideDecisionModel = Field(default_factory=FlideDecisionModel, exclude=True)
    presets: dict[str, Any] = Field(default_factory=dict)
    """Questions that the model may ask by id."""
    allow_custom: bool = True
    """False: presets only."""
    max_questions: int = Field(default=8, ge=1)
    history: Literal["state", "none"] = "state"
    """none: the questions are about the focus alone."""
    messages_key: str = "messages"
    history_provider: Callable[[RunnableConfig], Sequence[BaseMessage]] | None = Field(default=None, exclude=True)
    """Where messages come from outside a graph."""
    ephemeral: Ephemeral | None = Field(default=None, exclude=True)
    """Messages that are there for one call only; they are read after the history and do not enter it."""
    include_pending_call: bool = False
    """Whether the history has the message that makes this very call."""
    on_unavailable: Literal["abstain", "error", "raise"] = "abstain"
    min_confidence: float | Mapping[str, float] | None = None
    """Certainty (0..1; |2p - 1| for yes/no) below which an answer is `unsure`: one for all, or by id."""

    def __init__(self, **given: Any) -> None:
        presets = given.get("presets") or {}
        if presets:
            checked(presets, "presets")
        if not presets and given.get("allow_custom") is False:
            raise FlideQuestionError("presets: needed when allow_custom is False")
        given.setdefault("args_schema", args_schema(list(presets), given.get("allow_custom", True)))
        super().__init__(**given)

    def _run(
        self,
        questions: list[Any],
        focus: str | None = None,
        runtime: Any = None,
        *,
        config: RunnableConfig,
        run_manager: CallbackManagerForToolRun | None = None,
    ) -> Content:
        asked = self._asked(questions)
        history = self._history(runtime, config)
        try:
            return self._told(self.decisions.ask(self._inquiry(asked, history, focus)), history)
        except FlideLangChainError as e:
            return self._without(e)

    async def _arun(
        self,
        questions: list[Any],
        focus: str | None = None,
        runtime: Any = None,
        *,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
    ) -> Content:
        asked = self._asked(questions)
        history = self._history(runtime, config)
        try:
            return self._told(await self.decisions.aask(self._inquiry(asked, history, focus)), history)
        except FlideLangChainError as e:
            return self._without(e)

    def _asked(self, specs: list[Any]) -> dict[str, Question]:
        try:
            return read_specs(specs, self.presets, self.max_questions)
        except FlideQuestionError as e:
            raise ToolException(correction(e)) from None

    def _history(self, runtime: Any, config: RunnableConfig) -> History | None:
        if self.history == "none":
            return None
        messages: Sequence[BaseMessage] | None = None
        state = getattr(runtime, "state", None)
        if state is not None:
            messages = state.get(self.messages_key) if isinstance(state, Mapping) else getattr(state, self.messages_key, None)
        elif self.history_provider is not None:
            messages = self.history_provider(config)
        if messages is None:
            return None
        if not self.include_pending_call:
            messages = before_call(messages, getattr(runtime, "tool_call_id", None))
        return history_of(messages, self.ephemeral)

    def _inquiry(self, asked: dict[str, Question], history: History | None, focus: str | None) -> Inquiry:
        wire = checked(asked)
        if history is None:
            return Inquiry(Seen(plain=focus or ""), wire)
        tail = [*history.tail, {"role": FOCUS, "content": focus}] if focus else history.tail
        return Inquiry(Seen(History(history.trunk, tail)), wire)

    def _told(self, reply: FlideResponse, history: History | None) -> Content:
        lines, verdicts = [], {}
        for key, answer in reply.answers.items():
            label, p = shown(answer)
            least = self.min_confidence.get(key) if isinstance(self.min_confidence, Mapping) else self.min_confidence
            unsure = least is not None and certainty(answer) < least
            verdicts[key] = "abstain" if unsure else "ok"
            # Two decimals and a fixed order: this text enters the history, and replays must find it unchanged.
            # Names and labels are the model's or a text's own words: none of them may read as a line of another answer.
            lines.append(f"{plain(key)}: {'unsure' if unsure else plain(label)} (p={p:.2f})")
        if history is None:
            lines.append(NO_HISTORY)
        artifact = reply.model_dump(
            mode="json", include={"answers", "reuse", "latency_ms", "model", "request_id", "session", "untrained"}
        )
        return "\n".join(lines), artifact | {"status": "ok", "verdicts": verdicts, "history": history is not None}

    def _without(self, error: FlideLangChainError) -> Content:
        """What to do without an answer. A wrong key or a request that the service refuses is never passed over."""
        if self.on_unavailable == "raise":
            raise error
        if isinstance(error, FlideQuestionError):
            raise ToolException(correction(error)) from None
        if self.on_unavailable == "error" or isinstance(error, FlideAuthenticationError):
            raise ToolException(escaped(f"No decision: {error}")) from None
        why = f"timed out after {self.decisions.timeout:g} s" if error.status == "timeout" else f"service {error.status}"
        if error.status == "overflow":
            why = escaped(str(error))
        return f"No decision: {why}; proceed as if unanswered.", {"status": error.status, "answers": {}, "verdicts": {}}


def before_call(messages: Sequence[BaseMessage], tool_call_id: str | None) -> Sequence[BaseMessage]:
    """The messages before the one that makes the call; all of them when none does."""
    for i in range(len(messages) - 1, -1, -1):
        message = messages[i]
        if isinstance(message, AIMessage) and any(c["id"] == tool_call_id for c in message.tool_calls):
            return messages[:i]
    return messages
