"""Generates documents of facts in modules, with questions about them.

Comes in: a random generator and what to draw. Goes out: a `Document` of plain strings. Knows neither tokens nor turns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from promptcache.demo import words
from promptcache.demo.names import NameSource

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One sentence of a document; without a value it stands for what the document does not say."""

    attribute: str
    entity: str
    value: str = UNKNOWN

    @property
    def start(self) -> str:
        """The sentence up to its value, which begins with a space of its own."""
        return f"The {self.attribute} of {self.entity} is"

    @property
    def sentence(self) -> str:
        """The fact as a document says it and as an answer repeats it."""
        return f"{self.start} {self.value}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with the fact that answers it, or one without a value."""

    text: str
    fact: Fact

    @property
    def known(self) -> bool:
        """Whether the document says the answer."""
        return self.fact.value != UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Modules of sentences (facts, or remarks as plain strings), and questions."""

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
    """What to draw.

    Args:
        num_facts: Facts in the document.
        max_questions: Questions at most; never more known ones than facts.
        unknown_share: Share of questions that the document does not answer.
        remarks: Share of documents with an introduction, and of modules with a remark.
    """

    num_facts: int
    max_questions: int
    unknown_share: float
    remarks: float = 0.2


def make_document(rng: Random, names: NameSource, settings: DocumentSettings) -> Document:
    """Draw one document; the same generator state gives the same document."""
    modules = rng.choice(_WORLDS)(rng, names, settings.num_facts)
    facts = tuple(fact for module in modules for fact in module)
    questions = _questions(rng, names, facts, settings)
    with_remarks = tuple(_with_remark(rng, module, settings.remarks) for module in modules)
    introduction = rng.choice(words.INTRODUCTIONS) if rng.random() < settings.remarks else None
    return Document(introduction=introduction, modules=with_remarks, questions=questions)


def grid_facts(rng: Random, names: NameSource, num_entities: int, num_attributes: int) -> list[list[Fact]]:
    """One module per entity, all with the same attributes in the same order."""
    entities = _distinct(rng, names.entity, similar_entity, num_entities)
    attributes = _distinct(rng, names.attribute, _similar_attribute, num_attributes)
    return [[_fact(rng, names, attribute, entity) for attribute in attributes] for entity in entities]


def _grid(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """One module per entity, the same attributes in each: a travel planner, a table of plans."""
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
    """One attribute of many entities: a classifier, a list of policies."""
    attribute = names.attribute(rng)
    entities = _distinct(rng, names.entity, similar_entity, num_facts)
    return _cut(rng, [_fact(rng, names, attribute, entity) for entity in entities])


def _one_entity(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """Many attributes of one entity: a product sheet."""
    entity = names.entity(rng)
    attributes = _distinct(rng, names.attribute, _similar_attribute, num_facts)
    return _cut(rng, [_fact(rng, names, attribute, entity) for attribute in attributes])


def _mixed(rng: Random, names: NameSource, num_facts: int) -> list[list[Fact]]:
    """Pairs of entities and attributes in any order."""
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
    """`count` different strings; in some lists, some of them share words with one drawn before."""
    found: dict[str, str] = {}
    similar_share = rng.choice((0.0, 0.0, 0.0, 0.3, 0.6))
    while len(found) < count:
        name = similar(rng, rng.choice([*found.values()])) if found and rng.random() < similar_share else draw(rng)
        if len(name) <= 40:
            found.setdefault(name.lower(), name)
    return [*found.values()]


def similar_entity(rng: Random, name: str) -> str:
    """Another name that shares a word with this one."""
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
    """Spread facts over modules of one size, the last one shorter."""
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
    """Known questions about different facts, and unknown ones, in random order."""
    num_unknown = sum(rng.random() < settings.unknown_share for _ in range(settings.max_questions))
    num_known = min(len(facts), settings.max_questions - num_unknown)
    if num_known == len(facts):  # keep the share where the facts run out
        if num_known > 1:
            num_unknown = sum(rng.random() < settings.unknown_share for _ in range(num_known))
        num_unknown = max(num_unknown, 1) if rng.random() < settings.unknown_share else num_unknown
    asked = rng.sample(facts, num_known) + [unsaid_fact(rng, names, facts) for _ in range(num_unknown)]
    rng.shuffle(asked)
    return tuple(Question(text=question_text(rng, fact), fact=fact) for fact in asked)


def question_text(rng: Random, fact: Fact) -> str:
    """The plainest question in half of the draws, else one of its paraphrases."""
    form = words.QUESTIONS[0] if rng.random() < 0.5 else rng.choice(words.QUESTIONS)
    return form.format(attribute=fact.attribute, entity=fact.entity)


def unsaid_fact(rng: Random, names: NameSource, facts: tuple[Fact, ...]) -> Fact:
    """A pair the facts do not tell: most often a known attribute of an entity they do not name (a module left out)."""
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
