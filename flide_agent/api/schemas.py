"""The bodies of the API as JSON schemas: what the OpenAPI document refers to. Kept in step with the code by a test."""

from __future__ import annotations

from typing import Any

from flide_agent.settings import Settings

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def thing(required: list[str], *, extra: bool = True, about: str = "", **properties: Schema) -> Schema:
    """An object. extra: it may have other fields."""
    out: Schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": extra}
    return out | ({"description": about} if about else {})


def listed(items: Schema, low: int | None = None, high: int | None = None) -> Schema:
    out: Schema = {"type": "array", "items": items}
    return out | ({"minItems": low} if low else {}) | ({"maxItems": high} if high else {})


def by_id(value: Schema, about: str, low: int = 0, high: int | None = None) -> Schema:
    out: Schema = {"type": "object", "additionalProperties": value, "description": about}
    return out | ({"minProperties": low} if low else {}) | ({"maxProperties": high} if high else {})


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
TRUTH: Schema = {"type": "boolean"}
ANY: Schema = {}
NULL: Schema = {"type": "null"}
CONTENT: Schema = {"description": "Text, or structured text that is read as JSON.", "type": ["string", "object", "array"]}
SESSION_ID: Schema = {"type": "string", "pattern": r"^[^/\\\u0000-\u001f\u007f]{1,512}$", "minLength": 1, "maxLength": 512}


def requests(settings: Settings) -> dict[str, Schema]:
    """Bodies that clients send, with this server's limits."""
    questions = by_id(ref("Question"), "Questions by id.", 1, settings.max_questions)
    messages = listed(ref("Message"), None, settings.max_messages)
    candidates = by_id(
        thing(["messages"], messages=listed(ref("Message"), 1)), "What the agent might do next.", 0, settings.max_candidates
    )
    instructions = either(CONTENT, NULL)
    tools = listed({"type": "object"})
    return {
        "Question": {"anyOf": [ref("Noul"), ref("Choice"), ref("Score")], "discriminator": {"propertyName": "type"}},
        "Noul": thing(
            ["type"], extra=False, about="Yes or no. Needs instructions or a described side.",
            type={"const": "noul"}, instructions=instructions,
            criteria=either(thing([], extra=False, true=either(CONTENT, NULL), false=either(CONTENT, NULL)), NULL),
        ),
        "Choice": thing(
            ["type", "criteria"], extra=False, about="One of several options; no two may read the same.",
            type={"const": "choice"}, instructions=instructions,
            criteria=by_id(either(CONTENT, NULL), "Option name to description.", 1, settings.max_options),
        ),
        "Score": thing(
            ["type", "criteria"], extra=False, about="A level, from low to high.",
            type={"const": "score"}, instructions=instructions, criteria=listed(CONTENT, 1, 10),
        ),
        "Message": thing(
            ["role"], about="One message of a history. Content may be missing only where there are tool calls.",
            role={"type": "string", "pattern": r"\S"}, content=either(TEXT, NULL, listed(either(TEXT, {"type": "object"}))),
            name=either(TEXT, NULL), tool_call_id=either(TEXT, NULL), tool_calls=either(listed({"type": "object"}), NULL),
        ),
        "SystemOne": thing(
            ["state", "questions"], about="A System One request. Unknown fields are ignored.",
            state=CONTENT, questions=questions, model=either(TEXT, NULL), x_candidates=either(candidates, NULL),
            x_label_mass=either(TRUTH, NULL),
            x_session=either(SESSION_ID, thing(["id"], id=SESSION_ID, head=either(TEXT, NULL), tools=either(tools, NULL)), NULL),
        ),
        "Decide": thing(
            ["questions"], about="One step: either messages, or append and the head that it follows.",
            messages=messages, append=messages, head=either(TEXT, NULL), questions=questions, x_candidates=either(candidates, NULL),
            tools=either(tools, NULL), model=either(TEXT, NULL), x_label_mass=either(TRUTH, NULL),
        ),
        "Prefetch": thing(
            [], about="The history of a step to come.", messages=messages, append=messages, head=either(TEXT, NULL),
            tools=either(tools, NULL),
        ),
        "Opening": thing(
            [], id=either(SESSION_ID, NULL), metadata=either({"type": "object"}, NULL), tools=either(tools, NULL)
        ),
        "Fork": thing([], id=either(SESSION_ID, NULL), metadata=either({"type": "object"}, NULL)),
        "Decisions": thing(
            ["input", "questions"], about="A request in the OpenAI Decisions shape.",
            model=either(TEXT, NULL), input=either(TEXT, listed({"type": "object"}, 1)),
            questions=listed(ref("DecisionsQuestion"), 1, settings.max_questions),
            safety_identifier=either({"type": "string", "maxLength": 128}, NULL), x_label_mass=either(TRUTH, NULL),
        ),
        "DecisionsQuestion": {"anyOf": [
            thing(["type", "instructions"], type={"const": "predicate"}, name=TEXT, instructions=TEXT),
            thing(["type", "instructions", "choices"], type={"const": "choice"}, name=TEXT, instructions=TEXT,
                  choices=listed(thing(["value"], value={"type": ["string", "boolean"]}, description=TEXT), 2,
                                 settings.max_options)),
            thing(["type", "instructions", "levels"], type={"const": "score"}, name=TEXT, instructions=TEXT,
                  levels=listed(thing(["label"], label=TEXT, description=TEXT), 2, 10)),
        ]},
    }  # fmt: skip


def replies() -> dict[str, Schema]:
    """Bodies that the server sends."""
    answer = {"anyOf": [ref("NoulAnswer"), ref("ChoiceAnswer"), ref("ScoreAnswer")]}
    shares = by_id(SHARE, "Probability of each.")
    checkpoint = thing(
        ["m", "tiers", "bytes", "durable"],
        m=COUNT,
        tiers=listed({"enum": ["device", "host", "disk"]}),
        bytes=COUNT,
        durable=TRUTH,
    )
    step = thing(
        ["number", "head", "reason", "at", "messages", "tokens", "m", "durable", "checkpoints"],
        number=COUNT, head=TEXT, follows=either(TEXT, NULL), reason=TEXT, at=NUMBER, messages=COUNT, tokens=COUNT, m=COUNT,
        durable=TRUTH, checkpoints=listed(checkpoint),
    )  # fmt: skip
    usage = thing(["input_tokens", "output_tokens"], input_tokens=COUNT, output_tokens=COUNT, x_cached_tokens=COUNT)
    return {
        "NoulAnswer": thing(["type", "noul"], type={"const": "noul"}, noul=SHARE, x_label_mass=SHARE),
        "ChoiceAnswer": thing(
            ["type", "choice", "probabilities", "confidence"],
            type={"const": "choice"}, choice=TEXT, probabilities=shares, confidence=SHARE, x_label_mass=SHARE,
        ),
        "ScoreAnswer": thing(
            ["type", "score", "legend", "probabilities", "confidence"],
            type={"const": "score"}, score=NUMBER, legend=by_id(ANY, "Levels."), probabilities=shares, confidence=SHARE, x_label_mass=SHARE,
        ),
        "Reply": thing(
            ["model", "answers", "usage", "x_prompt_format"],
            model=TEXT, answers=by_id(answer, "Answers by question id."), usage=usage, x_prompt_format=TEXT, x_untrained=TRUTH,
            x_escaped=TRUTH, x_session=ref("StepReply"),
            x_out_of_scope=by_id({"enum": ["question", "history"]}, "Why the model's card does not speak for an answer."),
            x_candidates=by_id(thing(["answers"], answers=by_id(answer, "Answers by question id.")), "By candidate."),
        ),
        "StepReply": thing(
            ["id", "head", "step", "m", "reused_tokens", "computed_tokens", "reason", "history_tokens", "latency"],
            id=TEXT, head=TEXT, step=COUNT, m=COUNT, reused_tokens=COUNT, computed_tokens=COUNT, reason=TEXT,
            history_tokens=COUNT, latency=by_id(NUMBER, "Milliseconds by part."),
        ),
        "DecisionsReply": thing(["model", "answers", "usage"], model=TEXT, answers=listed({"type": "object"}),
                                usage={"type": "object"}),
        "Session": thing(
            ["id", "head", "created", "updated", "step", "messages", "tokens", "metadata"],
            id=TEXT, head=TEXT, created=NUMBER, updated=NUMBER, step=COUNT, messages=COUNT, tokens=COUNT, metadata=ANY,
            steps=listed(step), bytes=COUNT,
        ),
        "Sessions": thing(["sessions", "cursor"], sessions=listed(ref("Session")), cursor=either(TEXT, NULL)),
        "Deleted": thing(["id", "deleted", "checkpoints"], id=TEXT, deleted={"const": True}, checkpoints=COUNT),
        "Prefetched": thing(
            ["id", "history_tokens", "m", "tier", "loaded_bytes"],
            id=TEXT, history_tokens=COUNT, m=COUNT, tier=either({"enum": ["device", "host", "disk"]}, NULL), loaded_bytes=COUNT,
        ),
        "Models": thing(["models", "object", "data"], models=listed({"type": "object"}), object={"const": "list"},
                        data=listed({"type": "object"})),
        "Health": thing(["status"], status={"const": "ok"}),
        "Ready": thing(["ready"], ready=TRUTH),
        "Stats": thing(["engine", "store", "admission"], engine={"type": "object"}, store={"type": "object"},
                       admission={"type": "object"}),
        "Error": thing(["detail"], extra=False, error={"type": "object"},
                       detail=thing(["error_type", "message"], error_type=TEXT, message=TEXT)),
        "Invalid": thing(["detail"], extra=False, error={"type": "object"}, detail=listed(
            thing(["loc", "msg", "type"], loc=listed({"type": ["string", "integer"]}), msg=TEXT, type=TEXT), 1)),
    }  # fmt: skip
