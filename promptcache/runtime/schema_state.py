"""A schema as an engine serves it: its layout, and the encodings of its modules.

Comes in: a checked schema and a tokenizer. Goes out: a `SchemaState`. It knows no model and no store: what it names is
fetched by the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from promptcache.diagnostics import TEXT, InvalidValue, PromptCacheError, did_you_mean
from promptcache.kv import Codec
from promptcache.language import CheckedSchema, Selection
from promptcache.layout import (
    Encoding,
    Layout,
    Plan,
    RunState,
    check_length,
    lay_out,
    make_plan,
    run_states,
)
from promptcache.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """A schema with its layout and the states of its runs; immutable, so that a request keeps the one it began with."""

    schema: CheckedSchema
    layout: Layout
    states: tuple[RunState, ...]

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """The encodings of all states, each once, in layout order; contexts come first."""
        return tuple(dict.fromkeys(state.encoding for state in self.states))

    @property
    def modules(self) -> Mapping[Encoding, str]:
        """The path of the module that each encoding belongs to ("" is the text outside modules)."""
        return {state.encoding: self.layout.runs[state.run].module for state in self.states}

    def encodings_of(self, module: str | None) -> tuple[Encoding, ...]:
        """Return the encodings of one module and the modules in it; None means all of the schema.

        Raises:
            PromptCacheError: The schema has no such module.
        """
        if module is None:
            return self.encodings
        TEXT.check("module", module, InvalidValue)
        path = module.strip("/")
        if path not in self.schema.modules:
            help_text = did_you_mean(path, self.schema.modules) or "paths are written like city/hotel"
            raise PromptCacheError(f"schema '{self.schema.name}' has no module '{module}' ({help_text})")
        runs = self.layout.runs
        inside = (state for state in self.states if f"{runs[state.run].module}/".startswith(f"{path}/"))
        return tuple(dict.fromkeys(state.encoding for state in inside))

    def plan(self, selection: Selection, tokenizer: Tokenizer) -> Plan:
        """Return what one prompt reuses and prefills; errors as for `make_plan`."""
        return make_plan(selection, self.layout, self.states, tokenizer)


def schema_state(
    schema: CheckedSchema, tokenizer: Tokenizer, context_length: int, codec: Codec = Codec.FULL
) -> SchemaState:
    """Lay a schema out and name its encodings.

    Args:
        context_length: Positions that the model has.
        codec: How its KV is stored.

    Raises:
        SchemaError: A filler longer than its slot, or more positions needed than the model has.
    """
    layout = lay_out(schema, tokenizer)
    check_length(layout, context_length)
    return SchemaState(schema=schema, layout=layout, states=run_states(layout, codec))
