"""The hub tokenizer against the tokenizers and chat templates of the transformers library, where they must agree."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from promptcache.diagnostics import InvalidValue, UnsupportedModel
from promptcache.language import Role
from promptcache.model import wrap_tokenizer
from promptcache.tokenizer import Conversations, HubTokenizer
from tests.tokenizer import small_tokenizers as small

TEXTS = (
    "hello there",
    "  the  fox\n\n\tjumps ",
    "def f(x):\n        return 12345",
    "naïve ☃ 日本語",
    "a  \n b",
    "It's 12.",
)


def reference(tokenizer_json: str, **options: Any) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_json), **options)


def with_words(tokenizer_json: str) -> str:
    backend = Tokenizer.from_str(tokenizer_json)
    backend.add_tokens(["amlodipine", AddedToken("<tool>", normalized=False)])
    return backend.to_str()


@pytest.mark.parametrize("kind", [small.byte_level, small.llama_like, small.unigram, small.word_piece])
def test_answers_are_decoded_as_in_transformers(kind: Callable[[], str]):
    """The text of an answer is that of transformers' `decode`, without end tokens and what the tokenizer adds."""
    rules = with_words(kind())
    theirs = reference(rules, eos_token=json.loads(rules)["added_tokens"][1]["content"])
    ours = wrap_tokenizer(theirs)
    edges = {theirs.eos_token_id, *theirs("fox").input_ids} - {*theirs("fox", add_special_tokens=False).input_ids}
    for text in (*TEXTS, "take amlodipine now", "<tool>the dog</tool>", "a<think>b</think>"):
        token_ids = [*theirs(text, add_special_tokens=False).input_ids, *theirs("fox").input_ids, theirs.eos_token_id]
        for answer in (token_ids, token_ids[1:], token_ids[-1:], []):
            shown = [each for each in answer if each not in edges]
            assert ours.decode(answer) == theirs.decode(shown, skip_special_tokens=False)


EDITS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "as written": lambda rules: rules,
    "merges as text": lambda rules: rules | {"model": rules["model"] | _spaced_merges(rules["model"])},
    "without a post-processor": lambda rules: rules | {"post_processor": None},
    "with a token declared elsewhere": lambda rules: rules | {"added_tokens": rules["added_tokens"][:-1]},
}


def _spaced_merges(model: dict[str, Any]) -> dict[str, Any]:
    """The merges as older versions of the tokenizers library wrote them."""
    return {"merges": [" ".join(pair) for pair in model["merges"]]} if "merges" in model else {}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("kind", [small.byte_level, small.llama_like, small.unigram, small.word_piece])
def test_a_loaded_tokenizer_has_the_fingerprint_of_its_folder(
    kind: Callable[[], str], edit: str, tmp_path: Path
) -> None:
    """A folder and the tokenizer that transformers loads from it have one fingerprint, so they share KV."""
    rules = json.loads(kind())
    last = rules["added_tokens"][-1]
    config = {
        "eos_token": rules["added_tokens"][1]["content"],
        "chat_template": small.CHATML,
        "added_tokens_decoder": {last["id"]: {name: value for name, value in last.items() if name != "id"}},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(EDITS[edit](rules), indent=2))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1]}))

    loaded = wrap_tokenizer(PreTrainedTokenizerFast.from_pretrained(tmp_path))
    read = HubTokenizer.from_folder(tmp_path)

    assert [loaded.tokenize(text) for text in TEXTS] == [read.tokenize(text) for text in TEXTS]
    assert loaded.fingerprint == read.fingerprint


@pytest.mark.parametrize("kind", [None, "LlamaTokenizerFast", "GPT2Tokenizer"])
@pytest.mark.parametrize("edit", ["as written", "without a post-processor"])
@pytest.mark.parametrize("add", [None, True, False])
def test_what_comes_first_is_what_transformers_puts_there(
    kind: str | None, edit: str, add: bool | None, tmp_path: Path
) -> None:
    """A folder's text begins as in transformers, whatever `add_bos_token` and `tokenizer_class` of it say."""
    config = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": kind, "add_bos_token": add}
    (tmp_path / "tokenizer.json").write_text(json.dumps(EDITS[edit](json.loads(small.llama_like()))))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({name: value for name, value in config.items() if value is not None})
    )
    theirs = AutoTokenizer.from_pretrained(tmp_path)

    bare = theirs("the fox", add_special_tokens=False).input_ids
    for ours in (HubTokenizer.from_folder(tmp_path), wrap_tokenizer(theirs)):
        assert [*ours.bos_ids, *bare] == theirs("the fox").input_ids


@pytest.mark.parametrize("add", [True, False])
def test_a_caller_of_transformers_decides_what_comes_first(add: bool, tmp_path: Path) -> None:
    """`add_bos_token` as an argument, or set later, changes the loaded tokenizer, and ours with it."""
    (tmp_path / "tokenizer.json").write_text(small.llama_like())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    given = AutoTokenizer.from_pretrained(tmp_path, add_bos_token=add)
    changed = AutoTokenizer.from_pretrained(tmp_path, add_bos_token=not add)
    changed.add_bos_token = add

    assert [wrap_tokenizer(each).bos_ids for each in (given, changed)] == [(1,) if add else ()] * 2


@pytest.mark.parametrize("place", ["a list", "files", "a loaded tokenizer"])
def test_templates_are_used_by_name_as_in_transformers(place: str, tmp_path: Path) -> None:
    """With tools the template for tools is used, else the default one, or the one that is named."""
    kinds = {"default": "", "tool_use": "{{ tools | tojson }}", "rag": "{{ documents | tojson }}"}
    templates = {name: kind + small.CHATML for name, kind in kinds.items()}
    (tmp_path / "tokenizer.json").write_text(small.byte_level())
    config = {} if place == "files" else {"chat_template": [{"name": n, "template": t} for n, t in templates.items()]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    if place == "files":
        (tmp_path / "additional_chat_templates").mkdir()
        for name, source in templates.items():
            inside = "" if name == "default" else "additional_chat_templates/"
            (tmp_path / f"{inside}{'chat_template' if name == 'default' else name}.jinja").write_text(source)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    ours = wrap_tokenizer(theirs) if place == "a loaded tokenizer" else HubTokenizer.from_folder(tmp_path)
    chat = [{"role": "user", "content": "a"}]

    for options in (
        {},
        {"tools": [{"name": "t"}]},
        {"chat_template": "rag", "documents": [{"text": "d"}]},
        {"chat_template": None, "tools": [{"name": "t"}]},
    ):
        expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **options)
        assert ours.render_chat(chat, generation_prompt=True, options=options) == expected
    with pytest.raises(InvalidValue, match="chat_template='other': the model has default, rag, tool_use"):
        ours.render_chat(chat, generation_prompt=True, options={"chat_template": "other"})
    with pytest.raises(InvalidValue, match=r"chat_template=\['rag'\]: the model has default"):
        ours.render_chat(chat, generation_prompt=True, options={"chat_template": ["rag"]})


@pytest.mark.parametrize("names", [("default", "tool_use"), ("rag", "tool_use"), ("tool_use",)])
def test_named_templates_are_chosen_as_in_transformers(names: tuple[str, ...], tmp_path: Path) -> None:
    """Of several templates the default is taken. Without one they are refused, as transformers refuses to use them."""
    templates = [{"name": name, "template": small.CHATML if name == "default" else "{{ no }}"} for name in names]
    (tmp_path / "tokenizer.json").write_text(small.byte_level())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)

    if "default" in names:
        for ours in (wrap_tokenizer(theirs), HubTokenizer.from_folder(tmp_path)):
            assert Conversations(ours).gaps((Role.USER,), generation_prompt=True)[0] == "<|im_start|>user\n"
        return
    with pytest.raises(ValueError, match="no default"):
        theirs.apply_chat_template([{"role": "user", "content": "a"}])
    for create in (lambda: wrap_tokenizer(theirs), lambda: HubTokenizer.from_folder(tmp_path)):
        with pytest.raises(UnsupportedModel, match="'tool_use' is named 'default'"):
            create()
