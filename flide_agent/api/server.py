"""`serve`: from settings to a listening server, and down again without losing anything."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn

from flide_agent import logs, telemetry
from flide_agent.api.app import make_app
from flide_agent.api.gate import Gate
from flide_agent.errors import StartError
from flide_agent.keys import ENVIRONMENT, Keys, is_loopback
from flide_agent.local import Service
from flide_agent.settings import Settings


class _Server(uvicorn.Server):
    """Prints one line when it accepts connections; lets streams end when it is told to stop."""

    line = ""
    gate: Gate

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self.line, flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.gate.feed.close()
        await super().shutdown(sockets)


def listen(settings: Settings) -> socket.socket:
    """A bound socket, not yet accepting. Raises StartError when the port is taken or the address is none of this machine's."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        s.bind((settings.host, settings.port))
    except OSError as e:
        s.close()
        why = os.strerror(e.errno) if e.errno else str(e)
        raise StartError(
            f"cannot listen on {settings.host} port {settings.port}: {why}; choose another --port or --host"
        ) from e
    return s


def url_of(bound: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(settings: Settings, open_service: Callable[[Settings], Service] = Service.open) -> None:
    """Run until SIGTERM or SIGINT; then stop accepting, finish what runs, write the store, return.

    open_service: makes the service; another one for measurements without a model. Raises StartError (unknown model, store in
    use, port taken) before anything is served.
    """
    logs.start(settings.log_format)
    keys = keys_of(settings)
    watch, end_telemetry = telemetry.start() if settings.telemetry else (None, None)
    bound = listen(settings)
    # uvicorn raises the signal that stopped it once more at its end; ours is an orderly end with status 0.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_before_serving)
    try:
        service = open_service(settings)
        gate = make_app(service, keys)
        if watch is not None:
            service.decider.watchers.append(watch)
        config = uvicorn.Config(
            gate,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=int(settings.shutdown_seconds),
        )
        server = _Server(config)
        server.gate = gate
        about = f"model {service.served.name}{', untrained' if service.served.untrained else ''}"
        server.line = f"flide-agent serves on {url_of(bound)} ({about}, {service.engine.info.device})"
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        # Threads that render and the loop take turns at the interpreter; with the default of 5 ms each turn costs a request that.
        sys.setswitchinterval(0.0005)
        server.run(sockets=[bound])
    finally:
        bound.close()
        if end_telemetry is not None:
            end_telemetry()


def keys_of(settings: Settings) -> Keys | None:
    """The keys that clients need, None when they need none. Raises StartError when that would let strangers in."""
    environment = os.environ.get(ENVIRONMENT, "")
    given = settings.keys_file is not None or bool(environment)
    if settings.auth == "off":
        if given:
            raise StartError("auth is off and there are API keys: they would not be asked for; take one of the two away")
        return None
    if given or settings.auth == "on":
        return Keys(settings.keys_file, environment)
    if not is_loopback(settings.host):
        raise StartError(
            f"host {settings.host} can be reached from elsewhere and there are no API keys: give keys_file or {ENVIRONMENT} "
            "(see `flide-agent keys new`), or say auth=off"
        )
    return None


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
