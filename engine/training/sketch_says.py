# ruff: noqa: E501 - tables of words read best a line each
"""What the tools of a sketched run answer: refusals of many kinds of tools, and successes that look like them.

Everything is put together from parts and drawn anew for every call; a `Manner` is what stays the same in a run: the frame around answers.
"""

from __future__ import annotations

import json
import random

_WHY = {
    "missing": ("no such file: {p}", "{p} is not there", "{p} does not exist", "cannot find {p}", "there is nothing at {p}", "{p} could not be located", "path {p} is unknown", "no entry for {p}", "{p}: not found", "I looked for {p} and found no file", "nothing is stored under {p}"),
    "folder": ("{p} is a folder", "{p} is a directory, a file is wanted", "cannot read a directory ({p})", "{p} names a folder and not a file", "is a directory: {p}"),
    "closed": ("no file is open", "nothing is open yet", "open a file first", "there is no current file", "this needs an open file", "the editor holds no file", "no buffer is active"),
    "beyond": ("line {a} is past the end, the file has {n} lines", "{a} is more than the {n} lines there are", "line number {a} is out of range", "the file ends at line {n}", "only {n} lines, {a} was asked for", "start {a} lies behind the last line", "there is no line {a}"),
    "range": ("the end of the range is before its start", "lines {a} to {b} are no range", "start must not be larger than end", "{a}:{b} is not a valid range", "bad range {a}-{b}", "line numbers have to be positive"),
    "argument": ("`{w}` is missing", "no value for {w}", "unknown option {w}", "{w} must be a number", "{w} has the wrong type", "expected a string for {w}", "{w} may not be empty", "argument {w} was not understood", "too many arguments", "{w} needs an absolute path", "{w}: field required", "the call holds no {w}"),
    "absent": ("the old text is nowhere in {p}", "found no place in {p} that reads like this", "{p} does not hold the text to replace", "nothing in {p} matches", "0 occurrences in {p}", "the block to be replaced differs from the file", "search block does not match {p}", "hunk 1 does not apply to {p}"),
    "many": ("the old text occurs {a} times in {p}", "{a} places match, one is wanted", "the text is not unique in {p}", "ambiguous: {a} matches", "several lines of {p} fit; add more context"),
    "same": ("old and new text are the same", "the new text equals the old one", "this would change nothing", "both texts are identical"),
    "syntax": ("the result would not parse", "the new text has a syntax error", "this breaks {p}", "the checker found errors in the new text", "invalid Python after the change", "linting the edited file gives errors", "indentation does not fit any outer level", "a bracket is never closed"),
    "exists": ("{p} is there already", "{p} already exists", "will not overwrite {p}", "a file of that name exists: {p}"),
    "parent": ("the folder of {p} does not exist", "no parent directory for {p}", "cannot create {p}: its folder is missing"),
    "undo": ("there is nothing to undo", "no earlier version of {p} is kept", "{p} has no edit history", "nothing to take back"),
    "stale": ("{p} was changed since you read it", "{p} has not been read yet", "read {p} before you write to it", "your view of {p} is out of date"),
    "denied": ("you may not touch {p}", "{p} is outside of the workspace", "permission denied for {p}", "{p} is read-only", "access to {p} is blocked", "not allowed: {p}", "the user rejected this call", "this tool is switched off"),
    "slow": ("stopped after {a} seconds", "no answer within {a} s", "the call timed out", "gave up waiting after {a} seconds", "took longer than {a}s and was killed", "the process is still running and was interrupted"),
    "pattern": ("the pattern cannot be compiled", "bad regular expression", "unterminated group in the pattern", "missing ) at position {a}", "a search term is needed"),
    "binary": ("{p} is no text file", "cannot decode {p} as UTF-8", "{p} holds binary data", "{p} is too large to be shown"),
    "unknown": ("no such tool", "that command is not known here", "there is no tool of this name", "this action is not supported", "the call could not be read", "one call at a time", "malformed call", "interactive programs do not work here", "several commands were sent, one is allowed", "more than one command in a call: join them with && or ;", "only the first of {a} commands could be read; send them one by one"),
    "net": ("the host cannot be reached", "connection refused", "name resolution failed", "the server answered {s}", "no network in here", "the page could not be loaded"),
}  # fmt: skip
_ADVICE = ("", "", "", "", "Check the path.", "Try again.", "Nothing was changed.", "The file is as it was.", "See the help of the tool.", "Use another one.", "Please correct the call and send it once more.", "Look at the file first.", "No change was made.", "Your edit was dropped.",
           "List the folder to see what is there.", "Give more lines around the place.", "(0 changes)", "Pick one of the known names.", "The tool did nothing.")  # fmt: skip
_LEADS = ("", "", "", "", "", "Error: ", "ERROR: ", "error: ", "Error - ", "[error] ", "[ERROR] ", "Failed: ", "FAILED - ", "Cannot do that: ", "Not done: ", "Refused: ", "Rejected: ", "Sorry, ", "Warning: ", "Invalid call: ", "Invalid input: ", "Tool error: ", "ToolError: ", "Exception: ", "RuntimeError: ", "ValueError: ",
          "OSError: ", "fatal: ", "✗ ", "❌ ", "! ", "E: ", "err: ", "Problem: ", "Unsuccessful: ", "Oh no, ", "Note: ", "Could not edit: ", "Could not run: ", "Edit failed: ", "Command failed: ", "Call failed. ", "Aborted. ", "{t}: ", "{t} failed: ", "{t} error: ", "Error in {t}: ", "Error executing {t}: ")  # fmt: skip
_WRAPS = ("{x}", "{x}", "{x}", "<error>{x}</error>", "<tool_error>{x}</tool_error>", "<stderr>{x}</stderr>", "[{x}]", "({x})", "*** {x} ***", "{x}\n[tool returned an error]", "{x}\nstatus: error", "{x}\nis_error: true", "<result status='error'>\n{x}\n</result>")  # fmt: skip
CODES = (
    "ENOENT", "EINVAL", "E_ARG", "BAD_RANGE", "NOT_FOUND", "CONFLICT", "INVALID_ARGUMENT", "TOOL_FAILURE", "E1001", "42", "invalid_request_error", "NO_MATCH",
)  # fmt: skip
_BAD = (("success", False, True), ("ok", False, True), ("is_error", True, False), ("isError", True, False), ("status", "error", "ok"), ("status", "failed", "completed"), ("state", "FAILED", "DONE"), ("error", True, False), ("exitCode", 1, 0), ("exit_code", 2, 0),
        ("result", "failure", "success"), ("code", 400, 200), ("applied", False, True))  # fmt: skip
_SAYS = ("message", "error", "output", "content", "text", "detail", "reason", "stderr", "observation", "result", "msg")
_DELIMITERS = ("-" * 40, "=" * 30, "~~~~", "-----", "***", "<<<<<<<", "#####", "")
_WOULD = ("With your change the file would read", "This is what you wanted it to be", "The edited part would be", "Proposed", "After the edit (not saved)", "Your version", "Lines with your text in place")  # fmt: skip
_WAS = ("The file now, without your change", "What is in the file", "Unchanged file", "Before", "As it stands", "Current lines", "The old code is still there")  # fmt: skip
_CLOSING = (
    "The edit was taken back. Send a corrected one.", "Nothing has been written; mind the indentation.", "Please fix the text and try the edit again.", "Do not send the same edit once more, it will be refused again.", "File left untouched.",
    "The change is not in the file.", "", "", "Your edit did not go through.",
)  # fmt: skip
_KEPT = ("None of your changes was applied", "Your change has NOT been made", "The changes were not saved", "The file was NOT changed", "Changes: not applied", "The edit has been rolled back", "Your modifications were dropped", "The old version stays", "We did not apply this", "NOT APPLIED", "The file is still the old one", "Nothing you sent is in the file")  # fmt: skip
_REPAIR = ("Please repair your command and send it again", "Correct the edit and retry", "Fix the mistake, then edit again", "Look at the error and make a better edit", "Try once more with another text", "Think about the indentation before the next try", "You have to change the call", "Another attempt is needed")  # fmt: skip
_EITHER = ("You can either 1) give the right first and last line or 2) repair your code", "Either the line numbers are wrong or the text is", "Check (a) the range, (b) the new text", "Make sure that start and end are right", "Name the lines anew or write the code anew", "Use the numbers of the listing above")  # fmt: skip
_AGAIN = ("Do NOT run this very command again", "The same command will give the same error", "Sending it unchanged leads to this error again", "Repeating the edit is of no use", "DON'T repeat the failed call", "It will fail as long as it stays like this")  # fmt: skip
_REVIEW = ("Please look the change over: right indentation, no line twice", "Make sure that the edit is what you wanted", "Check the lines above and edit again if you have to", "Review the edit; if something is wrong, edit the file again", "See whether the result is right before you go on", "If it is not as intended, undo it", "Look for mistakes such as missing or doubled lines")  # fmt: skip
_QUOTES = ("```\n{t}\n```", "{t}", '"{t}"', "<<<\n{t}\n>>>", "    {t}", "<old>{t}</old>")
_LINT = ("E999 SyntaxError: invalid syntax", "E999 IndentationError: unexpected indent", "F821 undefined name 'x'", "E0001: Parsing failed", "line {a}: unexpected token", "SyntaxError: '(' was never closed (line {a})", "unindent does not match ({a}:{b})", "{p}:{a}: invalid syntax", "F999 unexpected EOF", "{a}:{b} expected ':'")  # fmt: skip


class Manner:
    """How the tools of one run answer. bare: without any frame; as_json: answers are objects."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        how = rng.random()
        self.as_json = how < 0.25
        self.mark = rng.choice(_BAD)
        self.says = rng.choice(_SAYS)
        self.lead = rng.choice(_LEADS) if rng.random() < 0.6 else ""
        self.wrap = rng.choice(_WRAPS)
        self.marked = rng.random() < 0.75
        self.delimiter = rng.choice(_DELIMITERS)
        self.first = rng.random() < 0.6
        self.indent = rng.choice((None, None, 2))

    def refuse(self, why: str, tool: str, fields: dict[str, object], window: str = "", would: str = "") -> str:
        """A failure of the kind `why`. window: the lines of a file as they are; would: as they would be, or the text that was looked for."""
        rng = self.rng
        own = {
            "w": rng.choice(("path", "line", "text", "command", "query", "old", "new", "limit")),
            "s": rng.choice((403, 404, 500, 502)),
            **fields,
        }
        text = rng.choice(_WHY[why]).format(**own)
        if rng.random() < 0.4:
            text = text[0].upper() + text[1:]
        if why == "syntax" and would and rng.random() < 0.8:
            return self._frame(self._refused_edit(text, own, window, would), tool)
        text += rng.choice(("", "", ".", "!"))
        advice = rng.choice(_ADVICE)
        text = f"{text}{'' if text[-1] in '.!' or not advice else '.'} {advice}".strip()
        if rng.random() < 0.12:
            text += f"\n{rng.choice(('usage', 'Usage', 'syntax', 'Help'))}: {tool} <{own['w']}> [{rng.choice(('line', 'end', 'options'))}]"
        elif rng.random() < 0.1:
            text += f" ({rng.choice(('code', 'errno', 'reason'))} {rng.choice(CODES)})"
        elif why in ("absent", "many", "same") and would and rng.random() < 0.5:
            asked = f"{rng.choice(('Looked for', 'Text that was given', 'old', 'Wanted', 'Search text', 'You sent'))}:\n{rng.choice(_QUOTES).format(t=would)}"
            text = f"{text}\n{asked}" if rng.random() < 0.7 else f"{asked}\n{text}"
            text += f"\n\n{rng.choice(('The nearest place', 'In the file', 'Did you mean', 'It has'))}:\n{window}" * (
                rng.random() < 0.4
            )
        elif window and rng.random() < 0.25:
            text += f"\n\n{window}"
        return self._frame(text, tool)

    def _refused_edit(self, text: str, own: dict[str, object], window: str, would: str) -> str:
        """A refused edit with what it would have given and what is there, as editors show them."""
        rng, line = self.rng, self.delimiter
        found = [f"- {rng.choice(_LINT).format(**own)}" for _ in range(rng.choice((0, 1, 1, 2, 3)))]
        head = [text + rng.choice(("", ".", ":")), *found]
        parts = []
        if rng.random() < 0.8:
            parts += [rng.choice(_WOULD) + ":", line, would, line]
        if rng.random() < 0.8:
            parts += [rng.choice(_WAS) + ":", line, window, line]
        body = [*head, "", *parts] if self.first or not parts else [*parts, "", *head]
        return "\n".join([*body, self.closing()]).strip()

    def closing(self) -> str:
        """What stands below a refused edit: one sentence, or several of what became of it and what to do."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(_CLOSING)
        said = [rng.choice(_KEPT), *(rng.choice(some) for some in (_REPAIR, _EITHER, _AGAIN) if rng.random() < 0.6)]
        return rng.choice((". ", ".\n", "! ", "\n")).join(said) + rng.choice((".", "", "!"))

    def review(self, text: str) -> str:
        """A made edit's message, with or without the wish to look it over."""
        rng = self.rng
        return rng.choice(("{t}. {r}.", "[{t}. {r}]", "{t}\n{r}", "{t} ({r})")).format(
            t=text.rstrip("."), r=rng.choice(_REVIEW)
        )

    def _frame(self, text: str, tool: str) -> str:
        rng = self.rng
        if self.as_json:
            name, bad, _ = self.mark
            value: dict[str, object] = {self.says: self.lead.format(t=tool) + text}
            if self.marked or rng.random() < 0.2:
                value = {name: bad} | value if rng.random() < 0.5 else value | {name: bad}
            elif self.says not in ("error", "stderr") and not self.lead:
                value = {"error": text}
            if rng.random() < 0.2:
                value["code"] = rng.choice(CODES)
            return json.dumps(value, indent=self.indent, ensure_ascii=False)
        return self.wrap.format(x=(self.lead.format(t=tool) if rng.random() < 0.85 else "") + text)

    def accept(self, text: str) -> str:
        """A success, in the same manner."""
        if not self.as_json or not text or self.rng.random() < 0.1:
            return text
        name, _, good = self.mark
        says = self.says if self.says not in ("error", "stderr", "reason") else "output"
        value: dict[str, object] = {says: text}
        if self.marked:
            value = {name: good} | value if self.rng.random() < 0.5 else value | {name: good}
        if self.rng.random() < 0.15:
            value[self.rng.choice(("error", "stderr", "warnings"))] = self.rng.choice(("", None, []))  # type: ignore[arg-type]
        return json.dumps(value, indent=self.indent, ensure_ascii=False)


EDITED = ("{p} is changed", "Saved {p}", "edited {p}: {a} lines", "Edit done", "1 replacement in {p}", "ok", "Done.", "Wrote {n} lines to {p}", "The new text is in place", "{p} updated, look it over for mistakes", "Lines {a}-{b} replaced", "+{a} -{b}", "success", "Change saved. If there is an error in it, edit again.",
          "no problems in {p}", "Applied.", "File written", "M {p}", "patched {p}, 0 rejected", "Inserted {a} lines", "The edit is in. Please check that nothing is broken.", "Updated {p}; the old error handling was replaced", "Buffer saved", "✓ {p}", "{p} now has {n} lines")  # fmt: skip
MADE = (
    "{p} created",
    "New file {p}",
    "created {p} ({n} bytes)",
    "wrote {p}",
    "A {p}",
    "ok",
    "File is there now",
    "[new file {p}]",
    "{p}: 1 line",
    "Created.",
)
GONE = (
    "{p} deleted",
    "removed {p}",
    "D {p}",
    "{p} is no more",
    "1 file removed",
    "",
    "moved to trash: {p}",
    "{p} no longer exists",
    "renamed {p}",
)
UNDONE = (
    "last edit of {p} undone",
    "{p} is back at its earlier version",
    "Undid 1 change",
    "reverted {p}",
    "The previous text is restored",
)
NONE = ("no hits", "No matches.", "nothing matches '{q}'", "0 results", "[]", "not found: '{q}' in any file", "No file contains {q}", "searched {n} files, found nothing", "(no results)", "{q}: 0 matches in {n} files", "no match for {q} in {p}", "Your search gave nothing", "")  # fmt: skip
HITS = ("{n} hits", "Found {n} places for '{q}'", "{n} matches in {a} files:", "", "", "Results for {q}", "{p} ({n}):")
AFTER_HITS = ("", "", "", "", "({n} more not shown)", "End of results", "Too many hits, narrow the search.", "done, no errors")
HEADS = ("", "", "[{p}: {n} lines]", "== {p} ==", "File: {p}", "{p} ({a}-{b} of {n})", "Showing lines {a} to {b}", "// {p}", "Content of {p}:", "<file path='{p}'>", "Opened {p}", "-- {p}, {n} lines, utf-8")  # fmt: skip
