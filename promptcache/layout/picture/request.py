"""What a prompt adds after the schema, as a box of its own.

Comes in: a plan. Goes out: a box with a mark for every header, text and footer, and one for the place where generation
starts. What fills slots is no part of it: that is drawn in the slots.
"""

from __future__ import annotations

from promptcache.layout.picture.notes import Notes
from promptcache.layout.picture.parts import Box, BoxKind, Look, Mark, MarkKind, Section
from promptcache.layout.types import Origin, Plan, Prefill

MAX_LABEL = 100

_ADDED = (Origin.HEADER, Origin.TEXT, Origin.FOOTER)


def request_box(plan: Plan, notes: Notes) -> Box:
    """Return what the prompt adds after the schema, and the place where generation starts."""
    texts = iter([message.text for message in plan.selection.messages if message.text])
    marks = [
        _mark(new, next(texts, None) if new.origin is Origin.TEXT else None, notes)
        for new in plan.prefill
        if new.origin in _ADDED
    ]
    told = f"generation starts at position {plan.stop:,}"
    marks.append(Mark(kind=MarkKind.NEXT, start=plan.stop, stop=plan.stop + 1, notes=(told,)))
    return Box(
        kind=BoxKind.REQUEST,
        start=marks[0].start,
        stop=plan.stop + 1,
        rows=(tuple(marks),),
        labels=("added by the prompt", "prompt"),
        notes=(f"added by the prompt: {plan.stop - marks[0].start:,} tokens", told),
    )


def _mark(new: Prefill, text: str | None, notes: Notes) -> Mark:
    return Mark(
        kind=MarkKind.TEXT,
        start=new.start,
        stop=new.stop,
        labels=(str(new.origin) if text is None else text.strip()[:MAX_LABEL],),
        notes=notes.added(new, text),
        sections=(Section(start=new.start, stop=new.stop, look=Look.NEW),),
    )
