"""Small generated files of the formats and versions that no shared file covers, each with what its reader must make of it.

They follow the tools' own code and documentation, not any reader: field names, nesting and nulls are as those write them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OUTCOME = "OUTCOME-4711"


@dataclass(frozen=True)
class Made:
    """lines: JSON values, one a line. seen: the contents that each step saw, by run; as_sent where they differ from raw."""

    form: str
    lines: list[Any]
    seen: list[list[list[str]]]
    tools: int = 0
    last_failed: list[list[bool | None]] = field(default_factory=list)


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, id_: str = "c1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def _sweagent_11() -> dict[str, Any]:
    """1.1 and later: `query`, thinking blocks, tags, a retry's attempts, outcomes in every place that has them."""
    thought = {"thinking_blocks": [{"type": "thinking", "thinking": OUTCOME, "signature": "s"}], "agent": "main"}
    system, task = said("system", "sys", agent="main"), said("user", [{"type": "text", "text": "task"}], tags=["keep_output"])
    first = said("assistant", "look", tool_calls=[call("bash", '{"command": "ls"}')], action="ls", **thought)
    result = said("tool", [{"type": "text", "text": "files"}], tool_call_ids=["c1"], tags=["remove_output"])
    last = said("assistant", "done", tool_calls=[call("submit", "{}")], action="submit", **thought)

    def step(action: str, response: str, query: list[Any], observation: str) -> dict[str, Any]:
        return {"action": action, "observation": observation, "response": response, "thought": "", "execution_time": 0.1,
                "state": {"diff": OUTCOME}, "query": query, "extra_info": {"x": OUTCOME}}  # fmt: skip

    attempt = {
        "trajectory": [
            step("ls", "look", [system, task], "files"),
            step("submit", "done", [system, task, first, result], OUTCOME),
        ],
        "history": [system, task, first, result, last, said("tool", OUTCOME, tool_call_ids=["c1"])],
        "info": {"exit_status": "submitted", "submission": OUTCOME, "swe_agent_version": "1.1.0", "review": OUTCOME},
        "replay_config": "{}",
        "environment": "env",
    }
    return attempt | {"attempts": [attempt, attempt], "info": attempt["info"] | {"best_attempt_idx": 1, "chooser": OUTCOME}}


def _atif(minor: int) -> dict[str, Any]:
    """A trajectory of ATIF v1.<minor> with what that version brought."""
    results = {"results": [{"source_call_id": "c1", "content": "files"}]}
    calls = [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}]
    task: Any = [{"type": "text", "text": "task"}] if minor >= 6 else "task"
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "timestamp": "2026-01-01T00:00:00Z", "source": "system", "message": "sys"},
        {"step_id": 2, "source": "user", "message": task},
        {"step_id": 3, "source": "agent", "message": "look", "model_name": "m", "reasoning_content": OUTCOME, "tool_calls": calls,
         "observation": results, "metrics": {"prompt_tokens": 9, "cost_usd": 0.1}},
        {"step_id": 4, "source": "agent", "message": "done"},
    ]  # fmt: skip
    if minor >= 5:
        steps[2] |= {"is_copied_context": False}
    if minor >= 7:
        steps[3] |= {"llm_call_count": 1}
    root = {"schema_version": f"ATIF-v1.{minor}", "agent": {"name": "a", "version": "1"}, "steps": steps,
            "final_metrics": {"extra": OUTCOME}, "notes": OUTCOME}  # fmt: skip
    return root | ({"trajectory_id": "t"} if minor >= 7 else {"session_id": "s"})


def _langgraph() -> dict[str, Any]:
    messages = [
        {"type": "system", "content": "sys", "id": "0"},
        {"type": "human", "content": [{"type": "text", "text": "task"}], "id": "1"},
        {"type": "ai", "content": "look", "id": "2", "tool_calls": [{"name": "bash", "args": {"command": "ls"}, "id": "c1",
         "type": "tool_call"}], "usage_metadata": {"x": OUTCOME}, "response_metadata": {"x": OUTCOME}},
        {"type": "tool", "content": "files", "tool_call_id": "c1", "status": "error", "artifact": OUTCOME},
        {"type": "ai", "content": "done", "id": "3"},
    ]  # fmt: skip
    return {"values": {"messages": messages}, "next": [], "metadata": {"score": OUTCOME}}


def _rebench() -> dict[str, Any]:
    """As parquet unifies it: every message has every field, null where it does not apply."""
    rows = [("system", "sys", None, None), ("user", "task", None, None), ("assistant", "look", [call("bash", "{}")], None),
            ("tool", "files", None, "c1"), ("assistant", "done", None, None)]  # fmt: skip
    trajectory = [{"role": r, "content": c, "tool_calls": t, "name": None, "tool_call_id": i} for r, c, t, i in rows]
    outcomes = {"model_patch": OUTCOME, "exit_status": OUTCOME, "resolved": 1, "gen_tests_correct": None}
    tools = [{"type": "function", "function": {"name": "bash", "description": "d", "parameters": '{"type": "object"}'}}]
    return {"trajectory_id": "t", "instance_id": "i", "repo": "r", "trajectory": trajectory, "tools": tools, **outcomes}


def _openhands_pairs() -> dict[str, Any]:
    """An older output.jsonl: pairs of action and observation."""

    def action(id_: int, source: str, kind: str, **args: Any) -> dict[str, Any]:
        return {"id": id_, "source": source, "action": kind, "args": args, "timestamp": "2026-01-01T00:00:00"}

    def seen(id_: int, text: str, code: int) -> dict[str, Any]:
        return {
            "id": id_,
            "source": "agent",
            "observation": "run",
            "content": text,
            "cause": id_ - 1,
            "extras": {"exit_code": code},
        }

    pairs = [
        [action(0, "user", "message", content="task"), {"id": 1, "source": "agent", "observation": "null", "content": ""}],
        [action(2, "agent", "run", command="ls", thought="look"), seen(3, "files", 1)],
        [
            action(4, "agent", "finish", thought="done", outputs={}),
            {"id": 5, "source": "agent", "observation": "null", "content": ""},
        ],
    ]
    return {
        "instance_id": "i",
        "history": pairs,
        "test_result": {"git_patch": OUTCOME},
        "metrics": {"x": OUTCOME},
        "error": OUTCOME,
    }


def _anthropic() -> dict[str, Any]:
    use = {"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "files"}], "is_error": True}
    return {
        "model": "m",
        "system": "sys",
        "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
        "messages": [
            said("user", "task"),
            said("assistant", [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "look"}, use]),
            said("user", [result], cache_control=None),
            said("assistant", "done"),
        ],
        "reward": OUTCOME,
    }


def _claude() -> list[dict[str, Any]]:
    """A session with a second branch and a side chain."""

    def event(id_: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
        message = said(role, content, id=f"m{id_}")
        return {
            "type": role,
            "uuid": id_,
            "parentUuid": parent,
            "sessionId": "s",
            "isSidechain": False,
            "message": message,
            **more,
        }

    use = [{"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls"}}]
    result = [{"type": "tool_result", "tool_use_id": "c1", "content": "files", "is_error": False}]
    return [
        event("1", None, "user", "task"),
        event("2", "1", "assistant", use),
        event("3", "2", "user", result, toolUseResult={"stdout": OUTCOME}),
        event("4", "3", "assistant", "done"),
        event("5", "4", "user", "old way"),
        event("6", "5", "assistant", "left"),
        event("7", "4", "user", "new way"),
        event("8", "7", "assistant", "kept"),
        event("s1", None, "user", "side task", isSidechain=True),
        event("s2", "s1", "assistant", "side done", isSidechain=True),
        {"type": "summary", "summary": OUTCOME, "leafUuid": "4"},
    ]


def _inspect() -> dict[str, Any]:
    messages = [
        said("system", "sys", id="a"),
        said("user", "attachment://h1", id="b"),
        said("assistant", [{"type": "reasoning", "reasoning": OUTCOME}, {"type": "text", "text": "look"}], id="c", model="m",
             tool_calls=[{"id": "c1", "function": "bash", "arguments": {"cmd": "ls"}, "type": "function"}]),
        said("tool", "files", id="d", tool_call_id="c1", function="bash", error={"type": "timeout", "message": "m"}),
        said("assistant", "done", id="e"),
    ]  # fmt: skip
    sample = {"id": 1, "epoch": 1, "input": "task", "target": OUTCOME, "messages": messages, "scores": {"s": {"value": OUTCOME}},
              "attachments": {"h1": "task"}, "events": [], "metadata": {"x": OUTCOME}}  # fmt: skip
    return {
        "version": 2,
        "status": "success",
        "eval": {"task": "t"},
        "plan": {},
        "results": {"x": OUTCOME},
        "samples": [sample],
    }


PLAIN = [["sys", "task"], ["sys", "task", "look", "files"]]
BOTH = ["task", "", "files"]
SHORT = [["task"], ["task", "look", "files"]]

MADE: dict[str, Made] = {
    "swe-agent-1.1": Made("swe-agent-1.1", [_sweagent_11()], [PLAIN, PLAIN]),
    **{f"atif-1.{n}": Made(f"atif-v1.{n}", [_atif(n)], [PLAIN]) for n in range(9)},
    "langgraph": Made("langchain", [_langgraph()], [PLAIN], last_failed=[[None, True]]),
    "rebench": Made("chat", [_rebench()], [PLAIN], tools=1),
    "openhands-pairs": Made("openhands", [_openhands_pairs()] * 2, [SHORT, SHORT], last_failed=[[None, True]] * 2),
    "anthropic": Made("anthropic", [_anthropic()], [PLAIN], tools=1, last_failed=[[None, True]]),
    "claude-code": Made(
        "claude-code",
        _claude(),
        [[["task"], BOTH, [*BOTH, "done", "new way"]], [[*BOTH, "done", "old way"]], [["side task"]]],
        last_failed=[[None, False, None], [None], [None]],
    ),
    "inspect": Made("inspect", [_inspect()], [PLAIN], last_failed=[[None, True]]),
}
