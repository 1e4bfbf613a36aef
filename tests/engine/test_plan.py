"""The plan's invariants on random rounds, without a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from flide_engine.passes import pack, split_request
from flide_engine.plan import PlannedRound, plan_round
from flide_engine.segments import FROM_CHECKPOINT, GRID, Kind, Readout, Request, RequestError, Round, Segment
from forests import Forest, path_tokens, random_forest, random_request, resumed
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 500


@dataclass
class Indices:
    """Gives out pages and slots in order and remembers them."""

    pages: int = 100
    slots: int = 1000
    taken: list[int] = field(default_factory=list)

    def take(self, pages: int, slots: int) -> tuple[np.ndarray, np.ndarray]:
        p = np.arange(self.pages, self.pages + pages, dtype=np.int32)
        s = np.arange(self.slots, self.slots + slots, dtype=np.int32)
        self.pages += pages
        self.slots += slots
        return p, s


@dataclass
class Stored:
    m: int
    pages: np.ndarray
    slot: int


def forest(seed: int) -> Forest:
    """Fresh and resumed requests side by side."""
    rng = np.random.default_rng(seed)
    made = random_forest(rng, VOCAB)
    requests, before = list(made.requests), list(made.before)
    for i, r in enumerate(requests):
        n = len(r.segments[0])
        if rng.random() < 0.4 and n >= GRID:
            m = int(rng.integers(1, n // GRID + 1)) * GRID
            stored = Stored(m, np.arange(50, 50 + m // GRID, dtype=np.int32) + 10 * i, 30 + i)
            requests[i], before[i] = resumed(r, stored), r.segments[0].tokens[:m]
    return Forest(tuple(requests), tuple(before))


def planned(seed: int) -> tuple[Forest, PlannedRound]:
    made = forest(seed)
    return made, plan_round(Round(made.requests), Indices().take)


def ancestors(plan, s: int) -> list[int]:
    out = []
    while s >= 0:
        out.append(s)
        s = int(plan.seg_parent[s])
    return out[::-1]


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_every_readout_sees_its_own_prompt(seed: int) -> None:
    """Following parents from a readout's row gives exactly the tokens of its prompt, and positions that count up by one."""
    made, out = planned(seed)
    plan = out.plan
    for prompt, labels, (i, j, k) in made.prompts():
        at = out.placements[i].readouts[j][k]
        row = int(plan.readout_row[at])
        s = int(plan.row_segment[row])
        rows = []
        for a in ancestors(plan, s):
            n = int(plan.seg_len[a]) if a != s else row - int(plan.seg_first_row[s]) + 1
            rows.extend(range(int(plan.seg_first_row[a]), int(plan.seg_first_row[a]) + n))
        start = made.requests[i].start
        assert plan.token_ids[rows].tolist() == prompt[start:].tolist()
        assert plan.positions[rows].tolist() == list(range(start, len(prompt)))
        assert tuple(plan.label_ids[plan.label_ptr[at] : plan.label_ptr[at + 1]]) == labels


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_indices_have_one_writer_and_saves_lie_on_the_path(seed: int) -> None:
    made, out = planned(seed)
    plan = out.plan
    destinations = plan.kv_dst[plan.kv_dst >= 0]
    assert len(set(destinations.tolist())) == len(destinations)
    assert set((destinations // GRID).tolist()) == set(out.pages.tolist())
    written = [int(x) for x in plan.save_slot] + [int(x) for x in plan.seg_state_out if x >= 0]
    assert len(set(written)) == len(written)
    assert set(written) == set(out.slots.tolist())
    for i, r in enumerate(made.requests):
        for (segment, position), (piece, slot) in out.placements[i].saves.items():
            assert position in r.segments[segment].saves
            s = piece.index
            entries = range(plan.save_ptr[s], plan.save_ptr[s + 1])
            assert (position, slot) in [(int(plan.save_pos[v]), int(plan.save_slot[v])) for v in entries]
        assert sum(len(s.saves) for s in r.segments) == len(out.placements[i].saves)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_states_start_where_parents_end(seed: int) -> None:
    made, out = planned(seed)
    plan = out.plan
    checkpoints = {r.checkpoint.slot: r.checkpoint for r in made.requests if r.checkpoint is not None}
    for s in range(len(plan.seg_len)):
        parent, slot = int(plan.seg_parent[s]), int(plan.seg_state_in[s])
        if parent >= 0:
            assert plan.seg_level[s] == plan.seg_level[parent] + 1
            assert plan.seg_start[s] == plan.seg_start[parent] + plan.seg_len[parent]
            end = int(plan.seg_start[s])
            saved = {
                int(plan.save_pos[v]): int(plan.save_slot[v]) for v in range(plan.save_ptr[parent], plan.save_ptr[parent + 1])
            }
            assert slot == saved.get(end, int(plan.seg_state_out[parent]))
            assert slot >= 0
        elif slot >= 0:
            assert plan.seg_start[s] == checkpoints[slot].m
        else:
            assert plan.seg_start[s] == 0
        if plan.seg_kind[s] == Kind.TRUNK:
            assert plan.seg_start[s] % GRID == 0


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_keys_and_conv_windows(seed: int) -> None:
    """Trunk pages plus local ranges are exactly the ancestors, and the three rows before a segment are the right ones."""
    _, out = planned(seed)
    plan = out.plan
    for s in range(len(plan.seg_len)):
        path = ancestors(plan, s)
        root = path[0]
        base = int(plan.seg_start[root])
        hist = int(plan.seg_hist[s])
        trunk = [a for a in path if plan.seg_kind[a] == Kind.TRUNK]
        local = [a for a in path[:-1] if plan.seg_kind[a] == Kind.LOCAL]
        want = base + sum(int(plan.seg_len[a]) for a in trunk if a != s)
        assert hist == want
        assert [tuple(x) for x in plan.seg_locals[s] if x[1]] == [(plan.seg_first_row[a], plan.seg_len[a]) for a in local]
        table = plan.page_table[plan.seg_table[s]]
        for a in trunk:
            rows = range(int(plan.seg_first_row[a]), int(plan.seg_first_row[a] + plan.seg_len[a]))
            for row in rows:
                p = int(plan.positions[row])
                assert plan.kv_dst[row] == table[p // GRID] * GRID + p % GRID
        for j in range(3):
            position, value = int(plan.seg_start[s]) - 3 + j, int(plan.conv_prev[s, j])
            if value >= 0:
                assert int(plan.positions[value]) == position
                assert int(plan.row_segment[value]) in path[:-1]
            elif value == -1:
                assert position < 0
            else:
                slot, tap = divmod(-2 - value, 3)
                assert base - 3 + tap == position
                assert slot == int(plan.seg_state_in[root])


@given(st.integers(0, 10**9), st.sampled_from([64, 128, 300]))
@settings(max_examples=40, deadline=None)
def test_passes_cover_every_token_and_readout_once(seed: int, limit: int) -> None:
    made = forest(seed)
    parts = [p for i, r in enumerate(made.requests) for p in split_request(i, r, limit)]
    seen = [(p.owner, o, n) for p in parts for o, numbers in zip(p.origin, p.readouts, strict=True) for n in numbers]
    assert sorted(seen) == sorted(where for _, _, where in made.prompts())
    asked = [(p.owner, p.origin[s], position) for p in parts for s, position in p.asked]
    want = [(i, j, x) for i, r in enumerate(made.requests) for j, s in enumerate(r.segments) for x in s.saves]
    assert sorted(asked) == sorted(want)
    for group in pack(parts, made.requests, limit):
        heaviest = max(p.tokens for p in group)
        assert len(group) == 1 or sum(p.tokens for p in group) - heaviest < limit + heaviest
    order = [p for group in pack(parts, made.requests, limit) for p in group]
    assert order == parts


def test_only_equal_keys_share() -> None:
    tokens = np.arange(200, dtype=np.int32)

    def request(key: bytes) -> Request:
        return Request((Segment(tokens),), share_key=key)

    for keys, rows in (((b"a", b"a"), 200 + 8), ((b"a", b"b"), 400), ((b"", b""), 400)):
        assert plan_round(Round([request(k) for k in keys]), Indices().take).plan.rows == rows


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ((), "at least one"),
        ((Segment(np.zeros(3, np.int64)),), "int32"),
        ((Segment(np.array([VOCAB], np.int32)),), "token ids"),
        ((Segment(np.zeros(3, np.int32), parent=0),), "not an earlier"),
        ((Segment(np.zeros(100, np.int32), saves=(50,)),), "multiples"),
        ((Segment(np.zeros(100, np.int32), saves=(128,)),), "multiples"),
        ((Segment(np.zeros(100, np.int32), saves=(64, 64)),), "ascending"),
        ((Segment(np.zeros(3, np.int32), readouts=(Readout(3, (1,)),)),), "outside"),
        ((Segment(np.zeros(3, np.int32), readouts=(Readout(0, ()),)),), "labels"),
        ((Segment(np.zeros(3, np.int32), readouts=(Readout(0, (VOCAB,)),)),), "labels"),
        ((Segment(np.zeros(3, np.int32)), Segment(np.zeros(3, np.int32), 0)), "must start on"),
        ((Segment(np.zeros(64, np.int32)), Segment(np.zeros(64, np.int32), 0, Kind.LOCAL, (128,))), "takes no checkpoint"),
        ((Segment(np.zeros(1001, np.int32)),), "context"),
    ],
)
def test_invalid_requests_name_the_segment_and_the_rule(segments: tuple[Segment, ...], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Request(segments).validate(VOCAB, 1000)


def test_a_trunk_cannot_grow_from_a_branch() -> None:
    branch = Segment(np.zeros(64, np.int32), FROM_CHECKPOINT, Kind.LOCAL)
    with pytest.raises(RequestError, match="cannot grow"):
        Request((branch, Segment(np.zeros(2, np.int32), 0))).validate(VOCAB)


def test_valid_requests_pass() -> None:
    for seed in range(20):
        for r in forest(seed).requests:
            r.validate(VOCAB, 10_000)


def test_path_tokens_follow_parents() -> None:
    r = random_request(np.random.default_rng(1), VOCAB, depth=3, branches=3)
    r = Request((replace(r.segments[0], tokens=np.array([7], np.int32)), *r.segments[1:]))
    assert path_tokens(r, 1, np.array([3], np.int32))[:2].tolist() == [3, 7]
