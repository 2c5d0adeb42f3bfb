"""Many requests on one model: one forward pass over tokens of any of them, and scoring on top of it."""

from promptcache.runtime.serving.batch import Batch, Row
from promptcache.runtime.serving.score import Score, logits_batch, score
from promptcache.runtime.serving.text import IncrementalText

__all__ = ["Batch", "IncrementalText", "Row", "Score", "logits_batch", "score"]
