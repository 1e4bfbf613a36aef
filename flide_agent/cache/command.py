"""`flide-agent cache ...`. Exit codes: 0 done; 1 refused or something is wrong (the line says what); 2 wrong options."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from flide_agent.cache.shelf import Shelf

app = typer.Typer(
    name="cache",
    help="Look into a checkpoint store and put it right. ls, stat, verify and export run beside a server.",
    no_args_is_help=True,
    add_completion=False,
)

Store = Annotated[Path | None, typer.Option(help="Folder of the checkpoint store; the server's default one otherwise.")]
Tenant = Annotated[str, typer.Option(help="Whose sessions.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of lines for people.")]


@contextmanager
def _shelf(store: Path | None, *, write: bool) -> Iterator[Shelf]:
    """The store's directory; what goes wrong with it ends the command with one line."""
    from flide_agent.cache.shelf import opened
    from flide_agent.errors import FlideError
    from flide_agent.settings import default_store
    from flide_agent.store.errors import StoreBusy

    path = store or default_store()
    try:
        with opened(path, write=write) as shelf:
            yield shelf
    except StoreBusy as e:
        _fail(f"{e.message}; this command changes the store, and only one process may")
    except FlideError as e:
        _fail(e.message)


@app.command("ls")
def list_sessions(
    store: Store = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's; all otherwise.")] = None,
    json_: Json = False,
) -> None:
    """Sessions, last used first, with what they hold on disk."""
    import msgspec

    from flide_agent.cache.inventory import lines

    with _shelf(store, write=False) as shelf:
        found = lines(shelf, tenant)
    if json_:
        print(json.dumps(msgspec.to_builtins(found)))
        return
    rows: list[tuple[str, ...]] = [("SESSION", "TENANT", "LAST USED", "STEPS", "TOKENS", "CKPTS", "BYTES", "SHARED")]
    for line in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(line.updated))
        counts = str(line.steps), str(line.tokens), str(line.checkpoints), size(line.bytes), size(line.shared)
        rows.append((_plain(line.id), _plain(line.tenant), used, *counts))
    for text in _columns(rows):
        print(text)
    print(_counted(len(found), "session"))


@app.command()
def stat(store: Store = None, json_: Json = False) -> None:
    """Bytes by tier, kind and tenant, and the hit rates of the last run."""
    from flide_agent.cache.inventory import totals

    with _shelf(store, write=False) as shelf:
        found = totals(shelf)
    if json_:
        print(json.dumps(found))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, inner in value.items():
                print(f"  {_plain(str(key)):<20} {size(inner) if name in ('bytes', 'tenants') else inner}")
        else:
            print(f"{name + ':':<22} {value}")


@app.command()
def verify(store: Store = None, json_: Json = False) -> None:
    """Read every object and check it against its checksums and its record. Exit code 1 when one is bad."""
    from flide_agent.cache.verify import verify as check

    with _shelf(store, write=False) as shelf:
        found = check(shelf)
    if json_:
        print(json.dumps({"files": found.files, "bytes": found.bytes, "bad": found.bad, "orphans": found.orphans}))
    else:
        for line in found.bad:
            print(f"bad: {line}")
        print(
            f"{found.files} files of {size(found.bytes)} are good, {len(found.bad)} are bad, {found.orphans} belong to nobody"
        )
    raise typer.Exit(1 if found.bad else 0)


@app.command()
def gc(store: Store = None, json_: Json = False) -> None:
    """Remove what no server can use any more, and give back the index's free pages. Refuses while a server has the store."""
    from flide_agent.cache.sweep import collect

    with _shelf(store, write=True) as shelf:
        swept = collect(shelf)
    if json_:
        print(json.dumps({name: getattr(swept, name) for name in swept.__slots__}))
        return
    for note in swept.notes:
        print(note)
    print(f"{swept.files} files of {size(swept.bytes)} removed; the index is {size(max(0, swept.index_bytes))} smaller")


@app.command()
def forget(
    session: Annotated[str | None, typer.Argument(help="The session's id.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All sessions of the tenant, and what it published besides.")
    ] = False,
    tenant: Tenant = "default",
    store: Store = None,
    json_: Json = False,
) -> None:
    """Remove a session, or all of a tenant, and prove that nothing of it is left. Refuses while a server has the store.

    With a server running, delete the session over HTTP instead. What the disk itself keeps of overwritten files is out of reach.
    """
    from flide_agent.cache.sweep import forget as remove

    if (session is None) == (not everything):
        raise typer.BadParameter("give a session or --all, one of them")
    with _shelf(store, write=True) as shelf:
        done = remove(shelf, tenant, session)
    if json_:
        print(json.dumps({name: getattr(done, name) for name in done.__slots__}))
    else:
        removed = (_counted(done.sessions, "session"), _counted(done.checkpoints, "checkpoint"), _counted(done.files, "file"))
        print("{}, {} and {} removed".format(*removed), end="")
        print(f"; {_counted(done.kept, 'checkpoint')} kept: other sessions hold them too" if done.kept else "")
        for line in done.left:
            print(f"still there: {line}")
        if not done.left:
            print(f"proof: no record, no file and no byte of it in the {size(done.searched)} of the directory")
    raise typer.Exit(1 if done.left else 0)


@app.command("export")
def export_session(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.")],
    tenant: Tenant = "default",
    store: Store = None,
) -> None:
    """Write one session with its checkpoints to a file. Exit code 1 when some are damaged; the others are in the file."""
    from flide_agent.cache.bundle import export

    with _shelf(store, write=False) as shelf:
        done = export(shelf, tenant, session, file)
    evicted = done.left_out - done.damaged
    left = f"; {evicted} were evicted and are left out" if evicted else ""
    left += (
        f"; {done.damaged} are damaged and are left out (`flide-agent cache verify` names the files)" if done.damaged else ""
    )
    print(f"{done.heads} heads and {done.checkpoints} checkpoints, {size(done.bytes)}{left}")
    raise typer.Exit(1 if done.damaged else 0)


@app.command("import")
def import_session(
    file: Annotated[Path, typer.Argument(help="A file that export wrote.", exists=True, dir_okay=False)],
    as_: Annotated[str | None, typer.Option("--as", help="Another id for the session.")] = None,
    tenant: Tenant = "default",
    store: Store = None,
) -> None:
    """Bring a session from a file into a store of the same model. Refuses while a server has the store."""
    from flide_agent.cache.bundle import import_

    with _shelf(store, write=True) as shelf:
        done = import_(shelf, tenant, file, as_)
    print(f"session {_plain(done.session)}: {done.heads} heads, {done.checkpoints} checkpoints, {size(done.bytes)} new")


def size(count: Any) -> str:
    """Bytes for people: 0 B, 12.3 KiB, 4.0 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Rows with their cells below each other: texts, of which there are three, begin at one place, numbers end at one."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(text)) for text, width in zip(row, widths, strict=True)]
        yield "  ".join(text + gap if i < 3 else gap + text for i, (text, gap) in enumerate(zip(row, gaps, strict=True)))


def _counted(n: int, thing: str) -> str:
    return f"{n} {thing}{'' if n == 1 else 's'}"


def _plain(text: str) -> str:
    """Ids are a client's: no control character reaches the terminal."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 80 else shown[:79] + "…"


def _fail(message: str) -> None:
    print(f"flide-agent: {_plain_line(message)}", file=sys.stderr)
    raise typer.Exit(1)


def _plain_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:1000]
