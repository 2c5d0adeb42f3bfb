"""The benchmark of conversations: `python -m benchmarks chat`.

Each conversation is over some modules of one library. It is held with `Engine.chat`, and with a loop of transformers
that keeps a growing `DynamicCache`. CPU time is measured, because machines are shared.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import torch
from transformers import DynamicCache

from benchmarks.common import BenchReport, CharacterTokenizer, TokenClock, letters, stock_attention
from benchmarks.intervals import ratio_of_medians
from promptcache.engine import Engine
from promptcache.language import Prompt
from promptcache.model import Model
from promptcache.progress import Progress, silent

_GROUP = 10
"""Turns of one row of the table."""

_FORKS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSizes:
    """Sizes of the conversations.

    Attributes:
        num_modules: Modules of each conversation. The library has twice as many, and conversations differ in them.
        module_tokens: Tokens of each module; 0 is conversations without modules.
        question_tokens: Tokens of each question.
        answer_tokens: Tokens of each answer.
    """

    num_chats: int
    num_turns: int
    num_modules: int
    module_tokens: int
    question_tokens: int
    answer_tokens: int


class TurnCost(NamedTuple):
    """Seconds of the processor up to the first token of an answer, and up to its end; bytes of KV that were copied."""

    ttft_cpu_s: float
    cpu_s: float
    copied_bytes: int


def compare_chats(model: Model, sizes: ChatSizes, progress: Progress = silent) -> BenchReport:
    """Compare conversations; both sides answer a turn before either starts the next one.

    A first conversation warms up and does not count.
    """
    draw = random.Random(0)
    texts = {f"m{index}": letters(draw, sizes.module_tokens) for index in range(2 * sizes.num_modules)}
    engine = Engine(model, CharacterTokenizer())
    modules = "".join(f'<module name="{name}">{text}</module>' for name, text in texts.items())
    engine.add_schema(f'<schema name="library" separator="">{modules}</schema>')
    encode_cpu_s = _cpu_s(engine.warm)
    pairs: list[list[tuple[TurnCost, TurnCost]]] = []
    for number in range(sizes.num_chats + 1):
        progress("conversations", number, sizes.num_chats + 1)
        names = sorted(draw.sample([*texts], sizes.num_modules))
        questions = [letters(draw, sizes.question_tokens) for _ in range(sizes.num_turns)]
        ours = _our_turns(engine, names, questions, sizes.answer_tokens)
        plain = _plain_turns(model, "".join(texts[name] for name in names), questions, sizes.answer_tokens)
        pairs.append([*zip(ours, plain, strict=True)])
    del pairs[0]
    starts = range(0, sizes.num_turns, _GROUP)
    groups = {
        f"{start + 1} to {min(start + _GROUP, sizes.num_turns)}": [
            pair for turns in pairs for pair in turns[start : start + _GROUP]
        ]
        for start in starts
    }
    totals = [sum(turn[side].cpu_s for turns in pairs for turn in turns) for side in (0, 1)]
    return BenchReport(
        name="chat",
        title="Conversations: CPU milliseconds to the first token of a turn, median",
        columns=("turns", "prompt cache", "DynamicCache", "ratio", "KiB copied for a turn"),
        cells=(
            *((name, *_cells(group)) for name, group in groups.items()),
            ("all, s", f"{totals[0]:.1f} (+ {encode_cpu_s:.1f} to encode)", f"{totals[1]:.1f}", "", ""),
        ),
        rows=(
            {
                **asdict(sizes),
                "encode_cpu_seconds": encode_cpu_s,
                "cpu_seconds": {"prompt cache": totals[0], "DynamicCache": totals[1]},
                "fork_seconds": _fork_s(engine, sizes),
                "turns": [[[*cost] for cost in pair] for turns in pairs for pair in turns],
            },
        ),
    )


def _our_turns(engine: Engine, names: Sequence[str], questions: Sequence[str], num_tokens: int) -> Iterator[TurnCost]:
    prompt = Prompt("library")
    for name in names:
        prompt = prompt.use(name)
    chat = engine.chat(prompt)
    for question in questions:
        clock = TokenClock()
        answer = chat.say(
            question, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, streamer=clock
        )
        yield TurnCost(clock.first_token_s, clock.last_token_s, answer.usage.copied_bytes + answer.usage.kept_bytes)


def _plain_turns(model: Model, text: str, questions: Sequence[str], num_tokens: int) -> Iterator[TurnCost]:
    """Continue a `DynamicCache`, as the documentation of transformers shows."""
    tokenizer = CharacterTokenizer()
    cache = DynamicCache()
    token_ids = [*tokenizer.tokenize(text)]
    for question in questions:
        token_ids += tokenizer.tokenize(question)
        with stock_attention(model):
            clock = TokenClock()
            given = torch.tensor([token_ids], device=model.device)
            made = model.hf.generate(
                given,
                attention_mask=torch.ones_like(given),
                past_key_values=cache,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
                do_sample=False,
                pad_token_id=0,
                streamer=clock,
            )
        token_ids = made[0].tolist()
        yield TurnCost(clock.first_token_s, clock.last_token_s, 0)


def _cells(pairs: Sequence[tuple[TurnCost, TurnCost]]) -> tuple[str, ...]:
    ours, plain = ([pair[side].ttft_cpu_s for pair in pairs] for side in (0, 1))
    medians = (f"{1e3 * float(torch.tensor(each).median()):.1f}" for each in (ours, plain))
    copied = sum(pair[0].copied_bytes for pair in pairs) / len(pairs) / 2**10
    return *medians, "{:.2f} ({:.2f} to {:.2f})".format(*ratio_of_medians(ours, plain)), f"{copied:,.0f}"


def _fork_s(engine: Engine, sizes: ChatSizes) -> float:
    """Return the seconds of one fork of a conversation of all turns."""
    chat = engine.chat(Prompt("library"))
    draw = random.Random(0)
    chat.say(letters(draw, sizes.num_turns * sizes.question_tokens), max_new_tokens=1, do_sample=False)
    started = time.perf_counter()
    for _ in range(_FORKS):
        chat.fork()
    return (time.perf_counter() - started) / _FORKS


def _cpu_s(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
