"""The tokenizer of a model: text to token IDs, the frames of chat turns, and the folder of a model's name.

This room never imports torch.
"""

from promptcache.tokenizer.hub import DEMO_FOLDER, ask_hub, local_folder, model_folder
from promptcache.tokenizer.hub_tokenizer import HubTokenizer
from promptcache.tokenizer.model_config import (
    LENGTH_NAMES,
    Dtype,
    ModelFacts,
    declared_positions,
    read_facts,
    read_kv_sizes,
)
from promptcache.tokenizer.types import Tokenizer, TurnFrame, answer_text

__all__ = [
    "DEMO_FOLDER",
    "LENGTH_NAMES",
    "Dtype",
    "HubTokenizer",
    "ModelFacts",
    "Tokenizer",
    "TurnFrame",
    "answer_text",
    "ask_hub",
    "declared_positions",
    "local_folder",
    "model_folder",
    "read_facts",
    "read_kv_sizes",
]
