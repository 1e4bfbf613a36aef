"""What the tools of a desk answer: failures and successes in the manner of one service, put together from parts.

A `Voice` is drawn for a run; what it says differs from call to call. Failures may be terse or polite, successes may be full of errors.
"""

# ruff: noqa: E501 - tables of words read best a line each
from __future__ import annotations

import json
import random
from typing import Any

_PREFIXES = ("Error: ", "Error: ", "Error: ", "error: ", "ERROR: ", "Error - ", "Error! ", "Failed: ", "Rejected: ", "Not possible: ", "Tool error: ", "Refused: ", "Denied. ", "Invalid: ", "[error] ", "ERR ",
             "Exception: ", "Sorry, ", "Unable to comply: ", "Warning: nothing was done. ")  # fmt: skip
_CODES = {
    "missing": ("NOT_FOUND", "E404", "no_such_record", "UNKNOWN_ID", "RecordMissing", "ERR_17"),
    "closed": ("CONFLICT", "E409", "already_closed", "STATE_LOCKED", "InvalidState", "ERR_23"),
    "argument": ("BAD_REQUEST", "E400", "invalid_argument", "VALIDATION", "SchemaMismatch", "ERR_4"),
    "rule": ("FORBIDDEN", "E403", "policy_violation", "NOT_ELIGIBLE", "RuleBroken", "ERR_31"),
    "money": ("PAYMENT_REQUIRED", "E402", "insufficient_funds", "CARD_DECLINED", "AmountMismatch", "ERR_55"),
    "room": ("CONFLICT", "E409", "no_capacity", "SOLD_OUT", "SlotTaken", "ERR_60"),
    "down": ("UNAVAILABLE", "E503", "upstream_timeout", "TRY_LATER", "ServiceDown", "ERR_99"),
}  # fmt: skip
STATUS = {"missing": 404, "closed": 409, "argument": 422, "rule": 403, "money": 402, "room": 409, "down": 503}
_TITLES = {402: "Payment Required", 403: "Forbidden", 404: "Not Found", 409: "Conflict", 422: "Unprocessable Content", 503: "Service Unavailable"}  # fmt: skip
_CLASSES = {"missing": "LookupError", "closed": "RuntimeError", "argument": "ValueError", "rule": "PermissionError", "money": "ValueError", "room": "RuntimeError", "down": "TimeoutError"}  # fmt: skip


def reason(rng: random.Random, kind: str, x: str, noun: str) -> str:
    """Why a call about `x` (such as "loan LO-31") is refused, as one sentence without its end. noun: what x is."""
    c = rng.choice
    n, m = rng.randrange(2, 40), rng.randrange(40, 900)
    thing = c(("this", "the", "that", "your", "the given"))
    if kind == "missing":
        return c((
            f"{c(('no', 'there is no', 'found no', 'we have no'))} {x}{c(('', ' on record', ' in this branch', ' under that number', ' any more'))}", f"{x} {c(('is unknown', 'could not be located', 'is nowhere in the files', 'does not seem to exist', 'was never registered', 'is not on the list'))}",
            f"{c(('unknown', 'unrecognised', 'nonexistent', 'bad'))} {noun} {c(('number', 'id', 'reference', 'key'))}", f"{noun} lookup gave {c(('nothing', 'zero rows', 'no hit'))}", f"{c(('cannot', 'could not', 'unable to'))} {c(('find', 'locate', 'identify', 'match'))} {x}",
            f"id {c(('does not belong to any', 'matches no'))} {noun}", f"{noun} not {c(('found', 'known', 'registered', 'listed'))}"))  # fmt: skip
    if kind == "closed":
        return c((
            f"{x} {c(('is', 'was', 'has been'))} {c(('closed', 'archived', 'cancelled', 'completed', 'settled', 'withdrawn'))}{c(('', ' already', ' since last week', f' on 2026-0{rng.randrange(1, 9)}-1{rng.randrange(9)}'))}", f"{c(('only', 'just'))} {c(('open', 'pending', 'active'))} {noun}s can be {c(('changed', 'touched', 'cancelled', 'moved'))}",
            f"{noun} {c(('is not open', 'is in its final state', 'is frozen', 'cannot be edited any longer', 'is read-only now'))}", f"{c(('too late to', 'it is not possible any more to', 'no way to'))} {c(('change', 'cancel', 'alter'))} {thing} {noun}",
            f"{noun} status must be {c(('open', 'active', 'draft'))} but is {c(('closed', 'done', 'void'))}"))  # fmt: skip
    if kind == "argument":
        name = c(("note", "id", "date", "amount", "count", "reason", "term", "kind", "lines"))
        return c((
            f"{c(('missing', 'no', 'empty'))} {c(('field', 'argument', 'value for', 'parameter'))} {name}", f"{name} {c(('must be', 'has to be', 'should be', 'needs to be'))} {c(('a number', 'a date', 'positive', 'a list', 'shorter than 200 characters', 'one of the known kinds'))}",
            f"{c(('unexpected', 'unknown', 'superfluous'))} {c(('field', 'argument', 'key'))} {name}", f"{name} {c(('is malformed', 'cannot be parsed', 'is out of range', 'has the wrong type', 'may not be empty'))}", f"{n} {c(('entries', 'values', 'lines'))} {c(('were given', 'found'))}, {n + 1} {c(('wanted', 'are needed', 'expected'))}",
            f"expected {c(('integer', 'string', 'object', 'list'))} at {name}"))  # fmt: skip
    if kind == "money":
        what = c(("the sum", "the card", "the account", "the voucher", "the deposit", "the transfer", "the instalment"))
        return c((
            f"{what} {c(('was declined', 'does not cover it', 'is too small', 'is overdrawn', 'has run out', 'is blocked', 'was not accepted by the bank'))}", f"{m} {c(('due', 'owed', 'to pay'))}, {m - n} {c(('offered', 'received', 'available'))}", f"{c(('balance', 'credit', 'limit'))} {c(('too low', 'exhausted', 'exceeded'))}",
            f"{c(('not enough', 'too little'))} {c(('money', 'credit', 'funds', 'points'))} {c(('on the account', 'left', 'for this'))}", f"{what} is {n} short", f"totals differ by {n}"))  # fmt: skip
    if kind == "room":
        return c((
            f"{c(('nothing', 'no place', 'no slot', 'none'))} {c(('free', 'left', 'available'))} {c(('on that day', 'for that date', 'at this time', 'any more', 'in that size'))}", f"{x} {c(('clashes with another', 'overlaps a second'))} {noun}", f"only {n} left, {n + 3} {c(('asked for', 'requested', 'wanted'))}",
            f"{c(('fully booked', 'sold out', 'all taken', 'out of stock'))}", f"somebody else {c(('holds', 'has taken', 'reserved'))} {thing} {c(('slot', 'copy', 'place', noun))}"))  # fmt: skip
    if kind == "down":
        return c((
            f"{c(('the', 'our'))} {c(('booking', 'billing', 'records', 'mail'))} {c(('system', 'service', 'backend'))} {c(('does not answer', 'timed out', 'is being serviced', 'is down', 'dropped the connection'))}", f"{c(('gave up', 'no answer'))} after {n} seconds", f"{c(('too many', 'over'))} {m} {c(('calls', 'requests'))} {c(('this minute', 'in a row'))}, {c(('slow down', 'wait a little', 'come back later'))}",
            f"{c(('internal', 'unexpected', 'temporary'))} {c(('fault', 'trouble', 'problem'))} while {c(('saving', 'reading', 'locking'))} {thing} {noun}"))  # fmt: skip
    return c((
        f"{c(('our rules', 'the terms', 'this plan', 'the contract'))} {c(('do not allow', 'rule out', 'forbid', 'exclude'))} {c(('that', 'such a change', 'it for ' + x, 'changes of this kind'))}", f"{thing} {noun} {c(('may not be', 'can never be', 'is not allowed to be'))} {c(('moved', 'refunded', 'split', 'handed on', 'changed twice'))}",
        f"{c(('you', 'this role', 'the agent'))} {c(('may not', 'must not', 'has no right to', 'is not permitted to'))} {c(('change', 'see', 'cancel', 'approve'))} {x}", f"{c(('a manager', 'the owner', 'a second person'))} {c(('has to', 'must'))} {c(('confirm', 'approve', 'sign'))} {c(('first', 'this', 'it before'))}",
        f"{noun}s of {c(('the basic plan', 'last year', 'this kind', 'minors'))} are {c(('excluded', 'not covered', 'exempt', 'out of scope'))}", f"at most {n} {c(('changes', 'items', 'moves'))} {c(('per', 'for each', 'a'))} {noun}", f"{c(('notice of', 'a lead of'))} {n} days is {c(('needed', 'required', 'asked for'))}"))  # fmt: skip


_POLITE = ("I'm afraid {r}.", "Sorry, {r}.", "Unfortunately {r}.", "We regret that {r}.", "This cannot be done: {r}.", "{R}. Please check and call again.", "{R}, so nothing was changed.", "{R}.", "{R}", "{r}", "Request not carried out, because {r}.", "No. {R}.",
           "{R}! Ask the customer for another one.", "The call had no effect: {r}.", "It did not go through; {r}.", "Stopped: {r}")  # fmt: skip
_ENDS = ("", "", "", ".", "!", " (see rule 4)", ". Try another one.", ". Nothing was saved.", " [ref 8841]")


class Voice:
    """How one service answers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.bad = rng.choice(
            ("prefix", "prefix", "prefix", "polite", "json", "json", "code", "http", "trace", "xml", "nested", "any", "any")
        )
        self.good = rng.choice(("bare", "bare", "bare", "bare", "wrapped", "null_error", "http", "nested"))
        self.prefix = rng.choice(_PREFIXES)
        self.indent = rng.choice((None, None, None, 2))
        self.key = rng.choice(("error", "error", "message", "reason", "detail", "msg", "problem", "fault"))
        self.ok = rng.choice((("ok", True, False), ("success", True, False), ("status", "ok", "error"), ("status", "success", "failed"), ("result", "accepted", "rejected"), ("code", 0, 1), ("outcome", "done", "refused"),
                              ("state", "SUCCEEDED", "FAILED"), ("returncode", 0, 2), ("exit", 0, 1), ("statusCode", 200, None)))  # fmt: skip
        self.data = rng.choice(("data", "result", "record", "payload", "body", "item"))
        self.echo = rng.random() < 0.25

    def failure(self, kind: str, x: str, noun: str, arguments: dict[str, Any]) -> str:
        rng = self.rng
        why = reason(rng, kind, x, noun)
        manner = (
            self.bad
            if self.bad != "any"
            else rng.choice(("prefix", "polite", "json", "code", "http", "trace", "xml", "nested"))
        )
        code, status = rng.choice(_CODES[kind]), STATUS[kind]
        if manner == "prefix":
            return self.prefix + (why[0].upper() + why[1:] if rng.random() < 0.2 else why) + rng.choice(_ENDS)
        if manner == "polite":
            return rng.choice(_POLITE).format(r=why, R=why[0].upper() + why[1:])
        if manner == "code":
            return rng.choice(
                (
                    code,
                    f"{code}: {why}",
                    f"{status} {_TITLES[status]}",
                    f"{status}",
                    f"{code} ({noun})",
                    f"! {code}",
                    f"{why} [{code}]",
                    f"rc={rng.randrange(1, 90)} {code}",
                )
            )
        if manner == "http":
            body = self.dumps({self.key: why, "code": code})
            return rng.choice(
                (
                    f"HTTP/1.1 {status} {_TITLES[status]}\nContent-Type: application/json\n\n{body}",
                    f"{status} {_TITLES[status]}: {why}",
                    f"{status} - {body}",
                    f"Request failed with status {status}\n{body}",
                )
            )
        if manner == "trace":
            text = f'Traceback (most recent call last):\n  File "/srv/desk/tools.py", line {rng.randrange(20, 400)}, in call\n    return handler(**arguments)\n{_CLASSES[kind]}: {why}'
            return self.dumps({self.key: text}) if rng.random() < 0.5 else text
        if manner == "xml":
            return rng.choice(
                (
                    f'<error code="{code}">{why}</error>',
                    f"<result><status>error</status><text>{why}</text></result>",
                    f"<fault>{why}</fault>",
                )
            )
        name, _, bad = self.ok
        value: dict[str, Any] = {name: status if bad is None else bad, self.key: why}
        if manner == "nested":
            value = rng.choice((
                {"isError": True, "content": [{"type": "text", "text": why}]}, {"errors": [{"code": code, "message": why, "path": [noun]}]}, {"error": {"code": code, "message": why}}, {"error": {"type": code, "status": status}},
                {"status": status, "title": _TITLES[status], "detail": why}, {"jsonrpc": "2.0", "id": rng.randrange(99), "error": {"code": -32000 - rng.randrange(99), "message": why}}, {self.data: None, "errors": [why]},
                {"detail": [{"loc": ["body", noun], "msg": why, "type": code}]}, {"message": why, "code": code}, {self.data: None, "error": why}))  # fmt: skip
        elif rng.random() < 0.4:
            value["code"] = code
        if self.echo:  # a long answer whose failure stands at its start or its end
            long = {
                "request": arguments,
                "trace": [
                    {"step": s, "took_ms": rng.randrange(90), "state": rng.choice(("ok", "done"))}
                    for s in ("parse", "authorise", "load", "lock", "check")[: rng.randrange(1, 6)]
                ],
            }
            value = value | long if rng.random() < 0.5 else long | value
        return self.dumps(value)

    def success(self, found: Any) -> str:
        """found: a record, a list of them, a sentence, a number, or None for nothing to say."""
        rng, name, good = self.rng, self.ok[0], self.ok[1]
        if found is None:
            return rng.choice(("", "", "OK", "ok", "Done.", "true", "null", "{}", '{"ok": true}', "0", "204 No Content"))
        if isinstance(found, str) and (self.good == "bare" or rng.random() < 0.6):
            return found
        if self.good == "bare":
            return self.dumps(found)
        if self.good == "null_error":
            return self.dumps(
                rng.choice(
                    (
                        {self.data: found, self.key: None},
                        {"error": None, self.data: found},
                        {"errors": [], self.data: found},
                        {self.data: found, "warnings": [], "errors": 0},
                        {"isError": False, self.data: found},
                    )
                )
            )
        if self.good == "http":
            return f"HTTP/1.1 200 OK\nContent-Type: application/json\n\n{self.dumps(found)}"
        if self.good == "nested":
            return self.dumps(
                {"content": [{"type": "text", "text": json.dumps(found)}], "isError": False}
                if rng.random() < 0.5
                else {"jsonrpc": "2.0", "id": rng.randrange(99), "result": found}
            )
        value = {name: good, self.data: found}
        if rng.random() < 0.3:
            value["message"] = rng.choice(("", "No error.", "done", "0 errors", "Everything went through."))
        return self.dumps(value if rng.random() < 0.7 else dict(reversed(list(value.items()))))

    def dumps(self, value: Any) -> str:
        return json.dumps(value, indent=self.indent, ensure_ascii=False)
