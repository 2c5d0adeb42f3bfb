"""Check and resolve names and paths, and suggest the words and modules that authors mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from xml.parsers import expat

from promptcache.diagnostics import Span, did_you_mean
from promptcache.language.limits import MAX_DEPTH, MAX_NAME
from promptcache.language.syntax.elements import PROMPT_ELEMENTS
from promptcache.language.syntax.nodes import join_path

RESERVED_MODULES = frozenset({*PROMPT_ELEMENTS, "doc", "tool"})
"""Names that a module cannot have: the elements of a prompt document, `doc`, and `tool`, one more kind of turn."""

RESERVED_PARAMETERS = frozenset({"schema", "module"})
"""Names that a parameter cannot have: the attributes with a fixed meaning in a prompt document."""

RESERVED_OUTSIDE_MODULES = frozenset({"version"})
"""More names that a parameter outside all modules cannot have: the other attributes of `prompt`."""

_MAX_PATH = MAX_DEPTH * (MAX_NAME + 1)

_START = "A-Z_a-z\xc0-\xd6\xd8-\xf6\xf8-\u02ff\u0370-\u037d\u037f-\u167f\u1681-\u1fff\u200c\u200d\u2070-\u218f"
_START += "\u2c00-\u2fef\u3001-\ud7ff"  # not U+1680, a space that XML takes: lists of names end at it
_START += "\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
_INSIDE = f"-.0-9\xb7\u0300-\u036f\u203f\u2040{_START}"
_NAME = re.compile(f"[{_START}][{_INSIDE}]*")
_NOT_IN_NAME = re.compile(f"[^{_INSIDE}]+")
_NOT_IN_MEMBER = re.compile(r"""[\s/\\,;|!()<>&"'{}\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]+""")
"""Characters that no member has in its name: those that end a path in XML, in a list or in a condition."""

_MAX_QUOTED = 80

TEMPLATES_ONLY = "only templates have variables: rename the file to *.xml.j2"
"""Help for a tag of a template in a document that is none."""

MAX_LISTED = 6
"""Number of modules or rules that a message lists."""

_MAX_FEW = 12

MAX_SUGGESTIONS = 20
"""Number of faults after which a document gets no more suggestions, because suggestions take time to find."""

_GROUPS = {
    "parameter": "param arg argument slot variable var input field placeholder",
    "module": "section block part fragment component",
    "union": "choice oneof one-of alternatives switch select either",
    "include": "import use",
    "user": "human question query",
    "assistant": "ai bot model response",
    "system": "developer instruction instructions",
    "answer": "output result reply response-format response_format",
    "doc": "description comment note documentation",
    "text": "string str raw pre verbatim cdata",
    "rules": "rule constraint constraints",
    "exclude": "forbid conflict conflicts mutex",
    "excludes": "forbids conflicts",
    "require": "implies depends",
    "requires": "depends needs dependencies depends-on require",
    "name": "id key title label",
    "href": "src file path source uri url",
    "src": "href file path source uri url",
    "length": "size tokens max_length maxlength max-length max_tokens maxlen len width",
    "choices": "values options enum items",
    "pattern": "regex regexp format match",
    "default": "value",
    "required": "mandatory optional",
    "message": "error hint",
    "if": "when condition cond",
    "then": "implies must",
    "choice": "bool boolean flag enum",
    "int": "integer whole long",
    "number": "float double decimal numeric",
    "min": "minimum least required",
    "max": "maximum most",
}
"""Words of this language, with the words of other formats that authors write for them."""

ROLES = {word: role for role in ("user", "assistant", "system") for word in _GROUPS[role].split()}
"""Names of turns in other formats."""

_TAGS = (
    "a b br code div em h1 h2 h3 h4 head html i img li ol p pre script span strong style sub sup table td th tr u ul"
)
HTML = frozenset(_TAGS.split())
"""Tags of HTML that authors most likely mean as text."""

CONTENT = frozenset({"text", "content", "body", "value"})
"""Attributes that authors write for the content of an element."""

AS_TEXT = "to write a tag as text, use &lt; for <, or <![CDATA[…]]>"


@lru_cache(maxsize=4096)
def is_tag(text: str) -> bool:
    """Return whether expat accepts `text` as the name of a tag or attribute. It accepts colons, too.

    It accepts the names of XML 1.0 before its fifth edition, which lack the letters of some scripts, such as Sinhala.
    """
    try:
        expat.ParserCreate("utf-8").Parse(f"<{text}/>", True)
    except expat.ExpatError:
        return False
    return True


def is_name(text: str) -> bool:
    """Return whether `text` is an XML name without colons and spaces and with at most `MAX_NAME` characters."""
    return len(text) <= MAX_NAME and _NAME.fullmatch(text) is not None


def is_member(text: str) -> bool:
    """Return whether `text` can be the name of a member of a collection: most texts without whitespace and slashes."""
    return 0 < len(text) <= MAX_NAME and _NOT_IN_MEMBER.search(text) is None and text not in {".", ".."}


def as_name(text: str) -> str:
    """Return a member's name that resembles `text`: other characters become hyphens. Two texts can have one name."""
    name = _NOT_IN_MEMBER.sub("-", text)[:MAX_NAME]
    return name if is_member(name) else f"_{name}"


MEMBER_HELP = "a name has no whitespace, none of /\\,;|!()<>&\"'{} and at most 200 characters, such as 17 or wifi.md"
"""Help for a malformed name of a member."""


def name_help(text: str) -> str:
    """Return a hint on how to correct a malformed name."""
    if "{" in text:
        return TEMPLATES_ONLY
    if len(text) > MAX_NAME:
        return f"the name has {len(text)} characters, and at most {MAX_NAME} are allowed"
    rule = "begin with a letter or _, and continue with letters, digits, '.', '-' or '_'"
    near = _NOT_IN_NAME.sub("-", text)
    found = next((each for each in (near, f"_{near}") if near.strip("-") and is_name(each)), None)
    return f"write '{found}': {rule}" if found else rule


def is_element(text: str) -> bool:
    """Return whether every XML parser accepts `text` as the name of an element or attribute without a namespace."""
    return is_name(text) and text.isascii() and not text.lower().startswith("xml")


def is_path(text: str) -> bool:
    """Return whether `text` is a path: names joined by slashes, with an optional leading slash, and not too long.

    The last name can be that of a member.
    """
    *names, last = text.removeprefix("/").split("/")
    return len(text) <= _MAX_PATH and all(map(is_name, names)) and is_member(last)


def absolute(path: str, parent: str) -> str:
    """Return `path`, which is relative to `parent` or begins with a slash, as a path from the root."""
    return path[1:] if path.startswith("/") else join_path(parent, path)


def ancestors(path: str) -> Iterable[str]:
    """Yield the paths of the modules around `path`, nearest first, without the root."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def quoted(text: str) -> str:
    """Return a text of a document in quotes; a long text is truncated."""
    return repr(text) if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]!r}…"


def listed(modules: Sequence[str]) -> str:
    """Return the first few modules in quotes, and the number of the others."""
    names = ", ".join(f"'{module}'" for module in modules[:MAX_LISTED])
    return names if len(modules) <= MAX_LISTED else f"{names} and {len(modules) - MAX_LISTED} more"


def few(names: Sequence[str]) -> str:
    """Return the first names of a long list, and the number of the others."""
    more = f" and {len(names) - _MAX_FEW} more" if len(names) > _MAX_FEW else ""
    return ", ".join(names[:_MAX_FEW]) + more


def path_help(text: str) -> str:
    """Return a hint on how to correct a malformed path."""
    if "{" in text:
        return TEMPLATES_ONLY
    if any(character.isspace() for character in text):
        return "name one module here, and each other one in an element of its own"
    if "," in text or ";" in text:
        return "separate paths by spaces"
    if ".." in text.split("/"):
        return "a path cannot contain '..': begin at the root with /"
    if text.endswith("/") or "//" in text:
        return "write one slash between names and none at the end"
    return "a path consists of names joined by slashes, such as a/b"


def argument_form(name: str) -> str:
    """Return an argument as a prompt can have it, to fill in."""
    return f'{name}="…"' if is_tag(name) else f'<arg name="{name}">…</arg>'


def element(path: str, parameters: Sequence[str] = (), inner: str = "") -> str:
    """Return a reference to a module as a prompt can have it, with arguments to fill in, and with content."""
    tag = path if is_tag(path) else "use"
    attributes = [f'module="{path}"'] if tag == "use" else []
    attributes += [argument_form(name) for name in parameters if is_tag(name)]
    inner = "".join(argument_form(name) for name in parameters if not is_tag(name)) + inner
    opening = " ".join((tag, *attributes))
    return f"<{opening}>{inner}</{tag}>" if inner else f"<{opening}/>"


def _nested(path: str) -> str:
    """Return the nested elements that name a module in a prompt."""
    outer, _, inner = path.partition("/")
    return element(outer, inner=_nested(inner) if inner else "")


def nowhere(
    path: str, modules: Collection[str], unions: Mapping[str, Sequence[str]], reference: Span | None = None
) -> tuple[str, str | None]:
    """Return the message and the suggestion for a path that leads to no module.

    The suggestion is a member of the union that has this name, the same name elsewhere, the path with slashes instead
    of dots, a similar name in the same place, or the modules there.

    Args:
        unions: Paths of the members of each union that has a name, by the path of the parent joined with that name.
        reference: Its place in a prompt; None for a path in a schema. Elements are suggested if it is in a document.
    """
    as_element = reference is not None and reference.line > 0
    steps = path.split("/")
    depth = 0
    while "/".join(steps[: depth + 1]) in modules:
        depth += 1
    parent, step = "/".join(steps[:depth]), steps[depth]
    prefix = f"{parent}/" if parent else ""
    here = [known[len(prefix) :] for known in modules if known.startswith(prefix) and "/" not in known[len(prefix) :]]
    where = f"in '{parent}'" if parent else "at the top level"
    message = f"there is no module '{step}' {where}"
    if members := unions.get(prefix + step):
        names = [member[len(prefix) :] for member in members]
        fix = f"name one of its members, such as {_form(names, as_element).format(names[0])}"
        if reference is None:
            fix += f"; a <require> can name any of them, {' or '.join(names[:3])}"
        return f"{message}: it is a union, which is no part of a path", fix
    if "." in path and (slashed := path.replace(".", "/")) in modules:
        return message, f"join names by slashes, /{slashed}" + (f": write {_nested(slashed)}" if as_element else "")
    if "." in path and path.rpartition(".")[0] in modules:
        return message, "a path leads to a module, and not to a parameter of it"
    elsewhere = [known for known in modules if known.rpartition("/")[2] == steps[-1]]
    if step not in here and elsewhere:
        fix = f"there is one at {' and at '.join(f'/{module}' for module in elsewhere[:3])}"
        if as_element:
            inner = [module.removeprefix(prefix) for module in elsewhere[:3]]
            at_top = " at the top level" if prefix and inner == elsewhere[:3] else ""
            fix += f": write {' or '.join(map(_nested, inner))}{at_top}"
        return message, fix
    found = did_you_mean(step, here, _form(here, as_element))
    found = found or (f"modules {where}: {few(here)}" if here else f"there are no modules {where}")
    return message, f"{found}; {AS_TEXT}" if as_element and step in HTML else found


def _form(names: Iterable[str], as_element: bool) -> str:
    return "<{}>" if as_element and all(map(is_tag, names)) else "'{}'"


def meant(word: str, known: Iterable[str], form: str = "'{}'") -> str | None:
    """Return "did you mean 'x'?" for a known word with the meaning or nearly the letters of `word`, or None."""
    known = [*known]
    same = next((each for each, words in _GROUPS.items() if word.lower() in words.split() and each in known), None)
    return did_you_mean(word, known, form) if same is None else f"did you mean {form.format(same)}?"
