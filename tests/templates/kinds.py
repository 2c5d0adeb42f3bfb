"""Small tokenizers of the kinds that public models have, with the control tokens of the templates in `shapes`."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

MARKERS = (
    *("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"),
    *("<|User|>", "<|Assistant|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>", "<|bom|>", "<|eom|>"),
    *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[gMASK]", "<sop>", "<|START|>", "<|END|>"),
    *("[|system|]", "[|user|]", "[|assistant|]", "[|endofturn|]", "<reserved_106>", "<reserved_107>", "<extra_id_1>"),
)
"""Control tokens of the templates."""

WORDS = ("amlodipine", "<think>", "</think>", "<tool_call>", "</tool_call>", "🙂", "    ")
"""Words that users or models add to a vocabulary."""

_CORPUS = (
    "the quick brown fox jumps over the lazy dog.\n\nand then the other dog, it's 12 or 345.\n",
    "USER: what is in the box? ASSISTANT: hello there.\n\nUser: a b\n\nAssistant: so\n",
    "### Instruction:\nsay so.\n\n### Response:\nno.\n\n### User:\nwhy?\n\n### Assistant:\n\n\nso\n",
    "system\nYou are helpful.\nuser\nassistant\nmodel\nA: x\nQ: y\n\n  two  spaces\n\n\nthree lines: \n",
    "<|im_start|>user <|end|>\n<think>\n\n</think>\n\n <s> </s> [INST] [/INST] <<SYS>>\n<</SYS>>\n\n",
) * 4
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'#<>/|[]_()-"
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_SPECIAL = ("<unk>", "<s>", "</s>")
_QWEN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level() -> str:
    """Byte-level BPE with the pattern of GPT-2, and control tokens that are special."""
    tokenizer = _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    return _with_markers(tokenizer).to_str()


def byte_level_with_words() -> str:
    """Byte-level BPE with the pattern of Qwen, with added words, and with control tokens that are not special."""
    split = pre_tokenizers.Split(Regex(_QWEN), "isolated")
    tokenizer = _byte_level(
        pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    )
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(form, normalized=False) for form in (*MARKERS, *WORDS)])
    return tokenizer.to_str()


def byte_level_with_a_space() -> str:
    """Byte-level BPE that puts a space before a text, and knows no control tokens but BOS and EOS."""
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)).to_str()


def prepend() -> str:
    """BPE with a space before each text between control tokens, as in Llama 2: a normalizer writes it."""
    tokenizer = _with_markers(_metaspace_bpe(normalizers.Sequence([normalizers.Prepend("▁"), _SPACES])))
    tokenizer.add_tokens([AddedToken(form, normalized=True) for form in WORDS[:1]])
    return tokenizer.to_str()


def prepend_with_stripping() -> str:
    """As `prepend`, with control tokens that take the spaces next to them, as in Phi 3."""
    tokenizer = _metaspace_bpe(normalizers.Sequence([normalizers.Prepend("▁"), _SPACES]))
    tokens = [
        AddedToken(form, special=True, normalized=False, rstrip=index % 3 != 1, lstrip=index % 3 != 0)
        for index, form in enumerate(MARKERS)
    ]
    tokenizer.add_special_tokens(tokens)
    return tokenizer.to_str()


def metaspace_first() -> str:
    """BPE with a space before the first text, as in newer Llama and Mistral files: a pre-tokenizer writes it."""
    tokenizer = _metaspace_bpe(None)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_tokens([AddedToken(form, normalized=False) for form in WORDS])
    return _with_markers(tokenizer).to_str()


def metaspace_never() -> str:
    """BPE on text with signs for spaces and without splits, as in Gemma."""
    tokenizer = _metaspace_bpe(_SPACES)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_markers(tokenizer).to_str()


def unigram() -> str:
    """Unigram with a space before each text between control tokens, as in T5."""
    pieces = [(piece, 0.0) for piece in (*_SPECIAL, *_BYTES)]
    pieces += [(letter, -6.0) for letter in f"▁{_LETTERS}\n"]
    pieces += [
        ("▁the", -2.0),
        ("▁dog", -2.5),
        ("ox", -3.0),
        (".\n\n", -3.0),
        ("\n\n", -3.0),
        (":\n", -3.0),
        (":▁", -3.5),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    tokenizer.add_special_tokens([*_SPECIAL])
    tokenizer.add_tokens([*WORDS[:3]])
    return _with_markers(tokenizer).to_str()


def word_piece() -> str:
    """WordPiece, which keeps no whitespace."""
    letters = [*_LETTERS, *(f"##{letter}" for letter in _LETTERS)]
    pieces = [*_SPECIAL, *letters, "the", "dog", "box", "##er", "user", "Response", "Inst", "##ruction", "12"]
    tokenizer = Tokenizer(
        models.WordPiece(vocab={piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([*_SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return _with_markers(tokenizer).to_str()


KINDS: Mapping[str, Callable[[], str]] = {
    "byte level": byte_level,
    "byte level with words": byte_level_with_words,
    "byte level with a space": byte_level_with_a_space,
    "prepend": prepend,
    "prepend with stripping": prepend_with_stripping,
    "metaspace first": metaspace_first,
    "metaspace never": metaspace_never,
    "unigram": unigram,
    "word piece": word_piece,
}

_SPACES = normalizers.Replace(" ", "▁")


def _byte_level(pre_tokenizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=480,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[*_SPECIAL],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _metaspace_bpe(normalizer: Any) -> Tokenizer:
    """Return BPE with byte fallback, whose merges go over spaces and newlines."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = _SPACES
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("(?=▁)"), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=[*_LETTERS, "▁", "\n"], show_progress=False, max_token_length=8
    )
    trained.train_from_iterator(_CORPUS, trainer)
    rules = json.loads(trained.to_str())
    pieces = [*_SPECIAL, *_BYTES, *rules["model"]["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(pair) for pair in rules["model"]["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([*_SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _with_markers(tokenizer: Tokenizer, forms: Iterable[str] = MARKERS) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(form, special=True, normalized=False) for form in forms])
    return tokenizer
