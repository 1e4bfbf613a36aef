"""The answers of a replay against its labels, question by question."""

from __future__ import annotations

from typing import Any

from flide_agent.replay.decision import Decision
from flide_agent.replay.labels import expected
from flide_agent.replay.pack import Pack, probabilities
from flide_agent.replay.scoring import Sample, score

MOST = 20_000
"""Labelled answers of a question that are kept; more are counted, not scored."""


class Scores:
    """Collects labelled answers."""

    def __init__(self, pack: Pack, target_error: float) -> None:
        self.pack, self.target_error = pack, target_error
        self.samples = {name: Sample(q["type"]) for name, q in pack.questions.items()}
        self.beyond = 0
        self._runs: dict[tuple[str, int, str], int] = {}

    def add(self, d: Decision) -> None:
        number = self._runs.setdefault((d.run.file, d.run.row, d.run.name), len(self._runs))
        for name, question in self.pack.questions.items():
            right = expected(self.pack.readings[name], question, d.labels)
            answer = d.answers.get(name)
            if right is None or answer is None:
                continue
            if len(self.samples[name]) >= MOST:
                self.beyond += 1
                continue
            self.samples[name].add(number, probabilities(answer), right)

    def results(self) -> dict[str, Any]:
        """Figures of every question that has labels."""
        return {
            name: score(s, temperature=self.pack.readings[name].temperature, target_error=self.target_error)
            for name, s in self.samples.items()
            if len(s)
        }

    def lines(self, results: dict[str, Any]) -> list[str]:
        """For people: a comparison with what the files say, not a judgement."""
        out = []
        for name, r in results.items():
            parts = [
                f"{what} {_figure(r[key], r[key + '_interval'])}"
                for what, key in (("accuracy", "accuracy"), ("AUROC", "auroc"), ("ECE", "ece"))
            ]
            out.append(f"labels    {name}: n {r['n']}, " + ", ".join(parts))
        if out:
            out.append("          (compared with what the files or the label file say; 95 % intervals over runs)")
        if self.beyond:
            out.append(
                f"          {self.beyond} labelled answers beyond the first {MOST} of a question are not in these figures"
            )
        return out


def _figure(value: float | None, interval: Any) -> str:
    if value is None:
        return "n/a"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
