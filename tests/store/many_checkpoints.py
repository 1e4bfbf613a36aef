"""An index of many checkpoints, with payload files that are empty or only said to be there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fake_engine import KEY

from flide_agent.store import Kind
from flide_agent.store.files import Files
from flide_agent.store.identity import chain
from flide_agent.store.index import Index, NodeRecord, Write
from flide_agent.store.nodes import Node, encode_record


def filled(path: Path, count: int, own: bytes, real: bool = True) -> dict[str, str]:
    """`count` checkpoints of an engine's identity, 100 a trunk, each on the one before it. real: with (empty) files.

    Returns the files, name -> directory.
    """
    rng = np.random.default_rng(0)
    names: dict[str, str] = {}
    index = Index(path / "index", Files(path / "objects"))
    for trunk in range(count // 100):
        rows: list[Write] = []
        tokens = rng.integers(0, 1000, 64 * 100).astype(np.int32)
        keys = chain(own, KEY, tokens)
        for i, key in enumerate(keys):
            pair = [f"{trunk % 256:02x}{trunk:014x}{i:048x}.{kind}" for kind in ("kv", "state")]
            names |= {name: name[:2] for name in pair}
            if real:
                for name in pair:
                    (path / "objects" / name[:2] / name).touch()
            used = 100 * trunk + i
            record = NodeRecord(
                64 * (i + 1), 64 * i, keys[i - 1] if i else b"", pair[0], 1000, pair[1], 1000, used, own
            )  # fmt: skip
            rows.append(("node", key, encode_record(record, Node(key, record.m, used=used, kind=Kind.OLD))))
            rows.append(("ids", key, tokens[64 * i : 64 * i + 64].astype("<u4").tobytes()))
            rows.append(("hold", trunk.to_bytes(16, "big") + key, b""))
        index.commit(rows)
    index.close()
    return names
