"""The changes of a schema as text.

Comes in: `SchemaChanges`. Goes out: lines on a console. This file only decides how things are written.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from promptcache.cli.diff import ModuleChanges, SchemaChanges, SlotChange
from promptcache.cli.diff_encodings import EncodingChanges, MadeEncoding, Reason
from promptcache.cli.diff_prompts import PromptChanges
from promptcache.cli.output import counted

_ROOT = "(root)"
_ADDED, _REMOVED, _CHANGED = "green", "red", "yellow"


def print_changes(changes: SchemaChanges, console: Console) -> None:
    """Print what changed: modules, slots, encodings, prompts."""
    before, now = changes.names
    if before != now:
        console.print(Text(f"schema '{before}' is now '{now}': every prompt has to say so", style=_REMOVED))
    for part in (_modules(changes.modules), _slots(changes.slots), _encodings(changes.encodings)):
        for line in part:
            console.print(line, soft_wrap=True)
    for line in _prompts(changes.prompts):
        console.print(line, soft_wrap=True)


def _modules(modules: ModuleChanges) -> Iterator[Text]:
    changes = [(modules.added, "added"), (modules.removed, "removed"), (modules.renamed, "renamed")]
    counts = [f"{len(found):,} {what}" for found, what in changes if found]
    yield Text(f"modules: {', '.join(counts) or 'the same'}", style="bold")
    yield from (Text(f"  + {path}", style=_ADDED) for path in modules.added)
    yield from (Text(f"  - {path}", style=_REMOVED) for path in modules.removed)
    yield from (Text(f"  {old} is now {new}", style=_CHANGED) for old, new in modules.renamed)


def _slots(slots: tuple[SlotChange, ...]) -> Iterator[Text]:
    yield Text(f"slots: {f'{len(slots):,} changed' if slots else 'the same'}", style="bold")
    for slot in slots:
        name = f"{slot.module}.{slot.parameter}" if slot.module else slot.parameter
        style = _REMOVED if slot.harmful else _ADDED if slot.before is None else _CHANGED
        yield Text(f"  {name}  {_moved(slot)}{', now required' if slot.now_required else ''}", style=style)


def _moved(slot: SlotChange) -> str:
    if slot.before is None or slot.now is None:
        return f"new at {_range(slot.now)}" if slot.now is not None else "removed"
    if slot.before == slot.now:
        return f"still at {_range(slot.now)}"
    return f"{_range(slot.before)} is now {_range(slot.now)}"


def _range(positions: tuple[int, int] | None) -> str:
    assert positions is not None, "asked for where it exists"
    return f"[{positions[0]:,}, {positions[1]:,})"


def _encodings(encodings: EncodingChanges) -> Iterator[Text]:
    kept = f"{encodings.num_kept:,} kept ({counted(encodings.num_kept_tokens, 'token')})"
    made = f"{len(encodings.made):,} to be made ({counted(encodings.num_made_tokens, 'token')})"
    dropped = f"{encodings.num_dropped:,} dropped ({counted(encodings.num_dropped_tokens, 'token')})"
    yield Text(f"encodings: {kept}, {made}, {dropped}", style="bold")
    yield from map(_made, encodings.made)


def _made(made: MadeEncoding) -> Text:
    name = f"{made.module or _ROOT}{''.join(f' in {scaffold}' for scaffold in made.scaffolds)}"
    why: str = made.reason
    if made.reason is Reason.MOVED and made.start != made.old_start:
        why = f"it moved from {made.old_start:,} to {made.start:,}"
    style = _ADDED if made.reason is Reason.NEW else _CHANGED
    return Text(f"  {name}  {counted(made.num_tokens, 'token')}: {why}", style=style)


def _prompts(prompts: PromptChanges) -> Iterator[Text]:
    which = "" if prompts.all_checked else "the first "
    of = f"of {which}{counted(prompts.num_checked, 'combination')}"
    verdict = f"{prompts.num_lost:,} {of} stop being valid" if prompts.num_lost else f"all {of} stay valid"
    yield Text(f"prompts: {verdict}", style="bold")
    for example in prompts.examples:
        yield Text(f"  {example.code} {example.message}", style=_REMOVED)
        yield from (Text(f"    {line}", style="cyan") for line in example.xml.rstrip("\n").split("\n"))
