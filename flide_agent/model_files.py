"""What a model's files say before there is an engine: what it reads with, and its card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flide_agent.card import Card, CardError
from flide_agent.errors import StartError

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts


GIVE = "give 'default' for the model in the package, a folder, or a hub id (org/name)"


def directory_of(model: str) -> Path:
    """Where a model's files are; of "dummy:SIZE", which has none, those of the model in the package. Raises StartError."""
    from flide_engine.models import ModelError, locate  # here, so that commands that need no model stay quick

    from flide_agent import default_model

    if model == "default" or model.startswith("dummy:"):
        return default_model.DIRECTORY
    try:
        return Path(locate(model))
    except ModelError as e:  # the engine names the model too, and knows nothing of the one in the package
        why = str(e).removeprefix(f"model {model!r} ")
        raise StartError(f"model {model!r} {why}; {GIVE}") from e


def prompts_of(model: str) -> tuple[Prompts, Card | None]:
    """The prompts and the card of a model: "default", "dummy:SIZE", a folder, or a hub id. Raises StartError."""
    from flide_agent.prompts import PromptError, Prompts

    directory = directory_of(model)
    try:
        card = None if model.startswith("dummy:") else Card.read(directory)  # random weights were judged for nothing
        return Prompts.load(directory, card), card
    except (PromptError, CardError) as e:
        raise StartError(f"model {model!r}: {e}") from e
