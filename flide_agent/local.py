"""The whole service in this process, without HTTP: the server is built on it, and so is replay.

    with LocalService(Settings()) as service:
        reply = service.decide("run-1", messages=[...], questions={...})

`Service` is the parts put together, for an event loop; `LocalService` is its synchronous face, with a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from flide_agent import asks, views
from flide_agent.decide import Served
from flide_agent.direct import Direct, Hand, Turns
from flide_agent.dispatch import Dispatcher
from flide_agent.errors import StartError
from flide_agent.inflight import Inflight
from flide_agent.keys import TENANT
from flide_agent.replies import Prefetched, Reply
from flide_agent.settings import Settings, default_store, rows_of_a_pass
from flide_agent.wire import Messages, Questions, decide_body, open_body, prefetch_body, systemone_body

if TYPE_CHECKING:
    from flide_engine.engine import Engine

    from flide_agent.prompts import Prompts
    from flide_agent.sessions import Sessions
    from flide_agent.store import CheckpointStore

log = logging.getLogger("flide_agent")
T = TypeVar("T")
HOST_BYTES = 4 << 30
"""Of the host tier beside a GPU."""


def load(settings: Settings) -> tuple[Engine, Prompts, Served]:
    """The model's engine, its prompts, and how clients see it. Raises StartError saying what to change."""
    import torch  # here, so that importing this module stays quick
    from flide_engine.engine import Engine
    from flide_engine.models import ModelError

    from flide_agent import default_model
    from flide_agent.model_files import prompts_of

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device.startswith("cuda") and not torch.cuda.is_available():
        raise StartError(f"device {device!r}: torch sees no CUDA device here; use --device cpu")
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "float32" if device == "cpu" else "bfloat16"
    name = str(default_model.DIRECTORY) if settings.model == "default" else settings.model
    try:
        prompts, card = prompts_of(settings.model)
        engine = Engine.load(
            name,
            device=device,
            dtype=getattr(torch, dtype),
            memory_bytes=settings.memory_bytes,
            max_stream=settings.max_stream or rows_of_a_pass(device),
            graphs=settings.graphs,
        )
    except ModelError as e:
        raise StartError(f"model {settings.model!r}: {e}") from e
    except (ValueError, RuntimeError, MemoryError, OSError) as e:  # settings that do not fit; no memory for the pools
        raise StartError(f"model {settings.model!r} cannot be loaded: {e}") from e
    if engine.info.vocab_size < prompts.vocab_size:
        what = f"its tokenizer has {prompts.vocab_size} tokens, its weights {engine.info.vocab_size}"
        if name.startswith("dummy:"):
            what += "; it is for tests of the engine alone, serve 'default' or a random model in true shapes such as dummy:0.8b"
        raise StartError(f"model {settings.model!r}: {what}")
    released = datetime.fromtimestamp((prompts.directory / "config.json").stat().st_mtime, UTC).date()
    served = Served(_public_name(settings.model), engine.info.untrained, engine.info.max_context, released, card)
    return engine, prompts, served


class Service:
    """Engine, prompts, store, sessions, dispatcher and decider, wired. Made by `open`; `close` ends all of it in order."""

    def __init__(self, settings: Settings, engine: Engine, store: CheckpointStore, sessions: Sessions, decider: Direct) -> None:
        self.settings, self.engine, self.store, self.sessions, self.decider = settings, engine, store, sessions, decider
        self.dispatcher, self.served = decider.dispatcher, decider.served
        self.inflight = Inflight(settings.max_inflight_bytes)

    @classmethod
    def open(cls, settings: Settings) -> Service:
        """Load the model, take the store, start the engine thread. Raises StartError saying what to change."""
        return cls.around(settings, *load(settings))

    @classmethod
    def around(cls, settings: Settings, engine: Engine, prompts: Prompts, served: Served) -> Service:
        """A service around an engine that is there already. Raises StoreError, StoreBusy."""
        from flide_agent.sessions import Sessions
        from flide_agent.store import CheckpointStore
        from flide_agent.store.files import Files, UnsyncedFiles

        gpu = not engine.info.device.startswith("cpu")
        host_bytes = (HOST_BYTES if gpu else 0) if settings.host_bytes is None else settings.host_bytes
        store = CheckpointStore.open(
            settings.store or default_store(),
            engine,
            prompts_digest=prompts.digest,
            host_bytes=host_bytes,
            disk_bytes=settings.disk_bytes,
            tenant_bytes=settings.tenant_bytes or None,
            session_bytes=settings.session_bytes or None,
            files=Files if settings.synced else UnsyncedFiles,
        )
        for note in store.notes:
            log.info("%s", note)
        try:
            sessions = Sessions(store, prompts, kept_steps=settings.kept_steps)
        except BaseException:
            store.close()
            raise
        dispatcher = Dispatcher(
            engine,
            store.relieve,
            settings.max_queue,
            settings.max_round_tokens or (8192 if gpu else 1024),
            most_round_tokens=0 if settings.max_round_tokens or not gpu else rows_of_a_pass(engine.info.device),
            slice_tokens=settings.slice_tokens or (4096 if gpu else 256),
            max_queue_tokens=settings.max_queue_tokens,
            max_wait=settings.max_wait_seconds,
        )
        decider = Direct(served, prompts, store, sessions, dispatcher, settings)
        dispatcher.relieve = decider.relieve
        dispatcher.start()
        return cls(settings, engine, store, sessions, decider)

    def report(self) -> dict[str, Any]:
        """What the engine found about itself at the start, and how the parts are now."""
        info, test = self.engine.info, self.engine.self_test
        return {
            "engine": {"device": info.device, "dtype": info.dtype, "numerics": info.numerics, "alive": self.dispatcher.alive},
            "self_test": {"stable": test.stable, "slower": [msgspec.to_builtins(s) for s in test.slower]},
            "store": {"mode": self.store.stats().mode},
            "waiting": self.dispatcher.waiting,
        }

    def stats(self) -> dict[str, Any]:
        """Counters since the start."""
        waiting = {"waiting": self.dispatcher.waiting, "waiting_tokens": self.dispatcher.waiting_tokens}
        return {
            "engine": self.dispatcher.counters.report() | waiting,
            "store": msgspec.to_builtins(self.store.stats()),
            "admission": {"bytes": self.inflight.bytes, "requests": self.inflight.requests},
        }

    async def close(self) -> None:
        """Finish what waits, write what is unwritten, give the store back."""
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(None, self.dispatcher.close, self.settings.shutdown_seconds):
            log.error("the engine did not finish within %g s", self.settings.shutdown_seconds)
        await self.decider.close()
        await loop.run_in_executor(None, self.store.flush, self.settings.shutdown_seconds)
        await loop.run_in_executor(None, self.store.close)


def _public_name(model: str) -> str:
    """What clients see of the model: never a path of this machine."""
    if model == "default":
        return "flide-default"
    return Path(model).name if Path(model).is_dir() else model


class LocalService:
    """Synchronous twin of `client.Client`: the same methods, the same replies, the same errors. Safe to share between threads.

    Entering it loads the model, opens the store (a temporary one unless settings.store names one) and starts the engine
    thread. Raises StartError with what to change.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.tenant = TENANT
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service", daemon=True)
        self._turns, self._hand = Turns(), Hand()
        self._cleanup = contextlib.ExitStack()
        self._service: Service | None = None

    def __enter__(self) -> LocalService:
        with contextlib.ExitStack() as stack:
            settings = self.settings
            if settings.store is None:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="flide-agent-"))
                settings = msgspec.structs.replace(settings, store=Path(folder) / "store", synced=False)
            self._service = Service.open(settings)
            self._thread.start()
            self._hand.start()
            stack.callback(self._stop)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is queued, write what is unwritten, release the store. A second call does nothing."""
        self._cleanup.close()

    def _stop(self) -> None:
        self._wait(self.service.close())
        self._hand.close(self.settings.shutdown_seconds)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def service(self) -> Service:
        """The parts inside. Raises RuntimeError outside the `with` block."""
        if self._service is None:
            raise RuntimeError("use LocalService in a with block")
        return self._service

    def as_tenant(self, tenant: str) -> LocalService:
        """The same service as another tenant: it shares nothing that is kept. Lives as long as this one; closing it does nothing."""
        twin = copy.copy(self)
        twin.tenant, twin._cleanup = tenant, contextlib.ExitStack()
        return twin

    def _decide(self, ask: asks.Ask) -> Reply:
        decider, tenant = self.service.decider, self.tenant

        def work() -> dict[str, Any]:
            with self._turn(ask.session):
                return decider.decide_here(tenant, ask).reply

        return msgspec.convert(self._hand(work), Reply)

    def _turn(self, session: str | None) -> contextlib.AbstractContextManager[object]:
        """Held while something is done with a session: its steps and its end come one after the other."""
        return contextlib.nullcontext() if session is None else self._turns.of((self.tenant, session))

    def systemone(
        self,
        state: Any,
        questions: Questions,
        *,
        model: str | None = None,
        session: Mapping[str, Any] | None = None,
        label_mass: bool = False,
    ) -> Reply:
        body = systemone_body(state, questions, model=model, session=session, label_mass=label_mass)
        return self._decide(asks.parse_systemone(body, self.settings))

    def decide(
        self,
        session: str,
        *,
        questions: Questions,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        candidates: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
        label_mass: bool = False,
    ) -> Reply:
        body = decide_body(
            questions, messages=messages, append=append, head=head, candidates=candidates, tools=tools, label_mass=label_mass
        )
        return self._decide(asks.parse_decide(body, session, self.settings))

    def prefetch(
        self,
        session: str,
        *,
        messages: Messages | None = None,
        append: Messages | None = None,
        head: str | None = None,
        tools: Sequence[Any] | None = None,
    ) -> Prefetched:
        ask = asks.parse_prefetch(prefetch_body(messages, append, head, tools), session, self.settings)
        with self._turn(ask.session):
            return msgspec.convert(self._wait(self.service.decider.prefetch(self.tenant, ask)), Prefetched)

    def open_session(
        self, session: str | None = None, *, metadata: Mapping[str, Any] | None = None, tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        opening = asks.parse_opening(open_body(session, metadata, tools))
        with self._turn(opening.id):
            return self._wait(views.open_session(self.service.decider, self.tenant, opening))

    def sessions(self) -> list[dict[str, Any]]:
        """All sessions, without their steps."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = self._wait(views.page(self.service.decider, self.tenant, 1000, cursor))
            found += page["sessions"]
            if (cursor := page["cursor"]) is None:
                return found

    def session(self, session: str) -> dict[str, Any]:
        return self._wait(views.session(self.service.decider, self.tenant, session))

    def fork(self, session: str, into: str | None = None) -> dict[str, Any]:
        opening = asks.parse_opening({"id": into})
        with self._turn(session):
            return self._wait(views.fork(self.service.decider, self.tenant, session, opening))

    def delete(self, session: str) -> None:
        with self._turn(session):
            self._wait(views.delete(self.service.decider, self.tenant, session))
