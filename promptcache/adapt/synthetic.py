"""Synthetic documents to learn from: facts, pairs of modules, lists, rules, steps and records, with questions.

Names, values and sentences are drawn from the lists here. They share no sentence with the question sets of
`python -m benchmarks quality`, which measure what was learned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

_GIVEN = (
    *("Aisha", "Boris", "Carmen", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaori", "Leila"),
    *("Marcus", "Nadia", "Otto", "Petra", "Quentin", "Rania", "Stefan", "Tomoko", "Ulrich", "Vesna", "Wanda", "Yusuf"),
)
_FAMILY = (
    *("Adler", "Bianchi", "Cohen", "Duarte", "Eriksen", "Fischer", "Greco", "Haddad", "Ito", "Jansen", "Kaya"),
    *("Lindgren", "Mendes", "Nowak", "Osei", "Pereira", "Quist", "Rahman", "Sato", "Tamm", "Ueda", "Vasquez", "Zhang"),
)
_PLACES = (
    *("Berlin", "Cairo", "Dakar", "Geneva", "Hanoi", "Izmir", "Kyoto", "Lagos", "Lima", "Madrid", "Nairobi", "Oslo"),
    *("Perth", "Quito", "Riga", "Seoul", "Turin", "Utrecht", "Vienna", "Warsaw"),
)
_JOBS = (
    *("architect", "baker", "chemist", "dentist", "editor", "florist", "geologist", "judge", "lawyer", "mechanic"),
    *("nurse", "optician", "pilot", "plumber", "surgeon", "tailor", "translator", "violinist", "welder", "zoologist"),
)
_HOBBIES = (
    *("archery", "astronomy", "baking", "climbing", "cycling", "diving", "drawing", "judo", "kayaking", "knitting"),
    *("origami", "photography", "pottery", "running", "sailing", "sculpture", "skiing", "surfing", "swimming", "yoga"),
)
_ITEMS = (
    *("anchor", "backpack", "blanket", "candle", "compass", "drill", "guitar", "hammer", "helmet", "kettle", "ladder"),
    *("lantern", "mirror", "notebook", "pillow", "printer", "radio", "saddle", "scissors", "shovel", "suitcase"),
    *("teapot", "tent", "tripod", "umbrella", "vase", "wallet", "whistle"),
)
_FOODS = (
    *("almonds", "beans", "bread", "butter", "carrots", "cheese", "flour", "garlic", "honey", "lentils", "mushrooms"),
    *("noodles", "olives", "onions", "pepper", "potatoes", "rice", "spinach", "sugar", "tomatoes", "walnuts", "yogurt"),
)
_COUNTRIES = (
    *("Brazil", "Canada", "Chile", "Denmark", "Egypt", "Finland", "Ghana", "India", "Japan", "Kenya", "Mexico"),
    *("Nepal", "Norway", "Peru", "Poland", "Spain", "Sweden", "Turkey"),
)
_SURFACES = (
    "cardboard",
    "ceramic",
    "cotton",
    "glass",
    "leather",
    "linen",
    "marble",
    "paper",
    "plastic",
    "rubber",
    "wool",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_STARTS = ("Al", "Bel", "Cor", "Del", "Er", "Fal", "Gar", "Hel", "Il", "Jor", "Kel", "Lor", "Mor", "Nor", "Ol", "Pel")
_ENDS = (
    "adra",
    "bion",
    "dell",
    "enor",
    "ista",
    "ivo",
    "mira",
    "nax",
    "orin",
    "que",
    "tara",
    "ulon",
    "vex",
    "wyn",
    "zan",
)

_ASIDES = (
    "The meeting was moved by half an hour.",
    "Parking is free for all visitors on weekends.",
    "The printer on the second floor is being repaired.",
    "A short note about this was sent last month.",
    "Nobody has asked about it since the summer.",
    "The figures were checked by two people.",
    "More details follow in the next newsletter.",
    "The elevator is out of service today.",
    "Some of the boxes have not been opened yet.",
    "This entry was last edited in spring.",
    "The old version is kept in the archive.",
    "There was cake in the kitchen afterwards.",
    "Please keep the windows shut in winter.",
    "Everyone agreed that the plan was sensible.",
    "A second copy is with the front desk.",
    "It rained for most of that week.",
    "The team plans to publish a summary.",
    "Feedback is welcome at any time.",
    "The heating is switched off in April.",
    "An earlier draft had a different title.",
)
_INTRODUCTIONS = (
    "You are a helpful assistant.",
    "Use the entries below to reply.",
    "Reply briefly and only from the given material.",
    "Here is some background.",
    "These are entries of a handbook.",
    "Read the following records with care.",
    "Keep to what the material says.",
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
        introduction=rng.choice(_INTRODUCTIONS) if rng.random() < 0.85 else "",
        modules=tuple(next(own if index in places else rest) for index in range(len(modules) + num_absent)),
        selected=tuple(places),
        question=question,
    )


def _person(rng: Random) -> str:
    return f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}"


def _people(rng: Random, count: int) -> list[str]:
    return [f"{a} {b}" for a, b in zip(rng.sample(_GIVEN, count), rng.sample(_FAMILY, count), strict=True)]


def _coined(rng: Random, count: int) -> list[str]:
    """Return names that are no words, such as "Belmira"."""
    return rng.sample([start + end for start in _STARTS for end in _ENDS], count)


def _padded(rng: Random, sentences: Sequence[str], most: int = 4) -> str:
    """Return sentences, in order, between up to `most` others."""
    asides = rng.sample(_ASIDES, rng.randint(0, most))
    places = set(rng.sample(range(len(sentences) + len(asides)), len(sentences)))
    own, others = iter(sentences), iter(asides)
    return " ".join(next(own if index in places else others) for index in range(len(sentences) + len(asides)))


def _staff(rng: Random) -> _Text:
    """One person in each module, and a question about one or all of them."""
    people = _people(rng, rng.randint(2, 5))
    facts = {
        each: (rng.choice(_JOBS), rng.choice(_PLACES), rng.choice(_HOBBIES), rng.randint(21, 66)) for each in people
    }
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
        "engineer": _GIVEN,
        "home port": _PLACES,
        "cover": _SURFACES,
        "weekly service day": _DAYS,
        "emblem": _ITEMS,
        "supplier country": _COUNTRIES,
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
            ("owner", _GIVEN),
            ("price in coins", [*map(str, range(12, 95, 7))]),
            ("origin", _COUNTRIES),
            ("contents", _FOODS),
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
            ("winner", rng.sample(_GIVEN, count)),
            ("stop", rng.sample(_PLACES, count)),
            ("ingredient", rng.sample(_FOODS, count)),
            ("tool", rng.sample(_ITEMS, count)),
            ("country", rng.sample(_COUNTRIES, count)),
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
    """Facts, and one module with a rule on the form of the reply."""
    (name,), person = _coined(rng, 1), _person(rng)
    facts = rng.sample(
        [
            f"{name} opened in {rng.choice(_PLACES)}.",
            f"The founder of {name} is {person}.",
            f"{name} sells {rng.choice(_FOODS)} and {rng.choice(_ITEMS)}s.",
            f"On {rng.choice(_DAYS)}, {name} is closed.",
            f"{name} exports to {rng.choice(_COUNTRIES)}.",
        ],
        rng.randint(2, 4),
    )
    rule = rng.choice(
        [
            f'The message starts with the greeting "Hello {rng.choice(_GIVEN)},".',
            f'The first words of the reply are "Good news from {rng.choice(_PLACES)}".',
            f'The text ends with the words "Yours, {rng.choice(_GIVEN)}".',
            f"The reply mentions the {rng.choice(_ITEMS)} first.",
            "The reply is written in capital letters only.",
            f'The title of the text is "{rng.choice(_HOBBIES).capitalize()} for everyone".',
            "The reply has exactly one sentence.",
            f'Each reply opens with "{rng.choice(_DAYS)} update:".',
        ]
    )
    modules = [_padded(rng, [each], 3) for each in facts]
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


def _steps(rng: Random) -> _Text:
    """A process of which each module has one step."""
    foods, items = rng.sample(_FOODS, 3), rng.sample(_ITEMS, 2)
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
    rows = [(name, rng.choice(_PLACES), rng.choice(_ITEMS), rng.randint(2, 99)) for name in names]
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
    _steps,
    _records,
)
