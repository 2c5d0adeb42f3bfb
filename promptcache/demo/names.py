"""Draws names, attributes and values: real-looking ones, made-up ones, and random pieces of the vocabulary.

Comes in: a random generator. Goes out: strings. Knows neither documents nor tokens' IDs; `pieces` are only texts that
happen to be tokens, so that every token is practised.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from promptcache.demo import words


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSource:
    """How names are drawn.

    Args:
        pieces: Texts of single tokens; made-up names are joined from them in a share of the draws.
        made_up: Share of made-up names among all.
        unseen: Draw only from syllables that training never uses.
    """

    pieces: tuple[str, ...] = ()
    made_up: float = 0.35
    unseen: bool = False

    def entity(self, rng: Random) -> str:
        """A name of one to three words, such as "Miami", "the basic plan" or "Port Kalo"."""
        if rng.random() >= self._share():
            return _real_entity(rng)
        kind = rng.random()
        name = _capitalized(self._made_up_word(rng))
        if kind < 0.15:
            return f"{rng.choice(words.NAME_PREFIXES)} {name}"
        if kind < 0.25:
            return f"{name} {rng.choice(words.NAME_SUFFIXES)}"
        if kind < 0.32:
            return f"{name} {_capitalized(self._made_up_word(rng))}"
        return name.lower() if kind < 0.42 else name

    def attribute(self, rng: Random) -> str:
        """One to three words, such as "airport", "best dish" or "small paper key"."""
        kind = rng.random()
        if kind < 0.6:
            return rng.choice(words.ATTRIBUTES)
        if kind < 0.72:
            return f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.ATTRIBUTES)}"
        if kind < 0.82:
            return f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}"
        if kind < 0.9:
            return f"{rng.choice(words.NOUNS)} {rng.choice(words.NOUNS + words.COMMON)}"
        if kind < 0.94:
            return rng.choice(words.COMMON)
        return self._made_up_word(rng) if self._share() else rng.choice(words.NOUNS)

    def value(self, rng: Random) -> str:
        """A word, a name, a number with or without unit, a code; one to four words."""
        if rng.random() < self._share():
            word = self._made_up_word(rng)
            if not self.unseen and rng.random() < 0.2:
                word = f"{word} {rng.choice((rng.choice(words.NOUNS), self._made_up_word(rng)))}"
            return _capitalized(word) if rng.random() < 0.5 else word
        return rng.choice(_VALUE_KINDS)(rng)

    def _share(self) -> float:
        return 1.0 if self.unseen else self.made_up

    def _made_up_word(self, rng: Random) -> str:
        if self.unseen:
            return syllable_word(rng, unseen=True)
        word = syllable_word(rng)
        if self.pieces and rng.random() < 0.6:
            word = "".join(rng.choices(self.pieces, k=rng.choice((1, 1, 2, 2, 3))))
        return _spelled(rng, word) if rng.random() < 0.15 else word


def _capitalized(word: str) -> str:
    """As `str.capitalize`, but capitals inside a word stay."""
    return word[0].upper() + word[1:]


def _spelled(rng: Random, word: str) -> str:
    """A word as products and codes are spelled: with a number, a hyphen, a capital inside, or capitals only."""
    kind = rng.random()
    if kind < 0.3:
        return f"{word}{rng.randint(1, 99)}"
    if kind < 0.5:
        return f"{word}-{rng.choice((rng.randint(1, 99), syllable_word(rng)))}"
    if kind < 0.7:
        return f"{word}{syllable_word(rng).capitalize()}"
    return word[:4].upper()


def syllable_word(rng: Random, *, unseen: bool = False) -> str:
    """A word of two or three syllables; all of them unknown to training if `unseen`, all known otherwise."""
    syllables: list[str] = []
    num_syllables = rng.choice((2, 2, 3))
    while len(syllables) < num_syllables:
        syllable = rng.choice(words.CONSONANTS) + rng.choice(words.VOWELS)
        if (syllable in words.UNSEEN_SYLLABLES) == unseen:
            syllables.append(syllable)
    return "".join(syllables) + rng.choice(words.ENDINGS)


_ENTITIES = (
    *(words.CITIES, words.CITIES, words.COUNTRIES, words.PRODUCTS, words.PRODUCTS),
    *(words.TOPICS, words.PEOPLE, words.NOUNS, words.COMMON),
)


def _real_entity(rng: Random) -> str:
    name = rng.choice(rng.choice(_ENTITIES))
    kind = rng.random()
    if kind < 0.06 and " " not in name:
        return f"{rng.choice(words.NAME_PREFIXES)} {name.capitalize()}"
    if kind < 0.1:
        return f"the {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}"
    return name


def _number(rng: Random) -> str:
    return str(rng.choice((rng.randint(1, 9), rng.randint(10, 99), rng.randint(100, 999), rng.randint(1000, 9999))))


def _code(rng: Random) -> str:
    letters = "".join(rng.choices("ABCDEFGHKLMNPRSTXZ", k=rng.randint(1, 3)))
    return rng.choice((f"{letters}{rng.randint(1, 999)}", f"{letters}-{rng.randint(1, 99)}"))


def _email(rng: Random) -> str:
    return f"{rng.choice(words.TOPICS + words.NOUNS[:60])}@{rng.choice(words.NOUNS[:60])}.com".replace(" ", "")


_LANDMARKS = ("International", "Airport", "Street", "Central", "Tower", "Bridge")
_VALUE_KINDS: tuple[Callable[[Random], str], ...] = (
    lambda rng: rng.choice(words.NOUNS),
    lambda rng: rng.choice(words.NOUNS),
    lambda rng: f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}",
    lambda rng: f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}",
    lambda rng: f"{rng.choice(words.NOUNS)} {rng.choice(words.NOUNS)}",
    lambda rng: f"{rng.choice(words.NOUNS)} and {rng.choice(words.NOUNS)}",
    lambda rng: rng.choice(words.ADJECTIVES),
    lambda rng: rng.choice(words.COMMON),
    lambda rng: f"{rng.choice(words.COMMON)} {rng.choice(words.COMMON)}",
    lambda rng: f"{rng.choice(words.COMMON)} {rng.choice(words.NOUNS)} {rng.choice(words.NOUNS)}",
    lambda rng: f"{rng.choice(words.NUMBER_WORDS)} {rng.choice(words.UNITS)}",
    lambda rng: f"{rng.choice(words.NUMBER_WORDS)} {rng.choice(words.UNITS)}",
    lambda rng: f"{_number(rng)} {rng.choice(words.UNITS)}",
    lambda rng: f"{_number(rng)} {rng.choice(words.UNITS)}",
    lambda rng: f"{rng.choice(words.PLACES)} {rng.choice('ABCDEFGH')}",
    lambda rng: f"{rng.choice(words.PLACES)} {rng.randint(1, 40)}",
    _number,
    _code,
    _email,
    lambda rng: f"{rng.randint(0, 23)}:{rng.choice(('00', '15', '30', '45'))}",
    lambda rng: f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)}",
    lambda rng: rng.choice(words.MONTHS + words.WEEKDAYS),
    lambda rng: rng.choice(words.PEOPLE),
    lambda rng: rng.choice(words.CITIES + words.COUNTRIES),
    lambda rng: f"{rng.choice(words.CITIES)} {rng.choice(_LANDMARKS)}",
    lambda rng: f"the {rng.choice(words.ADJECTIVES)} {rng.choice(words.NOUNS)}",
)
