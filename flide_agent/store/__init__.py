"""Where checkpoints are kept: on the engine's device, in host memory, and in a directory that survives crashes.

Reading order: `store` and `keep` (what the service calls), `report` and `errors` (what comes back), `identity` (what makes two checkpoints
the same), `nodes` (the picture in memory: tiers, tree, order of use), `finder` (the deepest checkpoint of a trunk) and `trails`
(where trunks parted), `costs` and `eviction` (what is worth keeping), `index` (LMDB), `payload`, `objects` and `files` (objects on disk),
`disk` (writing them), `room` (what has to go for that), `removal` (taking it away), `jobs`, `queue`, `writer` (the one thread that does),
`host`, `reading` and `loader` (back to the device), `recover` (after a start), `directory` (whose directory it is).
"""

from flide_agent.store.errors import MustLoad, StoreBusy, StoreError
from flide_agent.store.report import CheckpointInfo, Found, Kind, StoreStats
from flide_agent.store.store import CheckpointStore

__all__ = ["CheckpointInfo", "CheckpointStore", "Found", "Kind", "MustLoad", "StoreBusy", "StoreError", "StoreStats"]
