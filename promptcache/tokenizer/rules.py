"""The rules of a `tokenizer.json`, edited so that pieces of text can be tokenized separately.

The edits remove rules that apply only at the ends of a whole text: prefix space and stripping, truncation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

RuleData: TypeAlias = dict[str, Any]  # JSON object of the tokenizers library, whose schema is its own

_MEMBERS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
"""Kinds of rules, with the key of the members of a sequence of them."""


def whole_text_rules(rules: Mapping[str, Any]) -> RuleData:
    """Return the rules without those that change the length of a text, and without dropout."""
    model = {**rules["model"], "dropout": None} if "dropout" in rules["model"] else rules["model"]
    return {**rules, "truncation": None, "padding": None, "model": model}


def without_edges(rules: Mapping[str, Any]) -> RuleData:
    """Return the rules without those that apply only at the start or end of a text."""
    return {**rules, **{kind: _without_edges(rules.get(kind), kind) for kind in _MEMBERS}}


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


def _without_edges(rule: RuleData | None, kind: str) -> RuleData | None:
    """Return a rule, or a sequence of rules, without what applies at the edges of a text; None if nothing is left."""
    if rule is None:
        return None
    match rule["type"]:
        case "Sequence":
            edited = (_without_edges(member, kind) for member in rule[_MEMBERS[kind]])
            return {**rule, _MEMBERS[kind]: [member for member in edited if member is not None]}
        case "Prepend" | "Strip":
            return None
        case "Metaspace":  # the older spelling of its option is `add_prefix_space`
            others = {key: value for key, value in rule.items() if key != "add_prefix_space"}
            return {**others, "prepend_scheme": "never"}
        case "ByteLevel" if kind == "pre_tokenizer":
            return {**rule, "add_prefix_space": False}
        case "WordPiece":
            return {**rule, "cleanup": False}
    return rule
