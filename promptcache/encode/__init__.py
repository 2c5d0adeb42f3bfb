"""From a plan to its KV: encode what no store has, fetch the rest, and refine the plan with what is known."""

from promptcache.encode.distance import DEFAULT_AUDIT_TOKENS, Audit, Distance, PlainPrefill, audit, compare_predictions
from promptcache.encode.encode import CHUNK_TOKENS, Progress, grouped
from promptcache.encode.executor import Executor
from promptcache.encode.idle import end_helping_threads
from promptcache.encode.prepare import Prepared, Refiner, expected_logits, linked_logits, prepare
from promptcache.encode.repetition import Promotions, Repetition
from promptcache.encode.self_test import check_linking
