"""The tokenizer of a Hugging Face model: the tokenizers library and the model's chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from promptcache.diagnostics import UnsupportedModel
from promptcache.language import Role
from promptcache.tokenizer.chat_template import ChatTemplate
from promptcache.tokenizer.files import default_template, read_tokenizer_files
from promptcache.tokenizer.rules import RuleData, with_controls_marked, with_declared_tokens, without_edges
from promptcache.tokenizer.text_tokenizer import TextTokenizer, load
from promptcache.tokenizer.turn_frames import PLAIN_FRAMES, Frame, cut_frames
from promptcache.tokenizer.types import TurnFrame

_PROBE = "a b\n c  d"


class HubTokenizer:
    """`Tokenizer` for models with a `tokenizer.json`. Create it with `from_folder` or `from_parts`."""

    def __init__(self, *, parts: _Parts, source: str | None, eos_token_ids: Sequence[int], fingerprint: str) -> None:
        frames = PLAIN_FRAMES
        if source is not None:
            frames = cut_frames(ChatTemplate(source, parts.special_tokens), parts.bos, parts.eos)
        self._fingerprint = fingerprint
        self._frames = {
            Role.SYSTEM: parts.frame(frames.system),
            Role.USER: parts.frame(frames.user),
            Role.ASSISTANT: parts.frame(frames.assistant),
        }
        self._bos_ids = parts.prefix_ids or (parts.markup_ids(parts.bos) if frames.starts_with_bos else ())
        ends = (*eos_token_ids, *parts.markup_ids(parts.eos))
        ending = parts.markup_ids(frames.ending)
        self._text = parts.to_text_tokenizer()
        self._eos_ids = tuple(dict.fromkeys((*ends, *self._end_of_turn(ending))))
        self._warnings = (*frames.warnings, *self._whitespace_warnings())

    @classmethod
    def from_folder(cls, folder: str | Path) -> HubTokenizer:
        """Read the tokenizer of a model's folder.

        Raises:
            ModelNotFound: no such folder, or no `tokenizer.json` in it.
            UnsupportedModel: a file in it, or the chat template, cannot be used; the message says why.
        """
        files = read_tokenizer_files(Path(folder))
        tokenizer_json = _as_loaded(files.tokenizer_json, files.config.get("added_tokens_decoder") or {})
        return cls.from_parts(tokenizer_json, files.config, files.chat_template, files.eos_token_ids)

    @classmethod
    def from_parts(
        cls,
        tokenizer_json: str,
        config: Mapping[str, Any],
        chat_template: object = None,
        eos_token_ids: Sequence[int] = (),
    ) -> HubTokenizer:
        """Create a tokenizer from the parts of a folder or of a loaded tokenizer.

        Args:
            tokenizer_json: As the tokenizers library writes it (`backend_tokenizer.to_str()`).
            config: Special tokens such as `bos_token` (text or token object), as in `tokenizer_config.json`.
            chat_template: Jinja2 source, or several by name of which "default" is taken, or None.
            eos_token_ids: Where generation stops according to the model's configuration.

        Raises:
            UnsupportedModel: the parts cannot be used; the message says why.
        """
        source = default_template(chat_template)
        parts = _Parts(tokenizer_json, config)
        # The empty list once held `eos_token_ids`, which change no tokens; without it KV would be encoded again.
        settings = json.dumps([parts.special_tokens, parts.prefix_ids, []], sort_keys=True)
        fingerprint = _digest(tokenizer_json, source or "", settings)
        return cls(parts=parts, source=source, eos_token_ids=eos_token_ids, fingerprint=fingerprint)

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """The tokens that the tokenizer, or else the chat template, puts before every text; may be empty."""
        return self._bos_ids

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The end tokens of the model and the tokenizer, and the control token that closes an assistant turn."""
        return self._eos_ids

    @property
    def control_ids(self) -> frozenset[int]:
        """All special and added tokens, except the unknown token and tokens for runs of whitespace."""
        return self._text.control_ids

    @property
    def fingerprint(self) -> str:
        """Digest over `tokenizer.json`, the special tokens and the chat template."""
        return self._fingerprint

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about this tokenizer and its chat template."""
        return self._warnings

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text`, none of them a control token."""
        return self._text.tokenize(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, control tokens in their written form."""
        return self._text.detokenize(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token, which may be a part of a character."""
        return self._text.token_bytes(token_id)

    def frame(self, role: Role) -> TurnFrame:
        """Return the header and footer of a turn of `role`."""
        return self._frames[role]

    def _end_of_turn(self, ending: tuple[int, ...]) -> tuple[int, ...]:
        """Return the control token that closes the last turn of a conversation, or an empty tuple."""
        for token_id in ending:
            if token_id in self.control_ids:
                return (token_id,)
            if self.detokenize((token_id,)).strip():
                break
        return ()

    def _whitespace_warnings(self) -> Iterator[str]:
        if self.detokenize(self.tokenize(_PROBE)) != _PROBE:
            yield "this tokenizer does not keep whitespace: what the model reads differs from the schema's text"


class _Parts:
    """Tokenizer of the markup of chat templates, which produces control tokens. It then becomes a tokenizer of text."""

    def __init__(self, tokenizer_json: str, config: Mapping[str, Any]) -> None:
        self._rules = _edited(tokenizer_json, lambda rules: with_controls_marked(without_edges(rules)))
        self._markup = load(self._rules)
        self.special_tokens = dict(_special_tokens(config))
        self.eos = self.special_tokens.get("eos_token", "")
        declared_bos = self.special_tokens.get("bos_token", "")
        self.prefix_ids = _prefix_ids(self._markup)
        self.bos = "".join(self._markup.id_to_token(token_id) or "" for token_id in self.prefix_ids) or declared_bos

    def to_text_tokenizer(self) -> TextTokenizer:
        """Return the tokenizer of text. This object must not be used afterwards."""
        return TextTokenizer(self._rules, self._markup, self.special_tokens.values())

    def markup_ids(self, text: str) -> tuple[int, ...]:
        """Tokenize the output of a chat template. Only this method produces control tokens."""
        return tuple(self._markup.encode(text, add_special_tokens=False).ids)

    def frame(self, frame: Frame) -> TurnFrame:
        """Tokenize the header and footer of a turn."""
        return TurnFrame(
            header_ids=self.markup_ids(frame.header),
            footer_ids=self.markup_ids(frame.footer),
            header=frame.header,
            footer=frame.footer,
        )


def _as_loaded(tokenizer_json: str, declared: Mapping[str, Any]) -> str:
    """Return the rules of a file as transformers has them after loading, so that both have one fingerprint.

    Transformers adds the tokens that only the configuration declares. A missing post-processor becomes one that adds
    no tokens.
    """
    backend = load(_edited(tokenizer_json, lambda rules: with_declared_tokens(rules, declared)))
    if backend.post_processor is None:
        backend.post_processor = TemplateProcessing(single="$A:0", pair="$A:0 $B:1")
    return backend.to_str()


def _edited(tokenizer_json: str, edit: Callable[[RuleData], RuleData]) -> RuleData:
    try:
        return edit(json.loads(tokenizer_json))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UnsupportedModel(f"tokenizer.json is not what the tokenizers library writes: {error!r}") from error


def _special_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the named special tokens with their written forms."""
    for name, token in config.items():
        form = token.get("content") if isinstance(token, Mapping) else token
        if name.endswith("_token") and isinstance(form, str):
            yield name, form


def _prefix_ids(markup: Backend) -> tuple[int, ...]:
    """Return the tokens that the post-processor of the tokenizer puts before a text.

    `add_bos_token` in `tokenizer_config.json` changes nothing: transformers 5 ignores it beside a `tokenizer.json`.
    """
    bare = markup.encode("x", add_special_tokens=False).ids
    whole = markup.encode("x").ids
    starts = (start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
    return tuple(whole[: next(starts, 0)])


def _digest(*parts: str) -> str:
    digest = hashlib.sha256(b"promptcache tokenizer 1")
    for part in parts:
        content = part.encode("utf-8")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return digest.hexdigest()
