"""Desks: what they keep, their rules as a long text, their tools' schemas, and what customers and assistants say."""

# ruff: noqa: E501 - tables of words read best a line each
from __future__ import annotations

import random
from typing import Any

# place, person, case, thing, a case's verbs
DESKS = (("city library", "member", "loan", "book", "renew"), ("bicycle shop", "customer", "repair", "bike", "reschedule"), ("dental clinic", "patient", "visit", "treatment", "move"), ("garage", "owner", "job", "car", "extend"),
         ("guest house", "guest", "stay", "room", "extend"), ("savings bank", "client", "transfer", "account", "stop"), ("power company", "household", "contract", "meter", "switch"), ("language school", "pupil", "course", "lesson", "swap"),
         ("parcel service", "sender", "parcel", "label", "reroute"), ("theatre", "visitor", "ticket", "seat", "exchange"), ("gym", "member", "membership", "class", "pause"), ("insurer", "holder", "claim", "policy", "reopen"),
         ("phone company", "subscriber", "plan", "number", "upgrade"), ("IT help desk", "employee", "request", "laptop", "escalate"), ("tool rental", "renter", "rental", "machine", "prolong"), ("garden centre", "buyer", "delivery", "plant", "redirect"),
         ("museum", "school", "tour", "guide", "shift"), ("blood bank", "donor", "donation", "unit", "rebook"), ("housing office", "tenant", "ticket", "flat", "reassign"), ("canteen", "team", "meal", "menu", "alter"))  # fmt: skip
NAMES = (
    "Ada Park",
    "Ben Ito",
    "Cleo Roy",
    "Dan Weiss",
    "Eva Lund",
    "Finn O'Hara",
    "Gus Error",
    "Hana Fail",
    "Ivo Novak",
    "Jun Sato",
    "Kim Berg",
    "Lea Moreau",
    "Max Denied",
    "Nia Okoro",
    "Oto Null",
    "Pia Costa",
)
_WORDS = ("calls back", "had an error in the last bill", "prefers mail", "payment failed once", "answer yes", "locked out twice", "no problems", "refused the offer", "late twice", "VIP", "", "", "invalid address before", "not found at home", "do not call")  # fmt: skip
_STATES = ("open", "open", "open", "open", "pending", "closed", "closed", "failed_check")


def _date(rng: random.Random) -> str:
    return f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"


def person(rng: random.Random, name: str) -> dict[str, Any]:
    """A person's record: a few fields, or many and nested ones."""
    first, _, last = name.partition(" ")
    short: dict[str, Any] = {"name": name, "notes": rng.choice(_WORDS)}
    if rng.random() < 0.3:
        return short
    more: dict[str, Any] = {
        "address": {"street": f"{rng.randrange(1, 200)} {rng.choice(('Mill Lane', 'High Street', 'Elm Row', 'Harbour Road'))}", "city": rng.choice(("Graz", "Leeds", "Turku", "Porto", "Ghent")), "zip": str(rng.randrange(10_000, 99_999))},
        "mail": f"{first.lower()}.{last.lower()}{rng.randrange(99)}@example.org", "born": _date(rng).replace("2026", str(rng.randrange(1940, 2008))), "failed_logins": rng.randrange(4), "last_error": rng.choice((None, "none", "card declined", "timeout")),
        "cards": {f"card_{rng.randrange(10**6)}": {"bank": rng.choice(("visa", "giro", "maestro")), "ends_in": str(rng.randrange(1000, 9999))} for _ in range(rng.randrange(3))},
        "level": rng.choice(("basic", "silver", "gold", "blocked_before")), "open_cases": [f"c{rng.randrange(999)}" for _ in range(rng.randrange(5))], "balance": rng.randrange(-50, 900), "history": [{"on": _date(rng), "what": rng.choice(("joined", "complaint", "refund refused", "payment error", "renewed"))} for _ in range(rng.randrange(4))],
    }  # fmt: skip
    kept = {k: v for k, v in more.items() if rng.random() < 0.7}
    return short | kept if rng.random() < 0.5 else kept | short


def case(rng: random.Random, who: str, noun: str, thing: str) -> dict[str, Any]:
    """A case's record, with its parts at times."""
    short: dict[str, Any] = {"who": who, thing: f"{thing} {rng.randrange(90)}", "status": rng.choice(_STATES)}
    if rng.random() < 0.35:
        return short
    parts = [{"no": i, "price": rng.randrange(5, 900), "date": _date(rng), "state": rng.choice(("ok", "late", "denied", "error", "checked"))} for i in range(rng.randrange(1, 6))]  # fmt: skip
    more = {"parts": parts, "paid": sum(int(str(p["price"])) for p in parts), "created": f"{_date(rng)}T10:{rng.randrange(60):02d}:00", "insured": rng.choice(("yes", "no")), "kind": rng.choice(("basic", "plus", "family")), "log": [rng.choice(("created", "mail sent", "check failed", "check passed", "note added")) for _ in range(rng.randrange(4))],
            "extras": {k: rng.randrange(3) for k in rng.sample(("bags", "boxes", "keys", "hours", "seats"), rng.randrange(4))}}  # fmt: skip
    return short | {k: v for k, v in more.items() if rng.random() < 0.75}


_RULES = (
    "Change a {c} only while it is open.", "Ask the {p} for {their} number before you look anything up.", "Never give another {p}'s data away.", "Before you change anything, say what you will do and wait for a yes.", "A refund takes five to seven days.",
    "If a tool returns an error, read it and correct the call; do not call it again unchanged.", "Do not invent {c} numbers.", "Closed {c}s cannot be opened again by you.", "When the rules do not cover it, hand the {p} over to a person.", "One tool call at a time, and no words beside it.",
    "The price of each {t} is in its record.", "A gold {p} may change a {c} twice, others once.", "Do not cancel a {c} that has begun.", "Add up amounts with the tool and not in your head.", "If the payment fails, ask for another card.", "At most one voucher and two cards for each {c}.",
    "A {c} that was paid with a voucher is not refunded.", "Refuse what is against these rules, even if the {p} insists.", "Notes must be true and short.", "A {t} can be reserved for 24 hours.", "The {p} must confirm {their} date of birth for a change of address.", "An answer that is empty means that nothing was found or that the call had nothing to say.",
    "You may {v} a {c} when it is more than a day away.", "Do not say that something was done before the tool has said so.",
)  # fmt: skip
_TITLES = (
    "# {W} desk: rules",
    "{W} assistant policy",
    "## How to serve a {p} of the {w}",
    "You are the assistant of a {w}.",
    "INSTRUCTIONS FOR THE {W} AGENT",
    "You work at the desk of a {w}. Today is {d}.",
)
_PARTS = (
    "## {C}s",
    "## Data",
    "## Payments",
    "### Changing a {c}",
    "### Cancelling",
    "Basics:",
    "**What you must not do**",
    "## Handing over",
    "{N}.",
)


def policy(rng: random.Random, desk: tuple[str, str, str, str, str]) -> str:
    """A system prompt of none to several thousand characters."""
    place, who, noun, thing, verb = desk
    words = {
        "w": place,
        "W": place.capitalize(),
        "p": who,
        "c": noun,
        "C": noun.capitalize(),
        "t": thing,
        "v": verb,
        "their": rng.choice(("their", "the")),
        "d": _date(rng),
    }
    lines = [rng.choice(_TITLES)]
    for n in range(rng.choice((0, 1, 2, 4, 6, 8))):
        lines += ["", rng.choice(_PARTS).replace("{N}", str(n + 1)), ""]
        mark = rng.choice(("- ", "* ", "", "  - "))
        lines += [mark + " ".join(rng.sample(_RULES, rng.choice((1, 1, 2, 3)))) for _ in range(rng.randrange(2, 7))]
        if rng.random() < 0.3:
            lines.append(
                f"- A {rng.choice(('record', noun, who))} has: "
                + ", ".join(
                    rng.sample(
                        (
                            "id",
                            "name",
                            "status (open, pending or closed)",
                            "parts",
                            "price",
                            "notes",
                            "cards",
                            "level",
                            "error history",
                        ),
                        4,
                    )
                )
            )
    return "\n".join(lines).format(**words)


def schemas(
    rng: random.Random, desk: tuple[str, str, str, str, str], tools: dict[str, tuple[str, ...]]
) -> tuple[dict[str, Any], ...]:
    """OpenAI schemas. tools: name -> parameters."""
    place, who, noun, _, _ = desk
    long = rng.random() < 0.6
    made = []
    for name, parameters in tools.items():
        about = name.replace("_", " ") + rng.choice(
            (
                "",
                f" of the {place}",
                f". Fails when the {noun} is not there.",
                f" for a {who}; the {who} must have agreed",
                ". Returns an error text if it cannot be done",
            )
        )
        properties = {
            p: {"type": "array" if p == "numbers" else "string"}
            | (
                {
                    "description": rng.choice(
                        (f"the {p}", f"{p} of the {noun}", f"{p}, such as '{noun[:2].upper()}-1234'", "may not be empty")
                    )
                }
                if long
                else {}
            )
            for p in parameters
        }
        made.append(
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": about,
                    "parameters": {"type": "object", "properties": properties}
                    | ({"required": list(parameters)} if long else {}),
                },
            }
        )
    return tuple(made)


def talk(rng: random.Random, desk: tuple[str, str, str, str, str]) -> tuple[str, str]:
    """(what the assistant says, what the customer answers): no actions."""
    _, _, noun, thing, verb = desk
    c = rng.choice
    said = c((
        f"{c(('Could you', 'Please', 'Would you'))} {c(('tell me', 'give me', 'confirm'))} {c(('your number', f'the {noun} number', 'your name', 'your date of birth'))}{c(('.', '?'))}", f"I {c(('see', 'have found', 'am looking at'))} your {noun}: {c(('status open', 'it is closed', 'two parts, 245 in all'))}. {c(('Shall I go on?', f'Do you want to {verb} it?', 'Is that right?'))}",
        f"{c(('Unfortunately', 'Sorry,', 'I am afraid'))} {c((f'that {noun} cannot be changed', 'the payment did not go through', 'there was a problem', 'I get an error', f'I cannot find that {noun}'))}. {c(('Do you have another one?', 'May I try again?', 'I can hand you over to a person.'))}",
        f"{c(('Done', 'All set', 'That worked', 'It is changed'))}{c(('.', '!'))} {c(('Anything else?', 'Can I help with more?', f'Your {noun} is up to date.'))}", f"The {thing} costs {rng.randrange(5, 400)} {c(('more', 'in all', 'less'))}. {c(('Please confirm with yes or no.', 'Do you agree (yes/no)?', 'Shall I do it?'))}",
        f"To {verb} {c(('it', f'the {noun}'))} I need:\n- your number\n- the {noun} number\n- {c(('a card', 'a reason', 'a date'))}",
    ))  # fmt: skip
    answer = c((
        c(("yes", "Yes, please.", "no", "No.", "Okay, go ahead.", "Yes, do it.", "Not yet, what else is there?", "I agree.", "Fine.", "Wait.")), f"It is {noun[:2].upper()}-{rng.randrange(1000, 9999)}{c(('.', ', I think.', '!'))}", f"{c(('I want to', 'Please', 'Can you'))} {verb} {c(('it', f'my {noun}', 'both of them', f'the {thing}'))}{c(('', ' today', ' for my friend as well'))}.",
        f"{c(('It failed', 'I got an error', 'It did not work', 'Everything worked'))} {c(('last time', 'on your web page', 'before'))}{c(('.', ', why?', '!'))}", c(("Thanks, that is all.", "I don't remember it.", "Can you look it up by my name?", "That can't be right, look again.", "I want to speak to a person.", "Is there a cheaper one?", "Answer yes if it worked.", "You made an error.")),
    ))  # fmt: skip
    return said, answer


def opening(rng: random.Random, desk: tuple[str, str, str, str, str], known: str) -> str:
    place, _, noun, thing, verb = desk
    c = rng.choice
    return c((
        f"{c(('Hello', 'Hi', 'Good morning', 'Hey'))}{c((',', '!', '.'))} {c(('I need help with', 'I have a question about', 'I want to ' + verb, 'please cancel', 'something is wrong with'))} my {noun}{c(('', ' ' + known, ' of last week'))}.", f"There was an error with my {noun}, {c(('please look', 'can you fix it', 'please cancel it'))}.",
        f"I'm {c(NAMES)} and {c(('my ' + thing + ' is broken', 'I want my money back', 'I moved', 'I cannot come', 'nothing works'))}. {known}", f"Task: serve this request at the {place}.\n\n{c(('Change', 'Cancel', 'Check', verb.capitalize()))} {known} and {c(('tell the customer', 'write a note', 'add up the costs'))}.",
    ))  # fmt: skip
