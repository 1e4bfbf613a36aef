"""Runs over JSON tools: an assistant at a desk looks records up and changes them in a small live database.

Failures are real: a record is looked up that is not there, a closed one is changed, money or places do not suffice, an argument is missing.
"""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from training import desk_world, phrases
from training.desk_says import Voice
from training.facts import Action, Episode

_THOUGHTS = ("The total differs from what was paid; there may be an error in the sum.", "I need to look at each of them to find the right one.", "That failed, so I try another way.", "The rules do not allow it unless the status is open.",
             "Everything is fine, I can go on.", "Two of them are closed, so the third it is.", "No error so far.")  # fmt: skip
_NOTES = (
    "call back",
    "error in the bill",
    "failed delivery",
    "urgent",
    "the customer was refused",
    "all good",
    "not found on site",
)
_TEXTS = ("Message sent.", "Mail was delivered with 0 errors", "The error report was filed under 8812.", "Handed over to a person", "note added", "Complaint about a failed payment recorded", "Reminder set; the old one was not found and is replaced", "Queued",
          "Confirmed", "Thank you, we have it.", "Cleared 3 failed attempts", "No problems were found.")  # fmt: skip
_VERBS = {"person": ("get", "find", "lookup", "fetch", "show", "load"), "case": ("get", "find", "lookup", "fetch", "show", "load"), "list": ("list", "all", "get_all"), "change": ("update", "change", "modify", "set", "edit"), "cancel": ("cancel", "close", "end", "withdraw"),
          "open": ("book", "create", "open", "add", "new"), "pay": ("pay", "charge", "refund", "settle"), "search": ("search", "find", "query"), "slots": ("free", "available", "check"), "sum": ("calculate", "add_up", "compute", "sum"), "think": ("think", "note", "reflect", "plan"),
          "send": ("send", "notify", "mail"), "end": ("finish", "hand_over", "close_case", "done")}  # fmt: skip
_PARAMETERS: dict[str, tuple[str, ...]] = {"person": ("id",), "case": ("id",), "list": ("owner_id",), "change": ("id", "note"), "cancel": ("id",), "open": ("owner_id", "kind", "count"), "pay": ("id", "amount"), "search": ("term",), "slots": ("date",),
                                           "sum": ("numbers",), "think": ("thought",), "send": ("owner_id", "text"), "end": ()}  # fmt: skip
_CHANGES = ("change", "cancel", "open", "pay", "send")
_KINDS = {
    "change": "edit",
    "cancel": "edit",
    "open": "edit",
    "pay": "edit",
    "search": "search",
    "slots": "search",
    "sum": "run",
    "send": "run",
    "think": "other",
}
"""The nearest of four kinds of tools, "look" for what only reads; there is none for a thought."""


@dataclass
class Desk:
    """One desk's records and tools, and the manner in which its service answers."""

    rng: random.Random
    desk: tuple[str, str, str, str, str]

    def __post_init__(self) -> None:
        rng, (_, who, noun, thing, verb) = self.rng, self.desk
        self.voice = Voice(rng)
        self.people = {
            f"{who[0].upper()}{rng.randrange(1000, 9999)}": desk_world.person(rng, name)
            for name in rng.sample(desk_world.NAMES, rng.randrange(3, 7))
        }
        self.cases = {
            f"{noun[:2].upper()}-{rng.randrange(10_000, 99_999)}": desk_world.case(
                rng, rng.choice(list(self.people)), noun, thing
            )
            for _ in range(rng.randrange(4, 12))
        }
        detail = rng.choice(("", "_details", "_record", "_info"))
        noun_of = {
            "person": who + detail,
            "case": noun + detail,
            "list": noun + "s",
            "change": noun,
            "cancel": noun,
            "open": noun,
            "pay": noun,
            "search": thing + "s",
            "slots": thing + "s",
            "sum": "",
            "think": "",
            "send": "message",
            "end": "",
        }
        camel = rng.random() < 0.2
        self.names: dict[str, str] = {}
        for tool, words in _VERBS.items():
            name = f"{rng.choice(words)}_{noun_of[tool]}".strip("_").replace(" ", "_")
            if tool == "change" and rng.random() < 0.4:
                name = f"{verb}_{noun}"
            self.names[tool] = "".join(w.capitalize() for w in name.split("_")) if camel else name
        self.money = rng.randrange(100, 600)
        self.free = rng.randrange(1, 6)

    def run(self, tool: str, arguments: dict[str, Any]) -> tuple[str, Any]:
        """(kind of failure or "", what was found)."""
        rng = self.rng
        if tool not in ("think", "sum", "end", "slots") and any(
            p not in arguments or arguments[p] in ("", None) for p in _PARAMETERS[tool]
        ):
            return "argument", None
        if tool != "think" and rng.random() < 0.01:
            return "down", None
        if tool == "person":
            return ("", self.people[arguments["id"]]) if arguments["id"] in self.people else ("missing", None)
        if tool in ("list", "open", "send") and arguments["owner_id"] not in self.people:
            return "missing", None
        if tool == "list":
            return "", [{"id": k, **v} for k, v in self.cases.items() if v["who"] == arguments["owner_id"]]
        if tool == "search":
            return "", [d | {"id": k} for k, d in self.cases.items() if str(d[self.desk[3]]).endswith(arguments["term"])]
        if tool == "slots":
            return "", [
                {"date": arguments.get("date", ""), "from": f"{h:02d}:00", "left": rng.randrange(1, 9)}
                for h in rng.sample(range(8, 18), rng.randrange(5))
            ]
        if tool in ("sum", "think", "end"):
            return "", str(float(sum(arguments["numbers"]))) if tool == "sum" else None
        if tool == "send":
            return ("rule", None) if rng.random() < 0.05 else ("", rng.choice(_TEXTS))
        if tool == "open":
            if int(arguments["count"]) > self.free:
                return "room", None
            key = f"{self.desk[2][:2].upper()}-{rng.randrange(10_000, 99_999)}"
            self.cases[key] = desk_world.case(rng, arguments["owner_id"], self.desk[2], self.desk[3]) | {"status": "open"}
            return "", {"id": key} | self.cases[key]
        one = self.cases.get(arguments["id"])
        if one is None:
            return "missing", None
        if tool == "case":
            return "", one
        if one["status"] == "closed":
            return "closed", None
        if tool == "pay":
            if int(arguments["amount"]) > self.money:
                return "money", None
            self.money -= int(arguments["amount"])
            return "", one | {"paid": arguments["amount"]}
        if one["status"] in ("pending", "failed_check"):
            return "rule", None
        one |= {"status": "closed"} if tool == "cancel" else {"note": arguments["note"]}
        return "", one if rng.random() < 0.7 else rng.choice(_TEXTS)

    def arguments(self, tool: str, clumsy: float) -> dict[str, Any]:
        """What an assistant gives that is wrong in a part `clumsy` of calls."""
        rng = self.rng
        wrong = rng.random() < clumsy

        def key(known: dict[str, Any]) -> str:
            one = rng.choice(list(known))
            return one[:-2] + str(rng.randrange(10, 99)) if wrong else one

        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "person": lambda: {"id": key(self.people)}, "case": lambda: {"id": key(self.cases)}, "list": lambda: {"owner_id": key(self.people)}, "change": lambda: {"id": key(self.cases), "note": rng.choice(_NOTES)}, "cancel": lambda: {"id": key(self.cases)},
            "open": lambda: {"owner_id": rng.choice(list(self.people)), "kind": rng.choice(("basic", "plus")), "count": self.free + rng.randrange(1, 9) if wrong else 1}, "pay": lambda: {"id": rng.choice(list(self.cases)), "amount": self.money + rng.randrange(1, 500) if wrong else rng.randrange(1, 60)},
            "search": lambda: {"term": str(rng.randrange(10))}, "slots": lambda: {"date": f"2026-09-{rng.randrange(1, 30):02d}"}, "sum": lambda: {"numbers": [rng.randrange(100) for _ in range(3)]}, "think": lambda: {"thought": rng.choice(_THOUGHTS)},
            "send": lambda: {"owner_id": key(self.people), "text": rng.choice(_NOTES)}, "end": dict,
        }  # fmt: skip
        made = ways[tool]()
        if tool in ("change", "case", "open", "pay") and rng.random() < 0.15 * clumsy:
            made[rng.choice(list(made))] = rng.choice(("", None))
        return made

    def about(self, tool: str, arguments: dict[str, Any]) -> tuple[str, str]:
        """(what a failure of the call is about, its noun)."""
        _, who, noun, _, _ = self.desk
        own = who if tool in ("person", "list", "send", "open") else noun
        key = arguments.get("id", arguments.get("owner_id", ""))
        return f"{own} {key}".strip(), own


def episode(seed: int) -> Episode:
    """Run number `seed`."""
    rng = random.Random(f"desk-{seed}")
    desk = Desk(rng, rng.choice(desk_world.DESKS))
    clumsy = rng.choice((0.15, 0.35, 0.6))
    actions: list[Action] = []
    last: tuple[str, dict[str, Any]] = ("sum", {"numbers": [1]})
    planted = rng.random() < 0.15
    for _ in range(rng.choice((2, 4, 8, 12, 20))):
        if actions and rng.random() < 0.15:
            tool, arguments = last
        else:
            tool = rng.choice(
                (
                    "person",
                    "case",
                    "case",
                    "list",
                    "change",
                    "change",
                    "cancel",
                    "open",
                    "pay",
                    "pay",
                    "sum",
                    "search",
                    "slots",
                    "think",
                    "send",
                )
            )
            arguments = desk.arguments(tool, clumsy)
        last = tool, arguments
        failure, found = desk.run(tool, arguments)
        if planted and isinstance(found, dict):
            found = found | {rng.choice(("comment", "memo", "remark")): phrases.planted(rng)}
        output = desk.voice.failure(failure, *desk.about(tool, arguments), arguments) if failure else desk.voice.success(found)
        if tool == "think":
            output = ""
        edited = (str(arguments.get("id", "new")),) if tool in _CHANGES and not failure else ()
        name = desk.names[tool]
        said = rng.choice(("", "", "", "Let me check that.", "One moment.", "I will look at it.", "I do that now."))
        kind = _KINDS.get(tool, "look")
        command = f"{name}({json.dumps(arguments)})"
        actions.append(
            Action(name, arguments, command, kind, output, int(bool(failure)), bool(failure), name, edited, thought=said)
        )
    if rng.random() < 0.4:
        name = desk.names["end"]
        actions.append(Action(name, {}, f"{name}()", "submit", "", 0, False, name))
    tools = desk_world.schemas(rng, desk.desk, {desk.names[t]: p for t, p in _PARAMETERS.items()}) if rng.random() < 0.4 else ()
    task = desk_world.opening(rng, desk.desk, rng.choice(list(desk.cases)))
    turns = tuple(desk_world.talk(rng, desk.desk) for _ in range(3 * len(actions) + 3))
    return Episode("desk", "functions", task, tuple(actions), "", tools, system=desk_world.policy(rng, desk.desk), talk=turns)
