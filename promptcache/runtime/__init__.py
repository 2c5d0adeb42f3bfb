"""The model at work: encode and fetch KV, link it with new tokens, and decode.

Other rooms import from this file only.
"""

from promptcache.runtime.answer_reader import AnswerReader, AnswerSplit, answer_reader
from promptcache.runtime.async_service import AsyncService, AsyncStream
from promptcache.runtime.attention import (
    KVView,
    TritonBackend,
    register_backend,
    unregister_backend,
)
from promptcache.runtime.batch import Batch
from promptcache.runtime.catalog import Catalog, SchemaState, choose_placement, schema_state
from promptcache.runtime.chat import Chat, chat_prompt
from promptcache.runtime.chat_file import read_chat
from promptcache.runtime.coalesce import Pool, open_pool
from promptcache.runtime.completion import Completion, FinishReason, KVSource, Timing, Usage, WarmReport
from promptcache.runtime.distance import Audit, Distance, PlainPrefill, audit, compare_predictions
from promptcache.runtime.encode import Progress
from promptcache.runtime.executor import Executor
from promptcache.runtime.frequent_prefixes import FrequentPrefix, frequent_prefixes
from promptcache.runtime.hf.load import DTYPES, adapt_tokenizer, load_model
from promptcache.runtime.hf.model import Model, as_model, token_tensor
from promptcache.runtime.hf.options import read_options, tell_unused
from promptcache.runtime.hf.tools import function_schema
from promptcache.runtime.history import History
from promptcache.runtime.idle import IdleThread, Interrupted
from promptcache.runtime.logprobs import TokenLogprobs
from promptcache.runtime.own_loop import dynamic_cache_inputs, linked_inputs
from promptcache.runtime.planner import (
    DEFAULT_NEW_TOKENS,
    Planner,
    PromptSource,
    TemplateOptions,
    check_room,
    several,
)
from promptcache.runtime.prefix_cache import PrefixCache, PrefixHit
from promptcache.runtime.prepare import Prepared, Refiner, prepare
from promptcache.runtime.reasoning import SplitText
from promptcache.runtime.reference import (
    Token,
    plain_logits,
    reference_inputs,
    reference_logits,
    reference_tokens,
    used_tokens,
    visibility,
)
from promptcache.runtime.repetition import PromoteMode, Promotions, Repetition
from promptcache.runtime.request import Request, RequestBuilder
from promptcache.runtime.segments import Segment
from promptcache.runtime.self_test import check_linking
from promptcache.runtime.serving import (
    Listener,
    Score,
    Service,
    ServiceCounts,
    ServiceLimits,
    ServiceObserver,
    ServiceState,
    Ticket,
    answer,
    answer_batch,
    logits_batch,
    score,
)
from promptcache.runtime.stats import EngineStats
from promptcache.runtime.step_graphs import open_graphs
from promptcache.runtime.stream import Stream
from promptcache.runtime.text import IncrementalText, whole_text
from promptcache.runtime.warm import warm

__all__ = [
    "DEFAULT_NEW_TOKENS",
    "DTYPES",
    "AnswerReader",
    "AnswerSplit",
    "AsyncService",
    "AsyncStream",
    "Audit",
    "Batch",
    "Catalog",
    "Chat",
    "Completion",
    "Distance",
    "EngineStats",
    "Executor",
    "FinishReason",
    "FrequentPrefix",
    "History",
    "IdleThread",
    "IncrementalText",
    "Interrupted",
    "KVSource",
    "KVView",
    "Listener",
    "Model",
    "PlainPrefill",
    "Planner",
    "Pool",
    "PrefixCache",
    "PrefixHit",
    "Prepared",
    "Progress",
    "PromoteMode",
    "Promotions",
    "PromptSource",
    "Refiner",
    "Repetition",
    "Request",
    "RequestBuilder",
    "SchemaState",
    "Score",
    "Segment",
    "Service",
    "ServiceCounts",
    "ServiceLimits",
    "ServiceObserver",
    "ServiceState",
    "SplitText",
    "Stream",
    "TemplateOptions",
    "Ticket",
    "Timing",
    "Token",
    "TokenLogprobs",
    "TritonBackend",
    "Usage",
    "WarmReport",
    "adapt_tokenizer",
    "answer",
    "answer_batch",
    "answer_reader",
    "as_model",
    "audit",
    "chat_prompt",
    "check_linking",
    "check_room",
    "choose_placement",
    "compare_predictions",
    "dynamic_cache_inputs",
    "frequent_prefixes",
    "function_schema",
    "linked_inputs",
    "load_model",
    "logits_batch",
    "open_graphs",
    "open_pool",
    "plain_logits",
    "prepare",
    "read_chat",
    "read_options",
    "reference_inputs",
    "reference_logits",
    "reference_tokens",
    "register_backend",
    "schema_state",
    "score",
    "several",
    "tell_unused",
    "token_tensor",
    "unregister_backend",
    "used_tokens",
    "visibility",
    "warm",
    "whole_text",
]
