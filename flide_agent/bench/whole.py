"""`flide-agent bench all`: everything that is asked over HTTP, on one server."""

from __future__ import annotations

from typing import Annotated

import typer

from flide_agent.bench.options import (
    AgentCounts,
    Clients,
    Common,
    Counts,
    Device,
    Dtype,
    MaxMemory,
    MaxStream,
    Memory,
    Model,
    Names,
    NoGraphs,
    Out,
    PerClient,
    Rows,
    Scale,
    Set_,
    Sizes,
    Steps,
    WarmUp,
    numbers,
    sizes,
)

STATE, QUESTION, REPEATS = 2000, 89, 10
"""Of `questions`: tokens of the state, of each question (the mean of QuALITY's), and requests timed for each number."""


def everything(
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
    clients: Clients = "1,8,32,64",
    per_client: PerClient = 4,
    warm_up: WarmUp = 32,
    again: Annotated[str, typer.Option(help="Workloads whose states come again, with commas between.")] = "quality_one",
    agents_: AgentCounts = "1,8,32",
    steps: Steps = 1000,
    counts: Counts = "1,64",
    set_: Set_ = None,
    no_graphs: NoGraphs = False,
    json_: Out = None,
) -> None:
    """server, recurring, questions and agents, one after the other on one server."""
    from flide_agent.bench import agents as growing
    from flide_agent.bench import levels, states
    from flide_agent.bench.over_http import OverHttp

    run = OverHttp("all", Common.of(model, device, dtype, memory, max_memory, max_stream), None, None, set_, no_graphs, json_)
    sources = run.sources(workloads, scale, rows, None, only)
    kept = run.sources(workloads, scale, rows, None, again, first=len(sources))
    found, texts = sizes(workloads, scale, None), run.texts()
    levels_, crowds = numbers(clients, "--clients"), numbers(agents_, "--agents")
    lanes = [levels.lanes_needed(s.rows, levels_, per_client, warm_up) for s in sources.values()]
    lanes += [growing.lanes_needed(len(found.agents), crowds), 2, REPEATS + states.WARM]
    with run.target(max(lanes)) as (target, beside):
        measured = levels.Levels(target, run.report, beside, per_client=per_client, warm_up=warm_up)
        for name, source in sources.items():
            measured.workload(name, source, levels_)
        for name, source in kept.items():
            states.recurring(target, run.report, beside, name, source, [1])
        states.questions(
            target, run.report, beside, texts, state=STATE, size=QUESTION, counts=numbers(counts, "--counts"), repeats=REPEATS
        )
        target.restart()
        growing.Agents(target, run.report, beside, texts, found.agents, found.agent_questions, steps).run(crowds)
    run.finish({"server": levels.COLUMNS, "recurring": states.RECURRING_COLUMNS, "questions": states.QUESTION_COLUMNS,
                "agents": growing.COLUMNS, "histories": growing.BIN_COLUMNS})  # fmt: skip
