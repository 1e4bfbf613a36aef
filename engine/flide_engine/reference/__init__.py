"""The forward pass over a forest in plain torch: the oracle of every kernel, and what runs on a CPU.

Reading order: `products` (the four rules that keep bits stable), `layout` (a plan as index tensors), `delta_rule`, `attention`,
`forward`. float32 or float64, as the model's weights are.

The four rules: products run on at least GRID rows, in the same order of sums whatever the number of rows; query tiles and key
tiles sit on the absolute grid; transcendental functions run over contiguous buffers whose vector body covers every element; the
convolution is written as shifts. Each value therefore depends on its own position, its own segment and nothing else of the round.
"""

from flide_engine.reference.forward import forward
from flide_engine.reference.products import Products

__all__ = ["Products", "forward"]
