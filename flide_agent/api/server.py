"""`serve`: from settings to a listening server, and down again without losing anything."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from flide_agent import logs, telemetry
from flide_agent.api import fleet
from flide_agent.api.app import make_app
from flide_agent.api.http import Server, settle_in, url_of
from flide_agent.api.inside import Inside
from flide_agent.errors import StartError
from flide_agent.keys import keys_of
from flide_agent.listening import bind
from flide_agent.local import Service
from flide_agent.settings import Settings


def serve(settings: Settings, open_service: Callable[[Settings], Service] = Service.open) -> None:
    """Run until SIGTERM or SIGINT; then stop accepting, finish what runs, write the store, return.

    open_service: makes the service; another one for measurements without a model. Raises StartError (unknown model, store in
    use, port taken) before anything is served.
    """
    logs.start(settings.log_format)
    # The library's own threads cost each call more than they save; ours take groups.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    keys = keys_of(settings)
    watch, end_telemetry = telemetry.start() if settings.telemetry else (None, None)
    bound = bind(settings.host, settings.port)
    # uvicorn raises the signal that stopped it once more at its end; ours is an orderly end with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_before_serving)
    try:
        service = open_service(settings)
        inside = Inside(service, keys)
        if watch is not None:
            service.decider.watchers.append(watch)
        about = f"model {service.served.name}{', untrained' if service.served.untrained else ''}"
        line = f"flide-agent serves on {url_of(bound)} ({about}, {service.engine.info.device})"
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        settle_in()
        if settings.front_ends:
            fleet.serve(inside, bound, lambda: print(line, flush=True))
        else:
            Server(make_app(inside, keys), settings, lambda: print(line, flush=True)).run(sockets=[bound])
    finally:
        gc.unfreeze()  # libraries look at their end for what nobody has freed
        bound.close()
        if end_telemetry is not None:
            end_telemetry()


def _stop_before_serving(*_: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """`python -m flide_agent.api.server [PORT [STORE [MODEL]]]`, for a server without the command line."""
    given = sys.argv[1:] + [""] * 3
    settings = Settings(port=int(given[0] or 8321), store=Path(given[1]) if given[1] else None, model=given[2] or "default")
    try:
        serve(settings)
    except StartError as e:
        print(f"flide-agent: {e.message}", file=sys.stderr)
        raise SystemExit(1) from e


if __name__ == "__main__":
    main()
