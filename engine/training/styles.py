"""A run as the messages of one agent framework's kind: a style is drawn at random and fixed for the run."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import json
import random
from dataclasses import dataclass

from flide_agent.messages import Message, ToolCall
from training import phrases, prompting, wording
from training.facts import Action, Episode

FORMATS = ("fence", "mini", "calls", "blocks", "dollar", "xml", "react", "json", "screen", "action")


_TAILS = ("{o}", "{o}", "{o}", "{o}", "{o}\nroot@c0ffee:{d} # ", "{o}\n[working directory: {d}]", "<tool_result>\n{o}\n</tool_result>", "[stdout]\n{o}\n[stderr]", "Output of {n}:\n{o}",
          "{o}\n(cwd {d})", "stdout:\n{o}\n\nstderr:\n", "<result name={n}>{o}</result>", "{o}\n$")  # fmt: skip
"""What a framework may write around an output."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """messages; after[i]: how many of them there are once observation i is in.
    outputs[i]: the output of action i as shown, cut where it was long; None where the history no longer shows it.
    cut[i]: whether it was. shows_code: whether an observation tells the exit status.
    """

    messages: tuple[Message, ...]
    after: tuple[int, ...]
    outputs: tuple[str | None, ...]
    cut: tuple[bool, ...]
    shows_code: bool
    format: str


class Style:
    """How one framework words things. example: another run that the prompt may show."""

    def __init__(self, rng: random.Random, episode: Episode, form: str | None = None, example: Episode | None = None) -> None:
        self.rng, self.episode, self.example = rng, episode, example
        if form is None:
            form = (
                rng.choice(("calls", "calls", "blocks", "react", "action")) if episode.source == "desk" else rng.choice(FORMATS)
            )
        self.form = form
        self.code = form == "mini" or (rng.choice((True, False, False)) and episode.source != "desk")
        self.code_text = rng.choice(
            (
                "Exit code: {c}",
                "[exit status {c}]",
                "[The command completed with exit code {c}.]",
                "(returned {c})",
                "exit_code={c}",
            )
        )
        self.code_first = rng.random() < 0.3
        self.empty = rng.choice(wording.EMPTY)
        self.footer = (
            rng.choice(("(Open file: {o})\n(Current directory: {d})\nbash-$", "[open: {o}] [cwd: {d}]", ""))
            if form == "fence"
            else ""
        )
        self.limit = rng.choice((300, 800, 2000, 5000, 16000, 16000))
        self.cut = rng.choice(wording.CUT)
        self.lead = rng.choice(("OBSERVATION:\n", "Observation: ", "Output:\n", "", "", "Result:\n"))
        self.keep = rng.choice((3, 5)) if rng.random() < 0.15 else 10_000
        self.elided = rng.choice(wording.ELIDED)
        self.fence = rng.choice(("```", "```bash", "```sh"))
        self.head = rng.choice(("THOUGHT: ", "DISCUSSION\n", "Thought: ", "", ""))
        self.ids = rng.choice(("call_", "toolu_", "functions.", ""))
        self.indent = rng.choice((None, 2))
        self.talks = episode.source == "desk" and rng.random() < 0.7
        self.named = rng.random() < 0.5
        self.extra = rng.choice(
            (
                None,
                None,
                None,
                ("timeout", 30),
                ("risk", "low"),
                ("explanation", "see above"),
                ("summary", "next step"),
                ("is_input", False),
            )
        )
        self.ending = "\r\n" if rng.random() < 0.1 else "\n"
        self.tail = (
            rng.choice(_TAILS)
            if form in (None, "fence", "xml", "react", "action", "calls", "blocks") and episode.source != "desk"
            else ""
        )
        self.planted = rng.choice((0.1, 0.4, 1.0)) if rng.random() < 0.35 else 0.0
        self.where = rng.choice(("end", "end", "end", "start", "middle"))
        self.open = "n/a"
        self.prompt = rng.choice(("root@box:/app#", "user@host:~$", "dev@container:{d}$", "[agent]$", "sh-5.2$"))
        self.prompt = self.prompt.format(d=episode.root or "/")
        self.keys = rng.choice((("thought", "tool", "args"), ("reasoning", "action", "parameters"), ("plan", "name", "input")))

    def render(self) -> Rendered:
        rng, e = self.rng, self.episode
        system = e.system or rng.choice(wording.SYSTEM) + rng.choice(wording.RULES)
        self.turns = iter(e.talk)
        long = e.source != "desk"
        if long and rng.random() < 0.35:
            system += "\n\n" + prompting.manual(rng, e)
        shown = prompting.example(rng, self.example) if self.example is not None and long and rng.random() < 0.25 else ""
        if shown and rng.random() < 0.5:
            system, shown = f"{system}\n\n{shown}", ""
        messages = [Message("system", system)] if system.strip() else []
        messages += [Message("user", shown)] if shown else []
        messages.append(Message("user", e.task))
        if self.talks and rng.random() < 0.6:
            messages += self._talk(rng.choice((1, 2, 3)))
        after: list[int] = []
        outputs: list[str | None] = []
        cut: list[bool] = []
        for i, action in enumerate(e.actions):
            call_id = f"{self.ids}{rng.randrange(16**8):08x}" if self.ids else ""
            messages.append(self._said(action, wording.bridge(rng, e.actions[i - 1].failed if i else None), call_id))
            old = len(e.actions) - i > self.keep and i > 0
            output = self._shown(action)
            cut.append(len(output) < len(action.output.rstrip("\n")))
            outputs.append(None if old and action.kind != "submit" else output)
            planted = phrases.planted(rng) if rng.random() < self.planted else ""
            messages.append(self._observed(action, call_id, outputs[-1], output, planted))
            if planted and not output.strip() and outputs[-1] is not None:
                outputs[-1] = planted  # what stands there now is all that was printed
            if self.talks and rng.random() < 0.4:
                messages += self._talk(rng.choice((1, 1, 2)))
            after.append(len(messages))
        return Rendered(tuple(messages), tuple(after), tuple(outputs), tuple(cut), self.code, self.form)

    def _talk(self, turns: int) -> list[Message]:
        """Words to and from a customer, which are no actions."""
        said = [
            next(self.turns, None) or (self.rng.choice(wording.SAYS), self.rng.choice(wording.REPLIES)) for _ in range(turns)
        ]
        return [m for pair in said for m in (Message("assistant", pair[0]), Message("user", pair[1]))]

    def _said(self, action: Action, bridge: str, call_id: str) -> Message:
        text = (bridge + action.thought).strip()
        if self.form in ("calls", "blocks", "json"):
            more = dict([self.extra]) if self.extra else {}
            arguments = json.dumps(action.arguments | more, ensure_ascii=False)
            return Message("assistant", text, "", (ToolCall(call_id, action.name, arguments),))
        if self.form == "dollar":
            return Message(
                "assistant", "\n".join(f"$ {line}" if not i else line for i, line in enumerate(action.command.split("\n")))
            )
        if self.form == "xml":
            parameters = "\n".join(f"<parameter={k}>{v}</parameter>" for k, v in action.arguments.items())
            return Message("assistant", f"{text}\n\n<function={action.name}>\n{parameters}\n</function>".strip())
        if self.form == "screen":
            keys = {"analysis": text, "commands": [{"keystrokes": action.command + "\n", "wait": 0.1}]}
            return Message("assistant", json.dumps(keys, ensure_ascii=False, indent=self.indent))
        if self.form == "action":
            values = dict(zip(self.keys, (text, action.name, action.arguments), strict=True))
            return Message("assistant", json.dumps(values, ensure_ascii=False, indent=self.indent))
        if self.form == "react":
            shown = (
                action.command
                if self.episode.source != "desk"
                else f"{action.name}\nAction Input: {json.dumps(action.arguments)}"
            )
            return Message("assistant", f"Thought: {text or 'Go on.'}\nAction: {shown}")
        fence = "```bash" if self.form == "mini" else self.fence
        return Message("assistant", f"{self.head}{text}\n\n{fence}\n{action.command}\n```".lstrip())

    def _shown(self, action: Action) -> str:
        output = action.output.rstrip("\n")
        if action.kind == "submit":
            output = self.rng.choice(wording.SUBMITTED)
        if len(output) > self.limit:
            half = self.limit // 2
            output = output[:half] + self.cut.format(n=len(output) - 2 * half) + output[-half:]
        return output

    def _observed(self, action: Action, call_id: str, shown: str | None, output: str, planted: str) -> Message:
        if shown is None:
            output = self.elided.format(n=output.count("\n") + 1)
        text = self._text(action, output)
        if planted:
            lines = text.split("\n")
            lines.insert({"end": len(lines), "start": 0, "middle": len(lines) // 2}[self.where], planted)
            text = "\n".join(lines)
        if self.form in ("calls", "blocks", "json"):
            return Message("tool", text, action.name if self.named else "", (), call_id)
        return Message("user", text)

    def _text(self, action: Action, output: str) -> str:
        if self.form == "mini":
            return (
                f"<returncode>{action.code}</returncode>\n<output>\n{output}\n</output>"
                if output
                else f"<returncode>{action.code}</returncode>\n<output></output>"
            )
        if self.form == "json":
            value = {"returncode": action.code, "output": output} if self.code else {"output": output}
            return json.dumps(value, ensure_ascii=False, indent=self.indent)
        text = output or self.empty
        if self.form == "blocks" and action.failed and not self.code and self.episode.source != "package":
            text = f"Error: {text}" if not text.startswith("Error") else text
        said = self.code_text.format(c=action.code)
        if self.code:
            text = f"{said}\n{text}" if self.code_first else f"{text}\n{said}".lstrip("\n")
        if self.footer:
            if action.name in ("open", "create", "edit") and not action.code and "path" in action.arguments:
                self.open = f"{self.episode.root}/{action.arguments['path']}"
            text += "\n" + self.footer.format(o=self.open, d=self.episode.root or "/")
        if self.form == "screen":
            return f"{self.lead}{self.prompt} {action.command}\n{output}\n{self.prompt}" + (f"\n{said}" if self.code else "")
        if self.tail:
            text = self.tail.format(o=text, d=self.episode.root or "/", n=action.name)
        if self.ending != "\n":
            text = text.replace("\n", self.ending)
        return self.lead + text if self.form in ("fence", "xml", "react", "action") else text
