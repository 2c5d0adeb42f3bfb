"""Adaptation: fit a model to modules, so that answers from them are nearer to those after plain prefill.

from promptcache.adapt import AdaptSettings, adapt_model

engine = Engine.from_pretrained("…", pack=False)
report = adapt_model(engine, "adapter", settings=AdaptSettings(minutes=60))
adapted = Engine.from_pretrained("…", adapter="adapter")
"""

from promptcache.adapt.report import AdaptReport, HeldOutFigures
from promptcache.adapt.train import AdaptSettings, adapt_model

__all__ = ["AdaptReport", "AdaptSettings", "HeldOutFigures", "adapt_model"]
