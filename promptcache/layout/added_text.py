"""The text that a prompt adds behind its modules, as tokens.

A tokenizer may join the last characters of a text with what follows. So the last cached tokens are left out where the
added text changes them, and the prompt adds their text in other tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from types import MappingProxyType

from promptcache.diagnostics import ContextLengthExceeded, Diagnostic
from promptcache.language import Selection, text_outside_turns
from promptcache.layout.encoding import num_shared
from promptcache.layout.own_turns import AddedText, OwnTurns
from promptcache.layout.pieces import Origin, Piece
from promptcache.layout.types import Layout
from promptcache.tokenizer import Before, Conversations, Markup, Tokenizer, has_more_tokens

_TAIL = 200  # characters of cached text that are tokenized again


def with_added_text(
    pieces: Sequence[Piece],
    selection: Selection,
    layout: Layout,
    tokenizer: Tokenizer,
    conversations: Conversations,
    answers: Mapping[int, tuple[int, ...]] = MappingProxyType({}),
) -> tuple[tuple[Piece, ...], int | None, tuple[Diagnostic, ...]]:
    """Return the pieces of a prompt with the text that it adds behind them.

    Args:
        conversations: The chat template of `tokenizer`, with the options of the request.
        answers: Token IDs that a model generated for assistant turns, by index in the messages of the selection.

    Returns:
        The pieces; the position of the first answer in the conversation, or None; and warnings about the text.

    Raises:
        PromptError: The template refuses the conversation (PC512).
        ContextLengthExceeded: The texts are so long that they cannot fit; nothing is tokenized.
    """
    schema, messages = selection.schema, selection.messages
    is_start = not pieces or (layout.has_bos and not layout.turns and len(pieces) == 1)  # behind BOS alone
    warnings: tuple[Diagnostic, ...] = ()
    if not schema.has_turns and (not messages or messages[0].role is None):
        added = [AddedText(Origin.TEXT, schema.open_separator + message.text) for message in messages]
    else:
        is_start = not pieces  # the template writes BOS, and text behind it is not at a start
        own = OwnTurns(selection, layout, tokenizer, conversations, answers)
        added = own.texts()
        warnings = (*own.warnings, *text_outside_turns(schema.outside_turns, selection.modules))
    text, most = "".join(each.text for each in added if each.token_ids is None), layout.max_positions
    if most is not None and has_more_tokens(tokenizer, text, most):
        raise ContextLengthExceeded(
            f"the prompt adds {len(text)} characters, which are more than {most} tokens; the model has {most} positions"
        )
    found, first_answer = [*pieces], None
    for is_text, group in groupby(added, key=lambda each: each.token_ids is None):
        together = [*group]
        token_ids = [each.token_ids or () for each in together]
        if is_text:  # texts between two generated answers are tokenized as one
            is_control = not is_start and found[-1].token_ids[-1] in tokenizer.control_ids
            before = Before.START if is_start else Before.CONTROL if is_control else Before.TEXT
            found, token_ids = _joined(found, [each.text for each in together], before, tokenizer)
        is_start = False
        position = found[-1].stop if found else 0
        for each, ids in zip(together, token_ids, strict=True):
            if each.is_answer and first_answer is None:
                first_answer = position
            if ids:
                found.append(Piece(token_ids=ids, start=position, origin=each.origin))
                position += len(ids)
    return tuple(found), first_answer, warnings


def _joined(
    pieces: list[Piece], texts: Sequence[str], before: Before, tokenizer: Tokenizer
) -> tuple[list[Piece], list[tuple[int, ...]]]:
    """Return the tokens of adjacent texts, and the pieces before them without the tokens that they replace.

    Args:
        pieces: If the last text of the schema is reused, it is the last piece. The first text gets the tokens that
            replace others.
        before: What the last token is.
    """
    apart = [*tokenizer.tokenize_parts(texts, before)]
    last = pieces[-1] if pieces else None
    ending = None if last is None or last.source is None or last.run is None else last.run.ending
    if last is None or ending is None or not any(ending.texts) or not any(texts):
        return pieces, apart
    tail, room = list[str](), _TAIL
    for text in reversed(ending.texts):
        if kept_text := text[max(0, len(text) - room) :]:
            tail.insert(0, Markup(kept_text) if isinstance(text, Markup) else kept_text)
            room -= len(kept_text)
    known = [*chain.from_iterable(tokenizer.tokenize_parts(tail, ending.before))]
    found = tokenizer.tokenize_parts((*tail, *texts), ending.before)
    kept, (first, *others) = tuple(chain.from_iterable(found[: len(tail)])), found[len(tail) :]
    num_kept = num_shared(known, kept)
    num_replaced = len(known) - num_kept
    reused = last.token_ids[-4 * _TAIL :]  # a character has up to four bytes
    num_known = num_shared(known[::-1], reused[::-1])
    if num_known < min(num_replaced + 1, len(known), max(num_replaced, len(reused))):
        return pieces, apart  # the tail begins within a word, or more than the reused tokens changes
    if num_replaced:
        num_left = len(last.token_ids) - num_replaced
        pieces = [*pieces[:-1], *([last.cut(0, num_left)] if num_left else [])]
    return pieces, [kept[num_kept:] + first, *others]
