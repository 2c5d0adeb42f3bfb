"""Random workloads: an engine, a schema with prompts, and requests for them with any options, step by step.

Nothing is computed here. Options that name tokens name places in the greedy answer to the prompt (`Place`), so that they
have an effect.
"""

import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from hypothesis import Phase, given, note, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.language import CheckedSchema, check_schema, parse_schema
from promptcache.testing.texts import visible_texts
from tests import strategies

MAX_PLACES = 3
"""Places in the greedy answer that options can name."""

MAX_OPTIONS = 8
"""Options that are drawn for one request. Those that cannot be together are left out."""

MAX_STEPS = 5

MODELS = ("llama", "mistral", "gemma2", "gpt-oss")
"""Models with full attention; with sliding windows; with soft caps; with sinks."""


class Way(StrEnum):
    GENERATE = "generate"
    STREAM = "stream"
    BATCH = "generate_batch"
    SERVICE = "service"
    CHAT = "chat"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Place:
    """The token at a place of the greedy answer to the prompt."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request; `said` is what a chat asks in place of the bare text of the prompt."""

    prompt: int
    options: Mapping[str, Any]
    max_new_tokens: int
    seed: int
    repair: str | None
    salt: str | None
    said: str
    reuse: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Requests that are asked together, or one after another in a chat. Those of a batch have the same options."""

    way: Way
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An engine, which coalesces segments below `small_tokens`, a schema with the XML of prompts, and what is asked."""

    model: str
    small_tokens: int
    has_history: bool
    codec: str
    promoted: bool
    schema: CheckedSchema = field(repr=False)
    prompts: tuple[str, ...]
    steps: tuple[Step, ...]


_PLACE = st.integers(0, MAX_PLACES - 1).map(Place)
_WORD = st.lists(_PLACE, min_size=1, max_size=2)

OPTIONS: Mapping[str, SearchStrategy[Any]] = {
    "do_sample": st.just(True),
    "top_k": st.sampled_from((1, 5, 30)),
    "top_p": st.sampled_from((0.5, 0.9)),
    "min_p": st.just(0.02),
    "typical_p": st.just(0.8),
    "temperature": st.sampled_from((0.5, 4.0)),
    "repetition_penalty": st.sampled_from((0.3, 3.0)),
    "no_repeat_ngram_size": st.sampled_from((1, 2)),
    "encoder_no_repeat_ngram_size": st.sampled_from((1, 2)),
    "bad_words_ids": st.lists(_WORD, min_size=1, max_size=2),
    "sequence_bias": _WORD,
    "min_new_tokens": st.integers(1, 4),
    "eos_token_id": st.lists(_PLACE, max_size=2),
    "stop_strings": _PLACE,
    "num_beams": st.integers(2, 3),
    "length_penalty": st.sampled_from((-2.0, 3.0)),
    "num_return_sequences": st.integers(2, 3),
    "logits_processor": st.just(True),
    "stopping_criteria": _PLACE,
    "prefix_allowed_tokens_fn": st.just(True),
    "streamer": st.just(True),
    "output_scores": st.just(True),
    "output_logits": st.just(True),
    "return_dict_in_generate": st.just(True),
    "logprobs": st.sampled_from((0, 3)),
    "prompt_lookup_num_tokens": st.integers(1, 3),
    "assistant_model": st.integers(0, 3),
    "generation_config": st.just(True),
}
"""What is drawn for each option. True stands for an object that `resolve` makes, or for True. The number of an assistant
is that of right tokens before a wrong one. A `generation_config` has the options that are numbers.
"""

SAMPLING = frozenset({"top_k", "top_p", "min_p", "typical_p", "temperature"})
CRITERIA = frozenset({"stop_strings", "stopping_criteria"})
DRAFTS = frozenset({"prompt_lookup_num_tokens", "assistant_model"})
ROWS = frozenset({"num_beams", "num_return_sequences"})
OUTPUTS = frozenset({"output_scores", "output_logits", "return_dict_in_generate"})
OF_ENGINE = frozenset(Way) - {Way.LINK}

Conflicts: TypeAlias = tuple[tuple[frozenset[str], frozenset[str], str], ...]
"""Names that cannot be together with others, with the reason."""

CONFLICTS: Conflicts = (
    (DRAFTS | OUTPUTS | {"num_beams", "length_penalty"}, OF_ENGINE, "the engine refuses it"),
    (ROWS, frozenset({"streamer"}), "a streamer takes one sequence"),
    (DRAFTS, ROWS, "transformers drafts for one row"),
    (DRAFTS, frozenset({"length_penalty"}), "it needs beams, and transformers drafts for one row"),
    (DRAFTS, CRITERIA, "transformers asks criteria behind a whole draft only"),
    (frozenset({"length_penalty"}), frozenset({"logprobs", "streamer"}), "it needs beams"),
    (frozenset({"assistant_model"}), frozenset({"prompt_lookup_num_tokens"}), "transformers has one source of drafts"),
    (frozenset({"logprobs"}), ROWS | DRAFTS, "the engine refuses it"),
    (frozenset({"num_return_sequences"}), frozenset({Way.STREAM, Way.SERVICE, Way.CHAT}), "the engine refuses it"),
    (frozenset({"streamer"}), frozenset({Way.STREAM, Way.BATCH}), "the engine refuses it"),
    (
        frozenset({"logprobs", "generation_config", "stop_strings"}),
        frozenset({Way.LINK}),
        "the call is one of transformers",
    ),
)


def conflict(one: str, other: str, among: Conflicts = CONFLICTS) -> str | None:
    """Return the reason why two ways or options cannot be together; None if they can."""
    for left, right, reason in among:
        if (one in left and other in right) or (other in left and one in right):
            return reason
    return None


_TWO_SCAFFOLDS = (
    '<schema name="s">Root.<module name="a" context="own" requires="b">A <parameter name="p" length="4" default="one"/>.'
    '</module><module name="b" context="own" requires="a">Text.</module><module name="c" context="own" requires="d a">'
    'Some <parameter name="q" length="5"/> more.</module><module name="d" context="own" requires="c">End.</module>'
    '<scaffold modules="c d"/></schema>'
)
"""A schema whose prompts often use a scaffold, which random ones hardly ever do."""


_ANSWER = re.compile("<answer[^>]*/>")


@st.composite
def workloads(draw: DrawFn) -> Workload:
    schema = draw(strategies.schemas() if draw(st.integers(0, 5)) else _two_scaffolds())
    # tests/engine/test_output.py compares answers with a format; here any option may go with any prompt
    schema = replace(schema, answer_format=None)
    documents = strategies.prompt_documents(schema).map(lambda document: _ANSWER.sub("", document))
    prompts = draw(st.lists(documents, min_size=1, max_size=2))
    steps = draw(st.lists(_steps(len(prompts)), min_size=1, max_size=MAX_STEPS))
    made = Workload(
        model=draw(st.sampled_from(MODELS)),
        small_tokens=draw(st.sampled_from((256, 8, 0))),
        has_history=draw(st.sampled_from((True, True, True, False))),
        codec=draw(st.sampled_from(("full", "full", "full", "int8"))),
        promoted=draw(st.booleans()),
        schema=schema,
        prompts=tuple(prompts),
        steps=_alike(steps) if draw(st.booleans()) else tuple(steps),
    )
    note(str(made))
    return made


def _two_scaffolds() -> SearchStrategy[CheckedSchema]:
    note(f"schema: {_TWO_SCAFFOLDS}")
    return st.just(check_schema(parse_schema(_TWO_SCAFFOLDS)))


@st.composite
def _steps(draw: DrawFn, num_prompts: int) -> Step:
    way = draw(st.sampled_from((*Way, Way.LINK, Way.LINK)))  # it has the most options
    first = draw(_asks(way, num_prompts))
    others: list[Ask] = []
    if way is Way.BATCH:
        numbers = draw(st.lists(st.integers(0, num_prompts - 1), max_size=2))
        others = [replace(first, prompt=number) for number in numbers]
    elif way is Way.SERVICE:
        others = draw(st.lists(_asks(way, num_prompts), max_size=2))
    elif way is Way.CHAT:
        said = draw(st.lists(_asks(way, num_prompts), max_size=1))
        others = [replace(each, prompt=first.prompt, repair=first.repair, salt=first.salt) for each in said]
    return Step(way=way, asks=(first, *others))


@st.composite
def _asks(draw: DrawFn, way: Way, num_prompts: int) -> Ask:
    repairs = (None, None, None, None, "none", "slots", "first-2", "first-16", "first-30%")
    repairs += ("attended-2", "attended-30%", "all")
    is_service = way is Way.SERVICE
    options = draw(_options(way))
    return Ask(
        prompt=draw(st.integers(0, num_prompts - 1)),
        options=options,
        max_new_tokens=draw(st.integers(options.get("min_new_tokens", 1), 5)),
        seed=draw(st.integers(0, 99)),
        repair=draw(st.sampled_from(repairs)),
        salt=draw(st.sampled_from((None, None, None, "s"))),
        said=draw(visible_texts()) if way is Way.CHAT else "",
        reuse=not is_service or draw(st.integers(0, 2)) > 0,
    )


@st.composite
def _options(draw: DrawFn, way: Way) -> dict[str, Any]:
    """Draw options that can be together, and those that they need."""
    count = draw(st.integers(0, MAX_OPTIONS))
    possible = sorted(name for name in OPTIONS if conflict(name, way) is None)
    names = draw(st.lists(st.sampled_from(possible), min_size=count, max_size=count, unique=True))
    chosen: list[str] = []
    for name in names:
        if not any(conflict(name, other) for other in chosen):
            chosen.append(name)
    options = {name: draw(OPTIONS[name]) for name in chosen}
    if "length_penalty" in options:
        options.setdefault("num_beams", 2)
    has_beams = "num_beams" in options
    needs_sampling = SAMPLING & options.keys() or ("num_return_sequences" in options and not has_beams)
    options["do_sample"] = bool(needs_sampling or "do_sample" in options)
    if DRAFTS & options.keys() and options["do_sample"]:
        options["top_k"] = 1  # drafts take other random numbers
    if "prompt_lookup_num_tokens" in options and not options.get("eos_token_id"):  # transformers 5.4 needs an end token
        options["eos_token_id"] = [Place(MAX_PLACES - 1)]
    if has_beams and "num_return_sequences" in options:
        options["num_return_sequences"] = min(options["num_beams"], options["num_return_sequences"])
    if has_beams and options["do_sample"]:  # beams need many tokens with a probability above 0
        options |= {"temperature": 30.0, "top_k": 30}
    return options


def _alike(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return steps that ask for the prompt of the first request in the same setting, so that history is used."""
    first = steps[0].asks[0]

    def alike(ask: Ask) -> Ask:
        return replace(ask, prompt=first.prompt, repair=first.repair, salt=first.salt)

    return tuple(replace(step, asks=tuple(map(alike, step.asks))) for step in steps)


_T = TypeVar("_T")
FIRST_SEED = 0 if "CI" in os.environ else random.randrange(2**32)
"""The first seed of a law; as in `tests.conftest`, examples are the same in each run under CI."""


def run_over(strategy: SearchStrategy[_T], check: Callable[[_T], None], seeds: Iterable[int]) -> None:
    """Check one example for each seed. An example that fails is reduced and reported by Hypothesis."""
    for each in seeds:
        _run_one(strategy, check, each)


def _run_one(strategy: SearchStrategy[_T], check: Callable[[_T], None], first: int) -> None:
    is_simplest = True  # the first example of every run is the simplest of all

    @seed(first)
    @settings(max_examples=2, database=None, derandomize=False, phases=[Phase.generate, Phase.shrink])
    @given(number=st.integers(), example=strategy)  # the first choice of the second example is never the simplest
    def run(number: int, example: _T) -> None:
        nonlocal is_simplest
        if not is_simplest:
            check(example)
        is_simplest = False

    run()
