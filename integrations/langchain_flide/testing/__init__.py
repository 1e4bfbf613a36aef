"""For tests of code that asks decisions: a service without a server, a chat model with a script, and the contract of decision models.

    fake = FakeFlide({"risky": 0.97})
    agent = create_agent(ScriptedChat([...]), tools, middleware=[FlideMiddleware(decisions=fake.model(), guard=...)])
    assert len(fake.dispatches) == 1

`contract` needs pytest and is imported by name: `from langchain_flide.testing.contract import DecisionModelContract`.
"""

from __future__ import annotations

from langchain_flide.testing.chat import ScriptedChat, call
from langchain_flide.testing.fake import Asked, Dispatch, FakeFlide

__all__ = ["Asked", "Dispatch", "FakeFlide", "ScriptedChat", "call"]
