"""The demo model: a small Llama that reads facts. Its weights ship with the package, and `MODEL_FOLDER` loads offline.

`tools/demo` in the repository has its training code. The model is trained on ordinary causal prompts without schemas or
caches, so that it can measure the rest of the library.
"""

from promptcache.tokenizer import DEMO_FOLDER as MODEL_FOLDER

__all__ = ["MODEL_FOLDER"]
