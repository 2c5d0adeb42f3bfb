"""Encodings beside those of schemas: of members of collections, and behind the module before them in a prompt.

A schema needs them from their first use on. Those behind other modules are as many as there are pairs of neighbours, so
only the last used ones are needed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Set
from typing import TypeAlias

from promptcache.layout import Encoding

MAX_PAIRS = 1 << 16
"""Limit of the encodings behind the module before them that are needed, about 1 kB each beside their KV."""

_SchemaPath: TypeAlias = tuple[str, str]
"""Name of a schema, and path of a module or member."""


class MadeEncodings:
    """Digests of encodings that were made, with their store keys. Not thread-safe.

    The methods that forget some return the keys that nothing needs any more.
    """

    def __init__(self) -> None:
        self._owned: dict[_SchemaPath, set[str]] = {}  # digests
        self._num_owners: Counter[str] = Counter()
        self._keys: dict[str, str] = {}  # by digest
        self._pairs: OrderedDict[tuple[_SchemaPath, str], tuple[str, ...]] = OrderedDict()  # by last use
        """The digests of the members that each pair is behind."""
        self._behind: dict[
            str, set[tuple[_SchemaPath, str]]
        ] = {}  # the pairs whose context has an encoding of a member

    def __bool__(self) -> bool:
        return bool(self._owned)

    def __contains__(self, encoding: Encoding) -> bool:
        return encoding.digest in self._num_owners

    def use(self, schema: str, path: str, encoding: Encoding, key: str) -> None:
        """Count a use of an encoding of a member."""
        owned = self._owned.setdefault((schema, path), set())
        if encoding.digest not in owned:
            owned.add(encoding.digest)
            self._num_owners[encoding.digest] += 1
        self._keys[encoding.digest] = key

    def use_pair(self, schema: str, path: str, encoding: Encoding, key: str, members: Iterable[Encoding]) -> list[str]:
        """Count a use of an encoding behind another module, and forget the least used pair above the limit.

        Args:
            members: The encodings of members in its context. It is forgotten with them.
        """
        self.use(schema, path, encoding, key)
        pair = (schema, path), encoding.digest
        self._pairs.setdefault(pair, tuple(dict.fromkeys(member.digest for member in members)))
        self._pairs.move_to_end(pair)
        for member in self._pairs[pair]:
            self._behind.setdefault(member, set()).add(pair)
        return self._forget(*next(iter(self._pairs))) if len(self._pairs) > MAX_PAIRS else []

    def forget(self, schema: str, path: str, kept: Set[str] = frozenset()) -> list[str]:
        """Forget the encodings of a module or member, and those behind it, except those with the digests `kept`."""
        owner, unused = (schema, path), list[str]()
        for digest in self._owned.get(owner, set()) - kept:
            unused += self._forget(owner, digest)
            for other, behind in tuple(self._behind.get(digest, ())):
                unused += self._forget(other, behind)
        return unused

    def forget_schema(self, schema: str, kept: Set[str] = frozenset()) -> list[str]:
        """Forget the encodings of a schema, except those with the digests `kept`."""
        owners = [each for each in self._owned if each[0] == schema]
        return [key for _, path in owners for key in self.forget(schema, path, kept)]

    def _forget(self, owner: _SchemaPath, digest: str) -> list[str]:
        owned = self._owned.get(owner, set())
        if digest not in owned:  # it was forgotten with another one
            return []
        owned.discard(digest)
        if not owned:
            del self._owned[owner]
        for member in self._pairs.pop((owner, digest), ()):
            self._behind[member].discard((owner, digest))
            if not self._behind[member]:
                del self._behind[member]
        self._num_owners[digest] -= 1
        if self._num_owners[digest]:
            return []
        del self._num_owners[digest]
        return [self._keys.pop(digest)]
