"""langchain_flide: decisions about an agent's history for LangChain and LangGraph, on top of flide_agent.client.

Reading order: history (messages as the service reads them), states, questions, responses, identity, connection, decision_model; then the
parts on top of it: tool, verdicts, policies, guarding, routing, watching, middleware, graph; testing has the fake service.

Names load on first use. The middleware and the graph parts need `pip install "flide-agent[langchain]"`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_flide.decision_model import FlideDecisionModel
    from langchain_flide.responses import FlideResponse, Reuse

_HOMES = {
    "FlideDecisionModel": "decision_model",
    "FlideResponse": "responses",
    "Reuse": "responses",
}

__all__ = ["FlideDecisionModel", "FlideResponse", "Reuse"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'langchain_flide' has no attribute {name!r}")
    value = getattr(import_module(f"langchain_flide.{home}"), name)
    globals()[name] = value
    return value
