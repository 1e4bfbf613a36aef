"""What is in a store's directory: sessions with what they hold, bytes by tier, kind and tenant, rates of the last run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from flide_agent.cache.shelf import Shelf
from flide_agent.sessions.records import load_steps
from flide_agent.store.identity import tenant_id
from flide_agent.store.index import NodeRecord
from flide_agent.store.report import Kind

DEFAULT_TENANT = "default"


class SessionLine(msgspec.Struct, frozen=True):
    """bytes: of its checkpoints on disk and all K/V before them, each once; shared: how many of these another session has too.
    tenant: its name when it is the one asked for or the default one, else eight hex digits of its id."""

    id: str
    tenant: str
    updated: float
    steps: int
    messages: int
    tokens: int
    checkpoints: int
    bytes: int
    shared: int


def lines(shelf: Shelf, tenant: str | None) -> list[SessionLine]:
    """Sessions, last used first; of one tenant or all."""
    nodes = shelf.nodes()
    only = b"" if tenant is None else tenant_id(shelf.share_key(tenant))
    names = {tenant_id(shelf.share_key(name)): name for name in {DEFAULT_TENANT, tenant or DEFAULT_TENANT}}
    everybody = shelf.sessions()
    held = {place: _holds(shelf, place[16:], nodes) for place in everybody}
    uses = Counter(key for keys in held.values() for key in _spans(keys, nodes))
    out = []
    for place, record in everybody.items():
        if not place.startswith(only):
            continue
        spans = _spans(held[place], nodes)
        states = sum(nodes[key].state_bytes for key in held[place])
        size = {key: nodes[key].span_bytes for key in spans}
        shared = sum(n for key, n in size.items() if uses[key] > 1)
        out.append(
            SessionLine(
                record.id, names.get(place[:16], place[:4].hex()), record.updated, record.steps, record.messages, record.tokens,
                len(held[place]), states + sum(size.values()), shared,
            )
        )  # fmt: skip
    return sorted(out, key=lambda line: -line.updated)


def _holds(shelf: Shelf, session: bytes, nodes: dict[bytes, NodeRecord]) -> set[bytes]:
    """Keys of its checkpoints on disk."""
    kept = {key for step in load_steps(shelf.index, session).values() for _, key in step.checkpoints}
    return {key for key in kept if key in nodes and nodes[key].state}


def _spans(keys: set[bytes], nodes: dict[bytes, NodeRecord]) -> set[bytes]:
    """The keys and all whose K/V they build on."""
    out: set[bytes] = set()
    for key in keys:
        while key in nodes and key not in out:
            out.add(key)
            key = nodes[key].parent
    return out


def totals(shelf: Shelf) -> dict[str, Any]:
    """Sizes now, and the counters as the last server left them (seconds old while one runs)."""
    nodes = shelf.nodes()
    own = shelf.own
    kinds: Counter[str] = Counter()
    tenants: Counter[str] = Counter()
    named = {tenant_id(shelf.share_key(DEFAULT_TENANT)): DEFAULT_TENANT}
    for record in nodes.values():
        if record.state:
            kinds[Kind(record.kind).name.lower() if record.kind in set(Kind) else "old"] += 1
        tenants[named.get(record.tenant, record.tenant[:4].hex() or "unknown")] += record.span_bytes + record.state_bytes
    data = shelf.index.path / "data.mdb"
    return {
        "model": None if shelf.identity is None else str(shelf.identity),
        "sessions": len(shelf.sessions()),
        "checkpoints": sum(r.state != "" for r in nodes.values()),
        "bytes": {
            "states": sum(r.state_bytes for r in nodes.values()),
            "kv": sum(r.span_bytes for r in nodes.values()),
            "index": data.stat().st_size,
        },
        "index_used": round(shelf.index.used(), 4),
        "other_models": sum(r.identity != own for r in nodes.values()),
        "waiting_to_be_unlinked": len(shelf.index.scan("gc")),
        "kinds": dict(sorted(kinds.items())),
        "tenants": dict(sorted(tenants.items())),
        **_rates(shelf),
    }


def _rates(shelf: Shelf) -> dict[str, Any]:
    raw = shelf.index.read("meta", b"counters")
    try:
        counters: dict[str, int] = {} if raw is None else msgspec.json.decode(raw, type=dict[str, int])
    except msgspec.MsgspecError:
        counters = {}
    tiers = ("device", "host", "disk")
    hits = [counters.get(f"hits_{tier}", 0) for tier in tiers]
    finds = sum(hits) + counters.get("misses", 0)
    rates = {"finds": finds} | {tier: round(n / finds, 4) if finds else 0.0 for tier, n in zip(tiers, hits, strict=True)}
    return {"hit_rates": rates, "counters": counters}
