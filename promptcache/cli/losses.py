"""What quantized KV costs: the same prompts answered with KV as computed, and as a codec leaves it.

Comes in: an engine and a schema. Goes out: figures as text, for people and for the facts of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from promptcache.bench.quality_documents import SETS, Way, prompt_xml, schema_xml
from promptcache.demo.questions import Case, draw_cases, is_right
from promptcache.engine import Engine
from promptcache.language import CheckedSchema, Prompt, Schema
from promptcache.language.examples import example_prompt

MAX_EXAMPLES = 8
DEMO_CASES = 32
_ANSWER_TOKENS = 48
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two engines over one model, of which one keeps KV as computed, and the other by a codec."""

    full: Engine
    lossy: Engine
    keep: str

    def add(self, schema: str | Schema) -> None:
        """Make a schema known to both."""
        self.full.add_schema(schema)
        self.lossy.add_schema(schema, keep=self.keep)


def measured_loss(engine: Engine, schema: CheckedSchema, keep: str, *, is_demo: bool) -> Mapping[str, str]:
    """Return how far logits are off, and how often the likeliest token is the same; empty without any prompt to ask.

    Args:
        engine: Lends its model and tokenizer; its store is not used.
        schema: Its own valid examples are asked.
        keep: The codec.
        is_demo: Whether the model is the one that ships with the package: it is asked its own questions besides, with
            their answers in the prompt to compare predictions, and without them to count those that are right.
    """
    pair = Pair(full=Engine(engine.model, engine.tokenizer), lossy=Engine(engine.model, engine.tokenizer), keep=keep)
    cases = [*draw_cases(SETS["facts"].questions, _SEED, DEMO_CASES)] if is_demo else []
    loss = _distance(pair, [*_examples(schema), *_answered(cases)])
    return {**loss, **_right(pair, cases)} if cases else loss


def _distance(pair: Pair, asked: Sequence[tuple[str | Schema, str | Prompt]]) -> dict[str, str]:
    errors, same, places = [0.0], 0, 0
    for schema, prompt in asked:
        pair.add(schema)
        exact, near = pair.full.logits(prompt).double(), pair.lossy.logits(prompt).double()
        errors.append(float((near - exact).abs().max() / exact.abs().max()))
        same += int((near.argmax(-1) == exact.argmax(-1)).sum())
        places += len(exact)
    if not asked:
        return {}
    return {
        "loss.logits": f"{max(errors):.2g}",
        "loss.top1": str(same),
        "loss.places": str(places),
        "loss.prompts": f"{len(asked)} prompts",
    }


def _right(pair: Pair, cases: Sequence[Case]) -> dict[str, str]:
    """Count whole answers right; the schemas of the cases are known to both engines already."""
    prompts = [_question(number, case) for number, case in enumerate(cases)]
    right = {}
    for name, engine in (("loss.right", pair.lossy), ("loss.right_full", pair.full)):
        answers = engine.generate_batch(prompts, max_new_tokens=_ANSWER_TOKENS, do_sample=False)
        right[name] = sum(is_right(each.text, case.question.fact) for each, case in zip(answers, cases, strict=True))
    return {"loss.asked": str(len(cases)), **{name: str(count) for name, count in right.items()}}


def _examples(schema: CheckedSchema) -> Iterator[tuple[Schema, Prompt]]:
    """Yield the schema with each of its own valid examples, a few at most."""
    valid = (example for example in schema.examples if example.valid)
    return ((schema.source, example_prompt(example)) for example in islice(valid, MAX_EXAMPLES))


def _answered(cases: Sequence[Case]) -> Iterator[tuple[str, str]]:
    """Yield documents that the demo model was made for, with a question about each and its right answer."""
    for number, case in enumerate(cases):
        yield (
            schema_xml(case, Way.GUARANTEED, _name(number), arguments=False),
            _question(number, case, answer=case.question.fact.sentence),
        )


def _question(number: int, case: Case, answer: str | None = None) -> str:
    return prompt_xml(case, Way.GUARANTEED, _name(number), arguments=False, answer=answer)


def _name(number: int) -> str:
    return f"question-{number}"
