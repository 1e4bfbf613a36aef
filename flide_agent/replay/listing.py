"""`flide-agent replay --list`: what the files hold, without a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from flide_agent.ending import unread
from flide_agent.replay.outputs import Options, output
from flide_agent.replay.questions import QuestionsError
from flide_agent.replay.reading import all_runs
from flide_agent.replay.records import Problem, Run
from flide_agent.replay.report import Shown, problem_record, write
from flide_agent.replay.screen import Plain
from flide_agent.replay.text import line
from flide_agent.replay.totals import counted


def described(run: Run) -> dict[str, Any]:
    """One line of JSON for a run. messages, characters: of the history before its last step; results: steps whose result the
    file has."""
    last = run.steps[-1].messages if run.steps else []
    return {
        "kind": "run",
        "file": run.file,
        "row": run.row,
        "run": run.name,
        "format": run.format,
        "steps": len(run.steps),
        "results": sum(bool(s.result) for s in run.steps),
        "messages": len(last),
        "characters": sum(
            len(m["content"]) + sum(len(c["function"]["arguments"]) for c in m.get("tool_calls", ())) for m in last
        ),
        "tools": len(run.tools),
        "notes": run.notes,
    }


def run(options: Options) -> int:
    """List runs and problems; returns the exit code: 0, 1 when something could not be read, 2 for paths that cannot be written.

    The JSONL takes stdout when asked to."""
    try:
        return _list(options)
    except BrokenPipeError:
        return unread()
    except (QuestionsError, OSError) as e:
        say = Plain(stderr=True)
        say.print(f"flide-agent replay: {line(str(e), 1000)}", soft_wrap=True)
        return 2


def _list(options: Options) -> int:
    console = Plain(stderr=options.json == "-")
    shown, formats, steps, runs, problems = Shown(), Counter[str](), 0, 0, 0
    inputs = options.inputs()
    with output(options.json) as out, output(options.failures) as failures:
        for item in all_runs(inputs, options.mode, options.limit):
            if isinstance(item, Problem):
                problems += 1
                text = shown.say(item)
                for f in (out, failures):
                    if f is not None:
                        write(f, problem_record(item))
            else:
                record = described(item)
                runs, steps = runs + 1, steps + record["steps"]
                formats[item.format] += 1
                text = _row(item, record)
                if out is not None:
                    write(out, record)
            if text is not None:
                console.print(text, soft_wrap=True)
        found = ", ".join(f"{name} {n}" for name, n in formats.most_common())
        total = ", ".join(counted(n, thing) for n, thing in ((runs, "run"), (steps, "step"), (problems, "problem")))
        console.print(total + (f" ({line(found, 200)})" if found else ""), soft_wrap=True)
        if out is not None:
            summary = {"kind": "summary", "runs": runs, "steps": steps, "problems": problems, "formats": dict(formats)}
            write(out, summary)
    return 1 if problems else 0


def _row(run: Run, record: dict[str, Any]) -> str:
    place = line(run.file, 160) + (f":{run.row}" if run.row != 1 else "")
    size = f"{record['steps']:>5} steps  {record['messages']:>5} messages  {record['characters']:>9,} characters"
    return f"{size}  {run.format:<18} {place} {run.name}".rstrip() + (f"  [{'; '.join(run.notes)}]" if run.notes else "")
