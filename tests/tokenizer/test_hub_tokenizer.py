"""Laws of the hub tokenizer: text stays text, pieces decode to themselves, BOS and EOS are the model's."""

import json
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from promptcache.diagnostics import ModelNotFound, SchemaError, UnsupportedModel
from promptcache.language import Role
from promptcache.layout import lay_out
from promptcache.tokenizer import (
    DEMO_FOLDER,
    Before,
    Conversations,
    HubTokenizer,
    Markup,
    has_more_tokens,
    hub_tokenizer,
    text_tokenizer,
)
from promptcache.tokenizer.text_tokenizer import load
from tests.layout.samples import read
from tests.tokenizer import small_tokenizers as small
from tests.tokenizer.chat_templates import CASES
from tests.tokenizer.small_tokenizers import byte_level, llama_like, unigram, word_piece

LLAMA = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
CONTROLS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "<s>",
    "</s>",
    "<unk>",
    "<0x41>",
    "[CLS]",
    "[UNK]",
)


@cache
def hub(kind: str) -> HubTokenizer:
    match kind:
        case "byte level":
            return HubTokenizer.from_parts(small.byte_level(), {"eos_token": "<|endoftext|>"}, small.CHATML)
        case "llama":
            return HubTokenizer.from_parts(small.llama_like(), LLAMA, CASES["llama 2"].source)
        case "unigram":
            return HubTokenizer.from_parts(small.unigram(), {"eos_token": "</s>"})
        case _:
            return HubTokenizer.from_parts(small.word_piece(), {})


def texts() -> st.SearchStrategy[str]:
    """Text with control tokens' written forms in it, whole, cut and nested."""
    forms = st.sampled_from(CONTROLS)
    cut = st.tuples(forms, st.integers(0, 12)).map(lambda pair: pair[0][pair[1] :])
    return st.lists(st.one_of(forms, cut, st.text(max_size=4), st.sampled_from([" ", "\n", "    "])), max_size=6).map(
        "".join
    )


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram", "word piece"])
@given(text=texts())
@example(text="<s>" * 50)
@example(text="<<s>s>")
@example(text="a<s>b</s>c<unk>☃<think>    <0x41>")
def test_text_never_becomes_a_control_token(kind: str, text: str):
    tokenizer = hub(kind)

    assert tokenizer.control_ids.isdisjoint(tokenizer.tokenize(text))


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram"])
@given(text=texts())
@example(text=" the dog")
@example(text="the dog ")
@example(text="<0x41>")
@example(text="<unk>")
@example(text="the\U0010fffd</s>\U0010fffd dog")
def test_pieces_decode_to_their_text(kind: str, text: str):
    """A piece of text decodes to itself, spaces at its ends included; the Metaspace sign is a space by the model's rules."""
    tokenizer = hub(kind)

    assert tokenizer.detokenize(tokenizer.tokenize(text)) == (text if kind == "byte level" else text.replace("▁", " "))


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram"])
@given(parts=st.lists(texts(), min_size=1, max_size=4), before=st.sampled_from(Before))
@example(parts=["the ", " fox"], before=Before.START)
@example(parts=["", "<s>", ""], before=Before.CONTROL)
def test_adjacent_texts_have_the_tokens_of_one_text(kind: str, parts: list[str], before: Before):
    tokenizer = hub(kind)

    found = tokenizer.tokenize_parts(parts, before)

    assert tuple(chain.from_iterable(found)) == tokenizer.tokenize_parts(["".join(parts)], before)[0]
    assert len(found) == len(parts)


def test_generation_stops_where_the_model_ends_a_turn():
    """EOS tokens are the model's own, the tokenizer's, and the control token that ends a conversation."""
    tokenizer = HubTokenizer.from_parts(small.byte_level(), {"eos_token": "<|endoftext|>"}, small.CHATML, (7,))

    assert [tokenizer.detokenize((token_id,)) for token_id in tokenizer.eos_ids[1:]] == ["<|endoftext|>", "<|im_end|>"]
    assert tokenizer.eos_ids[0] == 7


@pytest.mark.parametrize("refused", ["messages[-1].role == 'assistant'", "messages[0].role != 'system'"])
def test_generation_stops_where_a_template_ends_turns_that_are_not_the_last(refused: str):
    """The end of a turn is found in the conversations that a template renders, an answer at the end or not."""
    template = "{% if " + refused + " %}{{ raise_exception('no') }}{% endif %}" + small.CHATML
    tokenizer = HubTokenizer.from_parts(small.byte_level(), {}, template)

    assert [tokenizer.detokenize((token_id,)) for token_id in tokenizer.eos_ids] == ["<|im_end|>"]


def test_a_model_without_template_gets_the_plain_one():
    """Without a chat template, turns are marked by a line with the role's name."""
    frame = Conversations(hub("unigram")).frame(Role.ASSISTANT)

    assert (frame.header, frame.footer) == ("Assistant:\n", "\n\n")


def test_lost_whitespace_is_told():
    assert "whitespace" in hub("word piece").warnings[0]
    assert hub("byte level").warnings == ()


def test_fingerprint_covers_vocabulary_template_and_special_tokens():
    tokenizers = [
        HubTokenizer.from_parts(small.llama_like(), {}),
        HubTokenizer.from_parts(small.llama_like(), {"eos_token": "</s>"}),
        HubTokenizer.from_parts(small.edited(small.llama_like(), post_processor=None), {}),
        HubTokenizer.from_parts(small.llama_like(), {}, small.CHATML),
        HubTokenizer.from_parts(small.edited(small.llama_like(), normalizer=None), {}),
    ]

    assert len({tokenizer.fingerprint for tokenizer in tokenizers}) == len(tokenizers)
    assert HubTokenizer.from_parts(small.llama_like(), {}).fingerprint == tokenizers[0].fingerprint


def test_a_tokenizer_is_loaded_once(monkeypatch: pytest.MonkeyPatch):
    """Large vocabularies take a second. Rules for the edges of a text need two more backends."""
    loads: list[object] = []
    for module in (hub_tokenizer, text_tokenizer):
        monkeypatch.setattr(module, "load", lambda rules, **how: loads.append(rules) or load(rules, **how))
    HubTokenizer.from_parts(small.byte_level(), {}, small.CHATML)
    assert len(loads) == 1
    HubTokenizer.from_parts(small.llama_like(), {})
    assert len(loads) == 4


def test_a_tokenizer_without_merges_for_a_control_character_is_refused():
    """If a single character is a control token, text with it is refused."""
    rules = json.loads(small.unigram())
    rules["added_tokens"].append(
        {"id": 262, "content": rules["model"]["vocab"][262][0], "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    )
    tokenizer = HubTokenizer.from_parts(json.dumps(rules), {})

    with pytest.raises(UnsupportedModel, match="plain text"):
        tokenizer.tokenize(rules["model"]["vocab"][262][0])


def opening(tokenizer: HubTokenizer) -> str:
    return Conversations(tokenizer).gaps((Role.USER,), generation_prompt=True)[0]


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content, encoding="utf-8")
    return folder


def test_a_folder_is_read_with_all_its_files(tmp_path: Path):
    """Vocabulary, special tokens, chat template and EOS come from the files where transformers keeps them."""
    folder = write(
        tmp_path,
        tokenizer__json=small.byte_level(),
        tokenizer_config__json=json.dumps({"chat_template": "no", "eos_token": "<|endoftext|>"}),
        chat_template__jinja=small.CHATML,
        generation_config__json=json.dumps({"eos_token_id": [3, 4]}),
        config__json=json.dumps({"eos_token_id": 5}),
    )

    tokenizer = HubTokenizer.from_folder(folder)

    assert opening(tokenizer) == "<|im_start|>user\n"
    assert tokenizer.eos_ids[:3] == (3, 4, 5)


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({}, ModelNotFound, r"no tokenizer\.json"),
        *(({"tokenizer.json": each}, UnsupportedModel, "tokenizer.json") for each in ("{", "[]", "{}", '{"model": {"type": "Novel", "vocab": {}}}')),
        *(({"tokenizer_config.json": each}, UnsupportedModel, "tokenizer_config") for each in ("{", "[]")),
        ({"chat_template.jinja": "\ud800"}, UnsupportedModel, r"chat_template\.jinja' is not UTF-8"),
    ],
)  # fmt: skip
def test_damaged_folders_are_refused(
    tmp_path: Path, files: dict[str, str], error: type[Exception], message: str
) -> None:
    """A file of a tokenizer that is missing or cannot be read is a typed error that names the file."""
    if files:
        write(tmp_path, tokenizer__json=small.byte_level())
    for name, text in files.items():
        (tmp_path / name).write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(error, match=message):
        HubTokenizer.from_folder(tmp_path)
    with pytest.raises(ModelNotFound, match="nowhere"):
        HubTokenizer.from_folder(tmp_path / "nowhere")


def test_control_tokens_may_be_declared_in_the_configuration_alone(tmp_path: Path):
    """A token that only tokenizer_config.json declares is a control token, and no text becomes one."""
    declared = {"360": {"content": "<|only here|>", "special": True}}  # the ID behind those of the vocabulary
    config = json.dumps({"added_tokens_decoder": declared})
    tokenizer = HubTokenizer.from_folder(
        write(tmp_path, tokenizer__json=small.byte_level(), tokenizer_config__json=config)
    )

    assert 360 in tokenizer.control_ids
    assert tokenizer.detokenize((360,)) == "<|only here|>"
    assert tokenizer.control_ids.isdisjoint(tokenizer.tokenize("a <|only here|> b"))


def test_a_system_turn_that_the_template_refuses_is_an_error():
    """Without a system role in the template, a schema with a system turn is refused, at its place and with a fix."""
    source = CASES["gemma that refuses a system turn"].source
    tokenizer = HubTokenizer.from_parts(small.llama_like(), LLAMA, source)

    with pytest.raises(SchemaError, match="no system role") as refused:
        lay_out(read('<schema name="s"><system>Be brief.</system><module name="a">A.</module></schema>'), tokenizer)

    (fault,) = refused.value.diagnostics
    assert (fault.code, fault.span.column) == ("PC512", 18)
    assert fault.help is not None
    assert "first user turn" in fault.help
    assert tokenizer.warnings == ()


def test_a_date_that_the_template_writes_has_a_warning():
    """The turns of a schema have one date for ever. Without turns, or a date in the template, nothing is said."""
    dated = "{% for m in messages %}{{ strftime_now('%d %b %Y') }} {{ m.role }}: {{ m.content }}\n{% endfor %}"
    turn, text = '<schema name="s"><system>Be brief.</system></schema>', '<schema name="s">Be brief.</schema>'
    found = {
        (template, schema): [
            each.message
            for each in lay_out(read(schema), HubTokenizer.from_parts(small.llama_like(), LLAMA, template)).warnings
        ]
        for template in (dated, dated.replace("strftime_now('%d %b %Y')", "'x'"))
        for schema in (turn, text)
    }

    message = "the chat template writes the date, and the turns of a schema always have 26 July 2024"
    assert found.pop((dated, turn)) == [message]
    assert [*found.values()] == [[]] * 3


def test_a_template_that_wants_a_system_turn_keeps_the_first_token():
    """The system turn may be in a module: the template refuses the conversation without it, and BOS stays."""
    schema = read('<schema name="s"><module name="a"><system>Be brief.</system></module></schema>')
    source = f"{{{{ bos_token }}}}{small.CHATML}"
    wants = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"

    layouts = [
        lay_out(schema, HubTokenizer.from_parts(small.llama_like(), LLAMA, each)) for each in (source, wants + source)
    ]

    assert all(each.has_bos for each in layouts)
    assert layouts[0].runs == layouts[1].runs


TEXTS = st.lists(st.one_of(texts(), st.text(max_size=4), st.sampled_from(["é", "’", "🙂", "\ufffd"])), max_size=4).map(
    "".join
)


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram"])
@given(text=TEXTS)
def test_bytes_of_tokens_make_their_text(kind: str, text: str) -> None:
    tokenizer = hub(kind)

    assert b"".join(map(tokenizer.token_bytes, tokenizer.tokenize(text))) == text.encode()


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram", "word piece", "demo"])
def test_every_token_has_the_bytes_that_decode_to_its_text(kind: str) -> None:
    tokenizer = HubTokenizer.from_folder(DEMO_FOLDER) if kind == "demo" else hub(kind)
    token_ids = range(200)
    assert any(token_id in tokenizer.control_ids for token_id in token_ids)

    for token_id in token_ids:
        assert tokenizer.token_bytes(token_id).decode(errors="replace") == tokenizer.detokenize([token_id])


TOKENIZERS = [
    HubTokenizer.from_folder(DEMO_FOLDER),
    *(HubTokenizer.from_parts(rules(), {}) for rules in (byte_level, llama_like, unigram, word_piece)),
]
PIECES = ["a", " ", " " * 300, "stone crab ", "<|begin|>", "é", "e\u0301", "\u1f82", "🦀", "\n", "x" * 200, "ab" * 90]
LONG_TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 20)), min_size=1, max_size=8).map(
    lambda pieces: "".join(piece * count for piece, count in pieces)
)


@pytest.mark.law
@given(LONG_TEXTS, st.sampled_from(TOKENIZERS), st.sampled_from(Before), st.booleans())
def test_a_text_that_fits_is_not_refused(text: str, tokenizer: HubTokenizer, before: Before, markup: bool) -> None:
    """Whatever the slices cut, a text with exactly the allowed number of tokens passes."""
    module = import_module("promptcache.tokenizer.types")
    (found,) = tokenizer.tokenize_parts([Markup(text) if markup else text], before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_USUAL", 0)
        patch.setattr(module, "SLICE", 500)
        assert not has_more_tokens(tokenizer, text, len(found))


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["demo", "byte_level", "llama_like", "unigram", "word_piece"])
def test_a_long_text_is_refused_early(tokenizer: HubTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    original = HubTokenizer.tokenize_parts

    def noted(self: HubTokenizer, parts: list[str], before: Before) -> tuple[tuple[int, ...], ...]:
        lengths.append(sum(map(len, parts)))
        return original(self, parts, before)

    monkeypatch.setattr(HubTokenizer, "tokenize_parts", noted)

    assert has_more_tokens(tokenizer, "a stone crab, " * 700_000, 4_096)
    assert sum(lengths) < 2**18
    assert max(lengths) <= 2**16


def test_a_text_of_usual_length_is_not_tokenized_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight characters for each allowed token are no long text."""
    monkeypatch.setattr(HubTokenizer, "tokenize_parts", lambda *_: 1 / 0)

    assert not has_more_tokens(TOKENIZERS[0], "x" * 2**16, 10)
    assert not has_more_tokens(TOKENIZERS[0], "x" * 800_000, 100_000)
