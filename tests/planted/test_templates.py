"""The laws of `tests.templates` can fail: each planted fault, and each missing habit of a chat template, breaks one."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import Diagnostic, PromptCacheError, Span, TemplateRefusal, diagnostic
from promptcache.layout import LeafKind, added_text, own_turns
from promptcache.layout import plan as planning
from promptcache.layout.lay_out import _Walk
from promptcache.layout.own_turns import OwnTurns
from promptcache.layout.schema_texts import SchemaTexts
from promptcache.planning.planner import Planner
from promptcache.tokenizer import FROZEN_DATE, Before
from promptcache.tokenizer.hub_tokenizer import _Parts
from promptcache.tokenizer.text_tokenizer import TextTokenizer
from tests.conftest import some_of
from tests.planted import registry
from tests.planted.registry import TEMPLATE_FAULTS, PlantedFault
from tests.templates.laws import ANSWERS, CONTROLS, CONVERSATIONS, DIFFERENCES, LAWS, SCHEMAS, TEXTS
from tests.templates.shapes import SHAPES
from tests.templates.subjects import Subject, make_subject

Patch = pytest.MonkeyPatch
fault, edited, wrapped = (
    partial(each, among=registry.TEMPLATE_FAULTS) for each in (registry.fault, registry.edited, registry.wrapped)
)


@fault("turns have one frame for each role", law=CONVERSATIONS, template="chatml with a default system text")
def _one_frame(patch: Patch) -> None:
    patch.setattr(OwnTurns, "texts", lambda self: self._apart())


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


edited(
    "an answer that goes on is closed",
    OwnTurns._rendered,
    ("turns[-1].own + _GOES_ON", "turns[-1].own"),
    ("    if not self._continues:\n        return rendered\n", "    return rendered\n"),
    law=CONVERSATIONS,
)


@fault("a text that the template leaves out is written", law=CONVERSATIONS, template="system text left out")
def _never_whole(patch: Patch) -> None:
    original = OwnTurns._cut
    patch.setattr(
        OwnTurns, "_cut", lambda *args, is_complete: original(*args, is_complete=True) if is_complete else None
    )


@fault("a refused conversation is written all the same", law=CONVERSATIONS, template="roles must alternate")
def _written_all_the_same(patch: Patch) -> None:
    original = OwnTurns._rendered

    def rendered(self: Any, conversation: Any) -> str:
        try:
            return original(self, conversation)
        except TemplateRefusal:
            return "x"

    patch.setattr(OwnTurns, "_rendered", rendered)


@fault("texts of a prompt are what a template wrote", law=CONTROLS)
def _forged(patch: Patch) -> None:
    patch.setattr(TextTokenizer, "_forged", lambda self, tokens, text, plain: {})


@fault("markers that are no special tokens are words", law=CONTROLS, kind="byte level with words")
def _markers_are_words(patch: Patch) -> None:
    patch.setattr(_Parts, "turn_markers", lambda self, written: iter(()))


@fault("texts are not protected where the template changes them", law=CONTROLS, template="newlines within contents")
def _unprotected(patch: Patch) -> None:
    patch.setattr(own_turns, "_control_forms", lambda tokenizer: None)


@fault("what a prompt adds is tokenized apart", law=SCHEMAS, template="alpaca", kind="metaspace first")
def _apart(patch: Patch) -> None:
    patch.setattr(
        added_text,
        "_joined",
        lambda pieces, texts, before, tokenizer: (pieces, tokenizer.tokenize_parts(texts, before)),
    )


edited(
    "cached tokens that change stay in use",
    added_text._joined,
    ("if num_replaced:", "if False:"),
    law=SCHEMAS,
    template="alpaca",
)


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
    patch.setattr(
        "promptcache.tokenizer.conversation.Conversations.preamble", lambda self, gap, role: ("", self._opening(role))
    )
    _warn(patch, lambda warnings: ())


@fault("differences are silent", law=DIFFERENCES, template="trimmed contents")
def _silent(patch: Patch) -> None:
    _warn(patch, lambda warnings: ())


@fault("there is always a warning", law=DIFFERENCES)
def _always(patch: Patch) -> None:
    other = diagnostic("PC514", "?", Span("", 0, 0, 0, 0))
    _warn(patch, lambda warnings: (*warnings, other))


@fault("a warning shows another place", law=DIFFERENCES, template="trimmed contents")
def _elsewhere(patch: Patch) -> None:
    _warn(patch, lambda warnings: tuple(replace(each, message="?") for each in warnings))


@fault("answers are tokenized again", law=ANSWERS)
def _again(patch: Patch) -> None:
    original = planning.with_added_text
    patch.setattr(planning, "with_added_text", lambda *args: original(*args[:-1]))


@fault("an answer keeps its tokens where the template changes it", law=ANSWERS, template="trimmed contents")
def _always_kept(patch: Patch) -> None:
    def found_answer(self: Any, answer_ids: Any, start: int, *_: Any) -> Any:
        return start, tuple(each for each in answer_ids if each not in self._tokenizer.control_ids)

    patch.setattr(OwnTurns, "_found_answer", found_answer)


@fault("the end token of an answer is written twice", law=ANSWERS)
def _two_ends(patch: Patch) -> None:
    original = OwnTurns._parts

    def parts(self: Any, *args: Any, **options: Any) -> Any:
        for part in original(self, *args, **options):
            ids = part.token_ids
            yield part if ids is None else replace(part, token_ids=(*ids, *set(ids[-1:]) & self._tokenizer.control_ids))

    patch.setattr(OwnTurns, "_parts", lambda *args, **options: [*parts(*args, **options)])


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


def _warn(patch: Patch, changed: Callable[[tuple[Diagnostic, ...]], tuple[Diagnostic, ...]]) -> None:
    original = planning.with_added_text

    def with_added_text(*args: Any) -> Any:
        *found, warnings = original(*args)
        return *found, changed(warnings)

    patch.setattr(planning, "with_added_text", with_added_text)


pytestmark = pytest.mark.law
CAUGHT = (AssertionError, LookupError, ValueError, PromptCacheError)
"""Errors of a broken law, or of the broken library on a valid case."""


def probe(law: str, subject: Subject, num_examples: int = 500) -> None:
    @settings(
        max_examples=num_examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        strategy, check = LAWS[law]
        check(subject, data.draw(strategy), subject.shape.options if data.draw(st.booleans()) else {})

    run()


@pytest.mark.parametrize("fault", some_of(TEMPLATE_FAULTS, 8), ids=lambda fault: fault.name)
def test_planted_faults_are_caught(fault: PlantedFault) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        subject = make_subject(fault.template, fault.kind, SHAPES[fault.template].source)
        with pytest.raises(CAUGHT):
            probe(fault.law, subject)


@pytest.mark.parametrize("name", some_of(SHAPES, 8))
def test_the_laws_notice_a_missing_habit(name: str) -> None:
    """A library whose template lacks the habit of the template breaks the law: random conversations show each habit."""
    tampered = make_subject(name, "byte level with words", SHAPES[name].without_habit)

    with pytest.raises(AssertionError):
        probe(CONVERSATIONS, tampered, 1000)


def test_each_law_has_a_fault() -> None:
    assert {fault.law for fault in TEMPLATE_FAULTS} == {*LAWS}
    assert len({fault.name for fault in TEMPLATE_FAULTS}) == len(TEMPLATE_FAULTS)
