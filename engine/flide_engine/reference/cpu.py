"""CpuForward: the reference pass as the engine's forward on a CPU."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from flide_engine.memory import Memory
from flide_engine.models import Model
from flide_engine.plan import RoundPlan
from flide_engine.reference.attention import Rotary
from flide_engine.reference.forward import forward
from flide_engine.reference.products import Products
from flide_engine.selftest import SelfTest, check_products
from flide_engine.vocabulary import place_matters

NUMERICS_VERSION = 1
"""Changes whenever this package's arithmetic does."""


@dataclass(frozen=True, slots=True)
class Done:
    """Logits that are there already."""

    logits: npt.NDArray[np.floating]

    def done(self) -> bool:
        return True

    def result(self) -> npt.NDArray[np.floating]:
        return self.logits


def processor() -> str:
    """The processor's model: libraries choose the code of their products by it, also among processors of one capability."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part", "CPU implementer")))
    return " ".join(dict.fromkeys(names)) or platform.machine()


class CpuForward:
    """Runs each plan at once, on the calling thread (torch may use more threads inside a product)."""

    def __init__(self, model: Model, memory: Memory) -> None:
        self._model, self._memory = model, memory
        self._products = Products()
        self._rotary = Rotary(model.config, memory.dtype)
        capability = torch.backends.cpu.get_cpu_capability()
        self.label_mass = True
        self._alone: bool | None = None
        self.numerics = f"reference-{NUMERICS_VERSION}/torch-{torch.__version__}/{capability}/{processor()}"

    def self_test(self) -> SelfTest:
        return check_products(self._model, self._products)

    def stage(self, plan: RoundPlan) -> RoundPlan:
        return plan

    def drop(self, staged: RoundPlan) -> None:
        pass

    def idle(self) -> bool:
        return False

    def launch(self, plan: RoundPlan) -> Done:
        if len(plan.mass) and self._alone is None:  # looked at when first needed: a vocabulary's product takes its time
            self._alone = place_matters(self._model.head)
        logits = forward(self._model, self._memory, plan, self._products, self._rotary, alone=bool(self._alone))
        return Done(logits.numpy())
