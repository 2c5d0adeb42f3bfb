"""What is told about a part of the picture while the pointer rests on it: lines of words.

Comes in: runs, slots and modules of a layout, what is in use of them, and what a token costs. Goes out: lines. This
file does not know how or where they are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from promptcache.language.checked import CheckedModule
from promptcache.layout.picture.excerpt import counted, excerpt, fit, listed, size
from promptcache.layout.picture.parts import Look, Section
from promptcache.layout.types import Layout, Prefill, Run, RunState, Slot, Stretch

_MANY_RUNS = 400
_MAX_CHARS, _MAX_CHARS_OF_MANY = 160, 48  # of an excerpt
_MAX_SEEN, _MAX_SEEN_OF_MANY = 6, 3
_MAX_PATH = 80

Lines = tuple[str, ...]


class Notes:
    """Writes the lines for every part of a layout; a plan tells itself by the sections that it makes of them."""

    def __init__(self, layout: Layout, states: Sequence[RunState], token_bytes: int | None) -> None:
        self._layout = layout
        self._all_states = states
        self._token_bytes = token_bytes
        has_many = len(layout.runs) > _MANY_RUNS  # so many that the picture would get large
        self._max_chars = _MAX_CHARS_OF_MANY if has_many else _MAX_CHARS
        self._max_seen = _MAX_SEEN_OF_MANY if has_many else _MAX_SEEN
        self._bos_run = 0 if layout.has_bos else None
        self._modules_of: dict[tuple[int, ...], Lines] = {}
        self._states: dict[int, list[RunState]] = {}
        for state in states:
            self._states.setdefault(state.run, []).append(state)

    def stretch(self, run: Run, stretch: Stretch, what: str, sections: Sequence[Section]) -> Lines:
        """Tell a text; `what` names one that is no text of the schema: BOS, or a turn's header or footer."""
        num_tokens = len(stretch.token_ids)
        return (
            what if what and not run.module else f"{what or 'text'} {_owner(run.module)}",
            excerpt(stretch.text, self._max_chars),
            self._cost(stretch.start, stretch.stop, num_tokens, run.cached),
            *_use(sections),
            *self._sees(run),
        )

    def slot(self, run: Run, slot: Slot, sections: Sequence[Section], argument: str | None) -> Lines:
        """Tell a slot: its filler, what a prompt puts there, and what that sees."""
        parameter = self._layout.schema.parameters[slot.module][slot.parameter]
        fillers = {"placeholder": parameter.placeholder, "default": parameter.default}
        required = ", required" if slot.required else ""
        return (
            f"slot {slot.parameter} {_owner(slot.module)}{required}",
            self._cost(slot.start, slot.stop, len(slot.filler_ids), run.cached, "of filler"),
            *(f"{name} {excerpt(text, self._max_chars)}" for name, text in fillers.items() if text is not None),
            *([] if argument is None else [f"argument {excerpt(argument, self._max_chars)}"]),
            *_use(sections),
            "an argument sees every token in use before it",
        )

    def module(self, module: CheckedModule, *, present: bool) -> Lines:
        """Tell a module: what it takes with all that is in it, what its own text costs and sees."""
        extent = self._layout.extents[module.path]
        runs = [self._layout.runs[index] for index in self._layout.runs_of[module.path]]
        num_tokens = sum(len(p.token_ids if isinstance(p, Stretch) else p.filler_ids) for r in runs for p in r.pieces)
        facts = {"required": module.required, "not cached": not module.cache, "absent": not present}
        return (
            ", ".join([f"module {_path(module.path)}", *(name for name, holds in facts.items() if holds)]),
            self._cost(extent.start, extent.stop, num_tokens, module.cache, "of its own"),
            *(self._sees(runs[-1]) if runs else ()),
        )

    def added(self, new: Prefill, text: str | None) -> Lines:
        """Tell what a prompt adds after the schema."""
        quoted = [] if text is None else [excerpt(text, self._max_chars)]
        cost = self._cost(new.start, new.stop, len(new.token_ids), True)
        return (f"{new.origin} added by the prompt", *quoted, cost, "new; sees every token in use before it")

    def _cost(self, start: int, stop: int, num_tokens: int, cached: bool, whose: str = "") -> str:
        kept = "" if self._token_bytes is None or not cached else f" · KV {size(num_tokens * self._token_bytes)}"
        tokens = f"{counted(num_tokens, 'token')} {whose}".rstrip()
        return f"{positions(start, stop)} · {tokens}{kept}"

    def _sees(self, run: Run) -> Iterator[str]:
        """Yield what a run attends to while it is encoded, in each of its states."""
        if not run.cached:
            yield "not cached: new in every request, where it sees every token in use before it"
            return
        plain: Lines = ()
        for state in self._states.get(run.index, ()):
            seen = self._modules(state.sees)
            if not state.scaffolds:
                plain = seen
                yield f"sees {self._names(run.module, seen) or ('BOS' if state.sees else 'nothing before it')}"
                continue
            more = [module for module in seen if module not in plain]
            yield f"in scaffold {', '.join(state.scaffolds)} it sees {self._names(run.module, more) or 'the same'}, too"

    def _names(self, module: str, seen: Sequence[str]) -> str:
        own = "text before it outside modules" if not module else "its own text before it"
        names = {module: own, "": "text outside modules" if module else own}
        return listed([names.get(each) or _path(each) for each in seen], self._max_seen)

    def _modules(self, sees: tuple[int, ...]) -> Lines:
        """Return the modules whose runs a state sees, in order; BOS counts for none."""
        modules = self._modules_of.get(sees)
        if modules is None:
            runs = [self._all_states[index].run for index in sees]
            found = dict.fromkeys(self._layout.runs[run].module for run in runs if run != self._bos_run)
            modules = self._modules_of[sees] = tuple(found)
        return modules


def gap(start: int, stop: int, why: str) -> Lines:
    """Tell positions that nothing takes."""
    return (why, f"{positions(start, stop)} without text")


def positions(start: int, stop: int) -> str:
    """Write a range of positions by its first and its last one."""
    if stop - start <= 1:
        return f"position {start:,}" if stop > start else f"no positions, at {start:,}"
    return f"positions {start:,}–{stop - 1:,} ({stop - start:,})"


def _use(sections: Iterable[Section]) -> Iterator[str]:
    """Yield what a prompt does with a piece; nothing where no plan is drawn."""
    for section in sections:
        if section.look in (Look.REUSED, Look.NEW):
            yield f"{section.look}: {counted(section.stop - section.start, 'token')} from position {section.start:,}"
        elif section.look is Look.ABSENT:
            yield "absent from this prompt"


def _owner(module: str) -> str:
    return f"of module {_path(module)}" if module else "outside modules"


def _path(module: str) -> str:
    """Return a module's path, shortened if it would fill the screen."""
    return fit([module], _MAX_PATH)
