"""Measurement of fidelity: each prompt of a schema under each setting, compared with ordinary prefill.

Nothing is added to the engine: encodings are in a store of the measurement. KV of all settings is in memory at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, PromptCacheError, whole
from promptcache.encode import DEFAULT_AUDIT_TOKENS, Distance, Executor, PlainPrefill, linked_logits, prepare
from promptcache.engine import Engine
from promptcache.fidelity.intervals import clustered_interval
from promptcache.fidelity.prompts import MeasuredPrompt, example_prompts, random_prompts
from promptcache.fidelity.report import Fidelity, Interval, PromptFidelity, SettingFidelity
from promptcache.fidelity.settings import AS_IT_IS, PROMOTED, SETTINGS, Setting
from promptcache.kv import Codec, Store, codec_named, stored_bytes
from promptcache.language import CheckedSchema, Repair, Selection
from promptcache.layout import Encoding, Level, Plan
from promptcache.planning import ServedSchema, check_room, choose_placement, serve_schema
from promptcache.progress import Progress, silent
from promptcache.rows import Batch, open_copies
from promptcache.testing.subject import SchemaSource, read_schema
from promptcache.timing import interleave

MIN_ROUNDS = 8
"""Least number of timings of each setting, over all prompts."""

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
    variants, refused = [as_it_is], []
    for setting in settings:
        try:
            variant = planner.planned(setting, prompts)
        except PromptCacheError as error:
            refused.append((setting.name, str(error)))
            continue
        if variant.work != as_it_is.work:
            variants.append(variant)
    store, measured = Store(engine.model.shape), list[_PromptFigures]()
    executor = Executor(engine.model, store, lambda: engine.fingerprint, open_copies(engine.model, store.memory))
    for index, _ in enumerate(prompts):
        progress("measuring prompts", index, len(prompts))
        plans = {each.setting.name: each.plans[index] for each in variants}
        measured.append(_figures(plans, engine, executor, max_new_tokens, rounds=-(-MIN_ROUNDS // len(prompts))))
    return Fidelity(
        schema=checked.name,
        prompts=tuple(_prompt(prompt, each) for prompt, each in zip(prompts, measured, strict=True)),
        settings=tuple(_over_all(each, measured, planner.nbytes(each.encodings)) for each in variants),
        refused=tuple(refused),
        plain_ttft_s=statistics.median(each.ttft_s[_PLAIN] for each in measured),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedSetting:
    """The plans of all prompts under one setting, and the encodings that the store has for them."""

    setting: Setting
    plans: tuple[Plan, ...]
    encodings: frozenset[Encoding]

    @property
    def work(self) -> object:
        """All that is stored, reused and computed. Settings with equal work are one setting."""
        return self.encodings, tuple(plan.tokens for plan in self.plans)


@dataclass(frozen=True, slots=True)
class _SettingPlanner:
    """Plans prompts of a schema under each setting, with room for an answer."""

    engine: Engine
    schema: CheckedSchema
    codec: Codec
    max_new_tokens: int

    def planned(self, setting: Setting, prompts: Sequence[MeasuredPrompt]) -> _PlannedSetting:
        """Return the plans of all prompts under a setting.

        Raises:
            PromptCacheError: The schema, the model or its context length refuses the setting.
        """
        served = self.serve(setting)
        plans = [self.plan(served, each.selection) for each in prompts]
        if setting == PROMOTED:
            plans = [_promoted(each) for each in plans]
        used = (part.encoding for plan in plans for part in plan.tokens.parts)
        return _PlannedSetting(
            setting=setting,
            plans=tuple(plans),
            encodings=frozenset((*used, *served.encodings)),
        )

    def serve(self, setting: Setting) -> ServedSchema:
        """Return the schema under a setting, as `Engine.add_schema` makes it."""
        schema, model = setting.apply(self.schema), self.engine.model
        given = schema.positions
        placement = self.engine.positions if given is None else choose_placement(model, given)
        return serve_schema(schema, self.engine.tokenizer, model.context_length, self.codec, placement)

    def plan(self, served: ServedSchema, selection: Selection) -> Plan:
        """Return the plan of a prompt.

        Raises:
            ContextLengthExceeded: The prompt and an answer need more positions than the model has.
        """
        repair = served.schema.repair or Repair.parse(self.engine.settings.repair)
        plan = served.plan(replace(selection, schema=served.schema), repair)
        check_room(plan, self.max_new_tokens, self.engine.model.context_length)
        return plan

    def nbytes(self, encodings: frozenset[Encoding]) -> int:
        """Return the stored bytes of encodings."""
        return sum(stored_bytes(self.codec, self.engine.model.shape, each.num_tokens) for each in encodings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PromptFigures:
    """One prompt under all settings, by their names."""

    distances: dict[str, Distance]
    ttft_s: dict[str, float]


def _figures(
    plans: Mapping[str, Plan], engine: Engine, executor: Executor, max_new_tokens: int, *, rounds: int
) -> _PromptFigures:
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
    return _PromptFigures(distances=distances, ttft_s={name: each.median for name, each in samples.items()})


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


def _over_all(variant: _PlannedSetting, measured: Sequence[_PromptFigures], nbytes: int) -> SettingFidelity:
    """Return the figures of a setting over all prompts."""
    name = variant.setting.name
    distances = [each.distances[name] for each in measured]
    value, low, high = clustered_interval([[each.divergence] for each in distances])
    return SettingFidelity(
        setting=variant.setting,
        repair=str(variant.plans[0].repair),
        divergence=Interval(value=value, low=low, high=high),
        agreement=statistics.fmean(each.agreement for each in distances),
        same_answer=statistics.fmean(each.same_answer for each in distances),
        exact=statistics.fmean(plan.level is Level.EXACT for plan in variant.plans),
        ttft_s=statistics.median(each.ttft_s[name] for each in measured),
        relative_ttft=statistics.median(each.ttft_s[name] / each.ttft_s[_PLAIN] for each in measured),
        nbytes=nbytes,
    )


def _prompt(prompt: MeasuredPrompt, measured: _PromptFigures) -> PromptFidelity:
    found = measured.distances[AS_IT_IS.name]
    return PromptFidelity(name=prompt.name, xml=prompt.xml, divergence=found.divergence, same_answer=found.same_answer)
