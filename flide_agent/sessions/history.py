"""A history as blocks that know their predecessor, and the ids (heads) that name histories."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class History:
    """Blocks of one history, root first."""
