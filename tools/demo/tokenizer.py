"""Trains the byte-level BPE tokenizer of the demo model, and writes it with its chat template.

`tokenizer.json` can be used with the tokenizers library alone.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.demo import words
from tools.demo.documents import DocumentSettings, NameSource, make_document, syllable_word

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES))
NUM_BARE_TOKENS = 2560  # those without a leading space; each that may begin a word has a twin with one

# A newline, a digit and a run of letters never share a token, so that text cut at a module or in front of a number
# is tokenized as it would be uncut.
_WORDS = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s")
_BARE_WORDS = Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\s")
_SPACE = "\u0120"  # how byte-level BPE writes a space

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the roles are system, user and assistant') }}"
    "{% endif %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def train_tokenizer(seed: int, num_documents: int = 6000) -> Tokenizer:
    """Train on generated documents; the same seed gives the same tokenizer.

    Merges are learned on words without their spaces. A space joins the first token of a word last, so that a word is
    split in the same places with and without a space before it. An argument, which is tokenized separately, therefore
    has the same tokens as inside a sentence, or their twins.
    """
    bare = _with_words(models.BPE(), _BARE_WORDS)
    trainer = trainers.BpeTrainer(
        vocab_size=NUM_BARE_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bare.train_from_iterator(_corpus(seed, num_documents), trainer=trainer)
    model = json.loads(bare.to_str())["model"]
    vocabulary: dict[str, int] = model["vocab"]
    begins = [t for t in sorted(vocabulary, key=vocabulary.__getitem__) if _begins_a_word(t)]
    with_space = {_SPACE + text: len(vocabulary) + i for i, text in enumerate(begins)}
    merges = [*map(tuple, model["merges"]), *((_SPACE, text) for text in begins)]
    tokenizer = _with_words(models.BPE(vocab=vocabulary | with_space, merges=merges), _WORDS)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))]
    )
    return tokenizer


def _with_words(model: models.BPE, pattern: Regex) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _begins_a_word(token: str) -> bool:
    return token.isascii() and not token.isdigit() and token not in SPECIAL_TOKENS


def twins(tokenizer: Tokenizer) -> tuple[tuple[int, int], ...]:
    """Return the IDs of tokens that differ only by a leading space, the bare one first."""
    ids = tokenizer.get_vocab()
    pairs = ((token_id, ids.get(_SPACE + text)) for text, token_id in ids.items())
    return tuple(sorted((bare, spaced) for bare, spaced in pairs if spaced is not None))


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and the files that transformers reads beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [f"<|{role}|>" for role in ROLES],
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def special_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the ID of a special token."""
    token_id = tokenizer.token_to_id(token)
    assert token_id is not None, token
    return token_id


def single_token_texts(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return the texts of all tokens of ASCII letters without a leading space, in the order of their IDs."""
    texts = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return tuple(text for text, _ in texts if text.isascii() and text.isalpha() and len(text) <= 8)


def _corpus(seed: int, num_documents: int) -> Iterator[str]:
    """Yield documents, then each pool of words with and without a space before it, then single words of syllables."""
    rng = Random(f"tokenizer {seed}")
    names = NameSource(made_up=0.15)
    for _ in range(num_documents):
        document = make_document(rng, names, DocumentSettings(num_facts=8, max_questions=4, unknown_share=0.2))
        yield document.text
        yield from (f"{question.text}\n{question.fact.sentence}" for question in document.questions)
    pools = (
        *(
            words.CITIES,
            words.COUNTRIES,
            words.PRODUCTS,
            words.TOPICS,
            words.PEOPLE,
            words.ATTRIBUTES,
            words.ADJECTIVES,
        ),
        *(words.NOUNS, words.NUMBER_WORDS, words.UNITS, words.PLACES, words.MONTHS, words.WEEKDAYS, words.COMMON),
    )
    for pool in pools:
        for word in pool:
            yield from [f" {word}."] * 150
    for pool in (words.NUMBER_WORDS, words.UNITS, words.MONTHS, words.WEEKDAYS, words.PLACES):
        for word in pool:  # a slot's argument starts without a space
            yield from [word] * 150
    for _ in range(num_documents // 2):
        yield f"{syllable_word(rng)} {syllable_word(rng).capitalize()}"


def main() -> None:
    """`python -m tools.demo.tokenizer FOLDER [--seed N]`."""
    parser = argparse.ArgumentParser(description="Train the demo model's tokenizer.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    save_tokenizer(train_tokenizer(arguments.seed), arguments.folder)


if __name__ == "__main__":
    main()
