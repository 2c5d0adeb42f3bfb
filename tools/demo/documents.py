"""Random documents of facts, with questions about them, and the names that they are made of.

The same state of the random generator gives the same document. The shipped model was trained on these texts: a change
here makes its training impossible to repeat.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tools.demo import words


@dataclass(frozen=True, slots=True, kw_only=True)
class NameSource:
    """Settings for drawing names.

    Args:
        pieces: Texts of single tokens. A share of the made-up names is joined from them, so that every token is
            practised.
        made_up: Share of made-up names.
        unseen: Draw only from syllables that training never uses.
    """

    pieces: tuple[str, ...] = ()
    made_up: float = 0.35
    unseen: bool = False

    def entity(self, rng: Random) -> str:
        """Return a name of one to three words, such as "Miami", "the basic plan" or "Port Kalo"."""
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
        """Return one to three words, such as "airport", "best dish" or "small paper key"."""
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
        """Return a word, a name, a number with or without unit, or a code; one to four words."""
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
    """Capitalize like `str.capitalize`, but keep capitals inside the word."""
    return word[0].upper() + word[1:]


def _spelled(rng: Random, word: str) -> str:
    """Return a word spelled like a product or code: with a number, a hyphen, a capital inside, or capitals only."""
    kind = rng.random()
    if kind < 0.3:
        return f"{word}{rng.randint(1, 99)}"
    if kind < 0.5:
        return f"{word}-{rng.choice((rng.randint(1, 99), syllable_word(rng)))}"
    if kind < 0.7:
        return f"{word}{syllable_word(rng).capitalize()}"
    return word[:4].upper()


def syllable_word(rng: Random, *, unseen: bool = False) -> str:
    """Return a word of two or three syllables; all unknown to training if `unseen`, else all known."""
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


UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One sentence of a document. A fact without a value is one that the document does not state."""

    attribute: str
    entity: str
    value: str = UNKNOWN

    @property
    def start(self) -> str:
        """The sentence without its value, which follows after a space."""
        return f"The {self.attribute} of {self.entity} is"

    @property
    def sentence(self) -> str:
        """The sentence, as documents and answers write it."""
        return f"{self.start} {self.value}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with the fact that answers it; the fact has no value if the document does not state it."""

    text: str
    fact: Fact

    @property
    def known(self) -> bool:
        """Whether the document states the answer."""
        return self.fact.value != UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class FactSheet:
    """A document: modules of sentences (facts, or remarks as strings), and questions."""

    introduction: str | None
    modules: tuple[tuple[Fact | str, ...], ...]
    questions: tuple[Question, ...]

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts in document order."""
        return tuple(item for module in self.modules for item in module if isinstance(item, Fact))

    @property
    def text(self) -> str:
        """Introduction and modules, one per line."""
        lines = [" ".join(i.sentence if isinstance(i, Fact) else i for i in module) for module in self.modules]
        return "\n".join([self.introduction, *lines] if self.introduction else lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentSettings:
    """Settings for drawing a document.

    Args:
        num_facts: Number of facts.
        max_questions: Maximum number of questions; known questions are never more than facts.
        unknown_share: Share of questions that the document does not answer.
        remarks: Share of documents with an introduction, and of modules with a remark.
    """

    num_facts: int
    max_questions: int
    unknown_share: float
    remarks: float = 0.2


def make_document(rng: Random, names: NameSource, settings: DocumentSettings) -> FactSheet:
    """Return a random document; the same generator state gives the same document."""
    modules = rng.choice(_WORLDS)(rng, names, settings.num_facts)
    facts = tuple(fact for module in modules for fact in module)
    questions = _questions(rng, names, facts, settings)
    with_remarks = tuple(_with_remark(rng, module, settings.remarks) for module in modules)
    introduction = rng.choice(words.INTRODUCTIONS) if rng.random() < settings.remarks else None
    return FactSheet(introduction=introduction, modules=with_remarks, questions=questions)


def grid_facts(rng: Random, names: NameSource, num_entities: int, num_attributes: int) -> list[list[Fact]]:
    """Return one module per entity, all with the same attributes in the same order."""
    entities = _distinct(rng, names.entity, similar_entity, num_entities)
    attributes = _distinct(rng, names.attribute, _similar_attribute, num_attributes)
    return [[_fact(rng, names, attribute, entity) for attribute in attributes] for entity in entities]


def _grid(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """Return one module per entity with the same attributes, like a travel planner or a table of plans."""
    num_attributes = rng.randint(1, max(1, min(num_facts, 6)))
    entities = _distinct(rng, names.entity, similar_entity, -(-num_facts // num_attributes))
    attributes = _distinct(rng, names.attribute, _similar_attribute, num_attributes + rng.choice((0, 0, 1, 2)))
    modules, left = [], num_facts
    for entity in entities:
        chosen = rng.sample(attributes, min(num_attributes, left))
        modules.append([_fact(rng, names, attribute, entity) for attribute in chosen])
        left -= len(chosen)
    return modules


def _one_attribute(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """Return one attribute of many entities, like a classifier or a list of policies."""
    attribute = names.attribute(rng)
    entities = _distinct(rng, names.entity, similar_entity, num_facts)
    return _cut(rng, [_fact(rng, names, attribute, entity) for entity in entities])


def _one_entity(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """Return many attributes of one entity, like a product sheet."""
    entity = names.entity(rng)
    attributes = _distinct(rng, names.attribute, _similar_attribute, num_facts)
    return _cut(rng, [_fact(rng, names, attribute, entity) for attribute in attributes])


def _mixed(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """Return pairs of entities and attributes in any order."""
    entities = _distinct(rng, names.entity, similar_entity, rng.randint(1, num_facts))
    attributes = _distinct(rng, names.attribute, _similar_attribute, num_facts)
    pairs = [(attribute, entity) for attribute in attributes for entity in entities]
    return _cut(rng, [_fact(rng, names, *pair) for pair in rng.sample(pairs, num_facts)])


_World = Callable[[Random, NameSource, int], list[list[Fact]]]
_WORLDS: tuple[_World, ...] = (_grid, _grid, _grid, _grid, _one_attribute, _one_attribute, _one_entity, _mixed, _mixed)


def _fact(rng: Random, names: NameSource, attribute: str, entity: str) -> Fact:
    return Fact(attribute=attribute, entity=entity, value=names.value(rng))


def _distinct(
    rng: Random, draw: Callable[[Random], str], similar: Callable[[Random, str], str], count: int
) -> list[str]:
    """Return `count` different strings. In some lists, some strings share words with an earlier one."""
    found: dict[str, str] = {}
    similar_share = rng.choice((0.0, 0.0, 0.0, 0.3, 0.6))
    while len(found) < count:
        name = similar(rng, rng.choice([*found.values()])) if found and rng.random() < similar_share else draw(rng)
        if len(name) <= 40:
            found.setdefault(name.lower(), name)
    return [*found.values()]


def similar_entity(rng: Random, name: str) -> str:
    """Return another name that shares a word with `name`."""
    bare = name.removeprefix("the ")
    if name != bare and rng.random() < 0.7:  # "the student plan" beside "the basic plan"
        return f"the {rng.choice(rng.choice((words.ADJECTIVES, words.NOUNS, words.COMMON)))} {bare.split()[-1]}"
    if rng.random() < 0.6:
        return f"{rng.choice(words.NAME_PREFIXES)} {bare.split()[-1].capitalize()}"
    return f"{bare.split()[0].capitalize()} {rng.choice(words.NAME_SUFFIXES)}"


def _similar_attribute(rng: Random, attribute: str) -> str:
    if rng.random() < 0.6:
        return f"{rng.choice(words.ADJECTIVES)} {attribute.split()[-1]}"
    return f"{attribute.split()[0]} {rng.choice(words.NOUNS)}"


def _cut(rng: Random, facts: list[Fact]) -> list[list[Fact]]:
    """Spread facts over modules of one size; the last one may be shorter."""
    size = rng.choice((1, 2, 3, 4, 6, len(facts)))
    return [facts[i : i + size] for i in range(0, len(facts), size)]


def _with_remark(rng: Random, module: list[Fact], share: float) -> tuple[Fact | str, ...]:
    if rng.random() >= share:
        return tuple(module)
    remark = rng.choice(words.REMARKS).format(entity=module[0].entity)
    return (remark[0].upper() + remark[1:], *module)


def _questions(
    rng: Random, names: NameSource, facts: tuple[Fact, ...], settings: DocumentSettings
) -> tuple[Question, ...]:
    """Return known questions about different facts, and unknown ones, in random order."""
    num_unknown = sum(rng.random() < settings.unknown_share for _ in range(settings.max_questions))
    num_known = min(len(facts), settings.max_questions - num_unknown)
    if num_known == len(facts):  # keep the share if there are few facts
        if num_known > 1:
            num_unknown = sum(rng.random() < settings.unknown_share for _ in range(num_known))
        num_unknown = max(num_unknown, 1) if rng.random() < settings.unknown_share else num_unknown
    asked = rng.sample(facts, num_known) + [unsaid_fact(rng, names, facts) for _ in range(num_unknown)]
    rng.shuffle(asked)
    return tuple(Question(text=question_text(rng, fact), fact=fact) for fact in asked)


def question_text(rng: Random, fact: Fact) -> str:
    """Return the plainest form of a question in half of the draws, else one of its paraphrases."""
    form = words.QUESTIONS[0] if rng.random() < 0.5 else rng.choice(words.QUESTIONS)
    return form.format(attribute=fact.attribute, entity=fact.entity)


def unsaid_fact(rng: Random, names: NameSource, facts: tuple[Fact, ...]) -> Fact:
    """Return a fact that the document does not state, most often a known attribute of another entity."""
    said = {(fact.attribute.lower(), fact.entity.lower()) for fact in facts}
    while True:
        attribute, entity, kind = rng.choice(facts).attribute, rng.choice(facts).entity, rng.random()
        if kind < 0.5:
            entity = similar_entity(rng, entity) if rng.random() < 0.4 else names.entity(rng)
        elif kind < 0.75:
            attribute = _similar_attribute(rng, attribute) if rng.random() < 0.4 else names.attribute(rng)
        elif kind < 0.8:
            attribute, entity = names.attribute(rng), names.entity(rng)
        if (attribute.lower(), entity.lower()) not in said and len(entity) <= 40:
            return Fact(attribute=attribute, entity=entity)
