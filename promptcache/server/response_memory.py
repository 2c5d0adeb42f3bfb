"""The conversations of earlier responses, which a client continues with `previous_response_id`."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from promptcache.locks import new_lock

Conversation: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages in the form of chats, the answer included."""


class ResponseMemory:
    """LRU memory of conversations, each under its caller and the id of its response. Thread-safe."""

    def __init__(self, max_responses: int = 1000, max_bytes: int = 2**26) -> None:
        """Create a memory.

        Args:
            max_responses: The largest number of responses, of all callers.
            max_bytes: The limit of their messages as JSON.
        """
        self.max_responses, self.max_bytes = max_responses, max_bytes
        self._lock = new_lock()
        self._kept: OrderedDict[tuple[str | None, str], tuple[Conversation, int]] = OrderedDict()
        self._nbytes = 0

    def put(self, caller: str | None, response_id: str, messages: Conversation) -> None:
        """Keep a conversation, and forget those that were not used for the longest time."""
        nbytes = len(json.dumps(messages, ensure_ascii=False).encode())
        with self._lock:
            self._kept[caller, response_id] = (messages, nbytes)
            self._nbytes += nbytes
            while len(self._kept) > self.max_responses or self._nbytes > self.max_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._nbytes -= freed

    def get(self, caller: str | None, response_id: str) -> Conversation | None:
        """Return the conversation up to a response of a caller, or None."""
        with self._lock:
            if (found := self._kept.get((caller, response_id))) is None:
                return None
            self._kept.move_to_end((caller, response_id))
            return found[0]
