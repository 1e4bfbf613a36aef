"""Agent runs: canonical histories, the step that a request means, and what is left of it after a crash.

Reading order: `sessions` (what the service calls), `step` (what it gets), `history` (blocks and heads), `places` (where its
checkpoints are taken), `registry` (the sessions in memory), `live` (one of them), `records` (one in the index), `listing`, `limits`.
"""

from flide_agent.sessions.limits import MAX_ID, MAX_METADATA
from flide_agent.sessions.sessions import KEPT_STEPS, Sessions
from flide_agent.sessions.step import Page, Reason, SessionInfo, Step, StepInfo

__all__ = ["KEPT_STEPS", "MAX_ID", "MAX_METADATA", "Page", "Reason", "SessionInfo", "Sessions", "Step", "StepInfo"]
