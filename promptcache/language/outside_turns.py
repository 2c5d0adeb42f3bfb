"""Text outside of chat turns: a model that was trained on conversations sees no such text anywhere else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from promptcache.diagnostics import Diagnostic, Span, diagnostic
from promptcache.language.checked import CheckedItem, CheckedModule, CheckedParameter, CheckedUnion, FinalText
from promptcache.language.syntax.names import listed


def texts_outside_turns(items: Iterable[CheckedItem]) -> dict[str, Span]:
    """Return the first text or slot outside of turns of each module that has one, by path; "" for anonymous text."""
    found: dict[str, Span] = {}
    for path, span in _texts(items, ""):
        found.setdefault(path, span)
    return found


def text_outside_turns(texts: Mapping[str, Span], modules: Sequence[str]) -> Iterator[Diagnostic]:
    """Yield the warning for a conversation that contains text outside of its turns, if it does.

    Args:
        texts: The result of `texts_outside_turns` for the schema.
        modules: Paths of the modules that are present.
    """
    present = [path for path in ("", *modules) if path in texts]
    if present:
        named = present if present[0] else present[1:]
        parts = [] if present[0] else ["text outside of modules"]
        parts += [f"the text of module{'s' * (len(named) > 1)} {listed(named)}"] if named else []
        message = f"{' and '.join(parts)} is outside of chat turns"
        fix = "write it inside a turn: a <system> or <user> turn can contain modules, unions and collections"
        yield diagnostic("PC518", message, texts[present[0]], fix)


def _texts(items: Iterable[CheckedItem], owner: str) -> Iterator[tuple[str, Span]]:
    for item in items:
        match item:
            case FinalText() if item.text.strip():
                yield owner, item.span
            case CheckedParameter():
                yield owner, item.span
            case CheckedModule():
                if item.collection is not None:
                    yield item.path, item.span
                yield from _texts(item.children, item.path)
            case CheckedUnion():
                yield from _texts(item.members, owner)
