"""The demo model: a small Llama that reads facts, its training code and its shipped weights.

In: nothing but a seed. Out: `MODEL_FOLDER`, a folder that transformers loads offline. This room knows nothing of
schemas, caches or the engine: the model is trained on ordinary causal prompts only, so that it can measure the rest.
"""

from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"

__all__ = ["MODEL_FOLDER"]
