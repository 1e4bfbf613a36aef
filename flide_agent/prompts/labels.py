"""Option labels: single tokens in the answer position, which is right after the frame that closes the prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import ascii_uppercase, digits

from flide_agent.messages import InputError
from flide_agent.prompts.encoder import Encoder, PromptError
from flide_agent.questions import MAX_OPTIONS, Noul, Question, Score, labels_of

PAIRS = tuple(a + b for a in ascii_uppercase for b in ascii_uppercase)


@dataclass(frozen=True, slots=True)
class Labels:
    """Spelling and token id of every label. pairs: the usable ones of AA..ZZ, in order, at most 255."""

    letters: tuple[tuple[str, int], ...]
    numbers: tuple[tuple[str, int], ...]
    sides: tuple[tuple[str, int], ...]
    pairs: tuple[tuple[str, int], ...]

    @property
    def max_options(self) -> int:
        """The most options that a choice can have with this tokenizer, at most 255."""
        return max(len(self.letters), len(self.pairs))

    def of(self, question: Question) -> tuple[tuple[str, int], ...]:
        """(spelling, token id) for each option, level, or side.

        Raises InputError, its loc relative to the question, for more options than there are labels.
        """
        n = labels_of(question)
        if isinstance(question, Noul):
            return self.sides
        if isinstance(question, Score):
            return self.numbers[:n]
        if n > self.max_options:
            msg = f"this model's tokenizer has labels for {self.max_options} options, not {n}"
            raise InputError(("choice", "criteria"), msg, "too_long")
        return (self.letters if n <= len(self.letters) else self.pairs)[:n]


def find_labels(encoder: Encoder, tail: str, path: str) -> Labels:
    """The labels of a tokenizer. tail: the text of the frame after its last added token.

    Raises PromptError when A..Z, 0..9, yes or no are no single distinct tokens there.
    """
    before = encoder(tail).tolist()

    def single(spellings: Iterable[str]) -> list[tuple[str, int]]:
        found: dict[int, str] = {}
        for spelling in spellings:
            tokens = encoder(tail + spelling).tolist()
            if tokens[:-1] == before and tokens[-1] not in found:
                found[tokens[-1]] = spelling
        return [(spelling, token) for token, spelling in found.items()]

    def required(spellings: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
        found = single(spellings)
        if len(found) < len(spellings):
            missing = sorted(set(spellings) - {spelling for spelling, _ in found})
            raise PromptError(f"{path}: the labels {', '.join(missing)} are not single distinct tokens in the answer position")
        return tuple(found)

    return Labels(
        letters=required(tuple(ascii_uppercase)),
        numbers=required(tuple(digits)),
        sides=required(("yes", "no")),
        pairs=tuple(single(PAIRS)[:MAX_OPTIONS]),
    )
