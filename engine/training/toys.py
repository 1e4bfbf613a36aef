"""Small functions with a bug and a test: what the scripted agent's tasks are about."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Toy:
    """name: the function's; code: its right source; wrong: (line of it, the buggy line); calls: (arguments, right result)."""

    name: str
    about: str
    code: str
    wrong: tuple[str, str]
    calls: tuple[tuple[str, str], ...]

    @property
    def buggy(self) -> str:
        return self.code.replace(*self.wrong)

    def test(self, module: str) -> str:
        cases = "\n".join(
            f"    def test_{self.name}_{i}(self):\n        self.assertEqual({self.name}({a}), {r})\n"
            for i, (a, r) in enumerate(self.calls)
        )
        return f"import unittest\n\nfrom {module} import {self.name}\n\n\nclass Test{self.name.title().replace('_', '')}(unittest.TestCase):\n{cases}\n\nif __name__ == '__main__':\n    unittest.main()\n"


def _toy(name: str, about: str, body: str, right: str, wrong: str, *calls: tuple[str, str]) -> Toy:
    code = "def " + body
    if right not in code:
        raise ValueError(f"{name}: the line to break is not in its source")
    return Toy(name, about, code, (right, wrong), calls)


TOYS = (
    _toy("clamp", "limits a number to a range", "clamp(x, low, high):\n    if x < low:\n        return low\n    if x > high:\n        return high\n    return x\n",
         "if x > high", "if x > low", ("5, 0, 3", "3"), ("-1, 0, 3", "0"), ("2, 0, 3", "2")),
    _toy("slugify", "turns a title into a slug", "slugify(title):\n    words = title.lower().split()\n    return '-'.join(words)\n",
         "title.lower().split()", "title.split()", ("'Hello World'", "'hello-world'"), ("'a b'", "'a-b'")),
    _toy("chunked", "cuts a list into pieces", "chunked(items, size):\n    if size < 1:\n        raise ValueError('size must be positive')\n    return [items[i:i + size] for i in range(0, len(items), size)]\n",
         "range(0, len(items), size)", "range(0, len(items) - 1, size)", ("[1, 2, 3], 2", "[[1, 2], [3]]"), ("[], 3", "[]"), ("[1, 2], 2", "[[1, 2]]")),
    _toy("median", "takes the middle of numbers", "median(values):\n    ordered = sorted(values)\n    n = len(ordered)\n    if n % 2:\n        return ordered[n // 2]\n    return (ordered[n // 2 - 1] + ordered[n // 2]) / 2\n",
         "ordered = sorted(values)", "ordered = list(values)", ("[3, 1, 2]", "2"), ("[1, 2, 3, 4]", "2.5")),
    _toy("flatten", "flattens nested lists", "flatten(items):\n    out = []\n    for item in items:\n        if isinstance(item, list):\n            out.extend(flatten(item))\n        else:\n            out.append(item)\n    return out\n",
         "out.extend(flatten(item))", "out.append(flatten(item))", ("[1, [2, [3]]]", "[1, 2, 3]"), ("[]", "[]")),
    _toy("parse_version", "reads a version", "parse_version(text):\n    parts = text.strip().split('.')\n    return tuple(int(part) for part in parts)\n",
         "int(part)", "str(part)", ("'1.20.3'", "(1, 20, 3)"), ("' 2.0 '", "(2, 0)")),
    _toy("is_leap", "tells leap years", "is_leap(year):\n    if year % 400 == 0:\n        return True\n    if year % 100 == 0:\n        return False\n    return year % 4 == 0\n",
         "year % 400 == 0", "year % 300 == 0", ("2000", "True"), ("1900", "False"), ("2024", "True")),
    _toy("human_size", "writes sizes for people", "human_size(n):\n    for unit in ('B', 'KB', 'MB'):\n        if n < 1024:\n            return f'{n} {unit}'\n        n //= 1024\n    return f'{n} GB'\n",
         "n //= 1024", "n //= 512", ("2048", "'2 KB'"), ("1023", "'1023 B'"), ("1048576", "'1 MB'")),
    _toy("dedupe", "drops what was seen before", "dedupe(items):\n    seen = set()\n    out = []\n    for item in items:\n        if item not in seen:\n            seen.add(item)\n            out.append(item)\n    return out\n",
         "seen.add(item)", "seen.add(items)", ("[1, 2, 1]", "[1, 2]"), ("'aab'", "['a', 'b']")),
    _toy("first_key_error", "finds the first missing key", "first_key_error(data, keys):\n    for key in keys:\n        if key not in data:\n            return key\n    return None\n",
         "return key\n", "return data[key]\n", ("{'a': 1}, ['a', 'b']", "'b'"), ("{}, []", "None")),
    _toy("count_errors", "counts error lines in a log", "count_errors(log):\n    lines = log.splitlines()\n    return sum('error' in line.lower() for line in lines)\n",
         "line.lower()", "line", ("'ERROR: x\\nok'", "1"), ("''", "0"), ("'an error\\nError'", "2")),
    _toy("mean", "averages numbers", "mean(values):\n    if not values:\n        return 0.0\n    return sum(values) / len(values)\n",
         "if not values", "if values is None", ("[1, 2, 3]", "2.0"), ("[]", "0.0")),
)  # fmt: skip

MODULES = (
    "extra",
    "toolbox",
    "error_codes",
    "text_tools",
    "numbers_",
    "traceback_view",
    "checks",
    "shared",
    "compat_extra",
    "failures",
)


def pick(rng: random.Random) -> tuple[Toy, str]:
    """A toy and the name of the module that holds it."""
    return rng.choice(TOYS), rng.choice(MODULES)
