"""A request that the service refuses is no outage, and a misspelt policy guards nothing silently."""

from __future__ import annotations

from typing import Any

import pytest
from integration_agents import RISKY, Body, agent, calling, says
from langchain_flide import FailPolicy, FlideDecisionModel, FlideMiddleware, GuardPolicy
from langchain_flide.errors import FlideQuestionError
from langchain_flide.testing import FakeFlide, call


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
