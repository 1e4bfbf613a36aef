"""The options that the commands of `flide-agent bench` share, and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flide_agent.server_options import header_key, server_url
from flide_agent.settings import rows_of_a_pass

if TYPE_CHECKING:
    from flide_agent.bench.shapes import Workloads
    from flide_agent.bench.sources import Row
    from flide_agent.prompts import Prompts

Model = Annotated[str, typer.Option(help="'default' (in the package), 'dummy:SIZE', a folder, or a hub id.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Dtype = Annotated[str, typer.Option(help="auto, float32 or bfloat16.")]
Memory = Annotated[str | None, typer.Option(help="Checkpoint pool: 16GiB on a GPU, 1GiB on a CPU unless told otherwise.")]
MaxMemory = Annotated[str | None, typer.Option(help="Most of the GPU's memory that the process may take, such as 20GiB.")]
MaxStream = Annotated[int | None, typer.Option(min=64, help="Rows of one pass: 16384 on a GPU, 4096 on a CPU.")]
Sizes = Annotated[Path | None, typer.Option("--workloads", help="JSON file of sizes; a built-in set otherwise.")]
Names = Annotated[str | None, typer.Option("--only", help="Workloads to run, with commas between.")]
Rows = Annotated[int | None, typer.Option(min=1, help="At most so many requests of each workload.")]
Scale = Annotated[float, typer.Option(min=0.001, help="Scale states and messages, for slow machines.")]
Data = Annotated[list[str] | None, typer.Option("--data", help="A real set: race, quality, multirc or di = its folder.")]
Url = Annotated[str | None, typer.Option(callback=server_url, help="Ask this server instead of one that is started here.")]
Key = Annotated[str | None, typer.Option(envvar="FLIDE_API_KEY", callback=header_key, help="Key for --url.", show_envvar=True)]
Out = Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")]
Set_ = Annotated[list[str] | None, typer.Option("--set", help="Any setting of the server as NAME=VALUE.")]
Clients = Annotated[str, typer.Option(help="Numbers of closed-loop clients, with commas between.")]
PerClient = Annotated[int, typer.Option(min=1, help="Requests of a level for each client, at least.")]
WarmUp = Annotated[
    int, typer.Option(min=0, help="Requests before each level, unmeasured, each row twice at least; 0 for none.")
]
AgentCounts = Annotated[str, typer.Option("--agents", help="Numbers of agents, with commas between.")]
Steps = Annotated[int, typer.Option(min=1, help="At most so many steps of a session.")]
Counts = Annotated[str, typer.Option(help="Numbers of questions, with commas between.")]
NoFork = Annotated[bool, typer.Option("--no-fork", help="Each question as a whole request of its own.")]
NoGraphs = Annotated[bool, typer.Option("--no-graphs", help="No captured graphs.")]
NoFlat = Annotated[bool, typer.Option("--no-flat", help="Each request of a round in a pass of its own.")]
NoReadout = Annotated[bool, typer.Option("--no-readout", help="Last layer and whole vocabulary for every row.")]


@dataclass(frozen=True)
class Common:
    """What all commands are given, with defaults filled in."""

    model: str
    device: str
    dtype: str
    memory_bytes: int
    max_memory: int | None
    max_stream: int

    @classmethod
    def of(
        cls, model: str, device: str, dtype: str, memory: str | None, max_memory: str | None, max_stream: int | None
    ) -> Common:
        import torch

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        gpu = device.startswith("cuda")
        if max_memory is not None and not gpu:
            raise typer.BadParameter("only a GPU's memory can be capped", param_hint="--max-memory")
        if dtype == "auto":
            dtype = "bfloat16" if gpu else "float32"
        pool = size(memory, "--memory") or ((16 if gpu else 1) << 30)
        return cls(model, device, dtype, pool, size(max_memory, "--max-memory"), max_stream or rows_of_a_pass(device))

    def settings(self) -> dict[str, Any]:
        return dict(self.__dict__)


def size(text: str | None, option: str) -> int | None:
    """Bytes of a size such as 2GiB; None for None. Raises typer.BadParameter."""
    from flide_agent.configure import size as read_size

    try:
        return None if text is None else read_size(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint=option) from None


def numbers(text: str, option: str) -> list[int]:
    """Positive numbers with commas between. Raises typer.BadParameter."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1 or len(set(found)) < len(found):
        raise typer.BadParameter(f"{text!r} is no list of different positive numbers, such as 1,8,32", param_hint=option)
    return found


def sizes(path: Path | None, scale: float, rows: int | None) -> Workloads:
    """Of a file or the built-in ones, scaled, with at most `rows` requests each. Raises typer.BadParameter."""
    from flide_agent.bench import shapes

    try:
        found = shapes.built_in() if path is None else shapes.read(path)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--workloads") from None
    found = found.scaled(scale)
    requests = {name: each[:rows] for name, each in found.requests.items()}
    return shapes.Workloads(found.source, requests, found.agents, found.agent_questions)


def chosen(known: Mapping[str, object], only: str | None) -> list[str]:
    """The names of --only, or all. Raises typer.BadParameter for one that is not there."""
    names = list(known) if only is None else [name.strip() for name in only.split(",")]
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{', '.join(unknown)} not among {', '.join(known)}", param_hint="--only")
    return names


def real(given: list[str], prompts: Prompts, rows: int | None) -> dict[str, list[Row]]:
    """Workloads of real sets, NAME=FOLDER each. Raises typer.BadParameter."""
    from flide_agent.bench import datasets

    def count(text: str) -> int:
        return len(prompts.state(text).tokens) - len(prompts.frame_open)

    found: dict[str, list[Row]] = {}
    for each in given:
        name, equals, folder = each.partition("=")
        if not equals or not Path(folder).is_dir():
            raise typer.BadParameter(f"{each!r} is not NAME=FOLDER with a folder that is there", param_hint="--data")
        try:
            found |= {workload: r[:rows] for workload, r in datasets.load(name, Path(folder), count).items()}
        except ValueError as e:
            raise typer.BadParameter(str(e), param_hint="--data") from None
    return found


def prompts_of(model: str) -> Prompts:
    """What a server of this model reads with. Raises typer.BadParameter."""
    from flide_agent import model_files
    from flide_agent.errors import StartError

    try:
        return model_files.prompts_of(model)[0]
    except StartError as e:
        raise typer.BadParameter(e.message, param_hint="--model") from None
