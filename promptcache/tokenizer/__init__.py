"""The tokenizer of a model: text to token IDs, the frames of chat turns, and the folder that a model's name leads to.

This room never imports torch.
"""

from promptcache.tokenizer.hub import DEMO_FOLDER, ask_hub, local_folder, model_folder
from promptcache.tokenizer.hub_tokenizer import HubTokenizer
from promptcache.tokenizer.types import Tokenizer, TurnFrame

__all__ = ["DEMO_FOLDER", "HubTokenizer", "Tokenizer", "TurnFrame", "ask_hub", "local_folder", "model_folder"]
