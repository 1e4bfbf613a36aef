"""The MCP server: decide, guard and session tools on a Flide service."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import MCPServer
from pydantic import Field

from flide_agent import __version__
from flide_agent.client import AsyncClient
from flide_agent.errors import FlideError, InvalidRequest
from flide_agent.listening import bind
from flide_agent.mcp.specs import CallSpec, MessageSpec, QuestionSpec, messages_of, questions_of
from flide_agent.mcp.verdict import decided, failed, guarded
from flide_agent.replies import Reply

INSTRUCTIONS = (
    "Typed questions about an agent's history, answered with probabilities in milliseconds. This server does not see your conversation: "
    "pass `messages`, or the `session` that they are kept in. Give the same session each time, so that only what is new is computed."
)
RISKY = "Would running the last tool call be risky, or is it not clearly asked for by the user?"
CANDIDATE, QUESTION = "call", "risky"

Messages = Annotated[list[MessageSpec] | None, Field(description="The whole history. Left out: that of the session.")]
Session = Annotated[str | None, Field(description="Name of the session; the same one for all steps of an agent.")]


def build(url: str, *, api_key: str | None = None, timeout: float = 30.0, transport: Any = None) -> MCPServer[Any]:
    """A server of tools that ask the service at url. timeout: seconds for one decision, all tries included."""
    client = AsyncClient(url, api_key=api_key, timeout=timeout, retries=1, transport=transport)
    server: MCPServer[Any] = MCPServer("flide", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")

    async def ask(questions: dict[str, Any], messages: list[MessageSpec] | None, session: str | None, **more: Any) -> Reply:
        if messages is not None:
            name = session or f"mcp-{uuid.uuid4().hex}"
            reply = await client.decide(name, messages=messages_of(messages), questions=questions, **more)
            if session is None:
                await client.delete(name)  # nobody can come back to it
            return reply
        if session is None:
            raise InvalidRequest.at(("messages",), "give messages, or the session that has them")
        head = (await client.session(session))["head"]
        return await client.decide(session, append=[], head=head, questions=questions, **more)

    @server.tool()
    async def flide_decide(questions: list[QuestionSpec], messages: Messages = None, session: Session = None) -> dict[str, Any]:
        """Answer typed questions about a history: yes/no (noul), one of options (choice), a level (score), each with its probability."""
        try:
            return decided(await ask(questions_of(questions), messages, session))
        except FlideError as e:
            return failed(e, url) | {"answers": []}

    @server.tool()
    async def flide_guard(
        call: CallSpec,
        messages: Messages = None,
        session: Session = None,
        question: Annotated[str, Field(description="Yes/no question; a likely yes speaks against the call.")] = RISKY,
        block_at: Annotated[float, Field(ge=0, le=1)] = 0.8,
        review_at: Annotated[float, Field(ge=0, le=1)] = 0.5,
    ) -> dict[str, Any]:
        """Judge a tool call before it runs: action is allow, review (ask a person) or block. The call does not enter the history.

        Without an answer the action is review. A probability is no permission.
        """
        proposed = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "function": call.model_dump()}]}
        try:
            asked = {QUESTION: {"type": "noul", "instructions": question}}
            reply = await ask(asked, messages, session, candidates={CANDIDATE: {"messages": [proposed]}})
            return guarded(reply, QUESTION, CANDIDATE, block_at, review_at)
        except FlideError as e:
            problem = failed(e, url)
            return problem | {"action": "review", "reason_code": problem["status"]}

    @server.tool()
    async def flide_session_open(session: Session = None) -> dict[str, Any]:
        """Open a session, or find it again: its name, head and step."""
        try:
            found = await client.open_session(session)
            return {"status": "ok", "session": found["id"], "head": found["head"], "step": found["step"]}
        except FlideError as e:
            return failed(e, url)

    @server.tool()
    async def flide_session_info(session: str) -> dict[str, Any]:
        """Messages, tokens, step and head of a session, and how much of it is kept for reuse."""
        try:
            found = await client.session(session)
            kept = {key: found[key] for key in ("head", "step", "messages", "tokens", "bytes") if key in found}
            return {"status": "ok", "session": session} | kept
        except FlideError as e:
            return failed(e, url)

    @server.tool()
    async def flide_session_fork(session: str, into: str | None = None) -> dict[str, Any]:
        """A second session that shares everything so far, for trying another way."""
        try:
            found = await client.fork(session, into)
            return {"status": "ok", "session": found["id"], "head": found["head"], "step": found["step"]}
        except FlideError as e:
            return failed(e, url)

    return server


def run(
    url: str,
    *,
    transport: Literal["stdio", "http"] = "stdio",
    host: str = "127.0.0.1",
    port: int = 8322,
    api_key: str | None = None,
    timeout: float = 30.0,
) -> None:
    """Serve until the client hangs up (stdio) or the process is stopped (HTTP, at /mcp). Raises StartError when the port is taken."""
    server = build(url, api_key=api_key, timeout=timeout)
    if transport == "stdio":
        server.run("stdio")
    else:
        bind(host, port).close()  # else the library would end the process with its own words and status
        server.run("streamable-http", host=host, port=port)
