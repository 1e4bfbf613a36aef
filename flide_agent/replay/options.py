"""The command lines of `flide-agent replay` and `flide-agent calibrate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flide_agent.server_options import header_key, server_url

if TYPE_CHECKING:
    from flide_agent.settings import Settings


def steps_range(text: str) -> tuple[int, int | None]:
    """First and last step of "7", "5-20", "5-" or "-20". Raises typer.BadParameter."""
    first, dash, last = text.partition("-")
    try:
        low = int(first) if first.strip() else 1
        high = (int(last) if last.strip() else None) if dash else low
    except ValueError:
        low, high = 0, 0
    if not text.strip() or low < 1 or (high is not None and high < low):
        raise typer.BadParameter(f"{text!r} is no range of steps; write 7, 5-20, 5- or -20", param_hint="--steps")
    return low, high


Files = Annotated[
    list[Path], typer.Argument(help="Trajectories: files, folders, patterns, - for stdin; any format, found by content.")
]


def _side(url: str | None) -> str | None:
    return url if url == "no-cache" else server_url(url)


Url = Annotated[str | None, typer.Option(callback=server_url, help="Ask this server instead of a service in this process.")]
Key = Annotated[
    str | None,
    typer.Option(envvar="FLIDE_API_KEY", callback=header_key, help="Key for --url and --compare.", show_envvar=True),
]
Model = Annotated[str | None, typer.Option(help="'default' (in the package), 'dummy:SIZE', a folder, or a hub id.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str | None, typer.Option(help="auto, float32 or bfloat16.")]
Store = Annotated[Path | None, typer.Option(help="Folder of the checkpoint store; a temporary one otherwise.")]
Memory = Annotated[str | None, typer.Option(help="Device memory for states and K/V pages, such as 2GiB.")]
Disk = Annotated[str | None, typer.Option(help="Byte budget of the checkpoint store, such as 16GiB.")]
Questions = Annotated[Path | None, typer.Option(help="TOML or JSON pack of id -> question; five default ones otherwise.")]
LabelFile = Annotated[
    Path | None, typer.Option("--labels", help="Labels to compare with: JSONL or CSV of run or file, step, label.")
]
Target = Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of errors that a threshold may let through.")]


def register(app: typer.Typer, settings: Callable[..., Settings]) -> None:
    """Add the two commands. settings: from options of a service to Settings."""

    @app.command()
    def replay(
        files: Files,
        url: Url = None,
        api_key: Key = None,
        model: Model = None,
        device: Device = None,
        dtype: Dtype = None,
        store: Store = None,
        memory: Memory = None,
        disk: Disk = None,
        questions: Questions = None,
        labels: LabelFile = None,
        mode: Annotated[str, typer.Option(help="as-sent: the prompts that were recorded; raw: the whole history.")] = "as-sent",
        limit: Annotated[int | None, typer.Option(min=1, help="Replay at most so many runs.")] = None,
        steps: Annotated[str | None, typer.Option(help="Steps to ask about: 7, 5-20, 5- or -20.")] = None,
        json_: Annotated[
            str | None, typer.Option("--json", help="Write every decision as a line of JSON; - is stdout.")
        ] = None,
        html: Annotated[Path | None, typer.Option(help="Write a report, one file that opens offline.")] = None,
        failures: Annotated[Path | None, typer.Option(help="Write what could not be read or asked, as lines of JSON.")] = None,
        agents: Annotated[int, typer.Option(min=1, max=1024, help="Replay so many runs at once.")] = 1,
        rate: Annotated[
            str | None, typer.Option(help="Requests a second; 'recorded' or 'recorded*10': at the recorded times.")
        ] = None,
        warm: Annotated[bool, typer.Option("--warm", help="Walk every run once beforehand, unmeasured.")] = False,
        compare: Annotated[
            str | None, typer.Option(callback=_side, help="Ask another System One server too (URL), or 'no-cache'.")
        ] = None,
        record: Annotated[Path | None, typer.Option(help="Record the decisions, for --verify.")] = None,
        verify: Annotated[
            Path | None, typer.Option(help="Check the decisions against a recording; exit code 4 when they drift.")
        ] = None,
        tolerance: Annotated[float, typer.Option(min=0.0, help="For --verify: how far a probability may be off.")] = 0.0,
        target_error: Target = 0.05,
        keep: Annotated[bool, typer.Option("--keep", help="Leave the sessions in the service or store.")] = False,
        every: Annotated[int, typer.Option(min=1, help="Ask about each n-th step only, from the first one on.")] = 1,
        resume: Annotated[
            Path | None, typer.Option(help="Go on with an interrupted replay: the file of its --json, which is added to.")
        ] = None,
        list_: Annotated[
            bool, typer.Option("--list", help="List runs, formats and steps; no model, nothing is asked.")
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Count what would be asked, and its tokens; nothing is asked.")
        ] = False,
    ) -> None:
        """Walk recorded agent runs step by step and ask questions before each decision.

        Exit codes: 0 all was replayed; 1 a file, a row or a step could not be, the others were; 2 wrong options or questions;
        3 no service, or it went away; 4 the decisions are not those of the recording; 130 interrupted; 143 terminated;
        141 nobody reads the output.
        """
        from flide_agent.replay import reading
        from flide_agent.replay.load import Rate
        from flide_agent.replay.outputs import Options

        if mode not in reading.MODES:
            raise typer.BadParameter(f"{mode!r} is none of {', '.join(reading.MODES)}", param_hint="--mode")
        local: dict[str, Any] = {
            "model": model,
            "device": device,
            "dtype": dtype,
            "store": store,
            "memory": memory,
            "disk": disk,
        }
        if url is not None:
            both = [f"--{name}" for name, value in local.items() if value is not None]
            if both:
                names = ", ".join(both)
                raise typer.BadParameter(
                    f"{names} set up a service in this process; --url asks one that runs already", param_hint="--url"
                )
            if compare == "no-cache":
                hint = f"no-cache goes with a service in this process; to ask the server's stateless route: --compare {url}"
                raise typer.BadParameter(hint, param_hint="--compare")
        if list_ and dry_run:
            raise typer.BadParameter("give one of --list and --dry-run", param_hint="--dry-run")
        if resume is not None and (json_ is not None or list_ or dry_run):
            raise typer.BadParameter("adds to the file it names; leave --json, --list and --dry-run out", param_hint="--resume")
        try:
            pace = Rate.parse(rate) if rate is not None else None
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--rate") from None
        wanted = steps_range(steps) if steps is not None else (1, None)
        given = Options(
            files, settings(**local), url, api_key, questions, mode, limit, wanted, json_, keep, labels=labels, html=html,
            failures=failures, record=record, verify=verify, tolerance=tolerance, agents=agents, rate=pace, warm=warm,
            compare=compare, target_error=target_error, every=every, resume=resume,
        )  # fmt: skip
        if list_:
            from flide_agent.replay.listing import run
        elif dry_run:
            from flide_agent.replay.dry import run
        else:
            from flide_agent.replay.command import run
        raise typer.Exit(run(given))

    @app.command()
    def calibrate(
        decisions: Annotated[list[Path], typer.Argument(help="What `replay --json` wrote.")],
        output: Annotated[Path, typer.Option("--output", "-o", help="The pack to write, JSON.")],
        questions: Questions = None,
        labels: LabelFile = None,
        target_error: Target = 0.05,
    ) -> None:
        """From recorded decisions and labels to a temperature and a threshold for each question.

        Exit codes: 0 written; 2 files that cannot be used, nothing written.
        """
        from flide_agent.replay.calibrate import run

        raise typer.Exit(run(decisions, questions, labels, target_error, output))
