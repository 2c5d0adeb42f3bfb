"""What a prompt adds after the schema: turns and bare text, with their headers and footers, as token IDs.

Comes in: a selection and a tokenizer. Goes out: token IDs in order, without positions. The table in docs/layout.md,
"A prompt", is the law that this file carries out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from promptcache.language.checked import Selection
from promptcache.language.prompt import Message
from promptcache.language.schema import Role
from promptcache.layout.types import Layout, Origin
from promptcache.tokenizer import Tokenizer

Added: TypeAlias = tuple[Origin, tuple[int, ...]]


def added_tokens(selection: Selection, layout: Layout, tokenizer: Tokenizer) -> Iterator[Added]:
    """Yield the tokens that follow the selected modules, up to the place where generation starts; some may be empty."""
    schema, messages = selection.schema, selection.messages
    bare = messages[0] if messages and messages[0].role is None else None
    if not schema.has_turns and (bare or not messages):
        if bare:
            yield Origin.TEXT, tokenizer.tokenize(bare.text)
        return
    if layout.has_open_turn:
        if bare:
            yield Origin.TEXT, tokenizer.tokenize(schema.open_separator + bare.text)
            messages = messages[1:]
        yield Origin.FOOTER, tokenizer.frame(Role.USER).footer_ids
    for message in messages:
        yield from _turn(message, tokenizer, is_last=message is messages[-1])
    if not messages or messages[-1].role is not Role.ASSISTANT:
        yield Origin.HEADER, tokenizer.frame(Role.ASSISTANT).header_ids


def _turn(message: Message, tokenizer: Tokenizer, *, is_last: bool) -> Iterator[Added]:
    """Yield a turn; bare text is a user turn, and an assistant turn that comes last stays open."""
    role = message.role or Role.USER
    frame = tokenizer.frame(role)
    yield Origin.HEADER, frame.header_ids
    yield Origin.TEXT, tokenizer.tokenize(message.text)
    if not (is_last and role is Role.ASSISTANT):
        yield Origin.FOOTER, frame.footer_ids
