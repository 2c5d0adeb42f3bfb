"""The tokenizer of a model: text to token IDs, the chat template, and the folder of a model's name.

This room never imports torch.
"""

from promptcache.tokenizer.conversation import Conversations, Frame
from promptcache.tokenizer.hub import DEMO_FOLDER, ask_hub, loads_quickly, local_folder, model_folder
from promptcache.tokenizer.hub_tokenizer import HubTokenizer
from promptcache.tokenizer.model_config import (
    LENGTH_NAMES,
    Dtype,
    ModelFacts,
    declared_positions,
    read_facts,
)
from promptcache.tokenizer.types import FROZEN_DATE, NO_OPTIONS, Before, Markup, Tokenizer, has_more_tokens

__all__ = [
    "DEMO_FOLDER",
    "FROZEN_DATE",
    "LENGTH_NAMES",
    "NO_OPTIONS",
    "Before",
    "Conversations",
    "Dtype",
    "Frame",
    "HubTokenizer",
    "Markup",
    "ModelFacts",
    "Tokenizer",
    "ask_hub",
    "declared_positions",
    "has_more_tokens",
    "loads_quickly",
    "local_folder",
    "model_folder",
    "read_facts",
]
