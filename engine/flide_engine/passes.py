"""A round cut into passes of bounded length, along request boundaries where that is enough.

A request longer than one pass first runs its trunk alone, piece by piece, each piece from the checkpoint of the piece before it,
then its branches in groups, each group behind the trunk's last few tokens. A resumed run has the bits of a fresh one, so the cut
changes no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from flide_engine.pieces import common_prefix
from flide_engine.plan import Int32
from flide_engine.segments import FROM_CHECKPOINT, GRID, TRUNK, Request, Segment


@dataclass(frozen=True)
class Part:
    """A piece of one request that fits into a pass.

    owner: index of the request in the round. segments: the part's trees.
    origin: per segment of the part, its segment in the request. readouts: per segment, the numbers of its readouts there.
    asked: saves that the request asked for, as (segment of the part, position).
    resumes: starts from the checkpoint of the last part of this request that had `hand_on`, else from the request's own.
    hand_on: position whose checkpoint the following parts start from; None when there is none.
    """

    owner: int
    segments: tuple[Segment, ...]
    origin: tuple[int, ...]
    readouts: tuple[tuple[int, ...], ...]
    asked: frozenset[tuple[int, int]]
    resumes: bool = False
    hand_on: int | None = None

    @property
    def tokens(self) -> int:
        return sum(len(s) for s in self.segments)


def split_request(owner: int, request: Request, limit: int) -> Iterator[Part]:
    """The parts of one request, in the order in which they must run. A branch with its ancestors is never cut."""
    if request.tokens() <= limit:
        yield _whole(owner, request)
        return
    roots = _root_of(request)
    for root in sorted(set(roots)):
        yield from _split_tree(owner, request, [i for i, r in enumerate(roots) if r == root], limit)


def _whole(owner: int, request: Request) -> Part:
    segments = request.segments
    asked = frozenset([(i, p) for i, s in enumerate(segments) if s.saves for p in s.saves])
    readouts = tuple([_NUMBERS[n] if (n := len(s.readouts)) < len(_NUMBERS) else tuple(range(n)) for s in segments])
    return Part(owner, segments, tuple(range(len(segments))), readouts, asked)


_NUMBERS = tuple(tuple(range(n)) for n in range(3))


def _root_of(request: Request) -> list[int]:
    roots: list[int] = []
    for i, s in enumerate(request.segments):
        roots.append(i if s.parent == FROM_CHECKPOINT else roots[s.parent])
    return roots


def _part(owner: int, request: Request, members: Iterable[int], first: Segment | None = None, resumes: bool = False) -> Part:
    """Whole segments of a request; `first`, when given, stands for the first of them."""
    indices = list(members)
    place = {old: new for new, old in enumerate(indices)}
    segments = []
    for old in indices:
        s = request.segments[old]
        parent = FROM_CHECKPOINT if s.parent == FROM_CHECKPOINT else place[s.parent]
        segments.append(Segment(s.tokens, parent, s.kind, s.saves, s.readouts))
    if first is not None:
        segments[0] = first
    asked = frozenset((i, p) for i, s in enumerate(segments) for p in s.saves)
    readouts = tuple(tuple(range(len(s.readouts))) for s in segments)
    return Part(owner, tuple(segments), tuple(indices), readouts, asked, resumes)


def _split_tree(owner: int, request: Request, members: Sequence[int], limit: int) -> Iterator[Part]:
    root = members[0]
    trunk, start = request.segments[root], request.start
    if trunk.kind is not TRUNK or sum(len(request.segments[i]) for i in members) <= limit:
        yield _part(owner, request, members)
        return
    step = max(GRID, limit // GRID * GRID)
    last = start + len(trunk) // GRID * GRID
    for begin in range(start, last, step):
        end = min(begin + step, last)
        saves = tuple(p for p in trunk.saves if begin < p <= end)
        chosen = [(i, r) for i, r in enumerate(trunk.readouts) if begin <= start + r.row < end]
        piece = Segment(
            trunk.tokens[begin - start : end - start],
            saves=saves if end in saves else (*saves, end),
            readouts=tuple(replace(r, row=r.row + start - begin) for _, r in chosen),
        )
        numbers = tuple(i for i, _ in chosen)
        yield Part(owner, (piece,), (root,), (numbers,), frozenset((0, p) for p in saves), begin > start, end)
    rest = [(i, r) for i, r in enumerate(trunk.readouts) if start + r.row >= last]
    remainder = Segment(trunk.tokens[last - start :])
    readouts = tuple(replace(r, row=r.row + start - last) for _, r in rest)
    for number, group in enumerate(_groups(request, members, limit - len(remainder)) or ([[]] if rest else [])):
        first = Segment(remainder.tokens, readouts=readouts if number == 0 else ())
        part = _part(owner, request, [root, *group], first, resumes=last > start)
        numbers = tuple(i for i, _ in rest) if number == 0 else ()
        yield Part(owner, part.segments, part.origin, (numbers, *part.readouts[1:]), part.asked, part.resumes)


def _groups(request: Request, members: Sequence[int], room: int) -> list[list[int]]:
    """The root's subtrees in groups of at most `room` tokens, at least one subtree each."""
    child: dict[int, int] = {}
    trees: dict[int, list[int]] = {}
    for i in members[1:]:
        parent = request.segments[i].parent
        child[i] = i if parent == members[0] else child[parent]
        trees.setdefault(child[i], []).append(i)
    groups: list[list[int]] = []
    used = 0
    for tree in trees.values():
        n = sum(len(request.segments[i]) for i in tree)
        if not groups or used + n > room:
            groups.append([])
            used = 0
        groups[-1].extend(tree)
        used += n
    return groups


def pack(parts: Sequence[Part], requests: Sequence[Request], limit: int) -> list[list[Part]]:
    """Parts in passes of at most `limit` tokens (a single longer part gets a pass alone), in order; tokens shared count once."""
    passes: list[list[Part]] = []
    room = 0
    heads: dict[tuple[bytes, int, bytes], Int32] = {}
    for part in parts:
        key, shared = _share_key(part, requests[part.owner]), 0
        if key is not None and key in heads:
            shared = common_prefix(heads[key], part.segments[0].tokens) // GRID * GRID
        chained = part.resumes or part.hand_on is not None
        if not passes or chained or passes[-1][-1].hand_on is not None or part.tokens - shared > room:
            passes.append([])
            room, heads, shared = limit, {}, 0
        passes[-1].append(part)
        room -= part.tokens - shared
        if key is not None:
            heads.setdefault(key, part.segments[0].tokens)
    return passes


def _share_key(part: Part, request: Request) -> tuple[bytes, int, bytes] | None:
    s = part.segments[0]
    if not request.share_key or s.kind is not TRUNK or part.resumes or len(s) < GRID:
        return None
    return request.share_key, id(request.checkpoint), s.tokens[:GRID].tobytes()
