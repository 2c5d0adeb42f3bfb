"""promptcache.rnc to promptcache.rng: `python grammar/make_rng.py`, after `pip install rnc2rng`.

rnc2rng is no dependency of ours, not even for development: where it is installed, lxml loads it with every start.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import rnc2rng

HERE = Path(__file__).parent
SOURCE, TARGET = HERE / "promptcache.rnc", HERE / "promptcache.rng"


def make_rng() -> str:
    """Return the grammar in XML, headed by the digest of what it was made from."""
    written: str = rnc2rng.dumps(rnc2rng.load(str(SOURCE)))
    declaration, _, grammar = written.partition("\n")
    grammar = grammar.replace('\n         xmlns:local=""', "")  # Namespaces in XML 1.0 binds no prefix to nothing
    return f"{declaration}\n<!-- Made by make_rng.py from promptcache.rnc, sha256 {digest()}. -->\n{grammar.rstrip()}\n"


def digest() -> str:
    """Return the digest of the source."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


if __name__ == "__main__":
    TARGET.write_text(make_rng(), encoding="utf-8")
