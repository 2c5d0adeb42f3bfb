"""Resolve a prompt against its schema: `Prompt` to `Selection`, or all faults of the prompt.

Resolving a valid prompt takes time linear in the prompt and does not depend on the size of the schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
from promptcache.language.syntax.nodes import Argument, Member, Reference, join_path
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
    if prompt.schema != schema.name or prompt.version not in (None, schema.version):
        raise PromptError([_other_schema(prompt, schema)])
    resolver = _Resolver(schema, known)
    resolver.fill("", prompt.arguments)
    resolver.follow(prompt.references, "")
    if resolver.faults:
        raise PromptError(in_order(resolver.faults))
    members, filled, places = resolver.members, resolver.filled, {"": prompt.span, **resolver.places}
    for path, span in resolver.places.items():
        for ancestor in ancestors(path):
            if ancestor in places:
                break
            places[ancestor] = span
    named = {path: span for path, span in places.items() if path not in members}
    present = schema.rules.complete(named.keys())
    faults = FaultList(PromptError)
    faults += _incomplete(prompt, schema, resolver, present, named)
    if broken := tuple(schema.rules.broken(present.keys())):
        if not explain:
            raise PromptError(in_order(faults))
        faults += explain_broken(schema.rules, schema.parameters, broken, named, present)
    if schema.rules.of_members:
        by_members = schema.rules.broken_by_members(present.keys() | members.keys())
        faults += explain_members(schema.rules, by_members, schema.parameters, places)
    if faults:
        raise PromptError(in_order(faults))
    modules = sorted((module for module in present if module), key=schema.rules.order.__getitem__)
    if members:  # they come directly behind their collection
        inside: dict[str, list[str]] = {}
        for path in members:
            inside.setdefault(path.rpartition("/")[0], []).append(path)
        modules = [path for module in modules for path in (module, *inside.get(module, ()))]
    arguments = (
        slots[name]
        for module in ("", *modules)
        if (slots := filled.get(module))  # members of collections have none
        for name in schema.parameters[module]
        if name in slots
    )
    return Selection(
        schema=schema,
        modules=tuple(modules),
        arguments=tuple(arguments),
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


def _other_schema(prompt: Prompt, schema: CheckedSchema) -> Diagnostic:
    if prompt.schema != schema.name:
        message = f"the prompt is for schema '{prompt.schema}', not for '{schema.name}'"
        return diagnostic("PC413", message, prompt.span, did_you_mean(prompt.schema, [schema.name]))
    wanted = f"the prompt is for version {quoted(prompt.version or '')} of schema '{schema.name}'"
    have = "the schema has none" if schema.version is None else f"the schema has version {quoted(schema.version)}"
    fix = "remove version from the prompt, or add the same to the schema"
    if schema.version is not None:
        fix = f'load that version, or write version="{schema.version}"'
    return diagnostic("PC421", f"{wanted}, but {have}", prompt.span, fix)


class _Resolver:
    """Resolver of references.

    Attributes:
        faults: Diagnostics so far.
        places: The named modules and members, each with the span of its reference.
        members: Those of collections among them.
        filled: The arguments of each of them, by parameter; those of the schema itself for "".
    """

    def __init__(self, schema: CheckedSchema, known: AllMembers | None) -> None:
        self.faults = FaultList(PromptError)
        self.places: dict[str, Span] = {}
        self.members: dict[str, Member] = {}
        self.filled: dict[str, dict[str, FilledSlot]] = {}
        self._schema, self._known = schema, known

    def follow(self, references: tuple[Reference, ...], parent: str) -> None:
        modules = self._schema.modules
        for reference in references:
            path = reference.path if reference.absolute else absolute(reference.path, parent)
            collection, _, name = path.rpartition("/")
            member = None if path in modules else self._members(collection).get(name)
            if path in self.places:
                related = ((self.places[path], "first named here"),)
                message = f"module '{path}' is named twice"
                self.faults.add("PC405", message, reference.span, "combine the two references", related)
            elif path in modules or member is not None:
                self.places[path] = reference.span
                if member is not None:
                    self.members[path] = member
                self.fill(path, reference.arguments)
                self.follow(reference.children, path)
            elif not is_path(path):
                message = f"{quoted(reference.path)} is not a valid module path"
                self.faults.add("PC207", message, reference.span, path_help(reference.path))
            elif len(self.faults) >= MAX_SUGGESTIONS:
                self.faults.add("PC401", f"no module has the path {quoted(reference.path)}", reference.span, None)
            else:
                message, fix = self._nowhere(path, reference.span)
                own = next((each.text for each in reference.arguments if each.name == "name"), None)
                if reference.path in _OF_SCHEMAS and own is not None:
                    fix = f"a prompt names a module by its own name: write <{own}/>"
                self.faults.add("PC401", message, reference.span, fix)

    def _members(self, collection: str) -> Mapping[str, Member]:
        """Return the members of a collection; nothing if there is no such collection."""
        module = self._schema.modules.get(collection)
        if module is None or module.collection is None:
            return {}
        return module.collection.members if self._known is None else self._known[collection]

    def _nowhere(self, path: str, place: Span) -> tuple[str, str | None]:
        parent, _, name = path.rpartition("/")
        module = self._schema.modules.get(parent)
        if module is not None and module.collection is not None:
            fix = did_you_mean(name, self._members(parent)) or "add it, or name another member"
            return f"collection '{parent}' has no member '{name}'", fix
        unions = {
            join_path(item.parent, item.name): [member.path for member in item.members]
            for item in walk_checked(self._schema.children)
            if isinstance(item, CheckedUnion) and item.name
        }
        return nowhere(path, self._schema.modules, unions, place)

    def fill(self, path: str, arguments: tuple[Argument, ...]) -> None:
        parameters = self._schema.parameters.get(path, {})  # members of collections have none
        slots = self.filled.setdefault(path, {})
        for argument in arguments:
            name = argument.name
            if name not in parameters:
                owner = f"module '{path}'" if path else f"schema '{self._schema.name}' outside its modules"
                listing = f"parameters: {', '.join(parameters)}" if parameters else "it has no parameters"
                fix = did_you_mean(name, parameters) or self._owner_of(name, argument.span) or listing
                self.faults.add("PC402", f"{owner} has no parameter '{name}'", argument.span, fix)
            elif name in slots:
                related = ((slots[name].span, "first given here"),)
                self.faults.add("PC403", f"the argument '{name}' is given twice", argument.span, "remove one", related)
            else:
                if found := refusal(parameters[name], argument.text):
                    message = f"{quoted(argument.text)} is not a valid value of parameter '{name}': {found[0]}"
                    advice = TEMPLATES_ONLY if argument.text.startswith(("{{", "{%")) else found[1]
                    related = ((parameters[name].span, "the parameter"),)
                    self.faults.add("PC420", message, argument.span, advice, related)
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


def _incomplete(
    prompt: Prompt, schema: CheckedSchema, resolver: _Resolver, present: Iterable[str], places: Mapping[str, Span]
) -> Iterator[Diagnostic]:
    """Yield the faults of what a prompt has beside rules: its bare text, numbers of members, and arguments.

    Bare text before turns continues the open turn of the schema.
    """
    if len(prompt.messages) > 1 and prompt.messages[0].role is None and not schema.has_open_turn:
        message = "bare text beside turns continues an open <user> turn at the end of the schema, and there is none"
        yield diagnostic("PC416", message, prompt.messages[0].span, "put the text into a turn, <user>…</user>")
    counts = Counter(path.rpartition("/")[0] for path in resolver.members)
    for path in present:
        collection = schema.modules[path].collection if path else None
        if collection is None or collection.minimum <= counts[path] <= (collection.maximum or counts[path]):
            continue
        few = counts[path] < collection.minimum
        limit = f"at least {collection.minimum}" if few else f"at most {collection.maximum}"
        message = f"collection '{path}' takes {limit} members, and the prompt names {counts[path]}"
        fix = "name more of them" if few else "name fewer of them"
        yield diagnostic("PC423", message, places.get(path, prompt.span), fix)
    for path in present:
        for name, parameter in schema.parameters[path].items():
            if parameter.required and name not in resolver.filled.get(path, {}):
                owner = f"module '{path}'" if path else f"schema '{schema.name}'"
                message = f"{owner} needs an argument for '{name}'"
                related = ((parameter.span, "the parameter"),)
                fix = f"add {argument_form(name)}"
                yield diagnostic("PC404", message, places.get(path, prompt.span), fix, related)
