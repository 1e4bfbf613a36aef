"""`flide-agent bench`: its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flide_agent.bench.options import (
    AgentCounts,
    Clients,
    Common,
    Counts,
    Data,
    Device,
    Dtype,
    Key,
    MaxMemory,
    MaxStream,
    Memory,
    Model,
    Names,
    NoFlat,
    NoFork,
    NoGraphs,
    NoReadout,
    Out,
    PerClient,
    Rows,
    Scale,
    Set_,
    Sizes,
    Steps,
    Url,
    WarmUp,
    chosen,
    numbers,
    prompts_of,
    real,
    sizes,
)
from flide_agent.bench.whole import QUESTION, REPEATS, STATE, everything
from flide_agent.ending import TERMINATED, terminable

if TYPE_CHECKING:
    from flide_engine.engine import Engine

app = typer.Typer(
    no_args_is_help=True,
    help="Measure this machine. Every figure stands beside the model's matrix products alone, and every answer under load is compared "
    "bit for bit. Exit codes: 0 measured; 1 answers differ, requests failed, or the server did not start; 2 wrong options.",
)


@app.callback()
def prepare(context: typer.Context) -> None:
    """So that SIGTERM too leaves no server and no folder behind."""
    context.with_resource(terminable(SystemExit(TERMINATED)))


@app.command()
def engine(
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    memory: Memory = None,
    max_memory: MaxMemory = None,
    max_stream: MaxStream = None,
    workloads: Sizes = None,
    only: Names = None,
    rows: Rows = None,
    scale: Scale = 1.0,
    data: Data = None,
    histories: Annotated[
        str, typer.Option(help="Histories of the agent steps, in tokens; empty for none.")
    ] = "4096,12288,24576",
    in_round: Annotated[int, typer.Option(min=1, help="Most requests of a round.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds timed after three warm ones.")] = 10,
    no_fork: NoFork = False,
    no_graphs: NoGraphs = False,
    no_flat: NoFlat = False,
    no_readout: NoReadout = False,
    ablation: Annotated[bool, typer.Option("--ablation", help="The whole engine, then without each of its ideas.")] = False,
    json_: Out = None,
) -> None:
    """The engine in this process: one request of each workload's size, a round of them, and agents' steps behind long histories."""
    from flide_engine.models import ModelError

    from flide_agent.bench import inside
    from flide_agent.bench.ablation import ABLATION, Switches
    from flide_agent.bench.report import Report
    from flide_agent.bench.sources import measured
    from flide_agent.errors import StartError

    common = Common.of(model, device, dtype, memory, max_memory, max_stream)
    given = Switches(not no_fork, not no_graphs, not no_flat, not no_readout)
    if ablation and given != Switches():
        raise typer.BadParameter("it measures each switch by itself", param_hint="--ablation")
    gpu = common.device.startswith("cuda")
    variants = [s for s in ABLATION if s.graphs or gpu] if ablation else [given]
    lengths = numbers(histories, "--histories") if histories.strip() else []
    if any(n < 64 for n in lengths):
        raise typer.BadParameter("a history has 64 tokens at least", param_hint="--histories")
    found = sizes(workloads, scale, rows)
    if data:
        prompts = prompts_of(model)
        found = measured(found.source, real(data, prompts, rows), prompts)
    names = chosen(found.requests, only)
    report = Report("engine", common.settings() | {"workloads": found.source, "repeats": repeats}, json_)

    def load(graphs: bool) -> Engine:
        return inside.load(
            common.model, common.device, common.dtype, common.memory_bytes, common.max_stream, graphs, common.max_memory
        )

    try:
        inside.run(load, report, found, names, variants, repeats=repeats, histories=lengths, most_in_round=in_round)
    except StartError as e:
        raise typer.BadParameter(e.message, param_hint="--model") from e
    except (ModelError, ValueError) as e:
        raise typer.BadParameter(str(e)) from e
    raise typer.Exit(report.finish())


@app.command()
def server(
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    memory: Memory = None,
    max_memory: MaxMemory = None,
    max_stream: MaxStream = None,
    workloads: Sizes = None,
    only: Names = None,
    rows: Rows = None,
    scale: Scale = 1.0,
    data: Data = None,
    clients: Clients = "1,8,32,64",
    per_client: PerClient = 4,
    warm_up: WarmUp = 32,
    url: Url = None,
    api_key: Key = None,
    set_: Set_ = None,
    no_graphs: NoGraphs = False,
    json_: Out = None,
) -> None:
    """Closed-loop clients over HTTP: latency, requests per second, and every answer against the single client's, bit for bit."""
    from flide_agent.bench import levels
    from flide_agent.bench.over_http import OverHttp

    run = OverHttp(
        "server", Common.of(model, device, dtype, memory, max_memory, max_stream), url, api_key, set_, no_graphs, json_
    )
    sources = run.sources(workloads, scale, rows, data, only)
    counts = numbers(clients, "--clients")
    lanes = max(levels.lanes_needed(s.rows, counts, per_client, warm_up) for s in sources.values())
    with run.target(lanes) as (target, beside):
        measured = levels.Levels(target, run.report, beside, per_client=per_client, warm_up=warm_up)
        for name, source in sources.items():
            measured.workload(name, source, counts)
    run.finish({"server": levels.COLUMNS})


@app.command()
def agents(
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    memory: Memory = None,
    max_memory: MaxMemory = None,
    max_stream: MaxStream = None,
    workloads: Sizes = None,
    scale: Scale = 1.0,
    agents_: AgentCounts = "1,8,32",
    steps: Steps = 1000,
    url: Url = None,
    api_key: Key = None,
    set_: Set_ = None,
    no_graphs: NoGraphs = False,
    json_: Out = None,
) -> None:
    """Agents whose histories grow by a message a step, five questions at each."""
    from flide_agent.bench import agents as growing
    from flide_agent.bench.over_http import OverHttp

    run = OverHttp(
        "agents", Common.of(model, device, dtype, memory, max_memory, max_stream), url, api_key, set_, no_graphs, json_
    )
    found = sizes(workloads, scale, None)
    run.report.settings["workloads"] = found.source
    if not found.agents:
        raise typer.BadParameter("this file has no agents", param_hint="--workloads")
    counts = numbers(agents_, "--agents")
    with run.target(growing.lanes_needed(len(found.agents), counts)) as (target, beside):
        texts = run.texts()
        growing.Agents(target, run.report, beside, texts, found.agents, found.agent_questions, steps).run(counts)
    run.finish({"agents": growing.COLUMNS, "histories": growing.BIN_COLUMNS})


@app.command()
def questions(
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    memory: Memory = None,
    max_memory: MaxMemory = None,
    max_stream: MaxStream = None,
    state: Annotated[int, typer.Option(min=64, help="Tokens of the state.")] = STATE,
    question: Annotated[int, typer.Option(min=1, help="Tokens of each question.")] = QUESTION,
    counts: Counts = "1,2,4,8,16,32,64",
    repeats: Annotated[int, typer.Option(min=1, help="Cold requests timed for each number.")] = REPEATS,
    url: Url = None,
    api_key: Key = None,
    set_: Set_ = None,
    no_graphs: NoGraphs = False,
    json_: Out = None,
) -> None:
    """One client, one cold state, ever more questions on it."""
    from flide_agent.bench import states
    from flide_agent.bench.over_http import OverHttp

    run = OverHttp(
        "questions", Common.of(model, device, dtype, memory, max_memory, max_stream), url, api_key, set_, no_graphs, json_
    )
    with run.target(repeats + states.WARM) as (target, beside):
        wanted = numbers(counts, "--counts")
        states.questions(target, run.report, beside, run.texts(), state=state, size=question, counts=wanted, repeats=repeats)
    run.finish({"questions": states.QUESTION_COLUMNS})


@app.command()
def recurring(
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    memory: Memory = None,
    max_memory: MaxMemory = None,
    max_stream: MaxStream = None,
    workloads: Sizes = None,
    only: Names = None,
    rows: Rows = None,
    scale: Scale = 1.0,
    data: Data = None,
    clients: Clients = "1",
    url: Url = None,
    api_key: Key = None,
    set_: Set_ = None,
    no_graphs: NoGraphs = False,
    json_: Out = None,
) -> None:
    """Each state once, then again with other questions: what a kept state saves."""
    from flide_agent.bench import states
    from flide_agent.bench.over_http import OverHttp

    run = OverHttp(
        "recurring", Common.of(model, device, dtype, memory, max_memory, max_stream), url, api_key, set_, no_graphs, json_
    )
    sources = run.sources(workloads, scale, rows, data, only)
    counts = numbers(clients, "--clients")
    with run.target(2 * len(counts)) as (target, beside):
        for name, source in sources.items():
            states.recurring(target, run.report, beside, name, source, counts)
    run.finish({"recurring": states.RECURRING_COLUMNS})


@app.command()
def start(
    model: Model = "default",
    device: Device = "auto",
    dtype: Dtype = "auto",
    memory: Memory = None,
    max_memory: MaxMemory = None,
    max_stream: MaxStream = None,
    set_: Set_ = None,
    json_: Out = None,
) -> None:
    """Seconds from a server's start to its first answer, with an empty cache of compiled kernels and again with the filled one."""
    from flide_agent.bench import starting
    from flide_agent.bench.over_http import OverHttp

    run = OverHttp("start", Common.of(model, device, dtype, memory, max_memory, max_stream), None, None, set_, False, json_)
    starting.measure(run)
    run.finish({"start": starting.COLUMNS})


app.command("all")(everything)
