"""Laws of the demo tokenizer and its chat template."""

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from promptcache.demo import MODEL_FOLDER
from tools.demo.tokenizer import SPECIAL_TOKENS, train_tokenizer, twins

SPECIAL_IDS = set(range(len(SPECIAL_TOKENS)))
MESSAGES = [
    {"role": "system", "content": "The airport of Miami is small."},
    {"role": "user", "content": "What is the airport of Miami?"},
    {"role": "assistant", "content": "The airport of Miami is small."},
    {"role": "user", "content": "And the mayor?"},
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # text is text
    return tokenizer


@given(
    text=st.text()
    | st.sampled_from(SPECIAL_TOKENS)
    | st.lists(st.sampled_from(("<|", "|>", "end", "user"))).map("".join)
)
def test_text_never_gives_special_tokens(tokenizer: Tokenizer, text: str) -> None:
    """No text gives special tokens, and its tokens decode to the text."""
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids

    assert not SPECIAL_IDS & set(token_ids)
    assert tokenizer.decode(token_ids, skip_special_tokens=False) == text


@given(before=st.text(), after=st.text())
def test_newlines_part_tokens(tokenizer: Tokenizer, before: str, after: str) -> None:
    """Text cut in front of a newline has the tokens of the uncut text."""
    parts = [tokenizer.encode(part, add_special_tokens=False).ids for part in (before, f"\n{after}")]

    assert parts[0] + parts[1] == tokenizer.encode(f"{before}\n{after}", add_special_tokens=False).ids


@given(word=st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"), min_size=1, max_size=20))
def test_a_space_does_not_change_where_a_word_is_cut(tokenizer: Tokenizer, word: str) -> None:
    """A word has the same tokens with and without a space before it, but that the first is the other's twin."""
    spaced_of = dict(twins(tokenizer))
    bare, spaced = (tokenizer.encode(text, add_special_tokens=False).ids for text in (word, f" {word}"))

    assert [spaced_of[bare[0]], *bare[1:]] == spaced


def test_template_renders_header_content_footer() -> None:
    """The template is `<|begin|>`, each turn as header, content and footer, and the assistant's header if asked for."""
    expected = "<|begin|>" + "".join(f"<|{m['role']}|>\n{m['content']}<|end|>\n" for m in MESSAGES) + "<|assistant|>\n"
    template = jinja2.Environment().from_string((MODEL_FOLDER / "chat_template.jinja").read_text(encoding="utf-8"))

    assert template.render(messages=MESSAGES, bos_token="<|begin|>", add_generation_prompt=True) == expected
    from_folder = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    assert from_folder.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False) == expected


@pytest.mark.slow
def test_tokenizer_is_reproducible() -> None:
    """Training the tokenizer again gives the shipped one."""
    assert train_tokenizer(0).get_vocab() == Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json")).get_vocab()
