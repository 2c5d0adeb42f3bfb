"""The schema that a prompt with members of collections stands for: one that has these members as modules."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from promptcache.language import CheckedItem, CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion, Selection
from promptcache.layout import Layout, Variant, lay_out, run_variants
from promptcache.tokenizer import Tokenizer


def layout_with_members(selection: Selection, layout: Layout, tokenizer: Tokenizer) -> Layout:
    """Return the layout of a prompt's schema with its members as modules; the same without members."""
    if not selection.members:
        return layout
    schema = schema_with_members(selection)
    return lay_out(schema, tokenizer, placement=layout.placement, max_positions=layout.max_positions)


def variants_with_members(
    selection: Selection, layout: Layout, tokenizer: Tokenizer
) -> tuple[Layout, tuple[Variant, ...]]:
    layout = layout_with_members(selection, layout, tokenizer)
    return layout, run_variants(layout)


def schema_with_members(selection: Selection) -> CheckedSchema:
    """Return the schema of a prompt with its members as modules, in the order of the prompt."""
    schema = selection.schema
    found = {path: selection.module(path) for path in selection.members}
    inside: dict[str, list[CheckedModule]] = {}
    for module in found.values():
        inside.setdefault(module.parent, []).append(module)
    children = tuple(_with_members(schema.children, inside))
    return replace(
        schema,
        children=children,
        modules={each.path: each for each in _modules(children)},
        parameters={**schema.parameters, **{path: {} for path in found}},
        guaranteed={
            **schema.guaranteed,
            **{path: schema.guaranteed[module.parent] | {path} for path, module in found.items()},
        },
    )


def _with_members(items: Iterable[CheckedItem], inside: dict[str, list[CheckedModule]]) -> Iterator[CheckedItem]:
    for item in items:
        if isinstance(item, CheckedModule) and item.collection is not None:
            yield replace(item, children=tuple(inside.get(item.path, ())), collection=None)
        elif isinstance(item, CheckedModule | CheckedTurn):
            yield replace(item, children=tuple(_with_members(item.children, inside)))
        elif isinstance(item, CheckedUnion):
            members = _with_members(item.members, inside)
            yield replace(item, members=tuple(each for each in members if isinstance(each, CheckedModule)))
        else:
            yield item


def _modules(items: Iterable[CheckedItem]) -> Iterator[CheckedModule]:
    for item in items:
        if isinstance(item, CheckedModule):
            yield item
        if isinstance(item, CheckedModule | CheckedTurn):
            yield from _modules(item.children)
        elif isinstance(item, CheckedUnion):
            yield from _modules(item.members)
