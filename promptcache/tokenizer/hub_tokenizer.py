"""The tokenizer of a Hugging Face model: the tokenizers library and the model's chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers.processors import TemplateProcessing

from promptcache.diagnostics import InvalidValue, TemplateRefusal, UnsupportedModel, shown
from promptcache.language import ChatMessages, Role
from promptcache.tokenizer.chat_template import CHANNEL, PLAIN_TEMPLATE, ChatTemplate, answer_start, reasoning_tags
from promptcache.tokenizer.conversation import Conversations
from promptcache.tokenizer.files import DEFAULT, TOOL_USE, named_templates, read_tokenizer_files
from promptcache.tokenizer.rules import RuleData, whole_text_rules, with_declared_tokens
from promptcache.tokenizer.text_tokenizer import TextTokenizer, load
from promptcache.tokenizer.types import FROZEN_DATE, NO_OPTIONS, Before, Markup

_PROBE = "a b\n c  d"
_NO_WHITESPACE = "this tokenizer does not keep whitespace: what the model reads differs from the schema's text"


class HubTokenizer(TextTokenizer):
    """`Tokenizer` for models with a `tokenizer.json`. Create it with `from_folder` or `from_parts`."""

    def __init__(
        self, *, parts: _Parts, sources: Mapping[str, str], eos_token_ids: Sequence[int], fingerprint: str
    ) -> None:
        self.fingerprint = fingerprint
        variables = parts.special_tokens if sources else {"tokenizer_prefix": parts.prefix}
        sources = sources or {DEFAULT: PLAIN_TEMPLATE}
        self._templates = {name: ChatTemplate(source, variables) for name, source in sources.items()}
        template = self._templates[DEFAULT]
        start = answer_start(template)
        self.reasoning_tags = reasoning_tags(template, start)
        self.bos_ids = parts.prefix_ids
        self.bos_form = parts.bos
        talks = self._talks()
        markers = parts.turn_markers("".join(written for written, _ in talks))
        super().__init__(parts.rules, parts.special_tokens.values(), markers, parts.backend)
        (ending,) = self.tokenize_parts([Markup(talks[0][1])], Before.TEXT)
        ends = (*eos_token_ids, *parts.ids_of(parts.eos))
        said = (each for each in ending if each in self.control_ids or self.detokenize((each,)).strip())
        closing = self.control_ids.intersection(islice(said, 1))  # the control token that closes the last turn
        self.eos_ids = tuple(dict.fromkeys((*ends, *closing)))
        if self.reasoning_tags is not None:
            start = start.rpartition(self.reasoning_tags[1])[2].lstrip()
        (start_ids,) = self.tokenize_parts([Markup(start)], Before.CONTROL)
        self.answer_start = start if self.control_ids.intersection(start_ids) else ""
        (frame,) = self.tokenize_parts([Markup(self.answer_start)], Before.CONTROL)
        frame = () if CHANNEL in self.answer_start else frame  # it tells the channels apart
        self._hidden_ids = frozenset((*self.eos_ids, *parts.edge_ids, *self.control_ids.intersection(frame)))
        keeps_whitespace = self.detokenize(self.tokenize(_PROBE)) == _PROBE
        self.warnings = () if keeps_whitespace else (_NO_WHITESPACE,)

    def _talks(self) -> list[tuple[str, str]]:
        """Return what the chat template writes around the turns of conversations, and behind their last answer.

        Raises:
            UnsupportedModel: It renders none.
        """
        conversations = Conversations(self)
        user, answer = Role.USER, Role.ASSISTANT
        found, refusals = list[tuple[str, str]](), list[TemplateRefusal]()
        for begin in ((), (Role.SYSTEM,)):
            for talk in ((user, answer, user, answer), (user, answer, user)):
                roles = (*begin, *talk)
                try:
                    gaps = conversations.gaps(roles, generation_prompt=talk[-1] is user)
                except TemplateRefusal as refusal:
                    refusals.append(refusal)
                else:
                    found.append(("".join(gaps), gaps[len(roles) - roles[::-1].index(answer)]))
        if not found:
            raise UnsupportedModel(
                "the chat template renders no conversation of alternating user and assistant turns with all of "
                f"their texts: {refusals[0]}"
            ) from refusals[0]
        return found

    @classmethod
    def from_folder(cls, folder: str | Path) -> HubTokenizer:
        """Read the tokenizer of a model's folder, as transformers has it after loading: both have one fingerprint.

        Raises:
            ModelNotFound: no such folder, or no `tokenizer.json` in it.
            UnsupportedModel: a file in it, or the chat template, cannot be used; the message says why.
        """
        tokenizer_json, config, templates, eos_token_ids = read_tokenizer_files(Path(folder))
        declared = config.get("added_tokens_decoder") or {}
        backend = load(_edited(tokenizer_json, lambda rules: with_declared_tokens(rules, declared)))
        if backend.post_processor is None:
            backend.post_processor = TemplateProcessing(single="$A:0", pair="$A:0 $B:1")  # adds no tokens
        return cls.from_parts(backend.to_str(), config, templates, eos_token_ids)

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
            chat_template: Jinja2 source, or several by name, or None. The one that is named "default" is used, and
                "tool_use" where a conversation has tools.
            eos_token_ids: Where generation stops according to the model's configuration.

        Raises:
            UnsupportedModel: the parts cannot be used; the message says why.
        """
        sources = named_templates(chat_template)
        parts = _Parts(tokenizer_json, config)
        # The empty list once held `eos_token_ids`, which change no tokens; without it KV would be encoded again.
        settings = json.dumps([parts.special_tokens, parts.prefix_ids, []], sort_keys=True)
        others = [part for name, source in sorted(sources.items()) if name != DEFAULT for part in (name, source)]
        digest = hashlib.sha256(b"promptcache tokenizer 1")
        for content in map(str.encode, (tokenizer_json, sources.get(DEFAULT, ""), settings, *others)):
            digest.update(len(content).to_bytes(8, "little"))
            digest.update(content)
        return cls(parts=parts, sources=sources, eos_token_ids=eos_token_ids, fingerprint=digest.hexdigest())

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer, without the tokens at its edges; see `Tokenizer.decode`."""
        return super().decode([each for each in token_ids if each not in self._hidden_ids])

    def render_chat(
        self,
        messages: ChatMessages,
        *,
        generation_prompt: bool,
        options: Mapping[str, Any] = NO_OPTIONS,
        date: datetime = FROZEN_DATE,
    ) -> str:
        """Return a conversation as the chat template renders it.

        Of several templates, the one that the option `chat_template` names, else that for tools if there are tools.
        """
        others = {**options}
        name = others.pop("chat_template", None)
        if name is None:
            has_tools = others.get("tools") is not None
            name = TOOL_USE if has_tools and TOOL_USE in self._templates else DEFAULT
        template = self._templates.get(name) if isinstance(name, str) else None
        if template is None:
            raise InvalidValue(f"chat_template={shown(name)}: the model has {', '.join(sorted(self._templates))}")
        return template.render(messages, generation_prompt=generation_prompt, options=others, date=date)


class _Parts:
    """The rules and the special tokens of a tokenizer."""

    def __init__(self, tokenizer_json: str, config: Mapping[str, Any]) -> None:
        self.rules = _edited(tokenizer_json, whole_text_rules)
        self.backend = load(self.rules)
        forms = {name: token.get("content") if isinstance(token, Mapping) else token for name, token in config.items()}
        self.special_tokens = {
            name: form for name, form in forms.items() if name.endswith("_token") and isinstance(form, str)
        }
        self.eos = self.special_tokens.get("eos_token", "")
        declared_bos = self.special_tokens.get("bos_token", "")
        # `add_bos_token` of tokenizer_config.json changes nothing: transformers 5 ignores it beside a tokenizer.json.
        bare, whole = (self.backend.encode("x", add_special_tokens=each).ids for each in (False, True))
        starts = (start for start in range(len(whole)) if whole[start : start + len(bare)] == bare)
        self.prefix_ids = tuple(whole[: next(starts, 0)])
        self.prefix = "".join(self.backend.id_to_token(token_id) or "" for token_id in self.prefix_ids)
        self.bos = self.prefix or declared_bos
        around = [self.special_tokens.get(f"{each}_token", "") for each in ("bos", "eos", "pad")]
        # The tokens before and behind texts: BOS, EOS, padding, and what the tokenizer adds.
        self.edge_ids = (*({*whole} - {*bare}), *(token_id for form in around for token_id in self.ids_of(form)))

    def ids_of(self, form: str) -> tuple[int, ...]:
        """Return the token of a written form, or nothing."""
        token_id = self.backend.token_to_id(form)
        return () if token_id is None else (token_id,)

    def turn_markers(self, written: str) -> Iterator[str]:
        """Yield the written forms of added tokens that only the chat template writes, around turns.

        Special tokens are not among them. Tags with a beginning and an end, such as `<think>`, are words: the
        model writes them, too.

        Args:
            written: What the template writes around turns.
        """
        forms = [str(token["content"]) for token in self.rules["added_tokens"] if not token["special"]]
        known = {*forms}
        for form in forms:
            other = form.replace("</", "<", 1) if "</" in form else form.replace("<", "</", 1)
            if form in written and form.strip() and (other == form or other not in known):
                yield form


def _edited(tokenizer_json: str, edit: Callable[[RuleData], RuleData]) -> RuleData:
    try:
        return edit(json.loads(tokenizer_json))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise UnsupportedModel(f"tokenizer.json is not what the tokenizers library writes: {error!r}") from error
