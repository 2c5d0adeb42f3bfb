"""`promptcache diff`: show what a change of a schema costs. Loads no model, only its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from promptcache.cli.completion import complete_schemas
from promptcache.cli.console import print_lines, xml_lines
from promptcache.cli.exits import ExitCode, UsageMistake
from promptcache.cli.files import InputDocument, checked_schema, read
from promptcache.cli.layout_changes import (
    EncodingChanges,
    MadeEncoding,
    ModuleChanges,
    Reason,
    ReserveChanges,
    SlotChange,
    compare_encodings,
    compare_modules,
    compare_slots,
    find_reserves,
)
from promptcache.cli.options import FILE, Output, context_option, model_option, with_json
from promptcache.cli.output import ROOT, slot_name
from promptcache.cli.sources import Sources, read_context
from promptcache.diagnostics import PromptError, counted
from promptcache.language import (
    AnswerFormat,
    CheckedParameter,
    CheckedSchema,
    Combinations,
    ParameterType,
    SlotArguments,
    in_range,
    is_version,
    output_format,
    prompt_for,
    refusal,
    resolve_prompt,
)
from promptcache.layout import Layout, lay_out
from promptcache.tokenizer import HubTokenizer, Tokenizer, model_folder

_ADDED, _REMOVED, _CHANGED = "green", "red", "yellow"
MAX_CHECKED = 10_000
_MAX_EXAMPLES = 5
_MAX_TRIED = 200  # lost prompts that are looked into for examples
_ARGUMENTS = ("…", "1")


@click.command("diff")
@click.argument("old", metavar="OLD", shell_complete=complete_schemas)
@click.argument("new", metavar="NEW", shell_complete=complete_schemas)
@model_option()
@context_option
@click.option("--old-context", metavar="FILE", type=FILE, help="The values of OLD, if they are not those of --context.")
@click.option("--new-context", metavar="FILE", type=FILE, help="The values of NEW, if they are not those of --context.")
@with_json
def command(
    sources: Sources, old: str, new: str, model: str, old_context: Path | None, new_context: Path | None
) -> Output:
    """Show what a change of a schema costs: slots, encodings, and prompts that stop being valid.

    OLD and NEW are files of one schema, before and after the change; one of them may be -, standard input. They may be
    the same template with other values.
    """
    documents = (
        _with_values(read(old, sources), "--old-context", old_context),
        _with_values(read(new, sources), "--new-context", new_context),
    )
    schemas = [checked_schema(each) for each in documents]
    for document, option, file in zip(documents, ("--old", "--new"), (old_context, new_context), strict=True):
        if file is not None and document.context is not None and not document.context.used:
            raise UsageMistake(f"{option}-context is for a template, *.xml.j2, and {document.name} is none")
    tokenizer = HubTokenizer.from_folder(model_folder(model))
    before, now = (lay_out(schema, tokenizer) for schema in schemas)
    changes = compare_schemas(before, now, tokenizer, (documents[0].name, documents[1].name), model)
    return Output(
        data=_data(changes),
        text=lambda: print_lines(_lines(changes)),
        code=ExitCode.OK if changes.harmless else ExitCode.FINDINGS,
    )


def _with_values(document: InputDocument, option: str, file: Path | None) -> InputDocument:
    """Return a document with the values of its own option, if it is given."""
    return document if file is None else replace(document, context=read_context(file, option))


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChanges:
    """Everything that `promptcache diff` says about two schemas.

    Attributes:
        names, versions: Those in the root elements of the schemas.
        reserve: None if no reserve would keep an encoding.
        answer: None if the format of answers is the same.
    """

    names: tuple[str, str]
    versions: tuple[str | None, str | None]
    files: tuple[str, str]
    model: str
    prompts: PromptChanges
    modules: ModuleChanges
    slots: tuple[SlotChange, ...]
    encodings: EncodingChanges
    reserve: ReserveChanges | None
    answer: AnswerChange | None

    @property
    def harmless(self) -> bool:
        """Whether everything stored is still used, and every prompt still valid."""
        kept = not self.encodings.num_dropped and not self.prompts.num_lost
        named = self.names[0] == self.names[1] and not self.other_version
        return kept and named and not any(slot.harmful for slot in self.slots)

    @property
    def other_version(self) -> bool:
        """Whether a prompt that names a range of versions may have accepted the old one only."""
        old, new = self.versions
        if old is None or not is_version(old):
            return False  # every prompt with a range was refused
        return new is None or not is_version(new) or not in_range(new, f"=={old}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChange:
    """The formats of answers, as the attributes of `<answer>`; None is any text. A file may have the same name."""

    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPrompt:
    """A prompt that was valid, and the reason why the new schema refuses it."""

    xml: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChanges:
    """Checks of the old schema's prompts, one for each combination of modules with the arguments it needs.

    Attributes:
        all_checked: Whether there were no more combinations than were checked.
        examples: The smallest lost prompts of different reasons.
    """

    num_checked: int
    all_checked: bool
    num_lost: int
    examples: tuple[LostPrompt, ...]


def compare_schemas(
    old: Layout, new: Layout, tokenizer: Tokenizer, files: tuple[str, str], model: str
) -> SchemaChanges:
    """Compare two schemas that `tokenizer` laid out; `files` and `model` are only passed on."""
    modules = compare_modules(old, new)
    renamed = dict(modules.renamed)
    return SchemaChanges(
        names=(old.schema.name, new.schema.name),
        versions=(old.schema.version, new.schema.version),
        files=files,
        model=model,
        prompts=compare_prompts(old.schema, new.schema),
        modules=modules,
        slots=tuple(compare_slots(old, new, renamed)),
        encodings=compare_encodings(old, new, renamed),
        reserve=find_reserves(old, new, renamed, tokenizer),
        answer=compare_answers(old.schema.answer_format, new.schema.answer_format),
    )


def compare_answers(old: AnswerFormat | None, new: AnswerFormat | None) -> AnswerChange | None:
    """Compare the formats of answers. JSON schemas are the same if their texts are."""
    before, now = (None if each is None else output_format(each) for each in (old, new))
    return None if before == now else AnswerChange(before=_stated(old), now=_stated(new))


def _stated(answer: AnswerFormat | None) -> str | None:
    if answer is None:
        return None
    values = {"type": answer.type, "choices": "|".join(answer.choices), "pattern": answer.pattern, "src": answer.src}
    stated = {name: value for name, value in values.items() if value and value != ParameterType.TEXT}
    return " ".join(f'{name}="{value}"' for name, value in stated.items()) or None


def _data(changes: SchemaChanges) -> dict[str, Any]:
    data = asdict(changes)
    data["encodings"]["num_made_tokens"] = changes.encodings.num_made_tokens
    return {**data, "harmless": changes.harmless}


def compare_prompts(old: CheckedSchema, new: CheckedSchema) -> PromptChanges:
    """Check the prompts of `old` against `new`; the schemas' names are not compared."""
    listing = Combinations(old.rules).listing(MAX_CHECKED)
    required = _required(old, new)
    checker = _PromptComparison(old, new, required)
    lost = [broken for modules in listing.found if (broken := checker.broken(modules)) is not None]
    lost.sort(key=lambda named: (len(named), sorted(named)))
    return PromptChanges(
        num_checked=len(listing.found),
        all_checked=listing.complete,
        num_lost=len(lost),
        examples=tuple(_examples(lost, old, new, required)),
    )


class _PromptComparison:
    """Finds quickly whether a combination of the old schema has a prompt that the new one refuses."""

    def __init__(self, old: CheckedSchema, new: CheckedSchema, required: SlotArguments) -> None:
        self._old = old
        self._new = new
        self._filled: dict[str, set[str]] = {}
        self._refused: set[str] = set()
        for (module, name), text in required.items():
            self._filled.setdefault(module, set()).add(name)
            before, now = old.parameters[module][name], new.parameters.get(module, {}).get(name)
            if now is not None and refusal(before, text) is None and refusal(now, text) is not None:
                self._refused.add(module)
        self._choosy = {*self._filled, *(path for path, found in new.parameters.items() if _required_names(found))}

    def broken(self, modules: frozenset[str]) -> frozenset[str] | None:
        """Return the modules that such a prompt names, or None: all, or all but those that defaults add."""
        forms = dict.fromkeys((modules, _without_defaults(modules, self._old)))
        return next((named for named in forms if self._breaks(named)), None)

    def _breaks(self, named: frozenset[str]) -> bool:
        if not self._new.modules.keys() >= named:
            return True
        present = self._new.rules.complete(named)
        if any(True for _ in self._new.rules.broken(present.keys())):
            return True
        return any(self._misfilled(module, named) for module in self._choosy if module in present)

    def _misfilled(self, module: str, named: frozenset[str]) -> bool:
        """Whether the arguments that a module had to have are refused now, or are too few."""
        parameters = self._new.parameters.get(module, {})
        filled = self._filled.get(module, set()) if module in named or not module else set()
        if filled and module in self._refused:
            return True
        return not filled <= parameters.keys() or not _required_names(parameters) <= filled


def _required_names(parameters: Mapping[str, CheckedParameter]) -> set[str]:
    return {name for name, parameter in parameters.items() if parameter.required}


def _required(old: CheckedSchema, new: CheckedSchema) -> SlotArguments:
    """Return a text for each required parameter of `old`."""
    return {
        (module, name): _text(parameters[name], new.parameters.get(module, {}).get(name))
        for module, parameters in old.parameters.items()
        for name in _required_names(parameters)
    }


def _text(before: CheckedParameter, now: CheckedParameter | None) -> str:
    """Return a text that a parameter accepted, if one is found; preferably one that is refused now."""
    known = (*before.choices, before.placeholder or "", before.default or "", *_ARGUMENTS)
    accepted = [text for text in known if refusal(before, text) is None] or [_ARGUMENTS[0]]
    return next((text for text in accepted if now is not None and refusal(now, text) is not None), accepted[0])


def _without_defaults(modules: frozenset[str], schema: CheckedSchema) -> frozenset[str]:
    """Return the smallest set that a prompt can name, without arguments to fill, to select `modules`."""
    if not schema.rules.defaults:
        return modules
    named = set(modules)
    for module in reversed([path for path in schema.modules if path in modules]):
        holds_named = any(path.startswith(f"{module}/") for path in named)
        needs_argument = any(parameter.required for parameter in schema.parameters[module].values())
        if not holds_named and not needs_argument and module in schema.rules.complete(named - {module}):
            named.discard(module)
    return frozenset(named)


def _examples(
    lost: Sequence[frozenset[str]], old: CheckedSchema, new: CheckedSchema, required: SlotArguments
) -> Iterator[LostPrompt]:
    """Yield the smallest lost prompts with different reasons."""
    seen: set[str] = set()
    for named in lost[:_MAX_TRIED]:
        prompt = prompt_for(old, named, required)
        try:
            resolve_prompt(replace(prompt, schema=new.name), new)
        except PromptError as error:
            first = error.diagnostics[0]
            if first.message not in seen and len(seen) < _MAX_EXAMPLES:
                seen.add(first.message)
                yield LostPrompt(xml=prompt.to_xml(), code=first.code, message=first.message)


def _lines(changes: SchemaChanges) -> Iterator[Text]:
    """Yield the changes of name, modules, slots, encodings and prompts."""
    before, now = changes.names
    if before != now:
        yield Text(f"schema '{before}' is now '{now}': every prompt has to say so", style=_REMOVED)
    if changes.other_version:
        old, new = changes.versions
        what = f"is now {new}" if new is not None else "is gone"
        yield Text(f"version {old} {what}: a prompt that names a version may be refused", style=_REMOVED)
    yield from _modules(changes.modules)
    yield from _slots(changes.slots)
    if changes.answer is not None:
        yield _answer(changes.answer)
    yield from _encodings(changes.encodings)
    if changes.reserve is not None:
        yield from _reserves(changes.reserve)
    yield from _prompts(changes.prompts)


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
        style = _REMOVED if slot.harmful else _ADDED if slot.before is None else _CHANGED
        yield Text(f"  {slot_name(slot.module, slot.parameter)}  {_moved(slot)}{_refusing(slot)}", style=style)


def _refusing(slot: SlotChange) -> str:
    required = ", now required" if slot.now_required else ""
    return f"{required}, may refuse texts that it accepted" if slot.narrowed else required


def _moved(slot: SlotChange) -> str:
    if slot.before is None or slot.now is None:
        return f"new at {_range(slot.now)}" if slot.now is not None else "removed"
    if slot.before == slot.now:
        return f"still at {_range(slot.now)}"
    return f"{_range(slot.before)} is now {_range(slot.now)}"


def _range(positions: tuple[int, int] | None) -> str:
    assert positions is not None, "asked for where it exists"
    return f"[{positions[0]:,}, {positions[1]:,})"


def _answer(answer: AnswerChange) -> Text:
    if answer.before == answer.now:
        return Text(f"answer: {answer.now} has another content", style=_CHANGED)
    return Text(f"answer: {answer.before or 'any text'} is now {answer.now or 'any text'}", style=_CHANGED)


def _encodings(encodings: EncodingChanges) -> Iterator[Text]:
    kept = f"{encodings.num_kept:,} kept ({counted(encodings.num_kept_tokens, 'token')})"
    made = f"{len(encodings.made):,} to be made ({counted(encodings.num_made_tokens, 'token')})"
    dropped = f"{encodings.num_dropped:,} dropped ({counted(encodings.num_dropped_tokens, 'token')})"
    yield Text(f"encodings: {kept}, {made}, {dropped}", style="bold")
    yield from map(_made, encodings.made)


def _made(made: MadeEncoding) -> Text:
    name = f"{made.module or ROOT}{''.join(f' in {scaffold}' for scaffold in made.scaffolds)}"
    why: str = made.reason
    if made.reason is Reason.MOVED and made.start != made.old_start:
        why = f"it moved from {made.old_start:,} to {made.start:,}"
    style = _ADDED if made.reason is Reason.NEW else _CHANGED
    return Text(f"  {name}  {counted(made.num_tokens, 'token')}: {why}", style=style)


def _reserves(reserve: ReserveChanges) -> Iterator[Text]:
    """Yield what reserves keep, where they are to be written, and the positions that they take."""
    what = f"{counted(reserve.num_kept, 'encoding')} ({counted(reserve.num_kept_tokens, 'token')})"
    in_new = all(module.in_new for module in reserve.modules)
    yield Text(f"reserve: {f'in NEW it keeps {what}' if in_new else f'it would have kept {what}'}", style="bold")
    for module in reserve.modules:
        empty = f"{counted(module.num_empty, 'position')} empty in {'NEW' if module.in_new else 'OLD'}"
        yield Text(f'  {module.module}  reserve="{module.reserve}", {empty}', style=_CHANGED)


def _prompts(prompts: PromptChanges) -> Iterator[Text]:
    which = "" if prompts.all_checked else "the first "
    of = f"of {which}{counted(prompts.num_checked, 'combination')}"
    verdict = f"{prompts.num_lost:,} {of} stop being valid" if prompts.num_lost else f"all {of} stay valid"
    yield Text(f"prompts: {verdict}", style="bold")
    for example in prompts.examples:
        yield Text(f"  {example.code} {example.message}", style=_REMOVED)
        yield from xml_lines(example.xml, "    ")
