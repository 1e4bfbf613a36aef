"""FlideDecisionModel: the service as a LangChain decision model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.decisions import BaseDecisionModel, ClassifierResponse, Question, State
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    ensure_config,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
)
from langchain_core.utils import from_env, secret_from_env
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from flide_agent.client import DEFAULT_URL
from langchain_flide.connection import Connection, Inquiry
from langchain_flide.history import Wire
from langchain_flide.identity import SessionOf, session_of
from langchain_flide.questions import checked
from langchain_flide.responses import FlideResponse
from langchain_flide.states import read_state


class FlideDecisionModel(BaseDecisionModel):
    """Answers questions about a state with a Flide service, computing only what is new in it.

        decisions = FlideDecisionModel()                       # a service on this machine
        reply = decisions.invoke(
            {"state": messages, "questions": {"stuck": Noul(instructions="Is the agent stuck?")}},
            {"configurable": {"thread_id": "run-1"}},
        )
        reply.nouls["stuck"].noul, reply.reuse.reason, reply.reuse.m

    A state of messages (or `{"messages": [...], ...}`) is a history: it becomes a step of the session named by `session`, by
    `configurable.flide_session`, or by the thread. Whatever else stands beside the messages is read after them. Text and other JSON are
    answered without a session. Errors are those of `langchain_flide.errors`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: str = "default"
    """A name that the service serves; `default` is whatever it has."""
    base_url: str = Field(default_factory=from_env("FLIDE_BASE_URL", default=DEFAULT_URL))
    api_key: SecretStr | None = Field(default_factory=secret_from_env("FLIDE_API_KEY", default=None), exclude=True, repr=False)
    namespace: str = "default"
    """Keeps the sessions of two applications with the same thread ids apart."""
    session: Any = Field(default=None, exclude=True)
    """A session's id, or a function of the config that gives one; None: from the config."""
    timeout: float = Field(default=10.0, gt=0)
    """Seconds for a whole call, all tries included."""
    max_retries: int = Field(default=1, ge=0)
    transport: Any = Field(default=None, exclude=True, repr=False)
    """An httpx transport, such as that of `FakeFlide`."""

    _connection: Connection = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._connection = Connection(
            self.base_url.rstrip("/"),
            None if self.api_key is None else self.api_key.get_secret_value(),
            model=None if self.model == "default" else self.model,
            namespace=self.namespace,
            timeout=self.timeout,
            retries=self.max_retries,
            transport=self.transport,
        )

    @property
    def _provider(self) -> str:
        return "flide"

    @property
    def lc_secrets(self) -> dict[str, str]:
        return {"api_key": "FLIDE_API_KEY"}

    def _classify(self, state: State, questions: dict[str, Question]) -> ClassifierResponse:
        return self._connection.ask(Inquiry(read_state(state), checked(questions)), self._session())

    async def _aclassify(self, state: State, questions: dict[str, Question]) -> ClassifierResponse:
        return await self._connection.aask(Inquiry(read_state(state), checked(questions)), self._session())

    def _session(self, config: RunnableConfig | None = None) -> str | None:
        chosen: SessionOf = self.session
        return session_of(ensure_config(config), chosen, self.namespace)

    def judge(
        self,
        state: State,
        questions: Mapping[str, Question],
        candidates: Mapping[str, list[Wire]] | None = None,
        config: RunnableConfig | None = None,
        *,
        deadline: float | None = None,
    ) -> FlideResponse:
        """Answers on the history and after each candidate, in one dispatch.

        candidates: id -> messages that the agent might add (`langchain_flide.history.call_message` makes one of a tool call). They are
        judged and do not enter the history. deadline: seconds, all tries included.
        """
        return self.ask(Inquiry(read_state(state), checked(questions), dict(candidates or {})), config, deadline)

    async def ajudge(
        self,
        state: State,
        questions: Mapping[str, Question],
        candidates: Mapping[str, list[Wire]] | None = None,
        config: RunnableConfig | None = None,
        *,
        deadline: float | None = None,
    ) -> FlideResponse:
        """`judge` for asyncio."""
        return await self.aask(Inquiry(read_state(state), checked(questions), dict(candidates or {})), config, deadline)

    def ask(self, inquiry: Inquiry, config: RunnableConfig | None = None, deadline: float | None = None) -> FlideResponse:
        """One inquiry, checked already, as a traced run like `invoke`'s. Where nobody listens, the run is not made."""
        traced = self._traced_config(config)
        if not get_callback_manager_for_config(traced).handlers:
            return self._connection.ask(inquiry, session_of(traced, self.session, self.namespace), deadline)

        def call(asked: Inquiry) -> ClassifierResponse:
            return self._connection.ask(asked, self._session(), deadline)

        reply: Any = self._call_with_config(call, inquiry, traced, run_type="llm")  # type: ignore[arg-type]
        return reply  # type: ignore[no-any-return]

    async def aask(
        self, inquiry: Inquiry, config: RunnableConfig | None = None, deadline: float | None = None
    ) -> FlideResponse:
        """`ask` for asyncio."""
        traced = self._traced_config(config)
        if not get_async_callback_manager_for_config(traced).handlers:
            return await self._connection.aask(inquiry, session_of(traced, self.session, self.namespace), deadline)

        async def call(asked: Inquiry) -> ClassifierResponse:
            return await self._connection.aask(asked, self._session(), deadline)

        reply: Any = await self._acall_with_config(call, inquiry, traced, run_type="llm")  # type: ignore[arg-type]
        return reply  # type: ignore[no-any-return]
