"""Measurement of fidelity: each prompt of a schema under each setting, compared with ordinary prefill.

Nothing is added to the engine: encodings are in a store of the measurement. KV of all settings is in memory at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import NamedTuple, TypeAlias

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, PromptCacheError, PromptError, whole
from promptcache.encode import DEFAULT_AUDIT_TOKENS, Distance, Executor, PlainPrefill, linked_logits, prepare
from promptcache.engine import Engine
from promptcache.fidelity.report import Fidelity, Interval, PromptFidelity, SettingFidelity, clustered_interval
from promptcache.fidelity.settings import AS_IT_IS, PROMOTED, SETTINGS, Setting
from promptcache.kv import Codec, Store, codec_named, stored_bytes
from promptcache.language import CheckedSchema, Prompt, Repair, Role, Selection, example_prompt, resolve_prompt
from promptcache.layout import Encoding, Level, Plan
from promptcache.planning import ServedSchema, check_room, choose_placement, serve_schema
from promptcache.progress import Progress, silent
from promptcache.rows import Batch, open_copies
from promptcache.testing.subject import SchemaSource, read_schema
from promptcache.timing import interleave
from promptcache.tokenizer import Tokenizer

MIN_ROUNDS = 8
"""Least number of timings of each setting, over all prompts."""

DEFAULT_QUESTION = "What should I know about this?"
"""The text of random prompts, if no example of the schema ends in a text."""

_PLAIN = "ordinary prefill"


def measure_fidelity(
    engine: Engine,
    schema: SchemaSource,
    *,
    num_prompts: int = 8,
    seed: int = 0,
    max_new_tokens: int = DEFAULT_AUDIT_TOKENS,
    settings: Sequence[Setting] = SETTINGS,
    keep: Codec | str = Codec.FULL,
    progress: Progress = silent,
) -> Fidelity:
    """Measure how far cached requests of a schema are from ordinary prefill, as the schema is and with other settings.

    Args:
        engine: Its model, tokenizer and default settings are used; it gets no schema and no KV.
        schema: A path, XML text, or a schema.
        num_prompts: Random valid prompts beside the examples of the schema. More than 0 needs Hypothesis.
        seed: Seed of the random prompts.
        max_new_tokens: Limit of the compared places, which are those of ordinary prefill's greedy answer.
        settings: Settings to compare with the schema as it is. Those that change nothing are left out.
        keep: Codec of the stored KV, as for `Engine.add_schema`.
        progress: Called before each prompt.

    Raises:
        InvalidValue: There are no prompts, or an argument is not allowed.
        SchemaError: The schema is not valid.
        PromptError: An example is too long for its slots.
        ContextLengthExceeded: An example and its answer need more positions than the model has.
    """
    whole(0, unit="prompts").check("num_prompts", num_prompts, InvalidValue)
    whole(1, unit="tokens").check("max_new_tokens", max_new_tokens, InvalidValue)
    checked = read_schema(schema)
    planner = _SettingPlanner(engine, checked, codec_named(keep), max_new_tokens)
    prompts = [*example_prompts(checked)]
    if num_prompts:
        served = planner.serve(AS_IT_IS)
        for each in random_prompts(checked, engine.tokenizer, num_prompts, seed):
            with suppress(ContextLengthExceeded):
                planner.plan(served, each.selection)
                prompts.append(each)
    if not prompts:
        raise InvalidValue(f"schema '{checked.name}' has no valid example; write one, or allow random prompts")
    as_it_is = planner.planned(AS_IT_IS, prompts)
    variants, refused = {AS_IT_IS: as_it_is}, []
    for setting in settings:
        try:
            plans, encodings = planner.planned(setting, prompts)
        except PromptCacheError as error:
            refused.append((setting.name, str(error)))
            continue
        if encodings != as_it_is[1] or [each.tokens for each in plans] != [each.tokens for each in as_it_is[0]]:
            variants[setting] = plans, encodings  # others store, reuse and compute the same
    store, rounds = Store(engine.model.shape), -(-MIN_ROUNDS // len(prompts))
    executor = Executor(engine.model, store, lambda: engine.fingerprint, open_copies(engine.model, store.memory))
    measured, found = list[_Figures](), list[PromptFidelity]()
    for index, prompt in enumerate(prompts):
        progress("measuring prompts", index, len(prompts))
        plans_of = {setting.name: plans[index] for setting, (plans, _) in variants.items()}
        figures = _figures(plans_of, engine, executor, max_new_tokens, rounds=rounds)
        measured.append(figures)
        far, same = figures[0][AS_IT_IS.name].divergence, figures[0][AS_IT_IS.name].same_answer
        found.append(PromptFidelity(name=prompt.name, xml=prompt.xml, divergence=far, same_answer=same))
    return Fidelity(
        schema=checked.name,
        prompts=tuple(found),
        settings=tuple(_over_all(setting, *planned, measured, planner) for setting, planned in variants.items()),
        refused=tuple(refused),
        plain_ttft_s=statistics.median(ttft_s[_PLAIN] for _, ttft_s in measured),
    )


_Planned: TypeAlias = tuple[tuple[Plan, ...], frozenset[Encoding]]
"""The plans of all prompts under one setting, and the encodings that the store has for them."""

_Figures: TypeAlias = tuple[dict[str, Distance], dict[str, float]]
"""The distances of one prompt and its seconds to the first token, by the names of the settings."""


@dataclass(frozen=True, slots=True)
class _SettingPlanner:
    """Plans prompts of a schema under each setting, with room for an answer."""

    engine: Engine
    schema: CheckedSchema
    codec: Codec
    max_new_tokens: int

    def planned(self, setting: Setting, prompts: Sequence[MeasuredPrompt]) -> _Planned:
        """Return the plans of all prompts under a setting. The schema, the model or its length may refuse it."""
        served = self.serve(setting)
        plans = [self.plan(served, each.selection) for each in prompts]
        if setting == PROMOTED:
            plans = [_promoted(each) for each in plans]
        used = (part.encoding for plan in plans for part in plan.tokens.parts)
        return tuple(plans), frozenset((*used, *served.encodings))

    def serve(self, setting: Setting) -> ServedSchema:
        """Return the schema under a setting, as `Engine.add_schema` makes it."""
        schema, model = setting.apply(self.schema), self.engine.model
        given = schema.positions
        placement = self.engine.positions if given is None else choose_placement(model, given)
        return serve_schema(schema, self.engine.tokenizer, model.context_length, self.codec, placement)

    def plan(self, served: ServedSchema, selection: Selection) -> Plan:
        """Return the plan of a prompt, which has room for an answer."""
        repair = served.schema.repair or Repair.parse(self.engine.settings.repair)
        plan = served.plan(replace(selection, schema=served.schema), repair)
        check_room(plan, self.max_new_tokens, self.engine.model.context_length)
        return plan


def _figures(
    plans: Mapping[str, Plan], engine: Engine, executor: Executor, max_new_tokens: int, *, rounds: int
) -> _Figures:
    """Measure one prompt under every setting."""
    plain = PlainPrefill(plans[AS_IT_IS.name], engine.model, engine.tokenizer, engine.end_ids, max_new_tokens)
    distances = {name: plain.distance(prepare(plan, executor), executor) for name, plan in plans.items()}

    def plain_token() -> object:
        batch = Batch(engine.model)
        return batch.step([(batch.join(plain.tokens, {}), plain.tokens.token_ids)]).argmax()

    def first_token(plan: Plan) -> object:
        return linked_logits(plan, executor, num_last=1).argmax()

    calls: dict[str, Callable[[], object]] = {_PLAIN: plain_token}
    calls |= {name: partial(first_token, plan) for name, plan in plans.items()}
    samples = interleave(calls, rounds, engine.model.device)
    return distances, {name: each.median for name, each in samples.items()}


def _promoted(plan: Plan) -> Plan:
    """Return a plan like the one that is used after `Engine.promote`: stored up to its last stored token, and exact."""
    if plan.level is Level.EXACT:
        return plan
    last = max(index for index, piece in enumerate(plan.pieces) if piece.source is not None)
    pieces, rest = plan.pieces[: last + 1], plan.pieces[last + 1 :]
    encoding = Encoding(
        token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
        position_ids=tuple(position for piece in pieces for position in piece.position_ids),
    )
    stored = replace(pieces[0], token_ids=encoding.token_ids, source=encoding.whole, origin=None)
    return replace(plan, pieces=(stored, *rest))


def _over_all(
    setting: Setting,
    plans: Sequence[Plan],
    encodings: frozenset[Encoding],
    measured: Sequence[_Figures],
    planner: _SettingPlanner,
) -> SettingFidelity:
    """Return the figures of a setting over all prompts."""
    name, shape = setting.name, planner.engine.model.shape
    distances = [each[name] for each, _ in measured]
    value, low, high = clustered_interval([[each.divergence] for each in distances])
    return SettingFidelity(
        setting=setting,
        repair=str(plans[0].repair),
        divergence=Interval(value=value, low=low, high=high),
        agreement=statistics.fmean(each.agreement for each in distances),
        same_answer=statistics.fmean(each.same_answer for each in distances),
        exact=statistics.fmean(plan.level is Level.EXACT for plan in plans),
        ttft_s=statistics.median(ttft_s[name] for _, ttft_s in measured),
        relative_ttft=statistics.median(ttft_s[name] / ttft_s[_PLAIN] for _, ttft_s in measured),
        nbytes=sum(stored_bytes(planner.codec, shape, each.num_tokens) for each in encodings),
    )


class MeasuredPrompt(NamedTuple):
    """A prompt, with the name of the example or its number among all, or "random 1"."""

    name: str
    xml: str
    selection: Selection


def example_prompts(schema: CheckedSchema) -> Iterator[MeasuredPrompt]:
    """Yield the examples of a schema that are valid prompts."""
    for number, example in enumerate(schema.examples, 1):
        if example.valid is not False:
            with suppress(PromptError):  # an example without claims may be invalid
                prompt = example_prompt(example)
                name = example.name or f"example {number}"
                yield MeasuredPrompt(name, prompt.to_xml(), resolve_prompt(prompt, schema))


def random_prompts(schema: CheckedSchema, tokenizer: Tokenizer, count: int, seed: int) -> Iterator[MeasuredPrompt]:
    """Yield at most `count` random combinations of modules and members, with fitting texts for required parameters.

    Each ends in a text of the examples, in turn, or in `DEFAULT_QUESTION`. A combination without a text that fits
    into a slot is left out. Needs Hypothesis, like the rest of `promptcache.testing`.

    Raises:
        InvalidValue: All prompts need members that the schema does not declare.
    """
    from promptcache.testing.cover import plain_case
    from promptcache.testing.prompt_xml import check_members
    from promptcache.testing.selection import sample_combinations
    from promptcache.testing.subject import Subject

    check_members(schema, schema.guaranteed[""])
    subject = Subject(schema, tokenizer)
    texts = [_text(example_prompt(each)) for each in schema.examples if each.valid]
    questions = cycle([text for text in texts if text] or [DEFAULT_QUESTION])
    drawn = zip(sample_combinations(schema, count, seed), questions, strict=False)
    for number, ((modules, members), text) in enumerate(drawn, 1):
        with suppress(PromptError, ValueError):
            case = plain_case(subject, modules, text, dict(members))
            yield MeasuredPrompt(f"random {number}", case.xml, case.selection)


def _text(prompt: Prompt) -> str:
    """Return the bare text of a prompt, or that of its last user turn."""
    return next((each.text for each in reversed(prompt.messages) if each.role in (None, Role.USER)), "")
