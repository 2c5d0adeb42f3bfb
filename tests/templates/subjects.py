"""A chat template with a tokenizer, in this library and in transformers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from promptcache.language import DEFAULT_REPAIR, CheckedSchema
from promptcache.layout import Plan
from promptcache.model import wrap_tokenizer
from promptcache.planning import Catalog, Planner, serve_schema
from promptcache.tokenizer import FROZEN_DATE, Tokenizer
from tests.laws.position_oracle import planned_tokens
from tests.templates.kinds import KINDS, MARKERS
from tests.templates.shapes import SHAPES, Shape

Chat = Sequence[tuple[str, str]]
"""The roles and texts of a conversation."""

REASONING = "Hm, the dog.\n"
"""The reasoning of each answer in conversations with reasoning."""

LOSSLESS = ("byte level", "byte level with words", "metaspace never")
"""Tokenizers that decode to the text that they got, without a space at a start."""

_MAX_POSITIONS = 100_000


@dataclass(frozen=True, slots=True)
class Subject:
    """A template with a tokenizer of transformers and ours; no text may have the `controls`."""

    name: str
    shape: Shape
    is_lossless: bool
    reference: Any
    tokenizer: Tokenizer
    planner: Planner
    controls: frozenset[int]

    def expected_text(self, chat: Chat, options: Mapping[str, Any]) -> str | None:
        """Return the text of a conversation up to its next answer; None if the template refuses it."""
        return _applied(self.reference, self.shape, chat, {"tokenize": False, **options})

    def expected_ids(self, chat: Chat, options: Mapping[str, Any], reasoning: str = "") -> list[int] | None:
        """Return the token IDs of a conversation up to its next answer; None if the template refuses it."""
        return _applied(self.reference, self.shape, chat, {"return_dict": False, **options}, reasoning)

    def planner_of(self, schema: CheckedSchema) -> Planner:
        catalog = Catalog(None)
        catalog.add(serve_schema(schema, self.tokenizer, _MAX_POSITIONS))
        return Planner(catalog, self.tokenizer, _MAX_POSITIONS, DEFAULT_REPAIR)

    def pieces(self, token_ids: Sequence[int] | None) -> list[str] | None:
        """Return tokens as an error shows them."""
        return None if token_ids is None else self.reference.convert_ids_to_tokens(token_ids)


def messages(chat: Chat, *, in_parts: bool = False, reasoning: str = "") -> list[dict[str, Any]]:
    return [
        {"role": role, "content": [{"type": "text", "text": text}] if in_parts else text}
        | ({"reasoning_content": reasoning} if reasoning and role == "assistant" else {})
        for role, text in chat
    ]


def ids_of(plan: Plan) -> list[int]:
    return [token_id for _, token_id in sorted(planned_tokens(plan))]


def subjects(kind: str, offset: int = 0, step: int = 1) -> list[Subject]:
    return [subject(name, kind) for name in [*SHAPES][offset::step]]


@cache
def subject(name: str, kind: str) -> Subject:
    return make_subject(name, kind, SHAPES[name].source)


def make_subject(name: str, kind: str, ours: str) -> Subject:
    shape = SHAPES[name]
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **shape.tokens}
    reference = PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(_rules(kind)), **tokens)
    reference.chat_template = ours
    tokenizer = wrap_tokenizer(reference)
    reference.chat_template = shape.source
    planner = Planner(Catalog(None), tokenizer, _MAX_POSITIONS, DEFAULT_REPAIR)
    controls = frozenset(_controls(reference, shape))
    return Subject(f"{name}, {kind}", shape, kind in LOSSLESS, reference, tokenizer, planner, controls)


def _applied(reference: Any, shape: Shape, chat: Chat, options: Mapping[str, Any], reasoning: str = "") -> Any:
    continues = chat[-1][0] == "assistant"
    try:
        return reference.apply_chat_template(
            messages(chat, in_parts=shape.in_parts, reasoning=reasoning),
            add_generation_prompt=not continues,
            continue_final_message=continues,
            **options,
        )
    except (TemplateError, ValueError):
        return None


def _controls(reference: Any, shape: Shape) -> Iterator[int]:
    talk = [("system", "x"), ("user", "x"), ("assistant", "x"), ("user", "x")]
    written = "".join(_applied(reference, shape, chat, {"tokenize": False}) or "" for chat in (talk, talk[1:]))
    for token_id, token in reference.added_tokens_decoder.items():
        form = token.content
        if form != "<unk>" and (token.special or (form in MARKERS and form in written)):
            yield token_id


@cache
def _rules(kind: str) -> str:
    return KINDS[kind]()


class _Frozen(datetime):
    """The day on which schemas are laid out."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return FROZEN_DATE


@contextmanager
def frozen_date() -> Iterator[None]:
    """Give templates in transformers the day that turns of a schema have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.utils.chat_template_utils.datetime", _Frozen)
        yield
