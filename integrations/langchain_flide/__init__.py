"""langchain_flide: decisions about an agent's history for LangChain and LangGraph, on top of flide_agent.client.

Reading order: history (messages as the service reads them), states, questions, responses, identity, connection, decision_model; then the
parts on top of it: specs and tool; verdicts, policies, asking, guarding, routing, watching (pure, no LangChain agents); reviewing, hearing,
middleware, firewall, graph (with hooks and nodes). testing has the fake service.

Names load on first use. The middleware and the graph parts need `pip install "flide-agent[langchain]"`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_flide.decision_model import FlideDecisionModel
    from langchain_flide.errors import FlideBlocked
    from langchain_flide.events import FlideEvent
    from langchain_flide.firewall import firewall_tool_node
    from langchain_flide.graph import flide_edge, flide_node, flide_route
    from langchain_flide.middleware import FlideMiddleware
    from langchain_flide.policies import FailPolicy, GuardPolicy, ModelChoice, ProposedCall, RoutePolicy, Watch
    from langchain_flide.responses import FlideResponse, Reuse
    from langchain_flide.reviewing import flide_when
    from langchain_flide.tool import FlideDecider
    from langchain_flide.verdicts import Verdict

_HOMES = {
    "FailPolicy": "policies",
    "FlideBlocked": "errors",
    "FlideDecider": "tool",
    "FlideDecisionModel": "decision_model",
    "FlideEvent": "events",
    "FlideMiddleware": "middleware",
    "FlideResponse": "responses",
    "GuardPolicy": "policies",
    "ModelChoice": "policies",
    "ProposedCall": "policies",
    "Reuse": "responses",
    "RoutePolicy": "policies",
    "Verdict": "verdicts",
    "Watch": "policies",
    "firewall_tool_node": "firewall",
    "flide_edge": "graph",
    "flide_node": "graph",
    "flide_route": "graph",
    "flide_when": "reviewing",
}

__all__ = [
    "FailPolicy",
    "FlideBlocked",
    "FlideDecider",
    "FlideDecisionModel",
    "FlideEvent",
    "FlideMiddleware",
    "FlideResponse",
    "GuardPolicy",
    "ModelChoice",
    "ProposedCall",
    "Reuse",
    "RoutePolicy",
    "Verdict",
    "Watch",
    "firewall_tool_node",
    "flide_edge",
    "flide_node",
    "flide_route",
    "flide_when",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'langchain_flide' has no attribute {name!r}")
    value = getattr(import_module(f"langchain_flide.{home}"), name)
    globals()[name] = value
    return value
