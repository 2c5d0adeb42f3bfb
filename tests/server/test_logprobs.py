"""Log-probabilities over HTTP: those of the engine, in OpenAI's two forms, the same in streams."""

from collections.abc import Sequence
from typing import Any

import pytest

from promptcache import Engine, Prompt
from promptcache.answers import TokenLogprobs
from promptcache.server.answer import AnswerLogprobs, AnswerRow, AnswerToken
from promptcache.server.chat_form import chat_logprobs, plain_logprobs
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.tokenizer import Tokenizer
from tests.server.conftest import QUESTION, Served
from tests.tokenizer.test_hub_tokenizer import hub

CHAT: dict[str, Any] = {
    "model": "demo@travel",
    "messages": [QUESTION],
    "logprobs": True,
    "top_logprobs": 2,
    "extra_body": {"prompt_cache": {"use": ["miami"]}},
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0, "stop": ["Miami is sto"]},
    {"temperature": 0, "stop": [" dish"]},
    {"temperature": 0, "max_tokens": 3},
    {"temperature": 1.5, "seed": 3, "n": 3, "max_tokens": 20},
)


def _of_stream(stream: Any, number: int) -> list[Any]:
    found: list[tuple[list[str], list[Any]]] = [([], []) for _ in range(number)]
    for chunk in stream:
        for choice in chunk.choices:
            texts, tokens = found[choice.index]
            texts.append(choice.delta.content or "")
            tokens += (choice.logprobs and choice.logprobs.content) or []
            assert "".join(each.token for each in tokens).startswith("".join(texts))
    return [("".join(texts), tokens) for texts, tokens in found]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_streams_have_the_log_probabilities_of_plain_answers(served: Served, options: dict[str, Any]) -> None:
    """A stream sends each token with the text that it begins, and all together are those of the plain answer."""
    create = served.openai().chat.completions.create
    plain = [(each.message.content, each.logprobs.content) for each in create(**CHAT, **options).choices]
    stream = _of_stream(create(**CHAT, **options, stream=True), options.get("n", 1))

    assert [text for text, _ in stream] == [text for text, _ in plain]
    for (_, tokens), (text, expected) in zip(stream, plain, strict=True):
        assert [each.token for each in tokens] == [each.token for each in expected]
        assert [each.logprob for each in tokens] == pytest.approx([each.logprob for each in expected], abs=1e-3)
        assert [len(each.top_logprobs) for each in tokens] == [2] * len(tokens)
        assert "".join(each.token for each in tokens).startswith(text)
        whole = "".join(each.token for each in tokens[:-1])
        assert text.startswith(whole)
        assert len(whole) < len(text) or not text


def test_chats_have_the_log_probabilities_of_the_engine(served: Served, engine: Engine) -> None:
    """Tokens are those of `Engine.generate` with its numbers, without the end of the turn."""
    made = served.openai().chat.completions.create(**CHAT, temperature=0)
    expected = engine.generate(Prompt("travel").use("miami").user(QUESTION["content"]), do_sample=False, logprobs=2)

    content = made.choices[0].logprobs.content
    assert "".join(each.token for each in content) == made.choices[0].message.content == expected.text
    for found, each in zip(content, expected.logprobs[:-1], strict=True):
        assert found.logprob == pytest.approx(each.logprob, abs=1e-3)
        assert [other.logprob for other in found.top_logprobs] == pytest.approx(
            [logprob for _, logprob in each.top], abs=1e-3
        )
        assert bytes(found.bytes or ()).decode() == found.token


@pytest.mark.parametrize("num_top", [0, 3])
def test_completions_have_them_in_their_own_form(served: Served, num_top: int) -> None:
    """Offsets and texts of the tokens are those of the answer; a stream has the same lists in pieces."""
    asked: dict[str, Any] = {
        "model": "demo",
        "prompt": "The best dish of Oslo is cod. The best",
        "temperature": 0,
        "max_tokens": 8,
        "logprobs": num_top,
    }
    client = served.openai()
    choice = client.completions.create(**asked).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    logprobs = choice.logprobs
    assert logprobs.tokens

    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:index])) for index in range(len(logprobs.tokens))]
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert top[token] == logprob
        assert max(1, num_top) <= len(top) <= num_top + 1
    for name in ("tokens", "text_offset"):
        streamed = [each for chunk in chunks if chunk.logprobs for each in getattr(chunk.logprobs, name)]
        assert streamed == getattr(logprobs, name)
    assert "".join(each.text for each in chunks) == choice.text


@pytest.mark.parametrize("stop", [None, "bc", "d"])
def test_tokens_begin_behind_broken_characters(stop: str | None) -> None:
    """A byte that no character can have is one character of the text, and those of a stop string are left out."""
    tokenizer = ByteTokenizer()
    token_ids = list(b"a\xf0bcd")
    row = AnswerRow(tokenizer, (stop,) if stop else ())

    for token_id in token_ids:
        row.add(TokenLogprobs(token_id=token_id, logprob=-1.0, top=()))
    text = row.text("message")
    found = plain_logprobs(row.tokens())

    assert text == "a\ufffdbcd".partition(stop or "\0")[0]
    assert found["text_offset"] == list(range(len(text)))
    assert "".join(found["tokens"]) == text.replace("\ufffd", "bytes:\\xf0")


def _answer_logprobs(text: str, tops: Sequence[Sequence[int]], tokenizer: Tokenizer) -> tuple[AnswerToken, ...]:
    logprobs = AnswerLogprobs(tokenizer)
    for token_id, top in zip(tokenizer.tokenize(text), tops, strict=True):
        scored = tuple((other, -float(place)) for place, other in enumerate(top, 1))
        logprobs.add(TokenLogprobs(token_id=token_id, logprob=-0.5, top=scored), 0, 0)
    return logprobs.take()


@pytest.mark.parametrize("kind", ["bytes", "byte level", "llama", "unigram"])
def test_each_token_of_a_chat_has_its_bytes(kind: str) -> None:
    """A character of several tokens has an entry for each of them, and all bytes together are the answer in UTF-8."""
    text = "do it’s 🙂, né"
    tokenizer = ByteTokenizer() if kind == "bytes" else hub(kind)
    token_ids = tokenizer.tokenize(text)

    made = chat_logprobs(_answer_logprobs(text, [[each] for each in token_ids], tokenizer))["content"]

    assert len(made) == len(token_ids)
    assert b"".join(bytes(each["bytes"]) for each in made) == text.encode()
    assert [each["top_logprobs"][0]["bytes"] for each in made] == [each["bytes"] for each in made]
    assert {r"\xf0", r"\xc3", r"\xa9"} <= {each["token"] for each in made}


def test_tokens_of_a_completion_are_never_merged() -> None:
    """Parts of characters, and tokens that are written alike, have an entry each among the most probable ones."""
    tokenizer = hub("llama")
    of_byte = {byte: tokenizer.tokenize(chr(byte) if byte < 128 else "é")[-1] for byte in (10, 0xA9)}
    (written,) = tokenizer.tokenize("t")
    as_byte = of_byte[10] + ord("t") - 10  # <0x74>
    assert tokenizer.detokenize([as_byte]) == "t"

    found = _answer_logprobs("t", [[as_byte, of_byte[0xA9], of_byte[0xA9] - 1, written]], tokenizer)
    (made,) = plain_logprobs(found)["top_logprobs"]

    assert made == {"t": -4.0, f"token_id:{as_byte}": -1.0, r"bytes:\xa9": -2.0, r"bytes:\xa8": -3.0}
