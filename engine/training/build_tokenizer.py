"""Build the tokenizer of the default model: a byte-level BPE of 4,096 tokens that reads like Qwen3.5's and is small.

    python engine/training/build_tokenizer.py OUT_DIR [--episodes episodes.jsonl.gz]

Writes OUT_DIR/tokenizer.json and tokenizer_config.json. Text: the sources of Python's standard library, its language
reference (pydoc topics), the wording of our prompts and, when given, agents' commands with their outputs (gzipped JSON
lines: task, actions, observations). The committed files were built with Python 3.11.7, tokenizers 0.23 and the episodes
of princeton-nlp/intercode (MIT).

Kept from Qwen3.5: the pre-tokenisation, so a newline never joins what follows it; single digits; every added token of its
chat template, none of which holds or strips white space. Different: no normaliser, so decoding gives back every text.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import string
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# (text, special): special tokens vanish when a decoder skips special tokens. Order and flags as in Qwen3.5.
ADDED = (
    *((f"<|{name}|>", True) for name in (
        "endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start", "box_end", "quad_start", "quad_end",
        "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad",
    )),
    ("<tool_call>", False), ("</tool_call>", False),
    *((f"<|{name}|>", False) for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad", "repo_name", "file_sep")),
    ("<tool_response>", False), ("</tool_response>", False), ("<think>", False), ("</think>", False),
    ("<|audio_start|>", True), ("<|audio_end|>", True),
    ("<tts_pad>", True), ("<tts_text_bos>", True), ("<tts_text_eod>", True), ("<tts_text_bos_single>", True),
    ("<|audio_pad|>", True),
)  # fmt: skip
LABEL_WORDS = ("yes", "no")
PAIRS = ["".join(pair) for pair in itertools.product(string.ascii_uppercase, repeat=2)]
PAIRS_NEEDED = 255

PROMPT_TEXT = """\
[1] system

[2] user

[3] assistant

[4] tool

Question: Did the last command fail? What will the agent do next? Which kind of tool? Is the agent stuck? Is the task done?
A: read - looks at files or output
B: edit - changes a file
C: run - runs tests or a program
D: search - searches the code
E: submit - submits the answer
0: low risk
1: some risk
2: high risk
yes: the statement is true
no: the statement is false
yes
no
Answer with the letter of one option only.
Answer with the letters of one option only.
Answer with the number of one level only.
Answer with yes or no only.
system user assistant tool function arguments command output error exit code failed success Traceback (most recent call last):
{"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "", "arguments": ""}}]}
{"role": "tool", "tool_call_id": "call_1", "content": ""} {"role": "user", "content": ""} {"role": "system", "content": ""}
"""
"""What every prompt is made of; PROMPT_WEIGHT copies make its words short."""
PROMPT_WEIGHT = 1500

_FILE_CHARACTERS = 60_000
_OUTPUT_CHARACTERS = 400
_SKIPPED = {"test", "tests", "idlelib", "site-packages", "encodings", "lib2to3", "config-3.11-x86_64-linux-gnu", "__pycache__"}


def library_text() -> Iterator[str]:
    """Sources of the standard library in a fixed order, each cut so that no table of data outweighs the rest."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not _SKIPPED & set(path.relative_to(root).parts):
            yield path.read_text(encoding="utf-8", errors="ignore")[:_FILE_CHARACTERS]
    yield (root / "pydoc_data" / "topics.py").read_text(encoding="utf-8").encode().decode("unicode_escape", errors="ignore")


def episode_text(path: Path) -> Iterator[str]:
    """Tasks, commands and the beginnings of outputs, each once. A line that is no JSON is left out and named."""
    seen: set[str] = set()
    with gzip.open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                episode = json.loads(line)
            except ValueError as error:
                print(f"{path.name} line {number} left out: {error}")
                continue
            outputs = (str(observation)[:_OUTPUT_CHARACTERS] for observation in episode["observations"])
            for text in (str(episode["task"]), *map(str, episode["actions"]), *outputs):
                if text not in seen:
                    seen.add(text)
                    yield text + "\n\n"


def train(texts: Iterator[str]) -> Tokenizer:
    """Train the merges, give the last ones up for the labels that have none, add the added tokens: VOCABULARY ids in all."""
    base = VOCABULARY - len(ADDED)
    tokenizer = _tokenizer(models.BPE())
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=base, initial_alphabet=alphabet, max_token_length=24, show_progress=False)
    )
    merges = [(left, right) for left, right in json.loads(tokenizer.to_str())["model"]["merges"]]
    kept = len(merges)
    while len(extra := _label_merges(alphabet, merges[:kept])) + kept > len(merges):
        kept -= 1
    merges = merges[:kept] + extra
    built = _tokenizer(models.BPE(vocab=_vocabulary(alphabet, merges), merges=merges))
    for text, special in ADDED:
        add = built.add_special_tokens if special else built.add_tokens
        add([AddedToken(text, normalized=False, special=special)])
    if built.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"{built.get_vocab_size()} tokens instead of {VOCABULARY}: the text is too small")
    return built


def _tokenizer(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _label_merges(alphabet: list[str], merges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Merges to append so that yes, no and PAIRS_NEEDED two-letter labels are one token each; missing pairs come from AA on."""
    model = models.BPE(vocab=_vocabulary(alphabet, merges), merges=merges)
    have = {left + right for left, right in merges}
    missing = PAIRS_NEEDED - sum(pair in have for pair in PAIRS)
    pairs = [pair for pair in PAIRS if pair not in have][: max(0, missing)]
    extra = []
    for word in [*LABEL_WORDS, *pairs]:
        first, *rest = (token.value for token in model.tokenize(word))
        for piece in rest:
            extra.append((first, piece))
            first += piece
    return extra


def _vocabulary(alphabet: list[str], merges: list[tuple[str, str]]) -> dict[str, int]:
    return {token: index for index, token in enumerate(alphabet + [left + right for left, right in merges])}


# One user turn, one tool turn and the frame that answers are read in: the template of Qwen3.5 without images and tool schemas.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content|trim + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role in ('system', 'user', 'assistant') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content|trim + '<|im_end|>\\n' }}
{%- else %}
{{- raise_exception('Unexpected message role.') }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is true %}
{{- '<think>\\n' }}
{%- else %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}"""


def write(tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--episodes", type=Path)
    arguments = parser.parse_args()
    texts = itertools.chain(
        library_text(), [PROMPT_TEXT] * PROMPT_WEIGHT, episode_text(arguments.episodes) if arguments.episodes else ()
    )
    tokenizer = train(texts)
    write(tokenizer, arguments.out)
    print(f"{tokenizer.get_vocab_size()} tokens, {(arguments.out / 'tokenizer.json').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
