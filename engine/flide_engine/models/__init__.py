"""Models: config, weights on the device, random weights for tests and speed. Plain tensors; the forward is in other rooms.

Reading order: config.py (ModelConfig), qwen3_5.py (which tensors, their names and memory), weights.py (load_model),
digest.py (identity of stored weights), dummy.py (random weights).
"""

from flide_engine.models.config import FULL, LINEAR, ModelConfig, ModelError
from flide_engine.models.qwen3_5 import FullLayer, LinearLayer, Model
from flide_engine.models.weights import load_model, locate

__all__ = ["FULL", "LINEAR", "FullLayer", "LinearLayer", "Model", "ModelConfig", "ModelError", "load_model", "locate"]
