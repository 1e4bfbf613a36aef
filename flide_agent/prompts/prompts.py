"""Prompts: from states, messages and questions to the tokens of trunks and branches."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from flide_agent.card import Card
from flide_agent.messages import Message
from flide_agent.prompts import wording
from flide_agent.prompts.encoder import Encoder, PromptError, Tokens
from flide_agent.prompts.labels import Labels, find_labels
from flide_agent.prompts.profile import Profile, check
from flide_agent.prompts.trunk import Block, Branch, Trunk, history_saves, state_saves
from flide_agent.questions import Choice, Question

# The chat frame of Qwen3.5 around one user turn, with the empty closed think block of `enable_thinking=False`.
_OPEN = ("<|im_start|>", "user\n")
_CLOSE = ("<|im_end|>", "\n", "<|im_start|>", "assistant\n", "<think>", "\n\n", "</think>", "\n\n")
_CACHE_BRANCHES = 4096
_CACHE_CHARACTERS = 8_000_000
_Key: TypeAlias = tuple[str, int, str]
"""Type of question, number of labels, text."""


class Prompts:
    """One model's prompts. Thread-safe.

    format: version of the wording. sorts_options: a choice's options stand sorted in the prompt, whatever the order asked.
    incremental: blocks are tokenised on their own (else `reason` says why whole histories are).
    vocab_size: one more than the largest token id. digest: SHA-256 (hex) over the tokenizer and the wording, which is all that trunks
    depend on.
    frame_open, frame_close: the chat frame's tokens, put in by id. max_options: the most options of a choice. directory: where the
    tokenizer was read from.
    """

    def __init__(
        self,
        encoder: Encoder,
        profile: Profile,
        labels: Labels,
        frame: tuple[Tokens, Tokens],
        digest: str,
        directory: Path,
        sorts_options: bool = False,
    ) -> None:
        self.sorts_options = sorts_options
        self.format = wording.SORTED if sorts_options else wording.FORMAT
        self.incremental = profile.incremental
        self.reason = profile.reason
        self.vocab_size = encoder.size
        self.max_options = labels.max_options
        self.frame_open, self.frame_close = frame
        self.digest, self.directory = digest, directory
        self._encoder = encoder
        self._labels = labels
        self._branches: OrderedDict[_Key, Branch] = OrderedDict()
        self._cached_characters = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, directory: Path, card: Card | None = None) -> Prompts:
        """Read `tokenizer.json` of a model's directory and check its profile. Raises PromptError when it cannot serve.

        card: of the model, which says in which order options are shown.
        """
        path = Path(directory) / "tokenizer.json"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise PromptError(f"{path}: {error.strerror}; a model's directory needs a tokenizer.json") from error
        encoder = Encoder(path, data)
        profile = check(encoder, str(path))
        encoder.parallel, encoder.words = profile.incremental, profile.words
        frame = _frame(encoder, _OPEN, path), _frame(encoder, _CLOSE, path)
        labels = find_labels(encoder, _CLOSE[-1], str(path))
        encoder.forget()
        digest = hashlib.sha256(wording.FORMAT.encode() + b"\0" + hashlib.sha256(data).digest()).hexdigest()
        sorts = card is not None and card.options == "sorted"
        return cls(encoder, profile, labels, frame, digest, path.parent, sorts)

    def limit(self, tokens: int) -> None:
        """Texts of more tokens raise TextTooLong from now on, before all of them was tokenised; 0 for no limit."""
        self._encoder.most = tokens

    def tools(self, tools: Sequence[object]) -> Block:
        """Block [0] of tool schemas. Raises InputError for what cannot be written as JSON."""
        return self._block(wording.tools_block(tools))

    def message(self, index: int, message: Message) -> Block:
        """The block of message number `index` (from 1). A history that is not incremental is to be built by `history`."""
        return self._block(wording.message_block(index, message))

    def history(
        self, tools: Sequence[object], messages: Sequence[Message], *, base: Trunk | None = None, keep: int = 0
    ) -> Trunk:
        """The trunk of a history. Incremental tokenizers take the first `keep` messages (and the tools) from `base`.

        base: the trunk of a history with the same tools whose first `keep` messages are those of this one.
        """
        lead = 1 if tools else 0
        prefix = lead
        for message in messages:
            if message.role not in wording.PREFIX_ROLES:
                break
            prefix += 1
        if not self.incremental:
            return self._whole_history(tools, messages, prefix)
        kept = 0 if base is None else lead + keep
        if base is not None and not 0 <= kept < len(base.ends):
            raise ValueError(f"the base has {len(base.ends) - 1} blocks, so {keep} messages cannot be kept")
        blocks: list[Block] = [self.tools(tools)] if lead and not kept else []
        blocks += [self.message(i + 1, messages[i]) for i in range(max(0, kept - lead), len(messages))]
        ends = [len(self.frame_open)] if base is None else list(base.ends[: kept + 1])
        start = self.frame_open if base is None else base.tokens[: ends[-1]]
        for block in blocks:
            ends.append(ends[-1] + len(block.tokens))
        escaped = [i for i in base.escaped_blocks if i < kept] if base is not None else []
        escaped += [kept + i for i, block in enumerate(blocks) if block.escaped]
        tokens = np.concatenate([start, *(block.tokens for block in blocks)])
        return Trunk(tokens, tuple(ends), history_saves(ends[-1], ends[prefix] if prefix else 0), tuple(escaped))

    def state(self, state: object) -> Trunk:
        """The trunk of a System One state: string, JSON, or a list of role/content messages. Raises InputError."""
        messages = wording.transcript(state)
        if messages is not None:
            return self.history((), messages)
        text = wording.state_part(wording.state_text(state))
        # The frame's text and the state are one run of text between added tokens, so they are tokenised as one.
        tokens = np.concatenate([self.frame_open[:1], self._encoder(_OPEN[1] + text)])
        tokens.flags.writeable = False
        escaped = (0,) if self._encoder.spells_added(text) else ()
        return Trunk(tokens, (len(self.frame_open), len(tokens)), state_saves(len(tokens)), escaped)

    def question(self, question: Question) -> Branch:
        """The branch of a question, from a bounded cache. Raises InputError, its loc relative to the question, for too many options.

        Where options are sorted, the same question in another order has the same tokens and labels, and an `order` of its own.
        """
        return self.questions((question,))[0]

    def questions(self, questions: Sequence[Question]) -> list[Branch]:
        """`question` of each; those that are not in the cache are tokenised together. Raises InputError of the first at fault."""
        return self.start(questions)()

    def start(self, questions: Sequence[Question]) -> Callable[[], list[Branch]]:
        """Begin `questions`, which raises here what it raises: threads are at them until what this returns is called."""
        asked, orders = list[tuple[_Key, tuple[int, ...]]](), list[tuple[int, ...]]()
        for question in questions:
            labels, order = self._labels.of(question), tuple[int, ...]()
            if self.sorts_options and isinstance(question, Choice) and (order := wording.sorted_order(question.options)):
                question = Choice(question.instructions, tuple([question.options[i] for i in order]))
            text = wording.question_part(question, [spelling for spelling, _ in labels])
            asked.append(((type(question).__name__, len(labels), text), tuple([token for _, token in labels])))
            orders.append(order)
        branches_of = self._start(dict(asked))

        def finish() -> list[Branch]:
            found = branches_of()
            branches = [found[key] for key, _ in asked]
            return [Branch(b.tokens, b.labels, b.escaped, o) if o else b for b, o in zip(branches, orders, strict=True)]

        return finish

    def _start(self, asked: dict[_Key, tuple[int, ...]]) -> Callable[[], dict[_Key, Branch]]:
        """asked: labels by key. The options stand as in the key's text."""
        found: dict[_Key, Branch] = {}
        with self._lock:
            for key in asked:
                if (branch := self._branches.get(key)) is not None:
                    self._branches.move_to_end(key)
                    found[key] = branch
        new = [key for key in asked if key not in found]
        tokenised = self._encoder.start([text for _, _, text in new])

        def finish() -> dict[_Key, Branch]:
            for key, own in zip(new, tokenised(), strict=True):
                tokens = np.concatenate([own, self.frame_close])
                tokens.flags.writeable = False
                found[key] = Branch(tokens, asked[key], self._encoder.spells_added(key[2]))
            self._keep({key: found[key] for key in new})
            return found

        return finish

    def _keep(self, new: dict[_Key, Branch]) -> None:
        with self._lock:
            for key in new:
                if key not in self._branches and len(key[2]) <= _CACHE_CHARACTERS:
                    self._branches[key] = new[key]
                    self._cached_characters += len(key[2])
            while len(self._branches) > _CACHE_BRANCHES or self._cached_characters > _CACHE_CHARACTERS:
                (_, _, old), _ = self._branches.popitem(last=False)
                self._cached_characters -= len(old)

    def _block(self, text: str) -> Block:
        return Block(self._encoder(text), self._encoder.spells_added(text))

    def _whole_history(self, tools: Sequence[object], messages: Sequence[Message], prefix: int) -> Trunk:
        texts = [_OPEN[1]]
        if tools:
            texts.append(wording.tools_block(tools))
        texts += [wording.message_block(i, message) for i, message in enumerate(messages, 1)]
        characters = np.cumsum([len(text) for text in texts]).tolist()
        tokens, ends = self._encoder.ends("".join(texts), characters)
        tokens = np.concatenate([self.frame_open[:1], tokens])
        ends = [1 + end for end in ends]
        escaped = tuple(i for i, text in enumerate(texts[1:]) if self._encoder.spells_added(text))
        return Trunk(tokens, tuple(ends), history_saves(len(tokens), ends[prefix] if prefix else 0), escaped)


def _frame(encoder: Encoder, parts: tuple[str, ...], path: Path) -> Tokens:
    """The frame's tokens: added tokens by id, the text between them as text."""
    tokens: list[int] = []
    for part in parts:
        if part.startswith("<"):
            if part not in encoder.added:
                raise PromptError(f"{path} has no added token {part}, which the Qwen3.5 chat frame needs")
            tokens.append(encoder.added[part].id)
        else:
            tokens += encoder(part).tolist()
    frame = np.array(tokens, dtype=np.int32)
    frame.flags.writeable = False
    return frame
