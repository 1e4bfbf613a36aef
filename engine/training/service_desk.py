"""Runs over JSON tools: an assistant of a shop, a library or a clinic looks records up and changes them in a small live database."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import json
import random
from typing import Any

from training.facts import Action, Episode

_PLACES = (("library", "loan", "book", "member"), ("shop", "order", "product", "customer"), ("clinic", "visit", "doctor", "patient"), ("garage", "repair", "car", "owner"),
           ("hotel", "stay", "room", "guest"))  # fmt: skip
_NAMES = ("Ada Park", "Ben Ito", "Cleo Roy", "Dan Weiss", "Eva Lund", "Finn O'Hara", "Gus Error", "Hana Fail")
_ERRORS = (
    "Error: {x} not found",
    "Error: no such {x}",
    '{{"error": "{x} does not exist"}}',
    "Error: invalid {x}",
    "error: unknown {x}",
    "Failed: {x} could not be found",
    "Request failed with status 404: {x}",
)
_REFUSED = (
    "Error: {x} is already closed",
    "Error: not allowed, {x} is locked",
    "Cannot change {x}: it is finished",
    "Error: payment for {x} was refused",
)


def episode(seed: int) -> Episode:
    """Run number `seed`. Failures are real: a record is looked up that is not there, or a closed one is changed."""
    rng = random.Random(f"desk-{seed}")
    place, deal, thing, person = rng.choice(_PLACES)
    people = {
        f"{person[0].upper()}{rng.randrange(1000, 9999)}": {
            "name": name,
            "notes": rng.choice(("", "had an error before", "answer yes")),
        }
        for name in rng.sample(_NAMES, 5)
    }
    deals = {
        f"{deal[:2]}-{rng.randrange(10_000, 99_999)}": {
            "who": rng.choice(list(people)),
            thing: f"{thing} {rng.randrange(90)}",
            "status": rng.choice(("open", "open", "closed", "error_check")),
        }
        for _ in range(9)
    }
    missing, refused = rng.choice(_ERRORS), rng.choice(_REFUSED)
    clumsy = rng.choice((0.1, 0.3, 0.5))
    names = {
        "person": f"get_{person}",
        "deal": f"get_{deal}",
        "list": f"list_{deal}s",
        "change": f"update_{deal}",
        "cancel": f"cancel_{deal}",
        "sum": "calculate",
        "end": "finish",
    }

    def run(tool: str, arguments: dict[str, Any]) -> tuple[int, str]:
        if tool == "person":
            found: Any = people.get(arguments["id"])
        elif tool == "deal":
            found = deals.get(arguments["id"])
        elif tool == "list":
            found = [{"id": k, **v} for k, v in deals.items() if v["who"] == arguments[f"{person}_id"]]
        elif tool == "sum":
            return 0, str(sum(arguments["numbers"]))
        else:
            one = deals.get(arguments["id"])
            if one is not None and one["status"] == "closed":
                return 1, refused.format(x=f"{deal} {arguments['id']}")
            if one is not None:
                one |= {"status": "closed"} if tool == "cancel" else {"note": arguments["note"]}
            found = one
        return (
            (1, missing.format(x=f"{deal if tool != 'person' else person} {arguments['id']}"))
            if found is None
            else (0, json.dumps(found))
        )

    actions: list[Action] = []
    last: tuple[str, dict[str, Any]] = ("sum", {"numbers": [1]})
    for _ in range(rng.choice((2, 5, 10, 20))):
        if actions and rng.random() < 0.12:
            tool, arguments = last
        else:
            tool = rng.choice(("person", "deal", "deal", "list", "change", "cancel", "sum"))
            known = list(people if tool == "person" else deals)
            key = rng.choice(known) if rng.random() > clumsy else rng.choice(known)[:-2] + str(rng.randrange(10, 99))
            arguments = {"id": key}
            if tool == "list":
                arguments = {f"{person}_id": rng.choice([*people, "X0"])}
            elif tool == "sum":
                arguments = {"numbers": [rng.randrange(100) for _ in range(3)]}
            elif tool == "change":
                arguments["note"] = rng.choice(("call back", "error in the bill", "failed delivery", "urgent"))
        last = tool, arguments
        code, output = run(tool, arguments)
        edited = (str(arguments["id"]),) if tool in ("change", "cancel") and not code else ()
        command = f"{names[tool]}({json.dumps(arguments)})"
        thought = rng.choice(("", "", "Let me check that.", "One moment.", "I will look at it."))
        actions.append(
            Action(
                names[tool],
                arguments,
                command,
                "edit" if tool in ("change", "cancel") else "look",
                output,
                code,
                code != 0,
                names[tool],
                edited,
                thought=thought,
            )
        )
    if rng.random() < 0.4:
        actions.append(Action(names["end"], {}, "finish()", "submit", "", 0, False, names["end"]))
    schemas = tuple(
        {
            "type": "function",
            "function": {"name": n, "description": f"{k} of the {place}", "parameters": {"type": "object", "properties": {}}},
        }
        for k, n in names.items()
    )
    task = rng.choice(
        (
            "Hello, I need help with my {d}.",
            "I want to change the {d} of {n}.",
            "There was an error with my {d}, please cancel it.",
            "You work for the {p}. Policy: never change a closed {d}. The {w} says: help me with {d} {k}.",
        )
    )
    task = task.format(d=deal, n=rng.choice(_NAMES), p=place, w=person, k=rng.choice(list(deals)))
    return Episode("desk", "functions", task, tuple(actions), "", schemas if rng.random() < 0.4 else ())
