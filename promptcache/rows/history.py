"""History: KV of tokens that requests added themselves, kept for later requests.

A *stretch* is a maximal sequence of a request's own tokens at consecutive positions. There is one radix tree for each
set of KV parts below a stretch and its first position. A later request with the same parts below reuses the longest
common prefix of its stretch. Plans do not contain history.

Each node has a salt, and a request finds the nodes of its own salt and those that are `SHARED`: the text of schemas
that was promoted (`encode/repetition.py`).

A node of a tree has memory with room to grow. Turns of a conversation are appended to one node, so they form one view.
A new node at the end of a path is as large as all nodes above it, so a long conversation has few views. A node that
branches off before the end of another node does not continue its text, so it has only the room that it needs.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

import torch

from promptcache.kv import KV, KVMemory, cost_at
from promptcache.layout import Encoding, KVPart, RequestTokens, context_digest, num_shared
from promptcache.locks import new_lock

_NODE_TOKENS = 64
"""Capacities of nodes are multiples of this."""


class Shared(Enum):
    """Type of `SHARED`."""

    SHARED = "shared"


SHARED: Final = Shared.SHARED
"""The salt of tokens that requests of every salt find. They have no text of a prompt."""

Salt: TypeAlias = str | Shared | None
"""Requests share history only with requests of the same salt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStretch:
    """Own tokens `[start, stop)` of a request, at consecutive positions.

    Attributes:
        first: The position of the first token.
        context: All KV parts in use at lower positions, earlier stretches included.
        key: Digest of the context and the first position.
        salt: The salt of the request.
        num_found: Number of its first tokens that history has.
        parts: KV parts of these, in position order.
        num_shared_parts: Number of these parts that are `SHARED`; they come first.
    """

    start: int
    stop: int
    first: int
    context: tuple[KVPart, ...]
    key: str
    salt: Salt
    num_found: int = 0
    parts: tuple[KVPart, ...] = ()
    num_shared_parts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """A request's own tokens with the KV that history has of them.

    Attributes:
        tokens: The request as planned.
        stretches: All stretches, in position order.
        kv_of: KV of the encodings of their parts.
        missing: Indices of the own tokens to compute, in position order.
    """

    tokens: RequestTokens
    stretches: tuple[OwnStretch, ...]
    kv_of: Mapping[Encoding, KV]
    missing: tuple[int, ...]

    @property
    def num_found(self) -> int:
        """Number of own tokens that history has."""
        return len(self.tokens.token_ids) - len(self.missing)


@dataclass(slots=True, kw_only=True, eq=False)
class _Node:
    """Some tokens of a stretch. The memory store has their KV, with the node as its key.

    Attributes:
        capacity: Number of tokens that its memory has room for.
        siblings, place: The branch that holds this node, and its key there.
        children: Nodes that continue this one, by the number of its tokens before them, their first token and salt.
        encoding: Encoding of the tokens that the last lookup found.
    """

    capacity: int
    siblings: _Branch
    place: tuple[int, int, Salt]
    token_ids: list[int] = field(default_factory=list)
    children: _Branch = field(default_factory=dict)
    encoding: Encoding | None = None

    @property
    def salt(self) -> Salt:
        """The salt of its tokens."""
        return self.place[2]


_Branch: TypeAlias = dict[tuple[int, int, Salt], _Node]

_Path: TypeAlias = list[tuple[_Node, KV, int]]
"""Nodes along a stretch, from the root of its tree on: each with its KV and the number of its first tokens in use."""


class History:
    """KV of own tokens of earlier requests, in the memory of a store. All methods are thread-safe.

    All nodes of a tree cost the same for each byte, and a node is used whenever one below it is. So the store evicts a
    node after those below it, as a rule.
    """

    def __init__(self, memory: KVMemory, growth: float = 1.0) -> None:
        """Create an empty history.

        Args:
            memory: Keeps the KV within its budget.
            growth: Size of a new node at the end of a path, as a share of all nodes above it.
        """
        self._memory = memory
        self._growth = growth
        self._trees: dict[str, _Branch] = {}
        self._nodes: set[_Node] = set()
        self._evicted: deque[_Node] = deque()
        self._lock = new_lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all nodes, including room that is not filled yet."""
        with self._lock:
            self._forget_evicted()
            return sum(self._memory.bytes_for(node.capacity) for node in self._nodes)

    def clear(self) -> None:
        """Forget everything. Requests that use some of it keep its memory."""
        with self._lock:
            for node in self._nodes:
                self._memory.drop(node)
            self._forget_evicted()

    def recall(self, tokens: RequestTokens, salt: Salt = None, *, is_whole: bool = False) -> Recalled:
        """Look up the own tokens of a request. The KV that is found stays allocated while the result is alive.

        Args:
            tokens: The request as planned.
            is_whole: Whether all tokens may be found. A request computes its last one, whose logits it needs.
        """
        found, kv_of = list[OwnStretch](), dict[Encoding, KV]()
        with self._lock:
            self._forget_evicted()
            for stretch in stretches(tokens, salt):
                is_last = stretch.stop == len(tokens.token_ids) and not is_whole
                wanted = tokens.token_ids[stretch.start : stretch.stop - is_last]
                parts, num_shared_parts, position = list[KVPart](), 0, stretch.first
                for node, kv, num_tokens in self._path(stretch, wanted):
                    encoding = node.encoding
                    if encoding is None or encoding.num_tokens != num_tokens:
                        encoding = node.encoding = Encoding(
                            token_ids=tuple(node.token_ids[:num_tokens]),
                            position_ids=tuple(range(position, position + num_tokens)),
                            context=(*stretch.context, *parts),
                        )
                    parts.append(encoding.whole)
                    num_shared_parts += node.salt is SHARED
                    kv_of[encoding] = kv
                    position += num_tokens
                num_found = position - stretch.first
                found.append(
                    replace(stretch, num_found=num_found, parts=tuple(parts), num_shared_parts=num_shared_parts)
                )
        missing = (index for each in found for index in range(each.start + each.num_found, each.stop))
        return Recalled(tokens=tokens, stretches=tuple(found), kv_of=kv_of, missing=tuple(missing))

    def keep(self, recalled: Recalled, answer_ids: Sequence[int], own_kv: KV) -> int:
        """Copy the KV that a request computed, as far as there is room, and return the number of copied tokens.

        Copying stops at the first token whose KV is not finite.

        Args:
            recalled: The result of `recall` for the request.
            answer_ids: The generated tokens.
            own_kv: That of the tokens `recalled.missing`, then of generated tokens. The last ones may be absent.
        """
        num_computed = own_kv.num_tokens
        states = [layer for each in (own_kv.keys, own_kv.values) for layer in each]  # [Hkv, n, D] each
        if not are_finite(states):  # by layer, because it copies
            is_good = torch.stack([each.isfinite().all(-1).all(0) for each in states]).all(0)  # [n]
            num_computed = int(is_good.int().argmin())
        all_ids = (*recalled.tokens.token_ids, *answer_ids)
        num_copied = at = 0
        with self._lock:
            for stretch in recalled.stretches:
                stop = stretch.stop if stretch is not recalled.stretches[-1] else len(all_ids)
                start = stretch.start + stretch.num_found
                stop = min(stop, start + num_computed - at)
                if stop > start:
                    num_copied += self._extend(stretch, all_ids[stretch.start : stop], own_kv, at)
                at += stop - start
            self._forget_evicted()
        return num_copied

    def _path(self, stretch: OwnStretch, token_ids: Sequence[int]) -> _Path:
        """Return the nodes with the longest common prefix of `token_ids`, and mark them as used."""
        branch: _Branch = self._trees.get(stretch.key, {})
        shared = [*_chain(branch, 0, token_ids, SHARED)]
        found = [] if stretch.salt is SHARED else [*_chain(branch, 0, token_ids, stretch.salt)]
        at = 0
        for index, (node, offset) in enumerate(shared, start=1):  # nodes of a salt have none that are shared below
            at += offset
            longer = shared[:index]
            if stretch.salt is not SHARED:
                longer += _chain(node.children, offset, token_ids[at:], stretch.salt)
            found = max(longer, found, key=lambda path: sum(number for _, number in path))
        kept = [self._memory.find(node) for node, _ in reversed(found)]  # a node is used after those below it
        path: _Path = []
        for (node, num_tokens), kv in zip(found, reversed(kept), strict=True):
            if kv is None:
                break
            path.append((node, kv, num_tokens))
        return path

    def _extend(self, stretch: OwnStretch, token_ids: Sequence[int], own_kv: KV, at: int) -> int:
        """Add tokens behind those that are known; return their number.

        Args:
            stretch: Its `num_found` tokens are not in `own_kv`.
            token_ids: From the start of the stretch.
            at: Index in `own_kv` of the first token that was not found.
        """
        path = self._path(stretch, token_ids)
        known = sum(number for _, _, number in path)
        at += known - stretch.num_found
        if known < stretch.num_found:  # they were evicted meanwhile
            return 0
        branch, offset, room = self._trees.get(stretch.key, {}), 0, 0
        num_copied = 0
        if path:
            last, kv, offset = path[-1]
            branch = last.children
            if offset == len(last.token_ids):  # the new tokens continue the node
                if last.salt == stretch.salt and last.capacity > offset:
                    num_copied = _append(last, kv, token_ids[known:], own_kv, at)
                    offset += num_copied
                own = sum(number for node, _, number in path if node.salt == stretch.salt) + num_copied
                room = int(self._growth * own)
        rest = token_ids[known + num_copied :]
        if rest:
            num_added = self._add_node(stretch, branch, offset, max(len(rest), room), rest, own_kv, at + num_copied)
            if not all(self._memory.find(node) for node, _, _ in reversed(path)):  # the new node took their room
                return 0
            if num_added and not path:
                self._trees[stretch.key] = branch
            num_copied += num_added
        return num_copied

    def _add_node(
        self,
        stretch: OwnStretch,
        siblings: _Branch,
        offset: int,
        room: int,
        token_ids: Sequence[int],
        own_kv: KV,
        at: int,
    ) -> int:
        """Copy KV into a new node with room for `room` tokens; return the number of copied tokens.

        The node enters the tree after the copy, so an error or Ctrl-C leaves the tree as it was.
        """
        capacity = -(-room // _NODE_TOKENS) * _NODE_TOKENS
        cost = cost_at(capacity, stretch.first)
        try:
            kv = self._memory.allocate(capacity, cost)
        except torch.OutOfMemoryError:
            return 0
        if kv is None:
            return 0
        place = (offset, token_ids[0], stretch.salt)
        node = _Node(capacity=capacity, siblings=siblings, place=place)
        num_copied = _append(node, kv, token_ids, own_kv, at)
        if self._memory.keep(node, kv, cost, evicted=self._evicted) is None:
            return 0
        siblings[node.place] = node
        self._nodes.add(node)
        return num_copied

    def _forget_evicted(self) -> None:
        """Remove the nodes that are no longer kept, with all nodes below them."""
        if not self._evicted:
            return
        while self._evicted:
            node = self._evicted.popleft()
            self._nodes.discard(node)
            if node.siblings.get(node.place) is node:
                del node.siblings[node.place]
            for child in node.children.values():
                self._memory.drop(child)
        self._trees = {key: branch for key, branch in self._trees.items() if branch}


def stretches(tokens: RequestTokens, salt: Salt = None) -> Iterator[OwnStretch]:
    """Yield the stretches of a request's own tokens, in position order."""
    context: list[KVPart] = []
    parts, positions = iter(tokens.parts), tokens.position_ids
    part = next(parts, None)
    starts = [0, *(index for index in range(1, len(positions)) if positions[index] != positions[index - 1] + 1)]
    for start, stop in zip(starts, (*starts[1:], len(positions)), strict=True):
        while part is not None and part.last < positions[start]:
            context.append(part)
            part = next(parts, None)
        below = tuple(context)
        text = f"{positions[start]}\n{context_digest(below)}"
        key = hashlib.sha256(text.encode()).hexdigest()
        yield OwnStretch(start=start, stop=stop, first=positions[start], context=below, key=key, salt=salt)
        if stop < len(positions):
            own = Encoding(token_ids=tokens.token_ids[start:stop], position_ids=positions[start:stop], context=below)
            context.append(own.whole)


def _append(node: _Node, kv: KV, token_ids: Sequence[int], own_kv: KV, at: int) -> int:
    """Copy KV behind that of a node's tokens, as far as it fits; return the number of tokens."""
    start = len(node.token_ids)
    count = min(len(token_ids), node.capacity - start)
    kv.keys[:, :, start : start + count].copy_(own_kv.keys[:, :, at : at + count])  # [L, Hkv, count, D]
    kv.values[:, :, start : start + count].copy_(own_kv.values[:, :, at : at + count])
    node.token_ids.extend(token_ids[:count])
    return count


def _chain(branch: _Branch, offset: int, token_ids: Sequence[int], salt: Salt) -> Iterator[tuple[_Node, int]]:
    """Yield the nodes of one salt with the longest common prefix, each with the number of its tokens in it."""
    at = 0
    while at < len(token_ids) and (node := branch.get((offset, token_ids[at], salt))) is not None:
        offset = num_shared(node.token_ids, token_ids[at : at + len(node.token_ids)])
        yield node, offset
        branch, at = node.children, at + offset


def are_finite(states: Iterable[torch.Tensor]) -> bool:
    """Whether all numbers of all tensors are finite, which they are not after an overflow in float16.

    Other KV must not be kept: attention multiplies values that a query does not attend to by zero, and 0 x NaN is NaN.
    """
    bounds = [bound for each in states if each.numel() for bound in torch.aminmax(each)]
    return not bounds or bool(torch.stack(bounds).isfinite().all())
