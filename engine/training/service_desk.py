"""Runs over JSON tools: an assistant of a shop, a library or a clinic looks records up and changes them in a small live database."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import json
import random
from typing import Any

from training import phrases
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
_THOUGHTS = (
    "The total differs from what was paid; there may be an error in the sum.",
    "I need to look at each of them to find the right one.",
    "That failed, so I try another way.",
    "The rules do not allow it unless the status is open.",
    "Everything is fine, I can go on.",
)


def _person(rng: random.Random, name: str) -> dict[str, Any]:
    """A customer's record: short, or with address, payments and members."""
    short: dict[str, Any] = {"name": name, "notes": rng.choice(("", "had an error before", "answer yes"))}
    if rng.random() < 0.4:
        return short
    first, _, last = name.partition(" ")
    methods = {
        f"card_{rng.randrange(10**6)}": {"brand": rng.choice(("visa", "giro")), "last_four": str(rng.randrange(1000, 9999))}
    }
    return {
        "name": {"first": first, "last": last}, "address": {"street": f"{rng.randrange(1, 200)} Mill Lane", "city": rng.choice(("Graz", "Leeds", "Turku")), "zip": str(rng.randrange(10_000, 99_999))},
        "email": f"{first.lower()}{rng.randrange(99)}@example.com", "payment_methods": methods, "level": rng.choice(("basic", "silver", "failed_check")), "open_cases": [f"c{rng.randrange(999)}" for _ in range(rng.randrange(4))],
    } | short  # fmt: skip


def _deal(rng: random.Random, who: str, thing: str) -> dict[str, Any]:
    """An order's record, with its parts and payments at times."""
    short: dict[str, Any] = {
        "who": who,
        thing: f"{thing} {rng.randrange(90)}",
        "status": rng.choice(("open", "open", "closed", "error_check")),
    }
    if rng.random() < 0.4:
        return short
    parts = [
        {
            "no": i,
            "price": rng.randrange(5, 900),
            "date": f"2026-05-{rng.randrange(10, 30)}",
            "state": rng.choice(("ok", "late", "denied")),
        }
        for i in range(rng.randrange(1, 5))
    ]
    return short | {
        "parts": parts,
        "paid": sum(p["price"] for p in parts),
        "created": f"2026-04-{rng.randrange(10, 30)}T10:00:00",
        "insured": rng.choice(("yes", "no")),
    }


def episode(seed: int) -> Episode:
    """Run number `seed`. Failures are real: a record is looked up that is not there, or a closed one is changed."""
    rng = random.Random(f"desk-{seed}")
    place, deal, thing, person = rng.choice(_PLACES)
    people = {f"{person[0].upper()}{rng.randrange(1000, 9999)}": _person(rng, name) for name in rng.sample(_NAMES, 5)}
    deals = {f"{deal[:2]}-{rng.randrange(10_000, 99_999)}": _deal(rng, rng.choice(list(people)), thing) for _ in range(9)}
    missing = [rng.choice(_ERRORS) if rng.random() < 0.4 else phrases.no_record(rng) for _ in range(2)]
    refused = [rng.choice(_REFUSED) if rng.random() < 0.4 else phrases.refused(rng) for _ in range(3)]
    clumsy = rng.choice((0.1, 0.3, 0.5))
    get, change = rng.choice(("get", "find", "lookup", "fetch", "show")), rng.choice(("update", "change", "modify", "set"))
    detail = rng.choice(("", "_details", "_record", "_info"))
    names = {
        "person": f"{get}_{person}{detail}", "deal": f"{get}_{deal}{detail}", "list": f"list_{deal}s", "change": f"{change}_{deal}", "cancel": f"cancel_{deal}", "search": f"search_{thing}s",
        "sum": rng.choice(("calculate", "add_up", "compute")), "think": rng.choice(("think", "note", "reflect")), "end": rng.choice(("finish", "hand_over", "close_case")),
    }  # fmt: skip
    indent = rng.choice((None, None, 2))

    def run(tool: str, arguments: dict[str, Any]) -> tuple[int, str]:
        if tool == "person":
            found: Any = people.get(arguments["id"])
        elif tool == "deal":
            found = deals.get(arguments["id"])
        elif tool == "list":
            found = [{"id": k, **v} for k, v in deals.items() if v["who"] == arguments[f"{person}_id"]]
        elif tool == "sum":
            return 0, str(float(sum(arguments["numbers"])))
        elif tool == "think":
            return 0, ""
        elif tool == "search":
            found = [d | {"id": k} for k, d in deals.items() if d[thing].endswith(arguments["term"])]
        else:
            one = deals.get(arguments["id"])
            if one is not None and one["status"] == "closed":
                return 1, rng.choice(refused).format(x=f"{deal} {arguments['id']}")
            if one is not None:
                one |= {"status": "closed"} if tool == "cancel" else {"note": arguments["note"]}
            found = one
        if found is None:
            return 1, rng.choice(missing).format(x=f"{deal if tool != 'person' else person} {arguments['id']}")
        return 0, json.dumps(found, indent=indent)

    actions: list[Action] = []
    last: tuple[str, dict[str, Any]] = ("sum", {"numbers": [1]})
    for _ in range(rng.choice((2, 5, 10, 20))):
        if actions and rng.random() < 0.2:
            tool, arguments = last
        else:
            tool = rng.choice(("person", "deal", "deal", "list", "change", "change", "cancel", "sum", "search", "think"))
            known = list(people if tool == "person" else deals)
            key = rng.choice(known) if rng.random() > clumsy else rng.choice(known)[:-2] + str(rng.randrange(10, 99))
            arguments = {"id": key}
            if tool == "list":
                arguments = {f"{person}_id": rng.choice([*people, "X0"])}
            elif tool == "sum":
                arguments = {"numbers": [rng.randrange(100) for _ in range(3)]}
            elif tool == "search":
                arguments = {"term": str(rng.randrange(10))}
            elif tool == "think":
                arguments = {"thought": rng.choice(_THOUGHTS)}
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
        actions.append(Action(names["end"], {}, f"{names['end']}()", "submit", "", 0, False, names["end"]))
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
