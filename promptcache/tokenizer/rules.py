"""The rules of a `tokenizer.json`, edited so that pieces of text can be tokenized separately.

The edits remove rules that apply only at the ends of a whole text: prefix space and stripping, truncation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

RuleData: TypeAlias = dict[str, Any]  # JSON object of the tokenizers library, whose schema is its own


def whole_text_rules(rules: Mapping[str, Any]) -> RuleData:
    """Return the rules without those that change the length of a text, and without dropout."""
    model = {**rules["model"], "dropout": None} if "dropout" in rules["model"] else rules["model"]
    return {**rules, "truncation": None, "padding": None, "model": model}


def without_edges(rules: Mapping[str, Any]) -> RuleData:
    """Return the rules without those that apply only at the start or end of a text."""
    return {
        **rules,
        "normalizer": _edit(rules.get("normalizer"), "normalizers", _normalizer),
        "pre_tokenizer": _edit(rules.get("pre_tokenizer"), "pretokenizers", _pre_tokenizer),
        "decoder": _edit(rules.get("decoder"), "decoders", _decoder),
    }


def with_declared_tokens(rules: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> RuleData:
    """Return the rules with the added tokens, by ID, that only `tokenizer_config.json` declares."""
    added = list(rules.get("added_tokens") or ())
    known = {token["content"] for token in added}
    flags = ("special", "single_word", "lstrip", "rstrip", "normalized")
    for token_id, token in declared.items():
        if token["content"] not in known:
            added.append(
                {"id": int(token_id), "content": token["content"]} | {flag: token.get(flag, False) for flag in flags}
            )
    return {**rules, "added_tokens": sorted(added, key=lambda token: int(token["id"]))}


def literal_pieces(rules: Mapping[str, Any]) -> tuple[str, ...]:
    """Return vocabulary entries with another meaning than their text: the unknown token and bytes."""
    model = rules["model"]
    unknown = unknown_piece(rules)
    pieces = () if unknown is None else (unknown,)
    return (*pieces, *(f"<0x{byte:02X}>" for byte in range(256))) if model.get("byte_fallback") else pieces


def unknown_piece(rules: Mapping[str, Any]) -> str | None:
    """Return the vocabulary entry of the model for unknown text."""
    model = rules["model"]
    if model.get("unk_id") is not None:
        return str(model["vocab"][model["unk_id"]][0])
    unknown = model.get("unk_token")
    return None if unknown is None else str(unknown)


def _edit(part: RuleData | None, members: str, edit: Callable[[RuleData], RuleData | None]) -> RuleData | None:
    """Apply `edit` to a rule or to every member of a sequence of rules, and drop those that become None."""
    if part is None:
        return None
    if part["type"] != "Sequence":
        return edit(part)
    edited = (_edit(member, members, edit) for member in part[members])
    return {**part, members: [member for member in edited if member is not None]}


def _normalizer(rule: RuleData) -> RuleData | None:
    return None if rule["type"] in {"Prepend", "Strip"} else rule


def _pre_tokenizer(rule: RuleData) -> RuleData:
    if rule["type"] == "ByteLevel":
        return {**rule, "add_prefix_space": False}
    return _metaspace(rule)


def _decoder(rule: RuleData) -> RuleData | None:
    if rule["type"] == "Strip":
        return None
    if rule["type"] == "WordPiece":
        return {**rule, "cleanup": False}
    return _metaspace(rule)


def _metaspace(rule: RuleData) -> RuleData:
    """Return a Metaspace rule that prepends nothing. The older spelling of the option is removed."""
    if rule["type"] != "Metaspace":
        return rule
    return {key: value for key, value in rule.items() if key != "add_prefix_space"} | {"prepend_scheme": "never"}
