"""Text to tokens: state and question wording, labels, chat frame, incremental tokenisation.

Reading order: `wording` (what the model reads), `encoder` (text to ids, never an added token), `profile` (what a tokenizer allows),
`labels`, `trunk` (what is handed on), `prompts` (all of it together).
"""

from flide_agent.prompts.encoder import PromptError
from flide_agent.prompts.prompts import Prompts
from flide_agent.prompts.trunk import Block, Branch, Trunk

__all__ = ["Block", "Branch", "PromptError", "Prompts", "Trunk"]
