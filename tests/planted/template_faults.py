"""Faults that are planted into the library. Each of them must break the law that is registered for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from promptcache.diagnostics import TemplateRefusal
from promptcache.layout import LeafKind, added_text
from promptcache.layout.added_text import AddedText, Origin, _OwnTurns, _Part
from promptcache.layout.lay_out import _Walk
from promptcache.layout.schema_texts import SchemaTexts
from promptcache.layout.seam import Seam
from promptcache.planning.planner import Planner
from promptcache.tokenizer import FROZEN_DATE, Before
from promptcache.tokenizer.hub_tokenizer import _Parts
from promptcache.tokenizer.text_tokenizer import TextTokenizer
from tests.planted import registry

Patch = pytest.MonkeyPatch
CONVERSATIONS, CONTROLS, SCHEMAS = "conversations", "control tokens", "schemas"
DIFFERENCES, ANSWERS, TEXTS = "differences", "answers", "texts"


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFault:
    """Planted fault: `plant` patches it into the library, `law` is the name of the law that must detect it.

    The law is checked with one chat template and one tokenizer, which show the fault.
    """

    name: str
    law: str
    template: str
    kind: str
    plant: Callable[[Patch], None]


FAULTS: list[TemplateFault] = []


def fault(
    name: str, *, law: str, template: str = "chatml", kind: str = "byte level"
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Register a function that plants a fault."""

    def register(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        FAULTS.append(TemplateFault(name=name, law=law, template=template, kind=kind, plant=plant))
        return plant

    return register


wrapped = partial(registry.wrapped, register=fault)


@fault("turns have one frame for each role", law=CONVERSATIONS, template="chatml with a default system text")
def _one_frame(patch: Patch) -> None:
    patch.setattr(_OwnTurns, "_written", lambda self: self._parts(self._framed_gaps(), self._turns))


@fault("a plain chat has the date of schemas", law=CONVERSATIONS, template="a date in the default system text")
def _frozen(patch: Patch) -> None:
    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return FROZEN_DATE

    patch.setattr("promptcache.planning.planner.datetime", Frozen)


@fault("variables of the template are dropped", law=CONVERSATIONS, template="thinking switched off")
def _no_options(patch: Patch) -> None:
    original = Planner._conversations_of
    patch.setattr(Planner, "_conversations_of", lambda self, state, options: original(self, state, None))


@wrapped("an answer that goes on is closed", _OwnTurns, "_rendered", law=CONVERSATIONS)
def _closed(_: Any, self: Any, conversation: Any) -> str:
    turns = [(turn.role, turn.text) for turn in conversation]
    return self._conversations.render(turns, generation_prompt=not self._continues)


@fault("a template that leaves out a text is refused", law=CONVERSATIONS, template="system text left out")
def _never_whole(patch: Patch) -> None:
    patch.setattr(_OwnTurns, "_whole", lambda self: None)


@fault("a refused conversation is written all the same", law=CONVERSATIONS, template="roles must alternate")
def _written_all_the_same(patch: Patch) -> None:
    patch.setattr(added_text, "TextNotInPlace", TemplateRefusal)


@fault("texts of a prompt are what a template wrote", law=CONTROLS)
def _forged(patch: Patch) -> None:
    patch.setattr(TextTokenizer, "_is_forged", lambda self, token, text, plain: False)


@fault("markers that are no special tokens are words", law=CONTROLS, kind="byte level with words")
def _markers_are_words(patch: Patch) -> None:
    patch.setattr(_Parts, "turn_markers", lambda self, written: iter(()))


@fault("texts are not protected where the template changes them", law=CONTROLS, template="newlines within contents")
def _unprotected(patch: Patch) -> None:
    patch.setattr(_OwnTurns, "_control_forms", lambda self: [])


@fault("what a prompt adds is tokenized apart", law=SCHEMAS, template="alpaca", kind="metaspace first")
def _apart(patch: Patch) -> None:
    patch.setattr(Seam, "join", lambda self, texts, tokenizer: (0, tokenizer.tokenize_parts(texts, self.before)))


@fault("cached tokens that change stay in use", law=SCHEMAS, template="alpaca")
def _kept(patch: Patch) -> None:
    patch.setattr("promptcache.layout.plan.without_last", lambda pieces, num_tokens: tuple(pieces))


@wrapped("a closed turn has no footer", _Walk, "_text_piece", law=SCHEMAS)
def _no_footer(original: Any, self: Any, kind: Any, written: Any, span: Any) -> Any:
    return [] if kind is LeafKind.FOOTER else original(self, kind, written, span)


@wrapped(
    "each text of a schema is tokenized apart",
    SchemaTexts,
    "_add",
    law=SCHEMAS,
    template="header with a trailing space",
)
def _texts_apart(original: Any, self: Any, text: str) -> None:
    self._flush()
    original(self, text)


@fault("the default system text is left out of schemas", law=DIFFERENCES, template="chatml with a default system text")
def _no_preamble(patch: Patch) -> None:
    original = _OwnTurns._text_of
    patch.setattr(
        "promptcache.tokenizer.conversation.Conversations.preamble", lambda self, gap, role: ("", self._opening(role))
    )
    patch.setattr(_OwnTurns, "_text_of", lambda self, parts: self._rendered(self._turns) or original(self, parts))


@fault("differences are silent", law=DIFFERENCES, template="trimmed contents")
def _silent(patch: Patch) -> None:
    _drop_warnings(patch)


@fault("there is always a warning", law=DIFFERENCES)
def _always(patch: Patch) -> None:
    patch.setattr(_OwnTurns, "_text_of", lambda self, parts: "")


@wrapped("a warning shows another place", AddedText, "of", law=DIFFERENCES, template="trimmed contents")
def _elsewhere(original: Any, self: Any, selection: Any, seam: Any) -> Any:
    added = original(self, selection, seam)
    return replace(added, warnings=tuple(replace(each, message="?") for each in added.warnings))


@fault("answers are tokenized again", law=ANSWERS)
def _again(patch: Patch) -> None:
    original = AddedText.__init__
    patch.setattr(
        AddedText, "__init__", lambda self, layout, tokenizer, made, answers: original(self, layout, tokenizer, made)
    )


@wrapped(
    "an answer keeps its tokens where the template changes it",
    _OwnTurns,
    "_generated",
    law=ANSWERS,
    template="trimmed contents",
)
def _always_kept(_: Any, self: Any, turns: Any, gap: str, following: str) -> Any:
    ids = tuple(each for each in turns[-1].answer_ids if each not in self._tokenizer.control_ids)
    return _Part(Origin.TEXT, turns[-1].text.strip(), ids), gap, following


@wrapped("the end token of an answer is written twice", _OwnTurns, "_generated", law=ANSWERS)
def _two_ends(original: Any, self: Any, turns: Any, gap: str, following: str) -> Any:
    part, asked, _ = original(self, turns, gap, following)
    return part, asked, following


@wrapped("the first text is not at a start", SchemaTexts, "_flush", law=TEXTS, kind="prepend")
def _not_first(original: Any, self: Any) -> None:
    self._before = Before.TEXT
    original(self)


@fault("added words are split", law=TEXTS, kind="byte level with words")
def _split(patch: Patch) -> None:
    patch.setattr(
        _Parts, "turn_markers", lambda self, written: (each["content"] for each in self.rules["added_tokens"])
    )


@fault("BOS is left out", law=TEXTS, kind="metaspace never")
def _no_bos(patch: Patch) -> None:
    patch.setattr(
        "promptcache.tokenizer.hub_tokenizer.HubTokenizer.bos_ids",
        property(lambda _: (), lambda *_: None),
        raising=False,
    )


def _drop_warnings(patch: Patch) -> None:
    original = AddedText.of
    patch.setattr(AddedText, "of", lambda self, *args: replace(original(self, *args), warnings=()))
