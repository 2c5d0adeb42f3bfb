"""The names of codecs. Settings and commands have them before torch is loaded; `promptcache.kv` has the codecs."""

from __future__ import annotations

from enum import StrEnum


class Codec(StrEnum):
    """Encoding of stored KV: as computed, or quantized (keys per channel, values per token)."""

    FULL = "full"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def lossy(self) -> bool:
        """Whether decoded KV differs from the KV that was computed."""
        return self is not Codec.FULL
