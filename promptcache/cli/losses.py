"""What quantized KV costs: the same prompts answered with KV as computed, and as a codec leaves it.

Comes in: an engine and a schema. Goes out: figures as text, for people and for the facts of files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

from promptcache.bench.quality_documents import SETS, Way, prompt_xml, schema_xml
from promptcache.demo.questions import draw_cases
from promptcache.engine import Engine
from promptcache.language import CheckedSchema, Prompt, Schema
from promptcache.language.examples import example_prompt

MAX_EXAMPLES = 8
DEMO_CASES = 4
_SEED = 7


def measured_loss(engine: Engine, schema: CheckedSchema, keep: str, *, is_demo: bool) -> Mapping[str, str]:
    """Return how far logits are off, and how often the likeliest token is the same; empty without any prompt to ask.

    Args:
        engine: Lends its model and tokenizer; its store is not used.
        schema: Its own valid examples are asked.
        keep: The codec.
        is_demo: Whether the model is the one that ships with the package: it is asked its own questions besides.
    """
    full, lossy = (Engine(engine.model, engine.tokenizer) for _ in range(2))
    errors, same, places, num_prompts = [0.0], 0, 0, 0
    for source, prompt in (*_examples(schema), *(_questions() if is_demo else ())):
        full.add_schema(source)
        lossy.add_schema(source, keep=keep)
        exact, near = full.logits(prompt).double(), lossy.logits(prompt).double()
        errors.append(float((near - exact).abs().max() / exact.abs().max()))
        same += int((near.argmax(-1) == exact.argmax(-1)).sum())
        places += len(exact)
        num_prompts += 1
    if not num_prompts:
        return {}
    return {
        "loss.logits": f"{max(errors):.2g}",
        "loss.top1": str(same),
        "loss.places": str(places),
        "loss.prompts": f"{num_prompts} prompts",
    }


def _examples(schema: CheckedSchema) -> Iterator[tuple[Schema, Prompt]]:
    """Yield the schema with each of its own valid examples, a few at most."""
    valid = (example for example in schema.examples if example.valid)
    return ((schema.source, example_prompt(example)) for example in islice(valid, MAX_EXAMPLES))


def _questions() -> Iterator[tuple[str, str]]:
    """Yield documents that the demo model was made for, and a question about each."""
    for index, case in enumerate(draw_cases(SETS["facts"].questions, _SEED, DEMO_CASES)):
        name = f"question-{index}"
        yield (
            schema_xml(case, Way.OWN, name, arguments=False),
            prompt_xml(case, Way.OWN, name, arguments=False),
        )
