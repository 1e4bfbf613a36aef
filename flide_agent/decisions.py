"""The OpenAI Decisions shape of the same decisions: `POST /v1/decisions`.

Questions are a list, answers come in its order. `input` is text or a list of messages, function calls and their outputs.
"""

from __future__ import annotations

import json
import time
from typing import Any

from flide_agent.asks import Ask, Faults, label_mass
from flide_agent.errors import InvalidRequest
from flide_agent.messages import dumps
from flide_agent.questions import parse_questions
from flide_agent.settings import Settings

FIELDS = {"model", "input", "questions", "safety_identifier", "prompt_cache_key", "prompt_cache_options"}
_PARTS = ("input_text", "output_text", "text")
MOST_IDENTIFIER = 128


def parse_decisions(raw: Any, settings: Settings) -> tuple[Ask, list[dict[str, Any]]]:
    """(what to decide, the questions as asked, for `render`). Raises InvalidRequest with every mistake."""
    if not isinstance(raw, dict):
        raise InvalidRequest.at((), "the body must be a JSON object", "dict_type")
    faults, arrived = Faults(), time.perf_counter()
    for key in raw:
        if key not in FIELDS and not key.startswith("x_"):
            faults.add((key,), "unknown field", "extra_forbidden")
    model = raw.get("model")
    if model is not None and not isinstance(model, str):
        faults.add(("model",), "a model is a name", "string_type")
    for key in ("safety_identifier", "prompt_cache_key"):
        value = raw.get(key)
        if value is not None and (not isinstance(value, str) or len(value) > MOST_IDENTIFIER):
            faults.add((key,), f"text of at most {MOST_IDENTIFIER} characters", "string_too_long")
    mass = label_mass(raw, faults)
    state = _input(raw.get("input"), faults)
    questions = raw.get("questions")
    core: dict[str, Any] = {}
    if not isinstance(questions, list) or not questions:
        faults.add(("questions",), "a list of at least one question is required", "list_type" if questions else "missing")
    elif len(questions) > settings.max_questions:
        faults.add(("questions",), f"at most {settings.max_questions} questions a request, not {len(questions)}", "too_long")
    else:
        for i, question in enumerate(questions):
            core[str(i)] = _question(question, ("questions", i), faults, settings)
    faults.done()
    assert isinstance(questions, list)
    parsed = faults.read(lambda: parse_questions(core, ("body", "questions"))) or {}
    faults.done()
    return Ask(parsed, state, model=model, label_mass=mass, arrived=arrived), questions


def render(reply: dict[str, Any], m: int, saved: int, questions: list[dict[str, Any]]) -> dict[str, Any]:
    """The reply in this shape. m, saved: see `Decision`."""
    usage, answers = reply["usage"], list(reply["answers"].values())
    out = {
        "model": reply["model"],
        "answers": [_answer(question, answer) | _extra(answer) for question, answer in zip(questions, answers, strict=True)],
        "usage": {
            "input_tokens": usage["input_tokens"],
            "input_tokens_details": {"cached_tokens": m, "cache_write_tokens": saved - m},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["input_tokens"],
        },
    }
    return out | _extra(reply)


def _extra(reply: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in reply.items() if key.startswith("x_")}


def _answer(question: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    name = question.get("name")
    if answer["type"] == "noul":
        return {"type": "predicate", "name": name, "probability": answer["noul"]}
    p = list(answer["probabilities"].values())
    if answer["type"] == "choice":
        values = [choice["value"] for choice in question["choices"]]
        top = list(answer["probabilities"]).index(answer["choice"])
        pairs = [{"value": value, "probability": x} for value, x in zip(values, p, strict=True)]
        return {
            "type": "choice",
            "name": name,
            "choice": values[top],
            "probabilities": pairs,
            "confidence": answer["confidence"],
        }
    levels = [level["label"] for level in question["levels"]]
    rows = [{"value": i, "label": label, "probability": x} for i, (label, x) in enumerate(zip(levels, p, strict=True))]
    return {
        "type": "score", "name": name, "score": answer["score"], "probabilities": rows, "confidence": answer["confidence"],
    }  # fmt: skip


def _question(raw: Any, loc: tuple[str | int, ...], faults: Faults, settings: Settings) -> Any:
    """The question in the System One shape; what is wrong with it is noted."""
    if not isinstance(raw, dict):
        faults.add(loc, "a question must be an object with a type", "dict_type")
        return None
    allowed = {"predicate": set(), "choice": {"choices"}, "score": {"levels"}}
    kind = raw.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        faults.add((*loc, "type"), "unknown question type; the types are predicate, choice and score", "union_tag_invalid")
        return None
    for key in raw:
        if key not in {"type", "name", "instructions"} | allowed[kind]:
            faults.add((*loc, key), "unknown field of a question", "extra_forbidden")
    name = raw.get("name")
    if name is not None and not isinstance(name, str):
        faults.add((*loc, "name"), "a name is text", "string_type")
    instructions = _text(raw.get("instructions"), (*loc, "instructions"), faults)
    if not instructions.strip():
        faults.add((*loc, "instructions"), "a question needs instructions", "missing")
    if kind == "predicate":
        return {"type": "noul", "instructions": instructions}
    if kind == "choice":
        criteria = _choices(raw.get("choices"), (*loc, "choices"), faults, settings.max_options)
        return {"type": "choice", "instructions": instructions, "criteria": criteria}
    return {"type": "score", "instructions": instructions, "criteria": _levels(raw.get("levels"), (*loc, "levels"), faults)}


def _choices(raw: Any, loc: tuple[str | int, ...], faults: Faults, most: int) -> dict[str, str | None]:
    out: dict[str, str | None] = {}
    if not isinstance(raw, list) or not 2 <= len(raw) <= most:
        faults.add(loc, f"a list of 2 to {most} choices", "list_type")
        return out
    for i, choice in enumerate(raw):
        value = choice.get("value") if isinstance(choice, dict) else None
        if not isinstance(value, str | bool):
            faults.add((*loc, i, "value"), "a choice needs a value: a string, true or false", "missing")
            continue
        text = json.dumps(value) if isinstance(value, bool) else value
        if text in out:
            faults.add((*loc, i, "value"), "two choices that the model reads as the same", "options_collide")
        out[text] = _description(choice, (*loc, i), faults)
    return out


def _levels(raw: Any, loc: tuple[str | int, ...], faults: Faults) -> list[str]:
    out: list[str] = []
    if not isinstance(raw, list) or not 2 <= len(raw) <= 10:
        faults.add(loc, "a list of 2 to 10 levels", "list_type")
        return out
    for i, level in enumerate(raw):
        label = level.get("label") if isinstance(level, dict) else None
        if not isinstance(label, str):
            faults.add((*loc, i, "label"), "a level needs a label", "missing")
            continue
        description = _description(level, (*loc, i), faults)
        out.append(f"{label} - {description}" if description else label)
    return out


def _description(raw: dict[str, Any], loc: tuple[str | int, ...], faults: Faults) -> str | None:
    value = raw.get("description")
    if value is not None and not isinstance(value, str):
        faults.add((*loc, "description"), "a description is text", "string_type")
        return None
    return value


def _input(raw: Any, faults: Faults) -> Any:
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list) or not raw:
        faults.add(("input",), "input is required: text or a list of messages", "missing" if raw is None else "list_type")
        return ""
    return [_item(item, ("input", i), faults) for i, item in enumerate(raw)]


def _item(raw: Any, loc: tuple[str | int, ...], faults: Faults) -> Any:
    if not isinstance(raw, dict):
        faults.add(loc, "an input item must be an object", "dict_type")
        return None
    kind = raw.get("type", "message")
    if kind == "message":
        role = raw.get("role")
        if not isinstance(role, str) or role not in ("user", "developer", "system", "assistant"):
            faults.add((*loc, "role"), "a role is user, developer, system or assistant", "enum")
            return None
        return {"role": role, "content": _text(raw.get("content"), (*loc, "content"), faults)}
    if kind in ("function_call", "custom_tool_call"):
        field = "arguments" if kind == "function_call" else "input"
        given = {key: raw.get(key) for key in ("call_id", "name", field)}
        for key, value in given.items():
            if not isinstance(value, str) or (key == "name" and not value.strip()):
                faults.add((*loc, key), f"{key} is required, as text", "missing")
        call = {"id": given["call_id"], "function": {"name": given["name"], "arguments": given[field]}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        if not isinstance(raw.get("call_id"), str):
            faults.add((*loc, "call_id"), "call_id is required, as text", "missing")
        text = _text(raw.get("output"), (*loc, "output"), faults)
        return {"role": "tool", "content": text, "tool_call_id": raw.get("call_id")}
    faults.add((*loc, "type"), "unknown kind of input", "union_tag_invalid")
    return None


def _text(raw: Any, loc: tuple[str | int, ...], faults: Faults) -> str:
    """Text, or a list of text and JSON parts joined by newlines. Images are refused: nothing here reads them."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        faults.add(loc, "must be text or a list of parts", "missing" if raw is None else "string_type")
        return ""
    out: list[str] = []
    for i, part in enumerate(raw):
        kind = part.get("type") if isinstance(part, dict) else None
        field = "refusal" if kind == "refusal" else "text"
        if kind in (*_PARTS, "refusal") and isinstance(part.get(field), str):
            out.append(part[field])
        elif kind == "input_json" and isinstance(part.get("data"), dict | list):
            out.append(dumps(part["data"], ("body", *loc, i)))
        else:
            what = (
                "this server reads no images"
                if kind == "input_image"
                else "a part is input_text with text, or input_json with data"
            )
            faults.add((*loc, i), what, "part_unsupported")
    return "\n".join(out)
