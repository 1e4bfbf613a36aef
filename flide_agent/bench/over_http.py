"""What the commands that ask a server have in common: the server or its URL, its tokenizer, what is asked, what is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from flide_agent.bench.alone import Beside
from flide_agent.bench.machine import GpuWatch
from flide_agent.bench.options import Common, chosen, prompts_of, real, sizes
from flide_agent.bench.report import Report
from flide_agent.bench.sources import Generated, Real, Source
from flide_agent.bench.target import ROOM, OwnServer, ServerFailed, Target
from flide_agent.bench.texts import Texts


class OverHttp:
    """One run. set_: settings of the server as NAME=VALUE. path: of the JSON. Raises typer.BadParameter."""

    def __init__(
        self,
        command: str,
        common: Common,
        url: str | None,
        key: str | None,
        set_: list[str] | None,
        no_graphs: bool,
        path: Path | None,
    ) -> None:
        self.common, self._url, self._key = common, url, key
        self.prompts = prompts_of(common.model)
        self._settings: dict[str, Any] = {
            "model": common.model, "device": common.device, "dtype": common.dtype, "memory_bytes": common.memory_bytes,
            "max_stream": common.max_stream, "graphs": not no_graphs,
        }  # fmt: skip
        if url is not None and (no_graphs or set_):
            raise typer.BadParameter("a server that runs already keeps its settings", param_hint="--url")
        self._settings |= _more(set_ or [])
        asked = ROOM | self._settings if url is None else None
        self.report = Report(command, common.settings() | {"url": url, "server": asked}, path)

    def texts(self) -> Texts:
        try:
            return Texts(self.prompts)
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--model") from None

    def sources(
        self, path: Path | None, scale: float, rows: int | None, data: list[str] | None, only: str | None, first: int = 0
    ) -> dict[str, Source]:
        """What each workload sends, by name. first: sources of one run with different ones share no text."""
        if data:
            self.report.settings["workloads"] = f"real sets: {', '.join(data)}"
            found = real(data, self.prompts, rows)
            return {name: Real(found[name], self.prompts) for name in chosen(found, only)}
        shapes, texts = sizes(path, scale, rows), self.texts()
        self.report.settings["workloads"] = shapes.source
        names = chosen(shapes.requests, only)
        return {name: Generated(shapes.requests[name], texts, first + i) for i, name in enumerate(names)}

    @contextmanager
    def target(self, lanes: int, environment: dict[str, str] | None = None) -> Iterator[tuple[Target, Beside | None]]:
        """The server, and what measures beside it once it is gone (nothing for a server elsewhere).

        Raises typer.Exit when the server fails."""
        if self._url is not None:
            yield Target(self._url, [self._key] if self._key else [], self._key, False), None
            return
        c = self.common
        beside = Beside(c.model, c.device, c.dtype, c.memory_bytes, c.max_stream)
        own = OwnServer(self._settings, lanes, c.max_memory, environment)
        try:
            with GpuWatch(c.device) as watch, own as target:
                self.report.facts["ready_seconds"] = own.ready_seconds
                target.watch = watch
                yield target, beside
            beside.fill()
        except (ServerFailed, RuntimeError) as e:
            self.report.failures.append(str(e))
            raise typer.Exit(self.report.finish()) from e

    def finish(self, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Print and write. Raises typer.Exit."""
        for name, columns in tables.items():
            self.report.show(name, columns)
        raise typer.Exit(self.report.finish())


def _more(given: list[str]) -> dict[str, Any]:
    from flide_agent.configure import load

    flags: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--set")
        flags[name.strip()] = value
    try:
        read = load(flags, None)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--set") from None
    return {name: getattr(read, name) for name in flags}
