"""What a schema looks like under a tokenizer: the work of `promptcache layout`.

Comes in: a schema file and the name of a model. Goes out: a `View`, and the warnings on the way. No weights are
loaded: the tokenizer and `config.json` suffice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from promptcache.cli.files import checked_schema, read
from promptcache.cli.layout_view import View, view_layout
from promptcache.cli.model_folder import Dtype, read_facts
from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, SchemaError, Severity
from promptcache.language.rules.count import count_combinations
from promptcache.layout import Layout, RunState, check_length, lay_out, run_states
from promptcache.tokenizer import HubTokenizer, model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A layout to be shown, with what its author should know.

    Attributes:
        diagnostics: Warnings of language and layout; an error when the model has too few positions.
        notes: What the tokenizer says about itself.
    """

    view: View
    layout: Layout
    states: tuple[RunState, ...]
    tokenizer: HubTokenizer
    diagnostics: tuple[Diagnostic, ...]
    notes: tuple[str, ...]

    @property
    def has_errors(self) -> bool:
        """Whether the model cannot serve the schema."""
        return any(each.severity is Severity.ERROR for each in self.diagnostics)


def layout_data(shown: LaidOut) -> dict[str, Any]:
    """Return a layout as data; positions are half-open ranges, as everywhere."""
    return {**asdict(shown.view), "notes": list(shown.notes)}


def show_layout(file: str, model: str, dtype: Dtype, sources: Sources) -> LaidOut:
    """Lay a schema file out for a model.

    Raises:
        SchemaError: every fault of the schema, a filler longer than its slot among them.
        ModelNotFound: there is no such model, or it lacks a file.
    """
    schema = checked_schema(read(file, sources))
    folder = model_folder(model)
    facts = read_facts(model, folder, dtype)
    tokenizer = HubTokenizer.from_folder(folder)
    layout = lay_out(schema, tokenizer)
    diagnostics = (*schema.warnings, *layout.warnings)
    if facts.max_positions is not None:
        try:
            check_length(layout, facts.max_positions, f"model '{model}'")
        except SchemaError as error:  # shown with the layout, which says where the positions go
            diagnostics += error.diagnostics
    states = run_states(layout)
    return LaidOut(
        view=view_layout(layout, states, facts, count_combinations(schema.rules)),
        layout=layout,
        states=states,
        tokenizer=tokenizer,
        diagnostics=diagnostics,
        notes=tokenizer.warnings,
    )
