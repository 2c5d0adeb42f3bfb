"""A model of transformers: its loading, its facts and fingerprint, moved keys, and the hook in its attention.

The only core room that imports transformers.
"""

from promptcache.model.facts import EIGHT_BITS, MODEL_FAULTS, NO_INTERFACE, is_quantized
from promptcache.model.fingerprint import runs_own_code
from promptcache.model.hook import step_cache
from promptcache.model.load import function_schema, load_model, wrap_tokenizer
from promptcache.model.model import Model, as_model, token_tensor
from promptcache.model.options import logits_processors, read_options, stopping_criteria, tell_unused
from promptcache.model.positioned_cache import PositionedCache, PositionedDynamicCache
from promptcache.model.reference import reference_logits, used_tokens
