"""What an agent's author decides: which calls are judged and stopped, which model is used, when a run ends, what an outage means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.decisions import Question
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool

from langchain_flide.errors import FlideQuestionError
from langchain_flide.questions import checked
from langchain_flide.verdicts import Action, Threshold, Thresholds, Verdict, check_threshold, threshold_for

log = logging.getLogger("langchain_flide")
Risk = Literal["read", "write", "irreversible", "unknown"]
Moment = Literal["before", "proposed", "result"]
"""before: the history before the agent acts. proposed: with what the agent is about to do. result: when a tool's result has just come."""

BLOCKED = "This call was not run: it is not allowed here. Do not try the same call again; find another way or ask the user."


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A call that has not run: what a rule sees."""

    name: str
    args: dict[str, Any]
    id: str | None
    state: Mapping[str, Any]


Rule = Callable[[ProposedCall], Action | None]
"""A deterministic check: allow, review, block, or None for no opinion. The model can only make it stricter.

It runs when a call is judged and again before it runs. One that fails, or says anything else, blocks.
"""


@dataclass(frozen=True, kw_only=True)
class GuardPolicy:
    """Judges each tool call before it runs.

    questions: asked with the call as if it had been made. tools: which tools are judged; exempt: which are not. block_at, review_at: from
    where a call is blocked or reviewed; per_tool: {tool: {"block_at": ..., "review_at": ...}} in their place. min_confidence: an answer
    less certain than this means review. rules: run first, before any network. risk: for the fail policy, by tool.
    on_review: interrupt asks a person (needs a checkpointer); allow leaves reviews to HumanInTheLoopMiddleware with `flide_when`.
    on_block: message answers the call with `block_text`, end also ends the run, raise raises FlideBlocked.
    """

    questions: Mapping[str, Question]
    tools: Sequence[str | BaseTool] | Literal["*"] = "*"
    exempt: Sequence[str | BaseTool] = ()
    block_at: Thresholds | None = 0.8
    review_at: Thresholds | None = 0.5
    per_tool: Mapping[str, Mapping[str, Thresholds | None]] = field(default_factory=dict)
    min_confidence: float | None = None
    rules: Sequence[Rule] = ()
    risk: Mapping[str, Risk] = field(default_factory=dict)
    on_review: Literal["interrupt", "block", "allow"] = "interrupt"
    on_block: Literal["message", "end", "raise"] = "message"
    block_text: str = BLOCKED

    def __post_init__(self) -> None:
        checked(self.questions, "guard.questions")
        one_of("guard.on_review", self.on_review, ("interrupt", "block", "allow"))
        one_of("guard.on_block", self.on_block, ("message", "end", "raise"))
        if isinstance(self.exempt, str) or (isinstance(self.tools, str) and self.tools != "*"):
            raise FlideQuestionError('guard.tools and guard.exempt are lists of tools; a single tool is ["name"]')
        self._check("guard", self.block_at, self.review_at)
        for tool, own in self.per_tool.items():
            if unknown := set(own) - {"block_at", "review_at"}:
                raise FlideQuestionError(f"guard.per_tool.{tool}: unknown {', '.join(sorted(unknown))}")
            self._check(f"guard.per_tool.{tool}", own.get("block_at"), own.get("review_at"))
        for tool, risk in self.risk.items():
            if risk not in ("read", "write", "irreversible", "unknown"):
                raise FlideQuestionError(f"guard.risk.{tool}: must be read, write, irreversible or unknown, not {risk!r}")

    def _check(self, at: str, block_at: Thresholds | None, review_at: Thresholds | None) -> None:
        for field_, thresholds in (("block_at", block_at), ("review_at", review_at)):
            for key, question in self.questions.items():
                threshold = threshold_for(thresholds, self.questions, key)
                if threshold is not None:
                    check_threshold(f"{at}.{field_}.{key}", question, threshold)

    def covers(self, tool: str) -> bool:
        """Whether calls of this tool are judged."""
        if tool in names(self.exempt):
            return False
        return self.tools == "*" or tool in names(self.tools)

    def missing(self, known: Iterable[str]) -> list[str]:
        """Names in this policy that no tool has: a misspelt one would guard nothing. known: the names that tools have."""
        given = [*(() if isinstance(self.tools, str) else self.tools), *self.exempt]
        named = {*(tool for tool in given if isinstance(tool, str)), *self.per_tool, *self.risk}
        return sorted(named - set(known) - {tool.name for tool in given if not isinstance(tool, str)})

    def thresholds(self, tool: str) -> tuple[Thresholds | None, Thresholds | None]:
        own = self.per_tool.get(tool, {})
        return own.get("block_at", self.block_at), own.get("review_at", self.review_at)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """model: a chat model or a name for `init_chat_model`. criteria: which steps it is for."""

    model: str | BaseChatModel
    criteria: Any = None


@dataclass(frozen=True, kw_only=True)
class RoutePolicy:
    """Chooses the chat model.

    every: step asks before each model call, turn after each new user message, run once a run. Below min_confidence (0..1, of the choice)
    and when there is no answer, `default` is used: name the model that you would rather pay for. A change from the model in use needs its
    probability to lead by switch_margin, since a change costs that provider's prompt cache.
    """

    choices: Mapping[str, ModelChoice]
    instructions: Any
    default: str
    every: Literal["step", "turn", "run"] = "step"
    min_confidence: float = 0.0
    switch_margin: float = 0.1

    def __post_init__(self) -> None:
        if self.default not in self.choices:
            raise FlideQuestionError(f"route.default: {self.default!r} is none of {', '.join(self.choices)}")


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A question asked on every step.

    sees: the moment that it is about. stop_at: from where the run ends (None: only recorded); after: in so many asked steps in a row.
    message: the last message of a run that it ends.
    """

    question: Question
    sees: Moment = "before"
    stop_at: Threshold | None = None
    after: int = 1
    message: str = "The run was ended by a watch rule."


@dataclass(frozen=True, kw_only=True)
class FailPolicy:
    """What happens to a call when there is no answer, by the risk of its tool.

    refused: when the service is there and refuses the request itself, whatever the tool's risk: a history, an argument or a number of
    parallel calls beyond its limits. A model can bring that about, so it blocks.
    timeout: seconds for one decision, all tries included. breaker: after so many failures in a row nothing is asked for so many seconds,
    or as long as the service asks for; then one request probes.
    """

    read: Action = "allow"
    write: Action = "review"
    irreversible: Action = "block"
    unknown: Action = "review"
    refused: Action = "block"
    timeout: float = 5.0
    breaker: tuple[int, float] = (5, 10.0)

    def __post_init__(self) -> None:
        for name in ("read", "write", "irreversible", "unknown", "refused"):
            one_of(f"fail.{name}", getattr(self, name), ("allow", "review", "block"))

    def action(self, risk: Risk) -> Action:
        actions: dict[Risk, Action] = {
            "read": self.read,
            "write": self.write,
            "irreversible": self.irreversible,
            "unknown": self.unknown,
        }
        return actions[risk]


def one_of(at: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raises FlideQuestionError for a word that is none of those allowed: a misspelt policy must not guard nothing."""
    if value not in allowed:
        raise FlideQuestionError(f"{at}: must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}")


def names(tools: Sequence[str | BaseTool]) -> frozenset[str]:
    return frozenset(tool if isinstance(tool, str) else tool.name for tool in tools)


def ruled(policy: GuardPolicy, call: ProposedCall) -> Verdict:
    """The strictest of what the rules say."""
    verdict = Verdict("allow", "ok")
    for rule in policy.rules:
        action: Any
        try:
            action = rule(call)
        except Exception as e:  # a model may find arguments that a rule does not expect; they must not pass, nor end the run
            log.error("rule %s failed on a call of %s: %s", _name(rule), call.name, type(e).__name__)
            action = "block"
        if action is None or action == "allow":
            continue
        if action not in ("review", "block"):
            log.error("rule %s must say allow, review, block or None, not %r", _name(rule), action)
            action = "block"
        if verdict.action != "block":
            verdict = Verdict(action, "blocked" if action == "block" else "review", f"rule {_name(rule)}")
    return verdict


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
