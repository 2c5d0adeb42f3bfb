"""The demo model: a small Llama that reads facts, with its training code and its shipped weights.

`MODEL_FOLDER` loads offline. The model is trained on ordinary causal prompts without schemas or caches, so that
it can measure the rest of the library.
"""

from pathlib import Path

from promptcache.demo.documents import Fact
from promptcache.demo.questions import Case, QuestionSet, Rate, draw_cases, is_right

MODEL_FOLDER = Path(__file__).parent / "model"

__all__ = ["MODEL_FOLDER", "Case", "Fact", "QuestionSet", "Rate", "draw_cases", "is_right"]
