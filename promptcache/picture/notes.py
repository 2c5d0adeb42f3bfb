"""Write the tooltips of a picture: text, positions, tokens, bytes and context of each part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from promptcache.diagnostics import counted, listed, size_text
from promptcache.language import CheckedModule, CheckedScaffold
from promptcache.layout import (
    Layout,
    LayoutNode,
    Piece,
    Run,
    RunState,
    Slot,
    StateKind,
    TextPiece,
    may_be_previous,
    sees_previous,
)
from promptcache.picture.text import excerpt, fit

_MANY_RUNS = 400
_MAX_CHARS, _MAX_CHARS_OF_MANY = 160, 48  # length of an excerpt
_MAX_SEEN, _MAX_SEEN_OF_MANY = 6, 3
_MAX_PATH = 80

Lines = tuple[str, ...]
Sections = Iterable[tuple[int, int, str]]
"""Start, stop and style of the parts of a piece."""


class Notes:
    """Writer of the tooltips for a layout. Sections describe the use of a part in a plan."""

    def __init__(self, layout: Layout, states: Sequence[RunState], token_bytes: int | None) -> None:
        self._layout = layout
        self._all_states = states
        self._token_bytes = token_bytes
        has_many = self._has_many = len(layout.runs) > _MANY_RUNS  # with many runs the picture would become large
        self._max_chars = _MAX_CHARS_OF_MANY if has_many else _MAX_CHARS
        self._max_seen = _MAX_SEEN_OF_MANY if has_many else _MAX_SEEN
        self._bos_run = 0 if layout.has_bos else None
        self._modules_of: dict[tuple[int, ...], Lines] = {}
        self._states: dict[int, list[RunState]] = {}
        for state in states:
            self._states.setdefault(state.run, []).append(state)

    def text(self, run: Run, piece: TextPiece, what: str, sections: Sections) -> Lines:
        """Return the tooltip of a text. `what` names BOS and the header or footer of a turn."""
        num_tokens = len(piece.token_ids)
        return (
            what if what and not run.module else f"{what or 'text'} {_owner(run.module)}",
            excerpt(piece.text, self._max_chars),
            self._cost(piece.start, piece.stop, num_tokens, run.cached),
            *_use(sections),
            *([] if self._has_many else self._sees(run)),
        )

    def slot(self, run: Run, slot: Slot, sections: Sections, argument: str | None) -> Lines:
        """Return the tooltip of a slot: its filler, and its content in a prompt."""
        parameter = self._layout.schema.parameters[slot.module][slot.parameter]
        fillers = {"placeholder": parameter.placeholder, "default": parameter.default}
        required = ", required" if slot.required else ""
        return (
            f"slot {slot.parameter} {_owner(slot.module)}{required}",
            self._cost(slot.start, slot.stop, len(slot.filler_ids), run.cached, "of filler"),
            *(f"{name} {excerpt(text, self._max_chars)}" for name, text in fillers.items() if text is not None),
            *([] if argument is None else [f"argument {excerpt(argument, self._max_chars)}"]),
            *_use(sections),
            *([] if self._has_many else ["an argument sees every token in use before it"]),
        )

    def module(self, node: LayoutNode, module: CheckedModule, num_tokens: int, *, present: bool) -> Lines:
        """Return the tooltip of a module: its positions, and the cost and context of its own text."""
        runs = self._layout.runs_of[module.path]
        facts = {"required": module.required, "not cached": not module.cache, "absent": not present}
        return (
            ", ".join([f"module {_path(module.path)}", *(name for name, holds in facts.items() if holds)]),
            self._cost(node.start, node.stop, num_tokens, module.cache, "of its own"),
            *(self._sees(self._layout.runs[runs[-1]]) if runs else ()),
        )

    def scaffold(self, scaffold: CheckedScaffold, num_tokens: int, *, present: bool) -> Lines:
        """Return the tooltip of a scaffold: its members, and what it costs."""
        kept = "" if self._token_bytes is None else f" · KV {size_text(num_tokens * self._token_bytes)}"
        return (
            f"scaffold {_path(scaffold.name)}{'' if present else ', not used by this prompt'}",
            f"{listed([_path(each) for each in scaffold.members], self._max_seen)}: each sees the others before it",
            f"{counted(num_tokens, 'token')} once more{kept}",
        )

    def added(self, new: Piece, text: str | None) -> Lines:
        """Return the tooltip of a text that a prompt adds after the schema."""
        quoted = [] if text is None else [excerpt(text, self._max_chars)]
        cost = self._cost(new.start, new.stop, len(new.token_ids), True)
        return (f"{new.origin} added by the prompt", *quoted, cost, "new; sees every token in use before it")

    def _cost(self, start: int, stop: int, num_tokens: int, cached: bool, whose: str = "") -> str:
        kept = "" if self._token_bytes is None or not cached else f" · KV {size_text(num_tokens * self._token_bytes)}"
        tokens = f"{counted(num_tokens, 'token')} {whose}".rstrip()
        return f"{positions(start, stop)} · {tokens}{kept}"

    def _sees(self, run: Run) -> Iterator[str]:
        """Yield the context of a run in each of its states."""
        if not run.cached:
            yield "not cached: new in every request, where it sees every token in use before it"
            return
        plain: Lines = ()
        for state in self._states.get(run.index, ()):
            seen = self._modules(state.sees)
            if state.kind is StateKind.PLAIN:
                plain = seen
                yield f"sees {self._names(run.module, seen) or ('BOS' if state.sees else 'nothing before it')}"
                if self._sees_previous(run):
                    yield "behind other modules it sees the one before, too"
            if not state.scaffolds:
                continue
            more = [module for module in seen if module not in plain]
            yield f"in scaffold {', '.join(state.scaffolds)} it sees {self._names(run.module, more) or 'the same'}, too"

    def _sees_previous(self, run: Run) -> bool:
        """Whether prompts may have a module before a run that it sees only then."""
        layout = self._layout
        if not sees_previous(layout, run):
            return False
        guaranteed = layout.schema.guaranteed[run.module]
        before = (each for each in layout.runs[: run.index] if each.module and each.cached and each.stop <= run.start)
        return any(each.module not in guaranteed and may_be_previous(layout, each) for each in before)

    def _names(self, module: str, seen: Sequence[str]) -> str:
        own = "text before it outside modules" if not module else "its own text before it"
        names = {module: own, "": "text outside modules" if module else own}
        return listed([names.get(each) or _path(each) for each in seen], self._max_seen)

    def _modules(self, sees: tuple[int, ...]) -> Lines:
        """Return the modules whose runs are in the context of a state, in order, without BOS."""
        modules = self._modules_of.get(sees)
        if modules is None:
            runs = [self._all_states[index].run for index in sees]
            found = dict.fromkeys(self._layout.runs[run].module for run in runs if run != self._bos_run)
            modules = self._modules_of[sees] = tuple(found)
        return modules


def gap(start: int, stop: int, why: str) -> Lines:
    """Return the tooltip of positions without text."""
    return (why, f"{positions(start, stop)} without text")


def positions(start: int, stop: int) -> str:
    """Return a range of positions by its first and its last position."""
    if stop - start <= 1:
        return f"position {start:,}" if stop > start else f"no positions, at {start:,}"
    return f"positions {start:,}–{stop - 1:,} ({stop - start:,})"


def _use(sections: Sections) -> Iterator[str]:
    """Yield the use of a piece in a prompt; nothing without a plan."""
    for start, stop, look in sections:
        if look in ("reused", "repaired", "new"):
            yield f"{look}: {counted(stop - start, 'token')} from position {start:,}"
        elif look == "absent":
            yield "absent from this prompt"


def _owner(module: str) -> str:
    return f"of module {_path(module)}" if module else "outside modules"


def _path(module: str) -> str:
    """Return a module's path, shortened to a readable length."""
    return fit([module], _MAX_PATH)
