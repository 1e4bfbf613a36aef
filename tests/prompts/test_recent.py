"""Recurring string states: the same tokens without tokenising again, within bounds, and never across tenants."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from flide_agent.default_model import DIRECTORY
from flide_agent.prompts import Prompts
from flide_agent.prompts.recent import SHORTEST, RecentStates


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts.load(DIRECTORY)


def text(seed: int, length: int = 2 * SHORTEST) -> str:
    rng = np.random.default_rng(seed)
    return "".join(chr(c) for c in rng.integers(32, 0x300, length))


def test_a_state_that_comes_again_is_not_tokenised_again(prompts: Prompts) -> None:
    recent = RecentStates(prompts)
    assert not recent.knows("a", text(1))
    first = recent.trunk("a", text(1))
    assert recent.knows("a", text(1))
    assert recent.trunk("a", text(1)) is first
    assert (recent.hits, recent.misses) == (1, 1)
    plain = prompts.state(text(1))
    assert np.array_equal(first.tokens, plain.tokens)
    assert (first.ends, first.saves, first.escaped) == (plain.ends, plain.saves, plain.escaped)
    with pytest.raises(ValueError, match="read-only"):
        first.tokens[0] = 1


def test_tenants_share_nothing(prompts: Prompts) -> None:
    """Neither by the same text nor by moving characters between name and text."""
    recent = RecentStates(prompts)
    recent.trunk("ab", text(1))
    recent.trunk("a", text(1))
    recent.trunk("a", "b" + text(1))
    assert recent.hits == 0
    assert not recent.knows("b", text(1))
    assert not recent.knows("ab", text(2))
    recent.trunk("a", "short")
    assert not recent.knows("a", "short"), "it is not kept"
    assert not recent.knows("a", {"a": 1})


def test_one_character_makes_another_state(prompts: Prompts) -> None:
    recent = RecentStates(prompts)
    state = text(3)
    assert not np.array_equal(recent.trunk("a", state).tokens, recent.trunk("a", state + "x").tokens)
    assert recent.hits == 0


def test_bounded_and_least_recently_used_goes_first(prompts: Prompts) -> None:
    recent = RecentStates(prompts, 3 * 2 * SHORTEST)
    for seed in (0, 1, 2, 0, 3):
        recent.trunk("a", text(seed))
    assert (recent.hits, recent.misses) == (1, 4)
    recent.trunk("a", text(0))
    assert recent.hits == 2
    recent.trunk("a", text(1))
    assert recent.misses == 5, "the one used longest ago is gone"
    assert sum(length for length, _ in recent._held.values()) <= 3 * 2 * SHORTEST


@pytest.mark.parametrize("state", ["short", {"a": "b" * 5000}, [{"role": "user", "content": "x" * 5000}], "y" * (1 << 16)])
def test_what_is_not_kept(prompts: Prompts, state: object) -> None:
    recent = RecentStates(prompts, 1 << 15)
    assert np.array_equal(recent.trunk("a", state).tokens, prompts.state(state).tokens)
    assert not recent._held


def test_threads_at_once(prompts: Prompts) -> None:
    recent, wrong = RecentStates(prompts, 8 * 2 * SHORTEST), []
    want = {seed: prompts.state(text(seed)).tokens for seed in range(12)}

    def work(start: int) -> None:
        wrong.extend(s for i in range(60) if not np.array_equal(recent.trunk("a", text(s := (start + i) % 12)).tokens, want[s]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert recent._room >= 0
    assert recent._room + sum(length for length, _ in recent._held.values()) == 8 * 2 * SHORTEST
