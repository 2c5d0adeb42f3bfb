"""Answers: requests with their options, decoded one by one, in batches, and by services."""

from promptcache.decode.async_service import AsyncService, AsyncStream
from promptcache.decode.completion import Completion, FinishReason, KVSource, Timing, Usage
from promptcache.decode.decoder import ServiceObserver
from promptcache.decode.request import Request, RequestBuilder, called_tools
from promptcache.decode.scheduler import DEFAULT_BATCH_BYTES, ServiceCounts, answer
from promptcache.decode.score import Score, score, tokenized_choices
from promptcache.decode.service import Service, Ticket
from promptcache.decode.stream import Stream
from promptcache.settings import ServiceLimits
