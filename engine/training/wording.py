"""Sentences of agents, tasks and environments. All written for this project; none taken from an agent's prompt files."""

# ruff: noqa: E501 - tables of sentences and commands read best a line each
from __future__ import annotations

import random
from typing import TYPE_CHECKING

from training.facts import Action

if TYPE_CHECKING:
    from training.toys import Toy
    from training.workplace import Workplace

SYSTEM = (
    "You are a helpful assistant that can work on a computer.",
    "You are a software engineer. You fix the issue you are given by running one command at a time.",
    "SETTING: You are an autonomous programmer and you work directly in a command line with special tools. One command a turn.",
    "You are an expert developer. Think first, then call exactly one tool. When the work is finished, submit it.",
    "Solve the task in the repository. Every reply has your reasoning and one command. Wait for the output before the next command.",
    "You are a careful coding agent. Errors may occur; read the output of each command. If a command fails, try something else. Do not ask questions.",
    "You can use bash. Answer with a thought and a command. To finish, run submit. An error in a command is shown to you.",
    "You're an engineer on call. Commands run in a sandbox without network. Commands that take too long are stopped.",
    "",
)  # fmt: skip
RULES = (
    "\n\nImportant rules:\n1. One command in each reply.\n2. Failed commands show their error.\n3. No interactive programs.",
    "\n\nTips:\n- Reproduce the bug before you fix it.\n- If an edit fails, look at the file again.\n- When the tests pass, submit.",
    "\n\nExample of a reply:\nI list the files.\n```\nls\n```",
    "\n\nRemember: the exit status tells whether a command failed.",
    "",
    "",
)
TASKS = (
    "{f} should do this: it {about}. It does not. Please fix the bug in `{name}` so that the tests in {t} pass.",
    "We have the following issue in {root}:\n\n{name} gives a wrong result\n\nCalling {name}({a}) should return {r}, but something else comes back.\n\nFix it without changing the tests.",
    "ISSUE: `{name}({a})` is broken\nThe function {about}. Expected {r}. See {f}. Steps: find it, change it, run {t}, submit.",
    "Please solve this: the user reports an error when {name} is called with {a}. The repository is at {root}.",
    "<issue>\nBug in {f}: expected {r} from {name}({a}).\nTraceback or not, the result is wrong.\n</issue>\nMake the change and submit when you are done.",
    "Task: make {t} pass. The function {name} in module {f} {about}.",
)
_THOUGHTS = {
    "look": ("Let me look at this.", "I want to see the file first.", "Let's read the code around there.", "I'll check what is in it.", "First I need to understand the code."),
    "search": ("I'll search for it.", "Let me find where this is used.", "Where is it defined?", "Let's look for the name in the code.", "I need to find the place."),
    "edit": ("Now I change it.", "I'll fix the line.", "Let me write the file.", "This edit should fix the error.", "I make the change now."),
    "run": ("Let's run it.", "I'll check whether it works now.", "Now run the tests to see whether they fail or pass.", "Let me reproduce the problem.", "See what happens."),
    "submit": ("The work is done, I submit it.", "Everything works; submitting.", "I am finished."),
    "other": ("Next step.", "Let me check something.", "One more thing.", "Let's see."),
}  # fmt: skip
_AFTER_FAILURE = (
    "That failed. ",
    "The last command did not work. ",
    "Hmm, an error. ",
    "It seems that path is wrong. ",
    "",
    "",
)
_AFTER_SUCCESS = ("Good. ", "That worked. ", "OK. ", "No error this time. ", "The earlier error is gone. ", "", "", "", "")


def task_text(rng: random.Random, toy: Toy, file: str, test: str, place: Workplace) -> str:
    a, r = rng.choice(toy.calls)
    text = rng.choice(TASKS).format(f=file, t=test, name=toy.name, about=toy.about, a=a, r=r, root=place.root)
    if rng.random() < 0.3:
        text += "\n\nThe code before:\n" + toy.buggy
    if rng.random() < 0.2:
        trace = f'Traceback (most recent call last):\n  File "{file}", line {rng.randint(3, 90)}, in {toy.name}\n{rng.choice(("ValueError: bad", "TypeError", "KeyError: 0", "AssertionError"))}'
        text += f"\n\n{rng.choice(('What I see:', '### Actual result', 'Log:', 'The command failed with:'))}\n```\n{trace}\n```\nVersions: 3.{rng.randint(8, 13)}"
    return text


def thought(rng: random.Random, action: Action) -> str:
    """What an agent writes before this action; sometimes nothing."""
    return rng.choice(_THOUGHTS[action.kind]) if rng.random() < 0.85 else ""


def bridge(rng: random.Random, failed: bool | None) -> str:
    """What it says about the command before."""
    return rng.choice(_AFTER_FAILURE if failed else _AFTER_SUCCESS)


EMPTY = ("", "Your command ran successfully and did not produce any output.", "(no output)", "Command finished with no output.", "<no output>", "[The command printed nothing]",
         "Tool ran without output or errors", "Done, no output.", "", "(nothing printed)", "no output", "[empty]", "Finished, nothing was printed.", "<empty/>", "The command gave no output", "(0 bytes)", "stdout is empty",
         "-- no output --", "Completed silently", "<system>No output came back</system>", "The tool has nothing to say.", "(the command ran and was silent)", "$", "...")  # fmt: skip
ELIDED = (
    "Old environment output: ({n} lines omitted)",
    "[older output removed, {n} lines]",
    "(output elided)",
    "Earlier observation: {n} lines not shown",
)
CUT = (
    "\n<{n} characters elided>\n",
    "\n... output truncated ({n} characters) ...\n",
    "\n[... {n} characters removed; the output was too long ...]\n",
)
SUBMITTED = (
    "The changes were submitted.",
    "Submission received.",
    "",
    "diff --git a/x b/x\n(the patch was handed in)",
    "Your work has been submitted. Thank you.",
)
SAYS = ("I can help you with that. Could you give me your number?", "Sure! Which one do you mean?\n\n1. The first\n2. The second", "Unfortunately I cannot do that without the number. Is there another way to find it?", "The change costs 40 more. Shall I go on?",
        "Everything is set up as you wanted:\n- status: closed\n- paid: 255\nAnything else?", "That is not allowed by our rules, sorry.", "I have found it. Do you want me to go on?", "That did not work, could you check the number?", "Done. Can I help you with anything else?", "I am sorry, there was a problem.",
        "Could you tell me more about it?", "Here is what I see:\n- one entry\n- status open\n\nShall I change it?", "Please confirm with yes or no.")  # fmt: skip
REPLIES = ("My number is X12.", "The second one, please.", "I would rather not say.", "That is too much, is there a cheaper one?", "Okay, please go ahead.", "I want to speak to a person.", "Yes, cancel it.", "Yes, please.", "No, that is wrong.", "yes", "no", "I think the number is right, try again.", "Thanks, that is all.", "There must be an error on your side.", "OK, go on.", "I don't remember it.",
           "Can you look it up another way?", "It failed last time too.", "Answer yes if it worked.")  # fmt: skip
