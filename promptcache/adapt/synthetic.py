"""Synthetic documents to learn from: facts, pairs of modules, lists, rules, steps, records and code, with questions.

They share no sentence with the question sets of `python -m benchmarks quality`, which measure what was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from promptcache.adapt.words import (
    ASIDES,
    COUNTRIES,
    DAYS,
    ENDS,
    FAMILY,
    FOODS,
    GIVEN,
    HOBBIES,
    INTRODUCTIONS,
    ITEMS,
    JOBS,
    PLACES,
    STARTS,
    SURFACES,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticDocument:
    """Modules of text, and a question about some of them.

    Attributes:
        introduction: Text in front of the modules; may be empty.
        modules: The text of each module.
        selected: Indices of the modules that the question is about, in order. Prompts leave out the others.
    """

    introduction: str
    modules: tuple[str, ...]
    selected: tuple[int, ...]
    question: str


_Text: TypeAlias = tuple[list[str], str]
"""Modules and a question about them."""

_MAX_ABSENT = 4


def draw_document(rng: Random) -> SyntheticDocument:
    """Return a document of one of the kinds, with modules beside it that the question is not about."""
    draw = rng.choice(_KINDS)
    modules, question = draw(rng)
    num_absent = rng.randint(0, _MAX_ABSENT)
    others: list[str] = []
    while len(others) < num_absent:
        others += draw(rng)[0]
    rng.shuffle(others)
    places = sorted(rng.sample(range(len(modules) + num_absent), len(modules)))
    own, rest = iter(modules), iter(others)
    return SyntheticDocument(
        introduction=rng.choice(INTRODUCTIONS) if rng.random() < 0.85 else "",
        modules=tuple(next(own if index in places else rest) for index in range(len(modules) + num_absent)),
        selected=tuple(places),
        question=question,
    )


def _person(rng: Random) -> str:
    return f"{rng.choice(GIVEN)} {rng.choice(FAMILY)}"


def _people(rng: Random, count: int) -> list[str]:
    return [f"{a} {b}" for a, b in zip(rng.sample(GIVEN, count), rng.sample(FAMILY, count), strict=True)]


def _coined(rng: Random, count: int) -> list[str]:
    """Return names that are no words, such as "Belmira"."""
    return rng.sample([start + end for start in STARTS for end in ENDS], count)


def _padded(rng: Random, sentences: Sequence[str], most: int = 4) -> str:
    """Return sentences, in order, between up to `most` others."""
    asides = rng.sample(ASIDES, rng.randint(0, most))
    places = set(rng.sample(range(len(sentences) + len(asides)), len(sentences)))
    own, others = iter(sentences), iter(asides)
    return " ".join(next(own if index in places else others) for index in range(len(sentences) + len(asides)))


def _staff(rng: Random) -> _Text:
    """One person in each module, and a question about one or all of them."""
    people = _people(rng, rng.randint(2, 5))
    facts = {each: (rng.choice(JOBS), rng.choice(PLACES), rng.choice(HOBBIES), rng.randint(21, 66)) for each in people}
    modules = []
    for name, (job, city, hobby, age) in facts.items():
        first = name.split()[0]
        sentences = [
            rng.choice([f"{name} works in {city} as a {job}.", f"In {city}, {name} is employed as a {job}."]),
            rng.choice(
                [f"In the free time, {first} enjoys {hobby}.", f"{first} is {age} years old and likes {hobby}."]
            ),
        ]
        modules.append(_padded(rng, sentences[: rng.randint(1, 2)], 3))
    name = rng.choice(people)
    job, city = facts[name][:2]
    return modules, rng.choice(
        [
            f"Where does {name} work?",
            f"What is the job of {name}?",
            f"Who works in {city}?",
            f"Who is the {job}?",
            f"What do you know about {name}?",
            f"What does {name.split()[0]} enjoy?",
            "List the names of all employees.",
            "In which cities do they work?",
            "How many people are described here?",
        ]
    )


def _properties(rng: Random) -> _Text:
    """A thing with a coined name in each module, and properties that all of them have."""
    kind = rng.choice(
        ["starship", "ferry", "robot", "castle", "planet", "software", "bicycle model", "research station"]
    )
    names = _coined(rng, rng.randint(3, 5))
    pools: dict[str, Sequence[str]] = {
        "engineer": GIVEN,
        "home port": PLACES,
        "cover": SURFACES,
        "weekly service day": DAYS,
        "emblem": ITEMS,
        "supplier country": COUNTRIES,
        "code number": [str(each) for each in range(112, 990, 17)],
    }
    properties = rng.sample(sorted(pools), 2)
    values = {each: rng.sample(pools[each], len(names)) for each in properties if len(pools[each]) >= len(names)}
    form = rng.choice(["The {p} of {n} is {v}.", "{n} has the {p} {v}.", "{n}: {p} = {v}.", "For {n}, the {p} is {v}."])
    modules = [
        _padded(rng, [form.format(p=each, n=name, v=found[index]) for each, found in values.items()])
        for index, name in enumerate(names)
    ]
    name, wanted = rng.choice(names), rng.choice(sorted(values))
    return modules, rng.choice(
        [
            f"What is the {wanted} of {name}?",
            f"Tell me the {wanted} of the {kind} {name}.",
            f"Which {wanted} does {name} have?",
            f"Which {kind} has the {wanted} {values[wanted][names.index(name)]}?",
            f"List the {wanted} of each {kind}.",
        ]
    )


def _pairs(rng: Random) -> _Text:
    """Pairs of modules: the second of each says something about the subject of the first, without its name."""
    names, modules, values = _coined(rng, rng.randint(2, 3)), list[str](), list[str]()
    topic, pool = rng.choice(
        [
            ("owner", GIVEN),
            ("price in coins", [*map(str, range(12, 95, 7))]),
            ("origin", COUNTRIES),
            ("contents", FOODS),
        ]
    )
    values = rng.sample(pool, len(names))
    first, second = rng.choice(
        [
            ("We now turn to the crate {n}.", "Its {p} is {v}."),
            ("Another ship in the harbor: {n}.", "The {p} of that ship is {v}."),
            ("Chapter about the valley {n}.", "In this valley, the {p} is {v}."),
            ("Lot {n} comes next.", "For this lot, the {p} is {v}."),
        ]
    )
    for name, value in zip(names, values, strict=True):
        modules.append(_padded(rng, [first.format(n=name)], 2))
        modules.append(_padded(rng, [second.format(p=topic, v=value)], 2))
    name = rng.choice(names)
    return modules, rng.choice(
        [f"What is the {topic} of {name}?", f"Name the {topic} of {name}.", f"What do the entries say about {name}?"]
    )


def _listing(rng: Random) -> _Text:
    """One entry of a list in each module, and a question for all entries."""
    count = rng.randint(2, 4)
    what, entries = rng.choice(
        [
            ("speaker", _people(rng, count)),
            ("winner", rng.sample(GIVEN, count)),
            ("stop", rng.sample(PLACES, count)),
            ("ingredient", rng.sample(FOODS, count)),
            ("tool", rng.sample(ITEMS, count)),
            ("country", rng.sample(COUNTRIES, count)),
        ]
    )
    plural = "countries" if what == "country" else f"{what}s"
    form = rng.choice(["{w} {i}: {e}.", "The {o} {w} is {e}.", "As {w} number {i} we have {e}.", "{e} is one {w}."])
    ordinals = ("first", "second", "third", "fourth")
    modules = [
        _capital(_padded(rng, [_capital(form.format(w=what, i=index + 1, o=ordinals[index], e=each))]))
        for index, each in enumerate(entries)
    ]
    return modules, rng.choice(
        [
            f"Which {plural} are there? Mention every one.",
            f"List all {plural}.",
            f"Write the {plural} in one line, separated by commas.",
            f"How many {plural} are there, and what are they?",
            f"What is the last {what}?",
            f"Make a numbered list of the {plural}.",
        ]
    )


def _rules(rng: Random) -> _Text:
    """Facts, and one or two modules with a rule on the form of the reply."""
    (name,), person = _coined(rng, 1), _person(rng)
    facts = rng.sample(
        [
            f"{name} opened in {rng.choice(PLACES)}.",
            f"The founder of {name} is {person}.",
            f"{name} sells {rng.choice(FOODS)} and {rng.choice(ITEMS)}s.",
            f"On {rng.choice(DAYS)}, {name} is closed.",
            f"{name} exports to {rng.choice(COUNTRIES)}.",
        ],
        rng.randint(2, 4),
    )
    rules = [_rule(rng) for _ in range(rng.choice((1, 1, 2)))]
    modules = [_padded(rng, [each], 3) for each in facts]
    for rule in rules:
        modules.insert(rng.randint(0, len(modules)), _padded(rng, [rule], 2))
    return modules, rng.choice(
        [
            f"Write a short message about {name}.",
            f"Introduce {name} to a customer.",
            f"Write the announcement for {name}.",
            f"Write an e-mail about {name}.",
            "Write the reply.",
        ]
    )


def _rule(rng: Random) -> str:
    """Return a rule on the form of a reply."""
    place, item, day = rng.choice(PLACES), rng.choice(ITEMS), rng.choice(DAYS)
    return rng.choice(
        [
            f'The message starts with the greeting "Hello {rng.choice(GIVEN)},".',
            f'The first words of the reply are "Good news from {place}".',
            f'The text ends with the words "Yours, {rng.choice(GIVEN)}".',
            f"The reply mentions the {item} first.",
            "The reply is written in capital letters only.",
            f'The title of the text is "{rng.choice(HOBBIES).capitalize()} for everyone".',
            "The reply has exactly one sentence.",
            f'Each reply opens with "{day} update:".',
            f"Address the {rng.choice(JOBS)}s of {place} in the opening line.",
            f"Speak like a {rng.choice(JOBS)} from {place}.",
            f"Write a list with {rng.choice(('two', 'three', 'four'))} points, and nothing else.",
            f"Close with an invitation for {day}.",
            f'Use the word "{item}" at least once.',
            "Do not use any numbers.",
            f'Answer as JSON with the keys "{item}" and "place".',
        ]
    )


def _orders(rng: Random) -> _Text:
    """A rule on the form of the reply in each module."""
    modules = [_padded(rng, [_rule(rng)], 3) for _ in range(rng.randint(2, 4))]
    thing = rng.choice([f"the {rng.choice(ITEMS)}", f"a trip to {rng.choice(PLACES)}", rng.choice(FOODS)])
    return modules, rng.choice(
        [
            f"Write a few words about {thing}.",
            f"Recommend {thing} to a friend.",
            "How do you have to write? List all rules.",
            f"Begin a text about {thing}.",
        ]
    )


def _functions(rng: Random) -> _Text:
    """A function in each module, and a question about one of them or a task for all."""
    names = rng.sample(ITEMS, rng.randint(2, 4))
    verbs = [rng.choice(("count", "load", "make", "price", "sort", "weigh")) for _ in names]
    numbers = rng.sample(range(3, 80), len(names))
    forms = (
        "def {v}_{n}(amount):\n    return amount * {k}\n",
        "def {v}_{n}(amount: int = {k}) -> int:\n    return amount + 1\n",
        'def {v}_{n}():\n    """Needs {k} seconds."""\n    return "{n}"\n',
        "class {c}:\n    size = {k}\n\n    def {v}(self):\n        return self.size\n",
        "function {v}_{n}(amount) {{\n  return amount - {k};\n}}\n",
    )
    modules = [
        rng.choice(forms).format(v=verb, n=name, c=name.capitalize(), k=number)
        for verb, name, number in zip(verbs, names, numbers, strict=True)
    ]
    name = rng.choice(names)
    return modules, rng.choice(
        [
            f"Which number is used for the {name}?",
            f"Show the code for the {name}.",
            f"What does the code for the {name} return?",
            "Which functions and classes are there?",
            f"Write a call of the code for the {name}.",
        ]
    )


def _steps(rng: Random) -> _Text:
    """A process of which each module has one step."""
    foods, items = rng.sample(FOODS, 3), rng.sample(ITEMS, 2)
    steps = [
        f"Fetch the {items[0]} and clean it.",
        f"Put the {foods[0]} into the bowl and add {foods[1]}.",
        f"Wait {rng.randint(5, 50)} minutes.",
        f"Cover everything with {foods[2]}.",
        f"Place the {items[1]} beside the door.",
    ]
    chosen = [each for each in steps if rng.random() < 0.8] or steps[:2]
    modules = [f"Step {number}. {_padded(rng, [each], 1)}" for number, each in enumerate(chosen, 1)]
    number = rng.randint(1, len(chosen))
    return modules, rng.choice(
        [
            f"What is done in step {number}?",
            "Summarize the steps in order.",
            "Which foods are needed?",
            f"What comes after step {number}?",
            "What is the last step?",
        ]
    )


def _records(rng: Random) -> _Text:
    """Records with fields, one in each module, in a form that is not prose."""
    names = _people(rng, rng.randint(2, 4))
    form = rng.choice(
        [
            "name: {n}\ncity: {c}\nitem: {i}\namount: {a}",
            '{{"name": "{n}", "city": "{c}", "item": "{i}", "amount": {a}}}',
            "| {n} | {c} | {i} | {a} |",
        ]
    )
    rows = [(name, rng.choice(PLACES), rng.choice(ITEMS), rng.randint(2, 99)) for name in names]
    modules = [form.format(n=name, c=city, i=item, a=amount) for name, city, item, amount in rows]
    name, city, item, _ = rng.choice(rows)
    return modules, rng.choice(
        [
            f"Which item did {name} order?",
            f"How many pieces did {name} order?",
            f"Who ordered from {city}?",
            f"Who ordered the {item}?",
            "Which items were ordered?",
        ]
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


_KINDS: tuple[Callable[[Random], _Text], ...] = (
    _staff,
    _properties,
    _pairs,
    _pairs,
    _listing,
    _rules,
    _orders,
    _steps,
    _records,
    _functions,
)
