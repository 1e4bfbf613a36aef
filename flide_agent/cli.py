"""The command line. Heavy imports sit inside the commands, so that `--help` is quick."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

try:
    import typer
except ImportError:  # the base install is the client alone
    raise SystemExit("flide-agent: the commands need the extra 'serve': pip install 'flide-agent[serve]'") from None

from flide_agent.bench.command import app as bench_app
from flide_agent.cache.command import app as cache_app
from flide_agent.replay.options import register as register_replay
from flide_agent.server_options import header_key

if TYPE_CHECKING:
    from flide_agent.settings import Settings

app = typer.Typer(
    name="flide-agent",
    help="Exact, fast decisions about an agent's history at every step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

SERVE = frozenset(
    ("torch", "numpy", "safetensors", "tokenizers", "transformers", "huggingface_hub", "litestar", "uvicorn", "lmdb", "rich", "zstandard",
     "prometheus_client")
)  # fmt: skip
"""What the extra 'serve' brings, by the names of its modules; without the others of it commands work too."""

Model = Annotated[str | None, typer.Option(help="'default' (in the package), 'dummy:SIZE', a folder, or a hub id.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.")]
Memory = Annotated[str | None, typer.Option(help="Device memory for states and K/V pages, such as 2GiB.")]
Disk = Annotated[str | None, typer.Option(help="Byte budget of the checkpoint store, such as 16GiB.")]


def size(text: str, option: str) -> int:
    """Bytes of a size such as 512MiB, 2GiB or 1000000. Raises typer.BadParameter."""
    from flide_agent.configure import size as read_size

    try:
        return read_size(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=option) from None


def settings(**given: Any) -> Settings:
    """Settings of the options that were given; the rest keeps its default. Raises typer.BadParameter."""
    from flide_agent.settings import Settings

    for option in ("memory", "disk"):
        if given.get(option) is not None:
            given[f"{option}_bytes"] = size(given[option], f"--{option}")
        given.pop(option, None)
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValueError as e:
        raise typer.BadParameter(str(e)) from e


def configured(flags: dict[str, Any], config: Path | None, more: list[str]) -> Settings:
    """Settings of a server from all their sources. more: NAME=VALUE each. Raises typer.BadParameter."""
    from flide_agent.configure import load

    for each in more:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE", param_hint="--set")
        flags[name.strip()] = value
    try:
        return load(flags, config)
    except ValueError as e:
        raise typer.BadParameter(str(e)) from e


def _version(wanted: bool) -> None:
    if wanted:
        from flide_agent import __version__

        print(f"flide-agent {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Exact, fast decisions about an agent's history at every step."""


@app.command()
def serve(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    store: Annotated[Path | None, typer.Option(help="Folder of the checkpoint store; it outlives the server.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback unless told otherwise.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    memory: Memory = None,
    disk: Disk = None,
    max_queue: Annotated[int | None, typer.Option(help="Requests that may wait; one more is refused with 429.")] = None,
    keys_file: Annotated[Path | None, typer.Option(help="API keys; see `flide-agent keys`.")] = None,
    front_ends: Annotated[int | None, typer.Option(help="Processes for HTTP before the engine process.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.", envvar="FLIDE_AGENT_CONFIG")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting as NAME=VALUE; `flide-agent settings` lists them.")
    ] = None,
) -> None:
    """Serve decisions over HTTP.

    Settings come from options, then FLIDE_AGENT_* variables, then the file of --config, then the defaults.

    Exit codes: 0 stopped, 1 could not start (the message says what to change), 2 wrong options.
    """
    from flide_agent.api.server import serve as run_server
    from flide_agent.errors import FlideError

    given = {"model": model, "device": device, "dtype": dtype, "store": store, "host": host, "port": port}
    given |= {"memory_bytes": memory, "disk_bytes": disk, "max_queue": max_queue, "keys_file": keys_file}
    given["front_ends"] = front_ends
    chosen = configured(given, config, set_ or [])
    try:
        run_server(chosen)
    except FlideError as e:
        _fail(e.message)


register_replay(app, settings)


@app.command()
def demo(
    file: Annotated[Path | None, typer.Argument(help="A trajectory; by default the one of examples/.")] = None,
    model: Model = None,
) -> None:
    """Replay a trajectory against a server of its own, edit a message, compare with a cold run, kill the server and go on.

    Exit codes: 0 everything held; 1 something did not (the line says what).
    """
    from flide_agent.replay.demo import run

    raise typer.Exit(run(file, model or "default"))


@app.command()
def mcp(
    url: Annotated[str | None, typer.Option(envvar="FLIDE_BASE_URL", help="The service to ask.", show_envvar=True)] = None,
    transport: Annotated[str, typer.Option(help="stdio, or http to listen at /mcp.")] = "stdio",
    host: Annotated[str, typer.Option(help="Address to listen on with http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on with http.")] = 8322,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="FLIDE_API_KEY", callback=header_key, help="Key for the service.", show_envvar=True),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one decision, all tries included.")] = 30.0,
) -> None:
    """Offer decisions as MCP tools; a running service answers them.

    Exit codes: 0 the client hung up; 1 the extra is missing or the port is taken; 2 wrong options.
    """
    from flide_agent.client import DEFAULT_URL
    from flide_agent.errors import FlideError

    if transport not in ("stdio", "http"):
        raise typer.BadParameter(f"{transport!r} is none of stdio, http", param_hint="--transport")
    try:
        from flide_agent.mcp.server import run
    except ImportError as e:
        if (e.name or "").partition(".")[0] != "mcp":
            raise
        _fail("MCP needs the extra 'mcp': pip install 'flide-agent[mcp]'")
        return
    kind: Literal["stdio", "http"] = "stdio" if transport == "stdio" else "http"
    try:
        run(url or DEFAULT_URL, transport=kind, host=host, port=port, api_key=api_key, timeout=timeout)
    except FlideError as e:
        _fail(e.message)


@app.command()
def doctor(
    model: Model = None,
    device: Device = None,
    dtype: Dtype = None,
    store: Annotated[Path | None, typer.Option(help="Folder of the checkpoint store.")] = None,
    memory: Memory = None,
    disk: Disk = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.", envvar="FLIDE_AGENT_CONFIG")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting as NAME=VALUE.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look at what a server would find here, device, model, tokenizer, labels, memory, store, limits, keys, and say what to change.

    Exit codes: 0 a server would start and answer exactly; 1 it would not (the lines that begin with fault); 2 wrong options.
    """
    from flide_agent.doctor import report

    given = {"model": model, "device": device, "dtype": dtype, "store": store, "memory_bytes": memory, "disk_bytes": disk}
    raise typer.Exit(report(configured(given, config, set_ or []), print, as_json))


@app.command("settings")
def show_settings(
    config: Annotated[Path | None, typer.Option(help="TOML file of settings.", envvar="FLIDE_AGENT_CONFIG")] = None,
) -> None:
    """Print every setting of a server: what it is, and its value here.

    Each can be given as --set NAME=VALUE, as a variable FLIDE_AGENT_NAME, or as a line of a TOML file.
    """
    from flide_agent.configure import listing

    for name, value, about in listing(configured({}, config, [])):
        print(f"{name} = {value}\n    {about}")


app.add_typer(bench_app, name="bench")
app.add_typer(cache_app, name="cache")
keys_app = typer.Typer(help="API keys.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")


@keys_app.command("new")
def new_key(
    tenant: Annotated[str, typer.Argument(help="Whose key it is; 'operator' may read /metrics and /v1/stats.")],
) -> None:
    """Make a key. The key goes to stderr, for whoever will use it; the line for the keys file to stdout."""
    from flide_agent.keys import new_key as make

    try:
        key, line = make(tenant)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="TENANT") from e
    print(f"key: {key}", file=sys.stderr)
    print(line)


def _fail(message: str, code: int = 1) -> None:
    from flide_agent.replay.text import line

    print(f"flide-agent: {line(message, 1000)}", file=sys.stderr)
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the console script. Exit code 1 where a command needs a package of the extra 'serve' that is not there."""
    try:
        app()
    except ModuleNotFoundError as e:  # typer alone comes with the extra 'mcp' too
        missing = (e.name or "").partition(".")[0]
        if missing not in SERVE:
            raise
        raise SystemExit(
            f"flide-agent: this command needs {missing}, of the extra 'serve': pip install 'flide-agent[serve]'"
        ) from None


if __name__ == "__main__":
    main()
