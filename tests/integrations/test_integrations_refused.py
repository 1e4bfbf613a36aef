"""A request that the service refuses is no outage, and a misspelt policy or tool guards nothing silently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from integration_agents import NEVER, RISKY, Body, agent, calling, says
from langchain.agents.middleware import AgentMiddleware
from langchain_flide import FailPolicy, FlideDecisionModel, FlideMiddleware, GuardPolicy, firewall_tool_node
from langchain_flide.errors import FlideQuestionError
from langchain_flide.testing import FakeFlide, ScriptedChat, call


@pytest.mark.parametrize(("status", "ran"), [(413, 0), (422, 0), (503, 1)])
def test_only_an_outage_follows_the_risk_of_the_tool(status: int, ran: int) -> None:
    body = Body()
    judge = FlideMiddleware(
        decisions=FakeFlide({"risky": 0.0}, fail_with=status).model(), guard=GuardPolicy(questions=RISKY, risk={"look": "read"})
    )
    agent([calling(call("look")), "Done."], body.tools("look"), judge).invoke(says("Go."))
    assert len(body.ran) == ran


def test_more_calls_than_the_service_judges_run_none_of_them(url: str) -> None:
    body = Body()
    judge = FlideMiddleware(
        decisions=FlideDecisionModel(base_url=url),
        guard=GuardPolicy(questions=RISKY, risk={"look": "read"}, block_at=0.0),
        fail=FailPolicy(timeout=60),
    )
    calls = calling(*(call("look", arg=str(i)) for i in range(65)))
    agent([calls, "Done."], body.tools("look"), judge).invoke(says("Go."))
    assert body.ran == []


@pytest.mark.parametrize(
    "wrong",
    [{"tools": "rm"}, {"exempt": "rm"}, {"on_review": "alow"}, {"on_block": "ended"}],
)
def test_a_misspelt_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FlideQuestionError):
        GuardPolicy(questions=RISKY, **wrong)


def test_a_misspelt_fail_policy_is_refused() -> None:
    with pytest.raises(FlideQuestionError, match="unknown"):
        FailPolicy(unknown="deny")  # type: ignore[arg-type]


NAMING: list[dict[str, Any]] = [
    {"tools": ["rm", "remove"]},
    {"exempt": ["remove"]},
    {"per_tool": {"remove": NEVER}},
    {"risk": {"remove": "irreversible"}},
]


@pytest.mark.parametrize("wrong", NAMING, ids=lambda w: next(iter(w)))
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_name_that_no_tool_has_is_refused_before_the_model_says_anything(wrong: dict[str, Any], mode: str) -> None:
    body, chat = Body(), ScriptedChat([calling(call("rm")), "Done."])
    judge = FlideMiddleware(decisions=FakeFlide().model(), guard=GuardPolicy(questions=RISKY, **wrong))
    acts = agent(chat, body.tools("rm", "ls"), judge)
    with pytest.raises(FlideQuestionError, match=r"'remove'.*ls, rm"):
        _ = acts.invoke(says("Go.")) if mode == "sync" else asyncio.run(acts.ainvoke(says("Go.")))
    assert chat.seen == []
    with pytest.raises(FlideQuestionError, match="'remove'"):
        firewall_tool_node(body.tools("rm", "ls"), GuardPolicy(questions=RISKY, **wrong), decisions=FakeFlide().model())


class Hides(AgentMiddleware):
    """Shows the model one tool less."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(request.override(tools=[tool for tool in request.tools if tool.name != "rm"]))


@pytest.mark.parametrize("by", ["schema", "object"])
def test_a_tool_that_another_middleware_hides_is_known_by_its_schema_or_as_an_object(by: str) -> None:
    body = Body()
    tools = body.tools("rm", "ls")
    policy: dict[str, Any] = {"tools": ["rm"]} if by == "schema" else {"tools": [tools[0]]}
    judge = FlideMiddleware(
        decisions=FakeFlide({"risky": 0.9}).model(),
        guard=GuardPolicy(questions=RISKY, **policy),
        tool_schemas=tools if by == "schema" else None,
    )
    agent([calling(call("rm"), call("ls")), "Done."], tools, Hides(), judge).invoke(says("Go."))
    assert [name for name, _ in body.ran] == ["ls"]
