"""Resolve a prompt against its schema: `Prompt` to `Selection`, or all faults of the prompt.

Resolving a valid prompt takes time linear in the prompt and does not depend on the size of the schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from promptcache.diagnostics import (
    TEXT,
    Diagnostic,
    FaultList,
    InvalidValue,
    PromptError,
    Span,
    diagnostic,
    did_you_mean,
    in_order,
    shown,
)
from promptcache.language.checked import CheckedSchema, CheckedUnion, FilledSlot, Selection, walk_checked
from promptcache.language.prompt import Prompt
from promptcache.language.rules.explain import explain_broken, explain_members
from promptcache.language.syntax.names import (
    MAX_SUGGESTIONS,
    MEMBER_HELP,
    TEMPLATES_ONLY,
    absolute,
    ancestors,
    argument_form,
    is_member,
    is_path,
    listed,
    nowhere,
    path_help,
    quoted,
)
from promptcache.language.syntax.nodes import Member, Parameter, join_path
from promptcache.language.syntax.prompt_nodes import Argument, Reference
from promptcache.language.syntax.values import refusal

AllMembers: TypeAlias = Mapping[str, Mapping[str, Member]]
"""The members of collections by name, by the path of the collection."""

_OF_SCHEMAS = frozenset({"module", "union", "collection"})
"""Elements of schemas that name modules there."""


def resolve_prompt(
    prompt: Prompt, schema: CheckedSchema, known: AllMembers | None = None, *, explain: bool = True
) -> Selection:
    """Follow the references of a prompt, add implied modules, and check the selection against the rules.

    Args:
        known: The members of each collection, by path; None means those that the schema declares.
        explain: Whether the error describes broken rules, which takes time; otherwise it may have no diagnostics.

    Raises:
        PromptError: all faults. If there are faults of names, the rules are not checked.
    """
    if prompt.schema != schema.name:
        message = f"the prompt is for schema '{prompt.schema}', not for '{schema.name}'"
        fix = did_you_mean(prompt.schema, [schema.name])
        raise PromptError([diagnostic("PC413", message, prompt.span, fix)])
    _check_version(prompt, schema)
    resolver = _Resolver(schema, known)
    resolver.fill("", prompt.arguments)
    resolver.follow(prompt.references, "")
    if resolver.faults:
        raise PromptError(in_order(resolver.faults))
    named = resolver.named()
    named_members = [path for path in named if path not in schema.modules]
    present = schema.rules.complete(named.keys() - {*named_members})
    places = {"": prompt.span, **{path: span for path, span in named.items() if path in schema.modules}}
    faults = FaultList(PromptError)
    faults += _beside_turns(prompt, schema)
    faults += _miscounted(present, named_members, places, schema)
    faults += _unfilled(present, places, resolver.filled, schema)
    broken = tuple(schema.rules.broken(present.keys()))
    if broken and not explain:
        raise PromptError(in_order(faults))
    if broken:
        faults += explain_broken(schema.rules, schema.parameters, broken, places, present)
    members = {path: resolver.member(path) for path in named_members}
    by_members = tuple(schema.rules.broken_by_members(present.keys() | members.keys()))
    faults += explain_members(schema.rules, by_members, schema.parameters, {"": prompt.span, **named})
    if faults:
        raise PromptError(in_order(faults))
    order = schema.rules.order
    modules = tuple(sorted((module for module in present if module), key=order.__getitem__))
    if members:
        modules = tuple(_beside_collections(modules, named_members))
    return Selection(
        schema=schema,
        modules=modules,
        arguments=tuple(_in_order(resolver.filled, modules, schema)),
        messages=prompt.messages,
        span=prompt.span,
        members=members,
        answer_format=schema.answer_format if prompt.answer_format is None else prompt.answer_format,
    )


def new_member(name: str, text: str) -> Member:
    """Return a member of a collection that is built in Python.

    Raises:
        InvalidValue: The name or the text cannot be that of a member.
    """
    TEXT.check("text", text, InvalidValue)
    if not isinstance(name, str) or not is_member(name):
        fix = MEMBER_HELP if isinstance(name, str) else "a text is expected"
        raise InvalidValue(f"name={shown(name)} cannot be the name of a member: {fix}")
    if not text.strip():
        raise InvalidValue(f"text={shown(text)} of member {name!r} is empty")
    return Member(text=text, span=Span(f"<member {name}>", 0, 0, 0, 0))


def declared_members(schema: CheckedSchema) -> dict[str, dict[str, Member]]:
    """Return the members that a schema declares, for each of its collections."""
    modules = ((path, module.collection) for path, module in schema.modules.items())
    return {path: {**collection.members} for path, collection in modules if collection is not None}


def _check_version(prompt: Prompt, schema: CheckedSchema) -> None:
    if prompt.version is None or prompt.version == schema.version:
        return
    wanted = f"the prompt is for version {quoted(prompt.version)} of schema '{schema.name}'"
    have = "the schema has none" if schema.version is None else f"the schema has version {quoted(schema.version)}"
    fix = "remove version from the prompt, or add the same to the schema"
    if schema.version is not None:
        fix = f'load that version, or write version="{schema.version}"'
    raise PromptError([diagnostic("PC421", f"{wanted}, but {have}", prompt.span, fix)])


class _Resolver:
    """Resolver of references; appends diagnostics to `faults`."""

    def __init__(self, schema: CheckedSchema, known: AllMembers | None) -> None:
        self.faults = FaultList(PromptError)
        self.filled: dict[str, dict[str, FilledSlot]] = {}
        self._schema, self._known = schema, known
        self._places: dict[str, Span] = {}

    def named(self) -> dict[str, Span]:
        """Return the named modules and their ancestors, each with the span of a reference to it."""
        found = dict(self._places)
        for path, span in self._places.items():
            for ancestor in ancestors(path):
                if ancestor in found:
                    break
                found[ancestor] = span
        return found

    def follow(self, references: tuple[Reference, ...], parent: str) -> None:
        for reference in references:
            path = absolute("/" + reference.path if reference.absolute else reference.path, parent)
            if not is_path(path):
                message = f"{quoted(reference.path)} is not a valid module path"
                self.faults.add("PC207", message, reference.span, path_help(reference.path))
            elif path in self._schema.modules or self._is_member(path):
                self._enter(reference, path)
            elif len(self.faults) >= MAX_SUGGESTIONS:
                self.faults.add("PC401", f"no module has the path {quoted(reference.path)}", reference.span, None)
            else:
                message, fix = self._nowhere(path, reference.span)
                name = next((each.text for each in reference.arguments if each.name == "name"), None)
                if reference.path in _OF_SCHEMAS and name is not None:
                    fix = f"a prompt names a module by its own name: write <{name}/>"
                self.faults.add("PC401", message, reference.span, fix)

    def member(self, path: str) -> Member:
        """Return the member of a collection that a reference named."""
        parent, _, name = path.rpartition("/")
        return self._members(parent)[name]

    def _is_member(self, path: str) -> bool:
        parent, _, name = path.rpartition("/")
        return name in self._members(parent)

    def _members(self, collection: str) -> Mapping[str, Member]:
        """Return the members of a collection; nothing if there is no such collection."""
        module = self._schema.modules.get(collection)
        if module is None or module.collection is None:
            return {}
        return module.collection.members if self._known is None else self._known[collection]

    def _nowhere(self, path: str, place: Span) -> tuple[str, str | None]:
        """Return a message about a path that leads to no module, and a fix."""
        parent, _, name = path.rpartition("/")
        module, members = self._schema.modules.get(parent), self._members(parent)
        if module is None or module.collection is None:
            return nowhere(path, self._schema.modules, self._unions(), place)
        fix = did_you_mean(name, members) or "add it, or name another member"
        return f"collection '{parent}' has no member '{name}'", fix

    def _unions(self) -> Mapping[str, Sequence[str]]:
        """Return the members of each union with a name, by its place."""
        found = (item for item in walk_checked(self._schema.children) if isinstance(item, CheckedUnion) and item.name)
        return {join_path(each.parent, each.name or ""): [member.path for member in each.members] for each in found}

    def _enter(self, reference: Reference, path: str) -> None:
        if path in self.filled:
            related = ((self._places[path], "first named here"),)
            message = f"module '{path}' is named twice"
            self.faults.add("PC405", message, reference.span, "combine the two references", related)
            return
        self._places[path] = reference.span
        self.fill(path, reference.arguments)
        self.follow(reference.children, path)

    def fill(self, path: str, arguments: tuple[Argument, ...]) -> None:
        parameters = self._schema.parameters.get(path, {})  # members of collections have none
        slots = self.filled.setdefault(path, {})
        for argument in arguments:
            name = argument.name
            if name not in parameters:
                owner = f"module '{path}'" if path else f"schema '{self._schema.name}' outside its modules"
                fix = did_you_mean(name, parameters) or self._owner_of(name, argument.span) or _listed(parameters)
                self.faults.add("PC402", f"{owner} has no parameter '{name}'", argument.span, fix)
            elif name in slots:
                related = ((slots[name].span, "first given here"),)
                self.faults.add("PC403", f"the argument '{name}' is given twice", argument.span, "remove one", related)
            else:
                self._check_value(parameters[name], argument)
                slots[name] = FilledSlot(module=path, parameter=name, text=argument.text, span=argument.span)

    def _owner_of(self, name: str, place: Span) -> str | None:
        """Return help with the modules that have a parameter of this name, or None."""
        if len(self.faults) >= MAX_SUGGESTIONS:
            return None
        owners = [owner for owner, parameters in self._schema.parameters.items() if name in parameters]
        if not owners:
            return None
        at_top = f"<prompt {argument_form(name)}>" if owners == [""] and place.line else ""
        modules = [*filter(None, owners)]
        return f"write it at {at_top}" if at_top else f"{listed(modules) or 'the schema itself'} has this parameter"

    def _check_value(self, parameter: Parameter, argument: Argument) -> None:
        if found := refusal(parameter, argument.text):
            message = f"{quoted(argument.text)} is not a valid value of parameter '{parameter.name}': {found[0]}"
            fix = TEMPLATES_ONLY if argument.text.startswith(("{{", "{%")) else found[1]
            self.faults.add("PC420", message, argument.span, fix, ((parameter.span, "the parameter"),))


def _listed(parameters: Iterable[str]) -> str:
    return f"parameters: {', '.join(parameters)}" if parameters else "it has no parameters"


def _beside_turns(prompt: Prompt, schema: CheckedSchema) -> Iterator[Diagnostic]:
    """Yield a diagnostic for bare text before turns, if the schema has no open turn that the text could continue."""
    first, *others = prompt.messages or (None,)
    if first is not None and first.role is None and others and not schema.has_open_turn:
        message = "bare text beside turns continues an open <user> turn at the end of the schema, and there is none"
        yield diagnostic("PC416", message, first.span, "put the text into a turn, <user>…</user>")


def _miscounted(
    present: Iterable[str], members: Iterable[str], places: Mapping[str, Span], schema: CheckedSchema
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each collection with fewer or more members than it allows."""
    counts = Counter(path.rpartition("/")[0] for path in members)
    for path in present:
        collection = schema.modules[path].collection if path else None
        if collection is None or collection.minimum <= counts[path] <= (collection.maximum or counts[path]):
            continue
        few = counts[path] < collection.minimum
        limit = f"at least {collection.minimum}" if few else f"at most {collection.maximum}"
        message = f"collection '{path}' takes {limit} members, and the prompt names {counts[path]}"
        fix = "name more of them" if few else "name fewer of them"
        yield diagnostic("PC423", message, places.get(path, places[""]), fix)


def _beside_collections(modules: Iterable[str], members: Iterable[str]) -> Iterator[str]:
    """Yield the modules of a prompt, with members directly behind their collection."""
    inside: dict[str, list[str]] = {}
    for path in members:
        inside.setdefault(path.rpartition("/")[0], []).append(path)
    for module in modules:
        yield module
        yield from inside.get(module, ())


def _unfilled(
    present: Mapping[str, object],
    places: Mapping[str, Span],
    filled: Mapping[str, Mapping[str, FilledSlot]],
    schema: CheckedSchema,
) -> Iterator[Diagnostic]:
    for module in present:
        for name, parameter in schema.parameters[module].items():
            if parameter.required and name not in filled.get(module, {}):
                owner = f"module '{module}'" if module else f"schema '{schema.name}'"
                message = f"{owner} needs an argument for '{name}'"
                span = places.get(module, places[""])
                related = ((parameter.span, "the parameter"),)
                yield diagnostic("PC404", message, span, f"add {argument_form(name)}", related)


def _in_order(
    filled: Mapping[str, Mapping[str, FilledSlot]], modules: tuple[str, ...], schema: CheckedSchema
) -> Iterator[FilledSlot]:
    for module in ("", *modules):
        if slots := filled.get(module):  # members of collections have none
            yield from (slots[name] for name in schema.parameters[module] if name in slots)
