"""Small tokenizers of every kind that models come with, made here from a few lines of text."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from promptcache.demo import MODEL_FOLDER
from promptcache.tokenizer import HubTokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog and then the other dog",
    "system user assistant hello there, what is in the box? It's 12 or 345.",
    "    def f(x):\n        return x + 1\n\n\nclass A:\n    pass",
] * 4


def byte_level() -> str:
    """Byte-level BPE as in Qwen2 and GPT-2: special, added and whitespace tokens outside the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("    ", normalized=True)])
    return tokenizer.to_str()


def llama_like() -> str:
    """BPE with byte fallback, a prefix space and BOS, as in Llama 2; its merges even build a control token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = {character for line in CORPUS for character in line.replace(" ", "▁") if character != "\n"}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("o", "x"), ("▁", "▁"), ("<", "s"), ("<s", ">")]
    pieces += sorted(letters | set("<>")) + [left + right for left, right in merges[:-1]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str()


def unigram() -> str:
    """Unigram with Metaspace as in T5 and XGLM: control tokens and bytes are part of the vocabulary."""
    pieces = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(f"<0x{byte:02X}>", 0.0) for byte in range(256)]
    letters = {character for line in CORPUS for character in line.replace(" ", "▁") if character != "\n"}
    pieces += [(letter, -5.0) for letter in sorted(letters | set("<>/0x"))]
    pieces += [("▁the", -2.0), ("▁dog", -2.5), ("ox", -3.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    tokenizer.add_special_tokens(["<s>", "</s>", "<unk>"])
    return tokenizer.to_str()


def word_piece() -> str:
    """WordPiece as in BERT, which keeps no whitespace and puts [CLS] first and [SEP] last."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer.to_str()


def edited(tokenizer_json: str, **changes: Any) -> str:
    return json.dumps(json.loads(tokenizer_json) | changes)


def with_controls(template: str, controls: Iterable[str], *, eos: str) -> HubTokenizer:
    """Return a tokenizer with a chat template, and special tokens of these written forms."""
    rules = json.loads((Path(MODEL_FOLDER) / "tokenizer.json").read_text())
    known = {each["content"] for each in rules["added_tokens"]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    first = 1 + max(rules["model"]["vocab"].values())
    for token_id, content in enumerate((each for each in controls if each not in known), first):
        rules["added_tokens"].append({"id": token_id, "content": content, "special": True, **flags})
    return HubTokenizer.from_parts(json.dumps(rules), {"eos_token": eos}, template)
