"""Questions and messages as MCP clients send them. Flat lists: models fill them more reliably than mappings of unions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from flide_agent.errors import InvalidRequest


class QuestionSpec(BaseModel):
    """One question about the history."""

    id: str = Field(description="Short name of the question.")
    type: Literal["noul", "choice", "score"] = Field(description="noul: yes or no; choice: one of options; score: a level.")
    instructions: str = Field(description="The whole question.")
    options: list[str] | None = Field(default=None, description="For choice.")
    levels: list[str] | None = Field(default=None, description="For score: descriptions from low to high.")

    def wire(self) -> dict[str, Any]:
        """As the service takes it."""
        question: dict[str, Any] = {"type": self.type, "instructions": self.instructions}
        if self.type == "choice":
            question["criteria"] = dict.fromkeys(self.options or [])
        elif self.type == "score":
            question["criteria"] = list(self.levels or [])
        return question


class MessageSpec(BaseModel):
    """One message of an agent's history."""

    role: str = Field(description="system, user, assistant or tool.")
    content: str
    name: str | None = None


class CallSpec(BaseModel):
    """A tool call that has not run."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


def questions_of(specs: list[QuestionSpec]) -> dict[str, Any]:
    """By id. Raises InvalidRequest for none and for an id that is there twice."""
    found: dict[str, Any] = {}
    for i, spec in enumerate(specs):
        if spec.id in found:
            raise InvalidRequest.at(("questions", i, "id"), "every question needs its own id")
        found[spec.id] = spec.wire()
    if not found:
        raise InvalidRequest.at(("questions",), "needs at least one question")
    return found


def messages_of(specs: list[MessageSpec]) -> list[dict[str, Any]]:
    return [spec.model_dump(exclude_none=True) for spec in specs]
