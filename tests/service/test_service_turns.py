"""Fair between tenants, and between sessions within each; one tenant's flood keeps no other out."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from flide_engine.segments import Request, Segment
from hypothesis import given
from hypothesis import strategies as st

from flide_agent.errors import Overloaded
from flide_agent.line import Item, Line
from flide_agent.slices import Slices

ROWS = 100


def item(tenant: str, owner: str, rows: int = ROWS) -> Item:
    request = Request((Segment(np.zeros(rows, np.int32)),), share_key=tenant.encode())
    return Item(Slices(request, 4096), f"{tenant}/{owner}".encode(), 0.0, tokens=rows)


def served(line: Line, rounds: int, room: int = 4 * ROWS) -> Counter[str]:
    """Rows that each tenant gets when whoever was served comes again at once."""
    rows: Counter[str] = Counter()
    for _ in range(rounds):
        taken, gone = line.take(room)
        assert taken
        assert not gone
        for each in taken:
            tenant, _, owner = each.owner.decode().partition("/")
            rows[tenant] += each.rows
            line.add(item(tenant, owner, each.rows))
    return rows


def test_a_tenant_with_many_sessions_gets_no_more_than_one_with_one() -> None:
    line = Line(10_000, 1 << 30, 0.0)
    for i in range(60):
        line.add(item("flood", str(i)))
    line.add(item("calm", "only"))
    line.add(item("calm", "only"))
    rows = served(line, 40)
    assert rows["calm"] >= 0.45 * rows.total(), rows
    for i in range(60):  # the control: as sessions of one tenant it is one of 61
        line.add(item("calm", f"more-{i}"))
    sessions = Counter(each.owner for _ in range(30) for each in line.take(4 * ROWS)[0])
    assert max(sessions.values()) <= 2


def test_a_newcomer_s_first_request_goes_before_what_a_flood_has_in_line() -> None:
    line = Line(10_000, 1 << 30, 0.0)
    for i in range(200):
        line.add(item("flood", str(i % 50)))
    line.take(4 * ROWS)
    late = item("calm", "first")
    line.add(late)
    assert late in line.take(4 * ROWS)[0]


def test_sessions_of_one_tenant_stay_fair_beside_another_tenant() -> None:
    line = Line(10_000, 1 << 30, 0.0)
    for _ in range(100):
        line.add(item("a", "greedy"))
    for _ in range(10):
        line.add(item("a", "modest"))
        line.add(item("b", "other"))
    order = [each.owner.decode() for _ in range(10) for each in line.take(3 * ROWS)[0]]
    assert 8 <= order.count("b/other") <= 10
    assert order.count("a/modest") >= 5
    assert order.count("a/greedy") <= len(order) - 13


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(1, 300)), min_size=1, max_size=60), st.integers(1, 500)
)
def test_everybody_is_served_once_and_each_owner_in_order(what: list[tuple[int, int, int]], room: int) -> None:
    line = Line(10_000, 1 << 30, 0.0)
    items = [item(f"t{t}", f"o{o}", rows) for t, o, rows in what]
    for each in items:
        line.add(each)
    done: list[Item] = []
    while len(line):
        taken, _ = line.take(room)
        assert taken, "the first always goes"
        assert len(taken) == 1 or sum(i.rows for i in taken) <= max(room, taken[0].rows)
        done += taken
    assert sorted(map(id, done)) == sorted(map(id, items))
    assert line.tokens == 0
    assert not line._turns._owners or len(line._turns._owners) <= 4


def test_a_full_line_lets_a_tenant_in_that_has_nothing_there() -> None:
    line = Line(4, 10 * ROWS, 0.0)
    for i in range(4):
        line.check(b"flood", ROWS)
        line.add(item("flood", str(i)))
    with pytest.raises(Overloaded, match="4 requests wait"):
        line.check(b"flood", ROWS)
    line.check(b"calm", 100 * ROWS)
    line.expected[b"calm"] += 1
    with pytest.raises(Overloaded, match="5 requests wait"):
        line.check(b"calm")
    line.expected[b"calm"] -= 1
    line.add(item("calm", "x", 8 * ROWS))
    assert line.take(100 * ROWS)[0]
    line.check(b"calm")
    line.check(b"flood")


def test_a_flood_of_one_tenant_is_not_another_s_wait() -> None:
    line = Line(1000, 1 << 30, max_wait=1.0)
    line.measured(100, 100 * ROWS, 1.0)  # 100 rows in 10 ms
    for i in range(300):
        line.add(item("flood", str(i)))
    assert line.wait(b"flood", b"flood/new") == pytest.approx(3.0)
    assert line.wait(b"calm", b"calm/new") == pytest.approx(0.01)
    assert line.wait() == pytest.approx(3.0)
    with pytest.raises(Overloaded, match="about 3"):
        line.check(b"flood", ROWS, b"flood/new")
    line.check(b"calm", ROWS, b"calm/new")
