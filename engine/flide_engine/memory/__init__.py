"""Where model state lives: pages of K/V, slots of recurrent state, and the checkpoints that hold both.

Reading order: `pool` (the tensors and who owns which index), `checkpoint` (handles), `transfer` (export and import).
"""

from flide_engine.memory.checkpoint import Checkpoint
from flide_engine.memory.pool import Memory, MemoryShape, PoolFull
from flide_engine.memory.transfer import LAYOUT_VERSION, Exported, Lane, TransferError, export_checkpoint, import_checkpoint

__all__ = [
    "LAYOUT_VERSION",
    "Checkpoint",
    "Exported",
    "Lane",
    "Memory",
    "MemoryShape",
    "PoolFull",
    "TransferError",
    "export_checkpoint",
    "import_checkpoint",
]
