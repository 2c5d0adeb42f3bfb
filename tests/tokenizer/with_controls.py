"""The tokenizer of the demo model with further control tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from promptcache.demo import MODEL_FOLDER
from promptcache.tokenizer import HubTokenizer


def with_controls(template: str, controls: Iterable[str], *, eos: str) -> HubTokenizer:
    """Return a tokenizer with a chat template, and special tokens of these written forms."""
    rules = json.loads((Path(MODEL_FOLDER) / "tokenizer.json").read_text())
    known = {each["content"] for each in rules["added_tokens"]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = 1 + max(rules["model"]["vocab"].values())
    for token_id, content in enumerate((each for each in controls if each not in known), first):
        rules["added_tokens"].append({"id": token_id, "content": content, "special": True, **flags})
    return HubTokenizer.from_parts(json.dumps(rules), {"eos_token": eos}, template)
