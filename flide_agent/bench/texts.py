"""Texts of exactly so many tokens for the served model's tokenizer: random words that are one token each, counted, then corrected."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flide_agent.messages import canonical_all
from flide_agent.questions import parse_questions

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts

WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand part place
case week company system program question work number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father power hour game line end member law
car city name team minute idea body back parent face level office door health person art war history party result change
morning reason research moment air teacher force error build test file run make fix module import value return class agent
patch commit open close list read write call path user data code type first last next other same new old good long little
own great high small large public able after before under over again still never also only very even here there where when
""".split()  # noqa: SIM905
FEWEST_WORDS = 16
TAG_WORDS = 6
"""Words at a text's start that spell its number, so that no two texts agree over the first 64 tokens."""
MOST_TRIES = 40


class Texts:
    """Exact texts of one tokenizer. Everything follows from the seed and the number of a text.

    Raises ValueError when fewer than FEWEST_WORDS words are single tokens of the tokenizer.
    """

    def __init__(self, prompts: Prompts, seed: int = 0) -> None:
        self._prompts, self._seed = prompts, seed
        base = len(prompts.state(WORDS[0]).tokens)
        self.words = [w for w in WORDS if len(prompts.state(f"{WORDS[0]} {w}").tokens) == base + 1]
        if len(self.words) < FEWEST_WORDS:
            raise ValueError(
                f"only {len(self.words)} common words are single tokens of this tokenizer; {FEWEST_WORDS} are needed"
            )

    def state(self, tokens: int, number: int) -> str:
        """A state whose trunk has `tokens` tokens, the frame's opening and the blank line after it included."""
        tag, rng = self._tag(number), random.Random(f"{self._seed} state {number}")
        return self._fit(tokens, rng, lambda text: f"{tag}\n{text}", lambda text: len(self._prompts.state(text).tokens))

    def message(self, tokens: int, index: int, role: str, number: int) -> dict[str, Any]:
        """A message whose block as number `index` (from 1) of a history has `tokens` tokens."""
        tag, rng = self._tag(number), random.Random(f"{self._seed} message {number} {index}")

        def count(text: str) -> int:
            (message,) = canonical_all([{"role": role, "content": text}], ())
            return len(self._prompts.message(index, message).tokens)

        return {"role": role, "content": self._fit(tokens, rng, lambda text: f"{tag} {text}", count)}

    def questions(self, sizes: tuple[int, ...], number: int) -> dict[str, dict[str, Any]]:
        """Questions by id whose branches have these sizes: choices of four options, or yes-or-no where that is too long."""
        return {f"q{i}": self.question(n, number, i) for i, n in enumerate(sizes)}

    def question(self, tokens: int, number: int, index: int = 0) -> dict[str, Any]:
        """One question whose branch has `tokens` tokens."""
        rng = random.Random(f"{self._seed} question {number} {index}")
        options: dict[str, None] = dict.fromkeys(rng.sample(self.words, 4))

        def choice(text: str) -> dict[str, Any]:
            return {"type": "choice", "instructions": text, "criteria": options}

        def noul(text: str) -> dict[str, Any]:
            return {"type": "noul", "instructions": text}

        make = choice if self._branch(choice(self.words[0])) <= tokens else noul
        return make(self._fit(tokens, rng, lambda text: text, lambda text: self._branch(make(text))))

    def _branch(self, question: dict[str, Any]) -> int:
        (parsed,) = parse_questions({"q": question}).values()
        return len(self._prompts.question(parsed).tokens)

    def _tag(self, number: int) -> str:
        digits = []
        for _ in range(TAG_WORDS):
            number, digit = divmod(number, len(self.words))
            digits.append(self.words[digit])
        if number:
            raise ValueError("too many texts for their tags")
        return " ".join(digits)

    def _fit(self, tokens: int, rng: random.Random, whole: Callable[[str], str], count: Callable[[str], int]) -> str:
        """The text that `whole` makes of so many random words that `count` gives `tokens`. Raises ValueError when none does."""
        words = [rng.choice(self.words) for _ in range(max(1, tokens - 16))]
        for _ in range(MOST_TRIES):
            text = whole(" ".join(words))
            off = tokens - count(text)
            if not off:
                return text
            if len(words) + off < 1:
                raise ValueError(f"no text of {tokens} tokens here: the shortest has {tokens - off - len(words) + 1}")
            words = words[:off] if off < 0 else words + [rng.choice(self.words) for _ in range(off)]
        raise ValueError(f"no text of exactly {tokens} tokens was found with this tokenizer")
