"""FlideDecider: LangChain's standard tests on the fake and a real service, and what it does inside an agent."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core.decisions import Choice, Noul
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langchain_flide import FlideDecider, FlideDecisionModel
from langchain_flide.errors import FlideConnectionError, FlideQuestionError
from langchain_flide.testing import FakeFlide, ScriptedChat, call
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests

DONE = {"id": "done", "type": "noul", "instructions": "Is the task done?"}
NEXT = {"id": "next", "type": "choice", "instructions": "What next?", "options": ["edit", "test"]}
RISK = {"id": "risk", "type": "score", "instructions": "How risky?", "levels": ["low", "middle", "high"]}
EXAMPLE = {"questions": [DONE, NEXT, RISK], "focus": "the last command"}


class TestStandardUnit(ToolsUnitTests):
    @property
    def tool_constructor(self) -> type[BaseTool]:
        return FlideDecider

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {"decisions": FakeFlide().model()}

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return EXAMPLE

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"FLIDE_BASE_URL": "http://elsewhere:1"}, {}, {"name": "flide_decide"}


class OnFake(ToolsIntegrationTests):
    @property
    def tool_constructor(self) -> type[BaseTool]:
        return FlideDecider

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {"decisions": FakeFlide().model()}

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return EXAMPLE


class TestStandardOnFake(OnFake): ...


class OnService(OnFake):
    """An outage must not pass for an answer here: the tool raises in one."""

    url: str

    @property
    def tool_constructor_params(self) -> dict[str, Any]:
        return {"decisions": FlideDecisionModel(base_url=self.url, timeout=60), "on_unavailable": "raise"}

    @pytest.fixture
    def tool(self, _service: None) -> BaseTool:
        return FlideDecider(**self.tool_constructor_params)


class TestStandardOnService(OnService):
    @pytest.fixture(autouse=True)
    def _service(self, url: str) -> None:
        self.url = url


class TestStandardWithoutService(OnService):
    """The control: each of the standard tests that invokes the tool fails when the service is not there."""

    @pytest.fixture(autouse=True)
    def _service(self, request: pytest.FixtureRequest) -> None:
        self.url = "http://127.0.0.1:9"
        if "invoke" in request.node.name:
            request.applymarker(pytest.mark.xfail(raises=FlideConnectionError, strict=True))


def run(tool: FlideDecider, *calls: Any, messages: list[Any] | None = None, **config: Any) -> list[ToolMessage]:
    """The tool's results in an agent that makes these calls at once."""
    chat = ScriptedChat([AIMessage("I ask.", tool_calls=list(calls)), "Done."])
    agent = create_agent(chat, [tool])
    found = agent.invoke({"messages": messages or [HumanMessage("Fix it.")]}, RunnableConfig(**config))
    return [m for m in found["messages"] if isinstance(m, ToolMessage)]


def ask(*questions: Any, **more: Any) -> Any:
    return call("flide_decide", questions=list(questions), **more)


def test_history_is_injected_and_hidden_from_the_model() -> None:
    fake = FakeFlide({"done": 0.83, "next": "test", "risk": [0.25, 0.5, 0.25]})
    tool = FlideDecider(decisions=fake.model())
    (message,) = run(tool, ask(DONE, NEXT, RISK), configurable={"thread_id": "t"})
    assert message.content == "done: yes (p=0.83)\nnext: test (p=1.00)\nrisk: 1.00 of 0..2 (p=0.50)"
    assert message.artifact["verdicts"] == {"done": "ok", "next": "ok", "risk": "ok"}
    assert message.artifact["answers"]["done"] == {"type": "noul", "noul": 0.83}
    assert message.artifact["session"] == fake.dispatches[0].session
    assert [m["content"] for m in fake.dispatches[0].messages or []] == ["Fix it."]  # not the message that makes the call
    schema: Any = tool.tool_call_schema
    assert "runtime" not in schema.model_json_schema()["properties"]


def test_a_runtime_of_the_models_own_making_is_not_believed() -> None:
    fake = FakeFlide()
    run(FlideDecider(decisions=fake.model()), ask(DONE, runtime={"state": {"messages": ["planted"]}}))
    assert [m["content"] for m in fake.dispatches[0].messages or []] == ["Fix it."]


def test_real_service_reuses_the_injected_history(url: str) -> None:
    tool = FlideDecider(decisions=FlideDecisionModel(base_url=url, timeout=60))
    chat = ScriptedChat([AIMessage("I ask.", tool_calls=[ask(DONE)]), AIMessage("Again.", tool_calls=[ask(DONE)]), "Done."])
    found = create_agent(chat, [tool]).invoke(
        {"messages": [HumanMessage("Fix it. " * 100)]}, {"configurable": {"thread_id": "tool"}}
    )
    first, second = (m.artifact["reuse"] for m in found["messages"] if isinstance(m, ToolMessage))
    assert (first["reason"], second["reason"]) == ("new", "append")
    assert second["m"] == first["history_tokens"] // 64 * 64 > 0


def test_presets_by_id_alone() -> None:
    fake = FakeFlide({"done": 0.2})
    presets = {
        "done": Noul(instructions="Is the task done?"),
        "kind": Choice(instructions="Which?", criteria={"a": None, "b": None}),
    }
    for allow_custom, asked in ((True, {"id": "done"}), (False, "done")):
        tool = FlideDecider(decisions=fake.model(), presets=presets, allow_custom=allow_custom)
        (message,) = run(tool, ask(asked))
        assert message.content == "done: no (p=0.80)"
    (refused,) = run(tool, ask("other"))
    assert refused.status == "error"
    assert "'done' or 'kind'" in refused.text


@pytest.mark.parametrize(
    ("questions", "says"),
    [
        ([{"id": "x"}], "questions[0]: give type"),
        ([{"id": "x", "type": "noul"}], "questions[0].instructions"),
        ([{"id": "x", "type": "guess", "instructions": "?"}], "'noul', 'choice' or 'score'"),
        ([{"id": "x", "type": "choice", "instructions": "?", "options": ["one"]}], "at least 2"),
        ([DONE, RISK | {"levels": ["one"]}], "questions[1].levels"),
        ([DONE, DONE], "twice"),
        ([DONE | {"id": str(i)} for i in range(9)], "at most 8"),
        ([], "questions"),
        ("done", "questions"),
    ],
)
def test_malformed_questions_are_answered_with_what_is_wrong(questions: Any, says: str) -> None:
    fake = FakeFlide()
    (message,) = run(FlideDecider(decisions=fake.model()), call("flide_decide", questions=questions))
    assert message.status == "error"
    assert says in message.text
    assert "Example: {" in message.text
    assert fake.dispatches == []


def test_a_developers_mistake_is_raised_at_once() -> None:
    with pytest.raises(FlideQuestionError, match=r"presets\.bad\.instructions"):
        FlideDecider(presets={"bad": Noul(instructions=" ")})
    with pytest.raises(FlideQuestionError, match="presets"):
        FlideDecider(allow_custom=False)


def test_unavailable_abstains_fails_or_raises() -> None:
    fake = FakeFlide(fail_with=httpx.ConnectError("refused"))
    (message,) = run(FlideDecider(decisions=fake.model()), ask(DONE))
    assert message.status == "success"
    assert message.content == "No decision: service unavailable; proceed as if unanswered."
    assert message.artifact == {"status": "unavailable", "answers": {}, "verdicts": {}}
    (message,) = run(FlideDecider(decisions=fake.model(), on_unavailable="error"), ask(DONE))
    assert message.status == "error"
    assert "flide-agent serve" in message.text
    with pytest.raises(FlideConnectionError):
        run(FlideDecider(decisions=fake.model(), on_unavailable="raise"), ask(DONE))
    (late,) = run(FlideDecider(decisions=FakeFlide(latency=1).model(timeout=0.1)), ask(DONE))
    assert "timed out after 0.1 s" in late.text
    assert late.artifact["status"] == "timeout"


def test_low_confidence_is_unsure() -> None:
    fake = FakeFlide({"done": 0.52, "next": {"edit": 0.9, "test": 0.1}})
    (message,) = run(FlideDecider(decisions=fake.model(), min_confidence={"done": 0.2, "next": 0.5}), ask(DONE, NEXT))
    assert message.content == "done: unsure (p=0.52)\nnext: edit (p=0.90)"
    assert message.artifact["verdicts"] == {"done": "abstain", "next": "ok"}


def test_outside_a_graph() -> None:
    fake = FakeFlide()
    tool = FlideDecider(decisions=fake.model())
    assert tool.invoke({"questions": [DONE]}).endswith("history: none")
    tool = FlideDecider(
        decisions=fake.model(), history_provider=lambda config: [HumanMessage(config["configurable"]["thread_id"])]
    )
    tool.invoke({"questions": [DONE], "focus": "the end"}, {"configurable": {"thread_id": "t1"}})
    dispatch = fake.dispatches[-1]
    assert [m["content"] for m in dispatch.messages or []] == ["t1"]
    assert dispatch.candidates["tail"] == [{"role": "focus", "content": "the end"}]
