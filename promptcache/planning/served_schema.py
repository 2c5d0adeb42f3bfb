"""A schema under one tokenizer, as an engine serves it: its layout, its encodings, and the plans of its prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from promptcache.diagnostics import TEXT, InvalidValue, PromptCacheError, did_you_mean, one_of
from promptcache.kv import Codec
from promptcache.language import CheckedSchema, Member, Placement, Repair, Selection, declared_members
from promptcache.layout import (
    Encoding,
    Layout,
    Plan,
    Variant,
    check_length,
    lay_out,
    make_plan,
    member_encodings,
    pair_encodings,
    run_variants,
)
from promptcache.model import Model
from promptcache.tokenizer import Conversations, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSchema:
    """A schema with its layout and the variants of its runs. It is immutable but for `members`.

    Attributes:
        variants: The result of `run_variants`.
        codec: The codec of its stored KV.
        members: The members of collections by name, by the path of the collection.
    """

    schema: CheckedSchema
    tokenizer: Tokenizer
    layout: Layout
    variants: tuple[Variant, ...]
    codec: Codec
    members: Mapping[str, dict[str, Member]]

    @property
    def encodings(self) -> tuple[Encoding, ...]:
        """All encodings in layout order, contexts first, each once."""
        return tuple(dict.fromkeys(each.encoding for each in self.variants))

    @property
    def modules(self) -> Mapping[Encoding, str]:
        """The module path of each encoding; "" is the text outside modules."""
        return {each.encoding: each.module(self.layout) for each in self.variants}

    def encodings_of(self, module: str | None) -> tuple[Encoding, ...]:
        """Return the encodings of a module and of the modules in it; None means all encodings.

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
        inside = (each for each in self.variants if f"{each.module(self.layout)}/".startswith(f"{path}/"))
        return tuple(dict.fromkeys(each.encoding for each in inside))

    def more_encodings(self, *, members: bool, pairs: bool) -> Iterator[tuple[str, Encoding]]:
        """Yield the path and the encoding of each member of its collections, and of each module behind others."""
        if members:
            yield from member_encodings(self.members, self.layout, self.variants, self.tokenizer, self.codec)
        if pairs:
            yield from pair_encodings(self.layout, self.variants)

    def plan(
        self,
        selection: Selection,
        repair: Repair | None = None,
        answers: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
        conversations: Conversations | None = None,
    ) -> Plan:
        """Return the plan of one prompt; arguments and errors are those of `make_plan`."""
        return make_plan(
            selection, self.layout, self.variants, self.tokenizer, repair, answers, conversations, self.codec
        )


def serve_schema(
    schema: CheckedSchema,
    tokenizer: Tokenizer,
    context_length: int,
    codec: Codec = Codec.FULL,
    placement: Placement = Placement.CLOSED,
) -> ServedSchema:
    """Lay out a schema and find its encodings.

    Args:
        context_length: Number of positions of the model.
        codec: The codec of its stored KV.
        placement: Where requests have cached text, if the schema does not say.

    Raises:
        SchemaError: A filler is longer than its slot, or the schema needs more positions than the model has.
    """
    layout = lay_out(schema, tokenizer, placement=placement, max_positions=context_length)
    variants = run_variants(layout, codec)
    check_length(layout, variants, context_length)
    return ServedSchema(
        schema=schema,
        tokenizer=tokenizer,
        layout=layout,
        variants=variants,
        codec=codec,
        members=declared_members(schema),
    )


def choose_placement(model: Model, asked: str | None = None) -> Placement:
    """Return where requests of a model have cached text, if a schema does not say.

    Args:
        asked: "closed" or "fixed"; None means closed, or fixed if the keys of the model cannot be moved.

    Raises:
        InvalidValue: It is neither.
        UnsupportedModel: It is "closed", and the keys of the model cannot be moved; gives the reason.
    """
    (one_of(Placement) | None).check("positions", asked, InvalidValue)
    if asked is None:
        return Placement.CLOSED if model.can_relocate else Placement.FIXED
    if asked == Placement.CLOSED:
        _ = model.relocation
    return Placement(asked)
