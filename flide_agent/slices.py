"""A long request in slices, so that others get between them.

A request of ours is one trunk with branches. Its trunk can stop at any multiple of 64 and go on from the checkpoint taken
there, which costs nothing, and its branches can be asked in any grouping: each answer has the same bits. A slice is itself a
request. Each further slice of branches computes the trunk's last rows (at most 63) and the candidates on the way again, so only
many branches are cut. A branch counts as whole blocks of 64 rows, which is what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flide_engine.segments import FROM_CHECKPOINT, GRID, Kind, Request, Segment

if TYPE_CHECKING:
    from flide_engine.engine import RequestResult
    from flide_engine.memory import Checkpoint

UNCUT = 4
"""Requests, and the branches of a request, stay in one piece up to so many slices."""


@dataclass(slots=True)
class _Slice:
    """segments: for each of the slice's, which of the request's it stands for."""

    request: Request
    segments: list[int]
    asked: frozenset[int]
    continues_at: int = 0


@dataclass(slots=True)
class Slices:
    """The slices of a request, one at a time: `next`, run it, `take` its result, until `done`. rows: most of one slice.

    What is shorter than UNCUT slices is not cut, nor is a single branch. Between slices this owns a reference of the checkpoint
    to go on from.
    """

    request: Request
    rows: int
    done: RequestResult | None = None
    count: int = 0
    _at: int = 0
    _whole: bool = False
    _checkpoint: Checkpoint | None = None
    _left: list[int] = field(default_factory=list)
    _logits: list[Any] = field(default_factory=list)
    _sums: list[Any] = field(default_factory=list)
    _saved: dict[tuple[int, int], Checkpoint] = field(default_factory=dict)
    _computed: int = 0
    _shared: int = 0
    _now: _Slice | None = None

    def __post_init__(self) -> None:
        if self.request.tokens() <= UNCUT * self.rows or not _can_be_cut(self.request):
            return
        branches = self.request.tokens() - len(self.request.segments[0])
        self._whole = branches <= UNCUT * self.rows
        self._at = self.request.start
        parents = {s.parent for s in self.request.segments}
        self._left = [i for i in range(1, len(self.request.segments)) if i not in parents or self.request.segments[i].readouts]
        self._logits = [()] * len(self.request.segments)
        self._sums = list(self._logits)

    @property
    def cut(self) -> bool:
        """It runs in more than one slice."""
        return bool(self._logits)

    @property
    def next(self) -> Request:
        """What to run now; the same until its result is taken."""
        if not self.cut:
            return self.request
        if self._now is None:
            self._now = self._cut()
        return self._now.request

    def take(self, result: RequestResult) -> None:
        """The result of `next`, whose checkpoints this takes over. `done` is set after the last one."""
        self.count += 1
        if self._now is None:
            self.done = result
            return
        now, self._now = self._now, None
        for own, original in enumerate(now.segments):
            if result.logits[own]:
                self._logits[original] = result.logits[own]
                self._sums[original] = result.sums[own] if result.sums else ()
        self._computed += result.computed_tokens
        self._shared += result.shared_tokens
        before = self._checkpoint
        if now.continues_at:
            self._checkpoint = result.checkpoints[0, now.continues_at].retain()
            self._at = now.continues_at
            if before is not None:
                before.release()
        for (segment, position), checkpoint in result.checkpoints.items():
            if position in now.asked:
                self._saved[segment, position] = checkpoint
            else:
                checkpoint.release()
        if not now.continues_at and not self._left:
            self._finish(result)

    def drop(self) -> None:
        """Give back what is held: the request is given up."""
        if self._checkpoint is not None:
            self._checkpoint.release()
        self._checkpoint = None
        for checkpoint in self._saved.values():
            checkpoint.release()
        self._saved = {}

    def _finish(self, last: RequestResult) -> None:
        if self._checkpoint is not None:
            self._checkpoint.release()
        self._checkpoint = None
        self.done = type(last)(tuple(self._logits), self._saved, self._computed, self._shared, tuple(self._sums))
        self._saved = {}

    def _cut(self) -> _Slice:
        end = self.request.start + len(self.request.segments[0])
        if end - self._at > self.rows:
            stop = self._at + max(GRID, self.rows // GRID * GRID)
            return self._slice(stop, [], stop)
        room = 1 << 62 if self._whole else self.rows - _blocks(end - self._at)
        taken: list[int] = []
        inside = {0}
        while self._left:
            path = self._path(self._left[0]) - inside
            cost = sum(_blocks(len(self.request.segments[i])) for i in path)
            if taken and cost > room:
                break
            taken.append(self._left.pop(0))
            inside |= path
            room -= cost
        last = end // GRID * GRID
        goes_on = last if self._left and last > self._at else 0
        return self._slice(end, sorted(inside), goes_on)

    def _path(self, segment: int) -> set[int]:
        """The segment and all it hangs on."""
        out = set()
        while segment != FROM_CHECKPOINT:
            out.add(segment)
            segment = self.request.segments[segment].parent
        return out

    def _slice(self, stop: int, inside: list[int], continues_at: int) -> _Slice:
        trunk, start = self.request.segments[0], self.request.start
        asked = frozenset(p for p in trunk.saves if self._at < p <= stop)
        saves = tuple(sorted(asked | ({continues_at} if continues_at else set())))
        segments = [Segment(trunk.tokens[self._at - start : stop - start], saves=saves)]
        originals = [0]
        place = {0: 0}
        for i in inside:
            if i == 0:
                continue
            segment = self.request.segments[i]
            place[i] = len(segments)
            originals.append(i)
            segments.append(Segment(segment.tokens, place[segment.parent], segment.kind, readouts=segment.readouts))
        checkpoint = self.request.checkpoint if self._checkpoint is None else self._checkpoint
        return _Slice(Request(tuple(segments), checkpoint, self.request.share_key), originals, asked, continues_at)


def _blocks(rows: int) -> int:
    return -(-rows // GRID) * GRID


def _can_be_cut(request: Request) -> bool:
    """It has the shape of ours: one trunk without readouts, and branches that hang on it."""
    first, *rest = request.segments
    own = first.kind is Kind.TRUNK and first.parent == FROM_CHECKPOINT and not first.readouts
    return own and all(s.kind is Kind.LOCAL and s.parent != FROM_CHECKPOINT for s in rest)
