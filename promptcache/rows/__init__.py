"""Requests as rows of a forward pass: segments of stored KV, memory for new tokens, and history."""

from promptcache.rows.batch import Batch
from promptcache.rows.coalesce import Copies, open_copies, without_cache
from promptcache.rows.forward_pass import Pass, Row, StopCheck
from promptcache.rows.history import SHARED, History, Recalled, Salt, are_finite
from promptcache.rows.kernel_choice import choose_kernels, used_kernels
from promptcache.rows.segments import Segment
from promptcache.rows.step_graphs import StepGraphs, note_attention, open_graphs
from promptcache.rows.tails import tail_size
from promptcache.rows.weighing import attention_weights
