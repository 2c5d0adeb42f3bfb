"""The tokens of a prompt at their positions, from a walk over the tree of the layout: no runs, no encodings.

It counts positions itself, and shares no code with the planner that it checks. The texts and their tokens are those of
the layout; another law compares them with the texts of the schema.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from promptcache.language import (
    DEFAULT_REPAIR,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    Placement,
    Repair,
    RepairKind,
    Role,
    Selection,
)
from promptcache.layout import Layout, LayoutLeaf, LayoutNode, LeafKind, Plan, Slot
from promptcache.tokenizer import Before, Conversations, Markup, Tokenizer
from tests.laws.members import layout_with_members

SLOTS = Repair(RepairKind.SLOTS)
"""The repair of tests about linking: their modules are so short that the default would compute all tokens again."""

Placed = tuple[int, int]
"""A position and the token ID at it."""


def expected_tokens(
    selection: Selection, layout: Layout, tokenizer: Tokenizer, repair: Repair | None = None
) -> list[Placed]:
    """Return every token of a prompt at its position, in the order of the document.

    Args:
        repair: All but "none" move tokens behind changed slots to their content; None means that of the schema.
    """
    moves = (repair or selection.schema.repair or DEFAULT_REPAIR).kind is not RepairKind.NONE
    writer = _PositionWriter(selection, tokenizer, moves=moves)
    layout = layout_with_members(selection, layout, tokenizer)
    writer.items(layout.tree, owner="", present=True)
    writer.added(layout)
    if layout.placement is Placement.FIXED:
        return writer.tokens
    return [(number, token_id) for number, (_, token_id) in enumerate(sorted(writer.tokens))]


def planned_tokens(plan: Plan) -> list[Placed]:
    """Return every token that a plan reuses or prefills, at its position."""
    found: list[Placed] = []
    for piece in plan.pieces:
        part = piece.source
        if part is None:
            found += ((piece.start + index, token_id) for index, token_id in enumerate(piece.token_ids))
        else:
            positions, token_ids = part.encoding.position_ids, part.encoding.token_ids
            found += ((positions[index] + part.shift, token_ids[index]) for index in range(part.start, part.stop))
    return found


class _PositionWriter:
    """Writes the tokens of present items, and counts the positions of the others."""

    def __init__(self, selection: Selection, tokenizer: Tokenizer, *, moves: bool) -> None:
        self.tokens: list[Placed] = []
        self._position = 0
        self._moves = moves
        self._run = 0
        self._changed: tuple[int, int] | None = None  # the run of a changed slot, and the position behind its content
        self._moves_text = False  # whether text moves there
        self._tokenizer = tokenizer
        self._selection = selection
        self._turns: list[CheckedTurn] = []  # those that are present
        self._num_begun = 0  # tokens of the beginning
        self._last_run: int | None = None  # the run that the last token is a cached text of
        self._num_last = 0  # cached text at the end of this run, in tokens
        self._arguments = {(given.module, given.parameter): given.text for given in selection.arguments}

    def write(self, token_ids: Sequence[int], *, present: bool, text: str = "") -> int:
        """Write a text, and return the number of its first tokens that are behind the content of a changed slot."""
        start = behind = self._position
        num_moved = 0
        if present and token_ids and self._changed is not None:
            if self._moves_text:
                num_moved, behind = self._num_moved(token_ids, text), self._changed[1]
            self._changed = (self._run, behind + num_moved) if num_moved == len(token_ids) else None
            self._moves_text = False  # only a slot follows a text that moved as a whole
        if present:
            for number, token_id in enumerate(token_ids):
                self.tokens.append(((behind if number < num_moved else start) + number, token_id))
        self._position += len(token_ids)
        return num_moved

    def _num_moved(self, token_ids: Sequence[int], text: str) -> int:
        """Count the first tokens up to one that begins with whitespace, four at most."""
        for number in range(1, min(4, len(token_ids))):
            before = self._tokenizer.detokenize(token_ids[:number])
            if text.startswith(tuple(before + space for space in text if space.isspace())):
                return number
        return min(4, len(token_ids))

    def boundary(self) -> None:
        self._run += 1

    def items(self, nodes: Iterable[LayoutNode | LayoutLeaf], *, owner: str, present: bool) -> None:
        for node in nodes:
            if isinstance(node, LayoutLeaf):
                self._leaf(node, owner, present=present)
            elif isinstance(node.item, CheckedTurn):
                if present:
                    self._turns.append(node.item)
                self.items(node.children, owner=owner, present=present)
            elif isinstance(node.item, CheckedModule):
                start = self._position
                self.boundary()
                self.items(node.children, owner=node.item.path, present=node.item.path in self._selection.modules)
                self.boundary()
                reserve = self._selection.module(node.item.path).node.reserve or 0
                self._position = max(self._position, start + reserve)
            else:
                self.boundary()
                self._union(node)

    def _leaf(self, leaf: LayoutLeaf, owner: str, *, present: bool) -> None:
        if isinstance(leaf.piece, Slot):
            self._slot(leaf.piece, owner, present=present)
            return
        num_moved = self.write(leaf.piece.token_ids, present=present, text=leaf.piece.text)
        if present:
            is_cached = not owner or self._selection.module(owner).cache
            goes_on = self._last_run == leaf.run and not num_moved
            self._num_last = len(leaf.piece.token_ids) - num_moved + (self._num_last if goes_on else 0)
            self._last_run = leaf.run if is_cached and self._num_last else None
        if leaf.kind is LeafKind.BOS:
            self._num_begun = len(self.tokens)
            self.boundary()

    def added(self, layout: Layout) -> None:
        """Write the prompt's own messages after all present tokens (docs/language.md, "Separators")."""
        self._position = max((position + 1 for position, _ in self.tokens), default=0)
        self._changed = None
        schema, messages = self._selection.schema, [*self._selection.messages]
        if not schema.has_turns and all(message.role is None for message in messages):
            self._say([schema.open_separator + message.text for message in messages], layout, is_conversation=False)
            return
        parts, roles = list[str](), [turn.role for turn in self._turns]
        is_open = layout.schema.has_open_turn
        if is_open:
            bare = messages.pop(0).text if messages and messages[0].role is None else None
            parts.append("" if bare is None else schema.open_separator + bare)
        own = [(message.role or Role.USER, message.text) for message in messages]
        continues = bool(own) and own[-1][0] is Role.ASSISTANT
        roles += [role for role, _ in own]
        gaps = Conversations(self._tokenizer).gaps(roles, generation_prompt=not continues)[len(self._turns) :]
        if not is_open:
            footers = (each.frame.footer for each in layout.turns if self._turns and each.turn is self._turns[-1])
            begun = next(footers, layout.preamble)
            begun = begun or (self._tokenizer.bos_form if layout.has_bos and not self._turns else "")
            gaps = (gaps[0].removeprefix(begun), *gaps[1:])
        for gap, (_, text) in zip(gaps, own, strict=False):
            parts += [Markup(gap), text]
        self._say(parts if continues else [*parts, Markup(gaps[-1])], layout, is_conversation=True)

    def _say(self, parts: Sequence[str], layout: Layout, *, is_conversation: bool) -> None:
        before = Before.TEXT
        if not self.tokens or (len(self.tokens) == self._num_begun and not is_conversation):
            before = Before.START
        elif max(self.tokens)[1] in self._tokenizer.control_ids:
            before = Before.CONTROL
        found = self._tokenizer.tokenize_parts(parts, before)
        for token_ids in self._behind_cached(parts, layout) or found:
            self.write(token_ids, present=True)

    def _behind_cached(self, parts: Sequence[str], layout: Layout) -> list[list[int]]:
        """Return the tokens of texts behind a cached text, and remove those of its last tokens that they change."""
        last = None if self._last_run is None else layout.runs[self._last_run].ending
        if last is None or not any(parts):
            return []
        alone = [each for ids in self._tokenizer.tokenize_parts(last.texts, last.before) for each in ids]
        found = [[*ids] for ids in self._tokenizer.tokenize_parts([*last.texts, *parts], last.before)]
        together = [each for ids in found[: len(last.texts)] for each in ids]
        kept = [*takewhile(lambda pair: pair[0] == pair[1], zip(alone, together, strict=False))]
        num_changed = len(alone) - len(kept)
        if num_changed > self._num_last:
            return []
        del self.tokens[len(self.tokens) - num_changed :]
        self._position = max((position + 1 for position, _ in self.tokens), default=0)
        first, *others = found[len(last.texts) :]
        return [together[len(kept) :] + first, *others]

    def _slot(self, slot: Slot, owner: str, *, present: bool) -> None:
        start, parameter = self._position, self._selection.schema.parameters[owner][slot.parameter]
        lead = parameter.lead or slot.lead  # the space at the end of a header is in no parameter
        if present:
            self._content(parameter, lead, owner, start)
        self._position = start + parameter.length + len(lead)

    def _content(self, parameter: CheckedParameter, lead: str, owner: str, start: int) -> None:
        self._last_run = None
        default = parameter.default or ""
        filler = default if parameter.placeholder is None else parameter.placeholder
        token_ids = self._tokenizer.tokenize(lead + self._arguments.get((owner, parameter.name), default))
        filler_ids = self._tokenizer.tokenize(lead + filler)[: parameter.length + len(lead)]
        cached = not owner or self._selection.module(owner).cache
        if self._changed is not None and self._changed[0] == self._run:
            start = self._changed[1]
        elif cached and token_ids == filler_ids:
            self._changed = None
            self.tokens += [(start + number, token_id) for number, token_id in enumerate(token_ids)]
            return
        self.tokens += [(start + number, token_id) for number, token_id in enumerate(token_ids)]
        self._changed = (self._run, start + len(token_ids)) if self._moves else None
        self._moves_text = True

    def _union(self, union: LayoutNode) -> None:
        start, stops = self._position, [self._position]
        for member in union.children:
            self._position = start
            self.items([member], owner="", present=False)
            stops.append(self._position)
        self._position = max(stops)
