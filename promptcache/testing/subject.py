"""A schema under test, and one prompt of it with everything that is known before a model runs.

`Subject` takes a schema in any form and lays it out; `PromptCase` is a planned prompt. Nothing is drawn here and no
model is needed.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeAlias

from promptcache.demo import MODEL_FOLDER
from promptcache.diagnostics import Short, counted
from promptcache.language import (
    CheckedSchema,
    Prompt,
    Schema,
    Selection,
    check_schema,
    is_template,
    open_schema,
    parse_prompt,
    resolve_prompt,
    walk,
)
from promptcache.layout import Layout, Plan, Variant, lay_out, make_plan, piece_texts, run_variants
from promptcache.tokenizer import HubTokenizer, Tokenizer

SchemaSource: TypeAlias = str | Path | Schema | CheckedSchema
"""A path, XML text (starting with "<"), or a declared or checked schema."""


@cache
def default_tokenizer() -> HubTokenizer:
    """Return the tokenizer of the demo model: slots are measured in the tokens of a model."""
    return HubTokenizer.from_folder(MODEL_FOLDER)


def read_schema(source: SchemaSource) -> CheckedSchema:
    """Read and check a schema.

    Raises:
        SchemaError: every fault with its place.
    """
    return source if isinstance(source, CheckedSchema) else check_schema(open_schema(source))


class Subject:
    """A schema under one tokenizer; it is laid out when the first prompt needs it.

    Args:
        source: A path, XML text, or a schema.
        tokenizer: Measures texts and slots; None takes the demo model's.
    """

    def __init__(self, source: SchemaSource, tokenizer: Tokenizer | None = None) -> None:
        self.schema = read_schema(source)
        self.tokenizer: Tokenizer = default_tokenizer() if tokenizer is None else tokenizer

    def __repr__(self) -> str:
        return f"schema {self.schema.name!r}"

    @cached_property
    def layout(self) -> Layout:
        """Its positions."""
        return lay_out(self.schema, self.tokenizer)

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The variants of its runs: what is computed once."""
        return run_variants(self.layout)

    def lay_out_now(self) -> None:
        """Lay the schema out now: within a draw, Hypothesis would count the time.

        Raises:
            SchemaError: a placeholder or default is longer than its slot.
        """
        _ = self.variants

    def case(self, xml: str) -> PromptCase:
        """Return a prompt for this schema, planned.

        Raises:
            PromptError: every fault with its place.
        """
        return PromptCase(xml=xml, plan=self.plan(parse_prompt(xml)), subject=self)

    def plan(self, prompt: Prompt) -> Plan:
        """Return the plan of a prompt for this schema.

        Raises:
            PromptError: every fault with its place.
        """
        selection = resolve_prompt(prompt, self.schema)
        return make_plan(selection, self.layout, self.variants, self.tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PromptCase(Short):
    """A valid prompt and what is known of it before a model runs.

    Attributes:
        xml: The prompt's document.
        plan: What it reuses and prefills, and where.
        subject: Its schema and tokenizer.
    """

    xml: str
    plan: Plan
    subject: Subject

    def __repr__(self) -> str:
        return f"PromptCase(xml={self.xml!r})"

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the plan was made with."""
        return self.subject.tokenizer

    @property
    def selection(self) -> Selection:
        """The modules that it uses, its arguments and its messages."""
        return self.plan.selection

    @property
    def text(self) -> str:
        """The whole text for the model, headers and footers included."""
        return "".join(piece_texts(self.plan, self.tokenizer))

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token IDs of `text`, in position order."""
        return tuple(token_id for piece in self.plan.pieces for token_id in piece.token_ids)

    @property
    def report(self) -> str:
        """The prompt, its slots, and a command that shows the whole prompt.

        There is a line for every slot of the modules in use: where it is, how full, and with what.
        """
        schema = self.selection.schema.source
        given = {(each.module, each.parameter): each.text for each in self.selection.arguments}
        used = {"", *self.selection.modules}
        lines = [f"prompt: {self.xml}", f"positions: {self.plan.stop}, level: {self.plan.level}"]
        for slot in (slot for run in self.plan.layout.runs if run.module in used for slot in run.slots):
            name = f"{slot.module}/{slot.parameter}".removeprefix("/")
            text = given.get((slot.module, slot.parameter))
            if text is None:
                content = f"no argument, {counted(len(slot.default_ids), 'token')} of default"
            else:
                num_tokens = len(self.tokenizer.tokenize(slot.lead + text))
                content = f"{num_tokens} of {slot.stop - slot.start} tokens, {text!r}"
            lines.append(f"slot {name} [{slot.start}, {slot.stop}): {content}")
        source = schema.span.source
        sources = (item.span.source for item in (schema, *(item for _, item in walk(schema.children))))
        context = " --context CONTEXT.json" if any(map(is_template, sources)) else ""
        file = "SCHEMA.xml" if source.startswith("<") else shlex.quote(source)
        command = f"printf %s {shlex.quote(self.xml)} | promptcache render - --schema {file}{context}"
        return "\n".join((*lines, f"to see it: {command}"))
