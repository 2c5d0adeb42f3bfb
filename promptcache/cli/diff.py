"""What a change of a schema costs: the work of `promptcache diff`.

Comes in: two schema files and the name of a model. Goes out: a `SchemaChanges`. No model is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from promptcache.cli.diff_encodings import EncodingChanges, compare_encodings
from promptcache.cli.diff_prompts import PromptChanges, compare_prompts
from promptcache.cli.files import checked_schema, read
from promptcache.cli.sources import Sources
from promptcache.layout import Layout, Slot, lay_out
from promptcache.tokenizer import HubTokenizer, model_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """A slot that is not where it was, or not as long: `[start, stop)` before and now, None where it does not exist.

    Attributes:
        now_required: Whether prompts now have to fill it and did not before.
    """

    module: str
    parameter: str
    before: tuple[int, int] | None
    now: tuple[int, int] | None
    now_required: bool

    @property
    def harmful(self) -> bool:
        """Whether a prompt that filled it, or did not, may be valid no longer."""
        if self.before is None or self.now is None:
            return self.now is None or self.now_required
        shorter = self.now[1] - self.now[0] < self.before[1] - self.before[0]
        return shorter or self.now_required


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleChanges:
    """Modules that only one of the schemas has; a renamed one has the same text under another path."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanges:
    """Everything that `promptcache diff` says about two schemas; `names` are their own."""

    names: tuple[str, str]
    files: tuple[str, str]
    model: str
    modules: ModuleChanges
    slots: tuple[SlotChange, ...]
    encodings: EncodingChanges
    prompts: PromptChanges

    @property
    def harmless(self) -> bool:
        """Whether all that is stored keeps its use, and every prompt its validity."""
        kept = not self.encodings.num_dropped and not self.prompts.num_lost
        return kept and self.names[0] == self.names[1] and not any(slot.harmful for slot in self.slots)


def compare_files(old_file: str, new_file: str, model: str, sources: Sources) -> SchemaChanges:
    """Compare two schema files under a model's tokenizer.

    Raises:
        SchemaError: every fault of the first schema that has any.
        ModelNotFound: there is no such model, or it has no tokenizer.json.
    """
    old_document, new_document = read(old_file, sources), read(new_file, sources)
    old, new = checked_schema(old_document), checked_schema(new_document)
    folder = model_folder(model)
    tokenizer = HubTokenizer.from_folder(folder)
    files = old_document.name, new_document.name
    return compare_layouts(lay_out(old, tokenizer), lay_out(new, tokenizer), files, model)


def compare_layouts(old: Layout, new: Layout, files: tuple[str, str], model: str) -> SchemaChanges:
    """Compare two layouts under one tokenizer; `files` and `model` are only passed on."""
    modules = _compare_modules(old, new)
    renamed = dict(modules.renamed)
    return SchemaChanges(
        names=(old.schema.name, new.schema.name),
        files=files,
        model=model,
        modules=modules,
        slots=tuple(_compare_slots(old, new, renamed)),
        encodings=compare_encodings(old, new, renamed),
        prompts=compare_prompts(old.schema, new.schema),
    )


def changes_data(changes: SchemaChanges) -> dict[str, Any]:
    """Return changes as data."""
    data = asdict(changes)
    data["encodings"]["num_made_tokens"] = changes.encodings.num_made_tokens
    return {**data, "harmless": changes.harmless}


def _compare_modules(old: Layout, new: Layout) -> ModuleChanges:
    added = [path for path in new.schema.modules if path not in old.schema.modules]
    removed = [path for path in old.schema.modules if path not in new.schema.modules]
    by_text = {_text(new, path): path for path in reversed(added)}
    renamed: dict[str, str] = {}
    for path in removed:
        text = _text(old, path)
        if any(text) and by_text.get(text) not in {None, *renamed.values()}:
            renamed[path] = by_text[text]
    return ModuleChanges(
        added=tuple(path for path in added if path not in renamed.values()),
        removed=tuple(path for path in removed if path not in renamed),
        renamed=tuple(renamed.items()),
    )


def _text(layout: Layout, path: str) -> tuple[tuple[object, ...], ...]:
    """Return the tokens and parameters of a module's own runs."""
    return tuple(
        tuple(
            (piece.parameter, piece.filler_ids) if isinstance(piece, Slot) else piece.token_ids
            for piece in layout.runs[run].pieces
        )
        for run in layout.runs_of[path]
    )


def _compare_slots(old: Layout, new: Layout, renamed: Mapping[str, str]) -> Iterator[SlotChange]:
    before = {(renamed.get(slot.module, slot.module), slot.parameter): slot for slot in _slots(old)}
    now = {(slot.module, slot.parameter): slot for slot in _slots(new)}
    for key in dict.fromkeys((*before, *now)):
        was, has = before.get(key), now.get(key)
        now_required = has is not None and has.required and (was is None or not was.required)
        if _range(was) != _range(has) or now_required:
            yield SlotChange(
                module=key[0], parameter=key[1], before=_range(was), now=_range(has), now_required=now_required
            )


def _slots(layout: Layout) -> Iterator[Slot]:
    return (slot for run in layout.runs for slot in run.slots)


def _range(slot: Slot | None) -> tuple[int, int] | None:
    return None if slot is None else (slot.start, slot.stop)
