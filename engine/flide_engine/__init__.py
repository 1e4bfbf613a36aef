"""flide_engine: exact decisions over a forest of token segments. Tokens and tensors only; no text, no HTTP, no storage.

Reading order: `segments` (the words), `plan` (a round laid out as one stream), `memory` (pages, slots, checkpoints),
`models` (shapes and weights), `reference` (the forward pass in plain torch), `engine` (prepare, submit, collect).
"""

from flide_engine.segments import GRID, Readout, Request, Round, Segment

__all__ = ["GRID", "Readout", "Request", "Round", "Segment"]
