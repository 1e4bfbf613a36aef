"""A decision on a fixed text through the engine, for /ready."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import numpy as np

from flide_agent.asks import Ask
from flide_agent.errors import Unavailable
from flide_agent.keys import TENANT
from flide_agent.local import Service
from flide_agent.questions import Noul

SECONDS = 5.0
ASK = Ask({"probe": Noul("Is this a probe?")}, "A probe.")


async def probe(service: Service) -> float:
    """Milliseconds that it took. Raises Unavailable when no answer comes within SECONDS; keeps no checkpoint."""
    started = time.perf_counter()
    request = await service.decider.in_thread(partial(service.decider.request, TENANT, ASK))
    try:
        done = await asyncio.wait_for(service.dispatcher.submit(request), SECONDS)
    except TimeoutError:
        raise Unavailable(f"the engine did not answer a probe within {SECONDS:g} s", retry_after=SECONDS) from None
    if not all(np.isfinite(x).all() for segment in done.result.logits for x in segment):
        raise Unavailable("the engine answered a probe with numbers that are not finite")
    return round(1e3 * (time.perf_counter() - started), 3)
