"""The identity of an encoding: a digest over everything its KV depends on.

Comes in: the model's fingerprint, tokens, positions and the keys of the context. Goes out: a hexadecimal sha256.
Because the keys of the context are digested too, keys form a Merkle tree: change one word and exactly the keys of what
has seen it change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

FORMAT_VERSION = 1


def encoding_key(
    fingerprint: str, token_ids: Sequence[int], position_ids: Sequence[int], context_keys: Sequence[str]
) -> str:
    """Return the key of the encoding of `token_ids` at `position_ids` that attends to the encodings named by
    `context_keys`.

    Args:
        fingerprint: Of the model, tokenizer and numerical regime.
        token_ids: In position order.
        position_ids: As long as `token_ids`.
        context_keys: Keys of the encodings it attends to, in position order.

    Returns:
        64 hexadecimal digits.
    """
    assert len(token_ids) == len(position_ids), "one position for each token"
    digest = hashlib.sha256(f"promptcache encoding {FORMAT_VERSION}\n{fingerprint}\n{len(token_ids)}\n".encode())
    digest.update(np.asarray(token_ids, dtype="<i8").tobytes())
    digest.update(np.asarray(position_ids, dtype="<i8").tobytes())
    digest.update("\n".join(context_keys).encode())
    return digest.hexdigest()
