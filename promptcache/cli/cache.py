"""What rests in a store's folder: listed, looked into, verified, pinned, removed and cleaned up.

Comes in: a folder's tier, and words that choose among its encodings. Goes out: entries and lines. No model is loaded:
each file says of itself what it is and for which schema and module it was made.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from promptcache.cli.exits import UsageMistake
from promptcache.cli.output import counted
from promptcache.cli.sizes import size_text
from promptcache.diagnostics import CorruptEncoding, did_you_mean
from promptcache.kv import DiskTier, Header, VerifyResult

_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_SHOWN = 12  # digits of a key
_LOSS = "loss."  # how facts about it begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a store.

    Attributes:
        module: Path of the module it was first made for; "" is the schema's own text.
        used_s: When it was last used, in seconds since 1970; None where the file system does not say.
        fault: Why it cannot be served, as far as its header tells.
    """

    key: str
    nbytes: int
    used_s: float
    pinned: bool
    schema: str | None = None
    module: str | None = None
    codec: str | None = None
    dtype: str | None = None
    num_tokens: int | None = None
    positions: tuple[int, int] | None = None
    fingerprint: str | None = None
    facts: dict[str, str] = field(default_factory=dict)
    fault: str | None = None

    @property
    def name(self) -> str:
        """What people call it."""
        if self.schema is None:
            return "?"
        return f"{self.schema}/{self.module}" if self.module else self.schema


def entries(tier: DiskTier) -> tuple[Entry, ...]:
    """Return what is there, by schema, module and position."""
    pinned = tier.pinned()
    found = [_entry(tier, key, nbytes, used_s, key in pinned) for key, (nbytes, used_s) in tier.files().items()]
    return tuple(sorted(found, key=lambda each: (each.name, each.codec or "", each.positions or (0, 0), each.key)))


def chosen(all_entries: Sequence[Entry], words: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries that words choose: SCHEMA, SCHEMA/MODULE with all in it, or the first digits of a key.

    Raises:
        UsageMistake: A word chooses none.
    """
    return tuple({each.key: each for word in words for each in _choose(all_entries, word)}.values())


def list_text(found: Sequence[Entry]) -> str:
    """Return a table, one line for each entry, and a line that sums it up."""
    rows = [("KEY", "KEPT", "TOKENS", "SIZE", "USED", "MADE FOR")]
    for each in found:
        kept = "damaged" if each.fault else f"{each.codec} {each.dtype}"
        tokens = "?" if each.num_tokens is None else f"{each.num_tokens:,}"
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used_s))
        name = f"{each.name} (pinned)" if each.pinned else each.name
        rows.append((each.key[:_SHOWN], kept, tokens, size_text(each.nbytes), used, name))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    lines = ["  ".join((*map(str.ljust, row[:5], widths), row[5])) for row in rows] if found else []
    total = f"{counted(len(found), 'encoding')}, {size_text(sum(each.nbytes for each in found))}"
    return "".join(f"{line}\n" for line in (*lines, total))


def entries_data(found: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return entries as data."""
    return [asdict(each) for each in found]


def summary_data(tier: DiskTier, found: Sequence[Entry]) -> dict[str, Any]:
    """Return what a store holds in all."""
    aside = tier.quarantined()
    return {
        "store": str(tier),
        "num_encodings": len(found),
        "nbytes": sum(each.nbytes for each in found),
        "num_pinned": sum(each.pinned for each in found),
        "num_damaged": sum(each.fault is not None for each in found),
        "schemas": dict(Counter(each.schema or "?" for each in found)),
        "codecs": dict(Counter(each.codec or "?" for each in found)),
        "models": dict(Counter((each.fingerprint or "?")[:_SHOWN] for each in found)),
        "num_set_aside": len(aside),
        "set_aside_bytes": sum(aside.values()),
    }


def summary_text(data: dict[str, Any]) -> str:
    """Say what a store holds, in a line for each kind of thing."""
    lines = [
        f"{data['store']}: {counted(data['num_encodings'], 'encoding')}, {size_text(data['nbytes'])}",
        *(f"{kind}: {_listed(data[kind])}" for kind in ("schemas", "codecs", "models") if data[kind]),
        f"pinned: {data['num_pinned']:,}",
    ]
    if data["num_damaged"]:
        lines.append(f"damaged: {data['num_damaged']:,}; they are set aside when they are wanted")
    if data["num_set_aside"]:
        lines.append(f"set aside: {counted(data['num_set_aside'], 'file')}, {size_text(data['set_aside_bytes'])}")
    return "".join(f"{line}\n" for line in lines)


def entry_text(entry: Entry) -> str:
    """Say everything that is known of one encoding."""
    loss = loss_text(entry.facts)
    told = ("schema", "module", *(name for name in entry.facts if loss and name.startswith(_LOSS)))
    facts = {name: text for name, text in entry.facts.items() if name not in told}
    lines = {
        "key": entry.key,
        "made for": entry.name,
        "kept": None if entry.codec is None else f"{entry.codec}, of {entry.dtype}",
        "tokens": entry.num_tokens,
        "positions": None if entry.positions is None else f"{entry.positions[0]} to {entry.positions[1]}",
        "size": f"{size_text(entry.nbytes)} ({entry.nbytes:,} bytes)",
        "last used": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.used_s)),
        "pinned": "yes" if entry.pinned else "no",
        "model": entry.fingerprint,
        "damaged": entry.fault,
        "loss of its codec": loss,
        **facts,
    }
    return "".join(f"{name}: {value}\n" for name, value in lines.items() if value is not None)


def loss_text(facts: Mapping[str, str]) -> str | None:
    """Say what a codec costs, as it was measured when encodings were made; None where the facts do not hold that."""
    if not facts.keys() >= {f"{_LOSS}{name}" for name in ("logits", "top1", "places", "prompts")}:
        return None
    text = (
        f"logits are off by {facts['loss.logits']} (relative to the largest), the likeliest token is the same "
        f"in {facts['loss.top1']} of {facts['loss.places']} places, over {facts['loss.prompts']}"
    )
    if not facts.keys() >= {f"{_LOSS}{name}" for name in ("asked", "right", "right_full")}:
        return text  # only the demo model is asked questions
    return (
        f"{text}; of {facts['loss.asked']} questions the model answers {facts['loss.right']} right, "
        f"and {facts['loss.right_full']} with KV as computed"
    )


def verdicts_text(verdicts: Sequence[VerifyResult]) -> str:
    """Say what is wrong with each file that may not be served, what is not ours, and how many files may be served."""
    bad = [each for each in verdicts if each.fault is not None]
    foreign = [each for each in verdicts if each.foreign]
    good = [each for each in verdicts if each.fault is None and not each.foreign]
    lines = [*(str(each.fault) for each in bad), *(f"{each.name}: no encoding, left alone" for each in foreign)]
    good_bytes = size_text(sum(each.nbytes for each in good))
    lines.append(
        f"{counted(len(good) + len(bad), 'file')} read: {len(good):,} good ({good_bytes}), "
        f"{len(bad):,} bad" + (f"; {len(foreign):,} foreign" if foreign else "")
    )
    return "".join(f"{line}\n" for line in lines)


def _entry(tier: DiskTier, key: str, nbytes: int, used_s: float, pinned: bool) -> Entry:
    known: dict[str, Any] = {"key": key, "nbytes": nbytes, "used_s": used_s, "pinned": pinned}
    try:
        header = tier.header(key)
    except CorruptEncoding as fault:
        return Entry(**known, fault=str(fault))
    return Entry(**known) if header is None else Entry(**known, **_told(header))


def _told(header: Header) -> dict[str, Any]:
    recipe = header.recipe
    return {
        "schema": header.facts.get("schema"),
        "module": header.facts.get("module"),
        "codec": str(recipe.codec),
        "dtype": str(header.shape.dtype).removeprefix("torch."),
        "num_tokens": recipe.num_tokens,
        "positions": (recipe.first_position, recipe.last_position),
        "fingerprint": recipe.fingerprint,
        "facts": dict(header.facts),
    }


def _choose(all_entries: Sequence[Entry], word: str) -> Iterable[Entry]:
    path = word.strip("/")
    named = [each for each in all_entries if each.schema is not None and f"{each.name}/".startswith(f"{path}/")]
    if named:
        return named
    keyed = [each for each in all_entries if _PREFIX.fullmatch(word) and each.key.startswith(word)]
    if not keyed:
        mend = did_you_mean(path, {each.name for each in all_entries})
        raise UsageMistake(
            f"nothing here is called '{word}'; {mend or 'give a schema, schema/module, or 6 digits of a key or more'}"
        )
    return keyed


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in sorted(counts.items()))
