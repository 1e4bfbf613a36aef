"""What every decision model has to keep, shaped like LangChain's standard tests: subclass, give a model, run with pytest.

class TestMine(DecisionModelContract):
    @pytest.fixture
    def model(self): return FlideDecisionModel(base_url=...)
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.decisions import (
    BaseDecisionModel,
    Box,
    Choice,
    ChoiceAnswer,
    ClassifierResponse,
    Noul,
    NoulAnswer,
    NoulCriteria,
    Question,
    Score,
    ScoreAnswer,
)
from langchain_core.exceptions import ModelInvalidRequestError
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

QUESTIONS: dict[str, Question] = {
    "yes": Noul(instructions="Is this about a build?", criteria=NoulCriteria(true="It is.", false="It is not.")),
    "which": Choice(instructions="Which team?", criteria={"ci": "Builds and tests.", "web": None, "other": {"catch": "all"}}),
    "how": Score(instructions="How urgent is it?", criteria=["calm", "soon", "now"]),
}
STATES: dict[str, Any] = {
    "text": "make: *** [test] Error 2",
    "message": HumanMessage("The build is red."),
    "messages": [HumanMessage("The build is red."), AIMessage("I look.")],
    "history and more": {
        "messages": [HumanMessage("The build is red.")],
        "tool_call": {"name": "rm", "args": {"path": "build"}},
    },
    "object": {"log": ["one", 2, None, True], "nested": {"who": HumanMessage("me")}},
}


class DecisionModelContract:
    """Tests of one decision model; `model` is the fixture to override."""

    @pytest.fixture
    def model(self) -> BaseDecisionModel:
        raise NotImplementedError("give the decision model under test")

    def answered(self, reply: ClassifierResponse, questions: dict[str, Question] = QUESTIONS) -> None:
        """Every question has an answer of its kind, with probabilities that sum to 1."""
        assert list(reply.answers) == list(questions)
        for key, question in questions.items():
            answer = reply.answers[key]
            if isinstance(question, Noul):
                assert isinstance(answer, NoulAnswer)
            elif isinstance(question, Choice):
                assert isinstance(answer, ChoiceAnswer)
                assert list(answer.probabilities) == list(question.criteria)
                assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
                assert answer.choice == max(answer.probabilities, key=lambda label: answer.probabilities[label])
            elif isinstance(question, Score):
                assert isinstance(answer, ScoreAnswer)
                assert answer.legend == dict(enumerate(question.criteria))
                assert sum(answer.probabilities.values()) == pytest.approx(1, abs=1e-5)
                assert answer.score == pytest.approx(sum(k * p for k, p in answer.probabilities.items()), abs=1e-5)

    @pytest.mark.parametrize("state", STATES.values(), ids=list(STATES))
    def test_answers_every_kind_of_state(self, model: BaseDecisionModel, state: Any) -> None:
        self.answered(model.invoke({"state": state, "questions": QUESTIONS}))

    def test_async_gives_the_same(self, model: BaseDecisionModel) -> None:
        request: Any = {"state": STATES["messages"], "questions": QUESTIONS}
        assert asyncio.run(model.ainvoke(request)).answers == model.invoke(request).answers

    def test_batch_keeps_order(self, model: BaseDecisionModel) -> None:
        requests: list[Any] = [{"state": f"state {i}", "questions": {f"q{i}": Noul(instructions="Is it?")}} for i in range(4)]
        assert [list(r.answers) for r in model.batch(requests)] == [["q0"], ["q1"], ["q2"], ["q3"]]
        replies = asyncio.run(model.abatch(requests))
        assert [list(r.answers) for r in replies] == [["q0"], ["q1"], ["q2"], ["q3"]]

    def test_usage_adds_up(self, model: BaseDecisionModel) -> None:
        usage = model.invoke({"state": STATES["messages"], "questions": QUESTIONS}).usage
        assert usage is not None
        assert usage["input_tokens"] > 0
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]

    def test_a_thread_is_a_session(self, model: BaseDecisionModel) -> None:
        config: RunnableConfig = {"configurable": {"thread_id": "contract"}}
        first = model.invoke({"state": STATES["messages"], "questions": QUESTIONS}, config)
        again = model.invoke({"state": STATES["messages"], "questions": QUESTIONS}, config)
        assert first.answers == again.answers

    @pytest.mark.parametrize(
        ("questions", "place"),
        [
            ({}, "questions"),
            ({"where": Box(instructions="the button")}, "questions.where"),
            ({"q": {"type": "noul", "instructions": "x"}}, "questions.q"),
            ({"q": Noul(instructions="  ")}, "questions.q.instructions"),
            ({"q": Score(instructions="x", criteria=["a"] * 11)}, "questions.q.criteria"),
            ({"q": Noul(instructions=[{"type": "image", "base64": "AA"}])}, "questions.q.instructions"),
        ],
        ids=["none", "box", "untyped", "empty", "levels", "image"],
    )
    def test_refuses_what_it_cannot_ask(self, model: BaseDecisionModel, questions: Any, place: str) -> None:
        with pytest.raises(ModelInvalidRequestError, match=place):
            model.invoke({"state": "x", "questions": questions})

    def test_errors_keep_the_state_to_themselves(self, model: BaseDecisionModel) -> None:
        with pytest.raises(ModelInvalidRequestError) as caught:
            model.invoke({"state": "a secret text", "questions": {}})
        assert "secret" not in f"{caught.value} {caught.value!r}"

    def test_orphaned_results_do_not_fail(self, model: BaseDecisionModel) -> None:
        state = [HumanMessage("Go."), ToolMessage("done", tool_call_id="nobody")]
        self.answered(model.invoke({"state": state, "questions": QUESTIONS}))

    def test_its_key_is_not_shown(self, model: BaseDecisionModel) -> None:
        assert "secret" not in repr(model)
        assert model._provider
        assert model.model
