"""What a model's files say before there is an engine: what it reads with, and its card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flide_agent.card import Card, CardError
from flide_agent.errors import StartError

if TYPE_CHECKING:
    from flide_agent.prompts import Prompts


def prompts_of(model: str) -> tuple[Prompts, Card | None]:
    """The prompts and the card of a model: "default", "dummy:SIZE", a folder, or a hub id. Raises StartError saying what to change."""
    from flide_engine.models import ModelError, locate  # here, so that commands that need no model stay quick

    from flide_agent import default_model
    from flide_agent.prompts import PromptError, Prompts

    try:
        if model.startswith("dummy:"):  # random weights in true shapes have no tokenizer of their own, and no card
            return Prompts.load(default_model.DIRECTORY), None
        directory = default_model.DIRECTORY if model == "default" else Path(locate(model))
        card = Card.read(directory)
        return Prompts.load(directory, card), card
    except (ModelError, PromptError, CardError) as e:
        raise StartError(f"model {model!r}: {e}") from e
