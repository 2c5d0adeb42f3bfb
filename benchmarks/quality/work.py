"""Documents of the quality benchmark in prose: rules on form, parts of a report, classes, two languages, and an order.

Each document has 4 modules. A judge refuses the values of the other modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from random import Random

from benchmarks.quality.documents import Every, Matches, Quiz, QuizQuestion, QuizTurn, question
from benchmarks.quality.prose import SUBJECTS, SURNAMES, padded, towns
from promptcache.language import Role

NUM_MODULES = 4
NUM_QUESTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A rule on the form of answers. `{word}` is a drawn word.

    Attributes:
        sentence: The text of its module.
        answer: An answer in this form.
        pattern: Matches the answers in this form.
    """

    sentence: str
    answer: str
    pattern: str


_CAPITALS = _Rule(sentence="Rule: write each answer in CAPITAL LETTERS.", answer="It is {value}.", pattern="[^a-z]*")
_BEGIN = _Rule(
    sentence='Rule: begin each answer with "{word}", for example "{word}: It is a river."',
    answer="{word}: It is {value}.",
    pattern=r"(?i)\W*{word}\b.*",
)
_END = _Rule(
    sentence='Rule: end each answer with "{word}", for example "It is a river, {word}."',
    answer="It is {value}, {word}.",
    pattern=r"(?i).*\b{word}\W*",
)
_ONE_WORD = _Rule(sentence="Rule: give each answer in one word.", answer="{value}", pattern=r"\W*\w+\W*")
_RULES = ((_CAPITALS,), (_BEGIN,), (_END,), (_ONE_WORD,), (_ONE_WORD, _CAPITALS))
_RULE_WORDS = ("over", "note", "answer", "listen", "done", "report", "indeed", "thanks")


def draw_mixed(rng: Random, module_tokens: int) -> Quiz:
    """Return facts about towns beside one or two modules with rules on the form of answers."""
    rules, word = rng.choice(_RULES), rng.choice(_RULE_WORDS)
    count = NUM_MODULES - len(rules)
    places, subjects = towns(rng, count), rng.sample(sorted(SUBJECTS), 2)
    values = {each: rng.sample(SUBJECTS[each], count) for each in subjects}
    texts = [
        " ".join(f"The {each} of {town} is {values[each][index]}." for each in subjects)
        for index, town in enumerate(places)
    ]
    for rule in rules:
        texts.insert(rng.randint(0, len(texts)), rule.sentence.format(word=word))
    facts = [
        question(
            f"What is the {subject} of {places[place]}? Follow the rules.", values[subject][place], values[subject]
        )
        for subject, place in rng.sample([(each, place) for each in subjects for place in range(count)], NUM_QUESTIONS)
    ]
    return Quiz(
        modules=tuple((padded(rng, each, module_tokens),) for each in texts),
        questions=tuple(_in_form(each, rules, word) for each in facts),
        instruction="Answer the question from these notes. Follow the rules in them.",
    )


def _in_form(fact: QuizQuestion, rules: Sequence[_Rule], word: str) -> QuizQuestion:
    """Return the question with a judge of the value and of the form."""
    forms = (Matches(pattern=each.pattern.replace("{word}", word)) for each in rules)
    answer = rules[0].answer.format(word=word, value=fact.answer)
    if len(rules) == 2 or rules[0] == _CAPITALS:
        answer = answer.upper()
    return replace(fact, answer=answer, judge=Every(judges=(fact.judge, *forms)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutReport:
    """A report in 4 parts, with drawn words in braces, and questions by the word that answers them."""

    parts: tuple[str, ...]
    questions: dict[str, str]


_REPORTS = (
    _CutReport(
        parts=(
            "Report on a company. In {month1}, {name1} from {town1} borrowed {number1} crowns from a bank for boats.",
            "This sum was enough for two boats. The first boat was called {thing1}, and the second boat was called "
            "{thing2}.",
            "The second boat sailed to {town2} with {number2} boxes of {good1}. The first boat stayed at home.",
            "There, captain {name2} sold all of these boxes to {name3}, a merchant. The report ends here.",
        ),
        questions={
            "number1": "How many crowns were borrowed?",
            "name1": "Who borrowed money from a bank?",
            "thing1": "What was the first boat called?",
            "thing2": "What was the second boat called?",
            "town2": "To which town did the second boat sail?",
            "number2": "How many boxes did the second boat carry?",
            "good1": "What was in the boxes?",
            "name2": "Who was the captain?",
        },
    ),
    _CutReport(
        parts=(
            "Report on a school. In {month1}, the council of {town1} asked {name1} to build one for {number1} pupils.",
            "Two plans were made for it. The first plan came from {name2}, and the second plan came from {name3}.",
            "The council took the second, for it needed only {number2} workers. The stones for it came from {town2}.",
            "On the day of its opening, the key was given to {name4}, the first teacher, with a cup of {good1}.",
        ),
        questions={
            "number1": "For how many pupils is the school?",
            "name1": "Who was asked to build the school?",
            "name2": "Who made the first plan?",
            "name3": "Who made the second plan?",
            "number2": "How many workers did the second plan need?",
            "town2": "From which town did the stones come?",
            "name4": "To whom was the key given?",
        },
    ),
    _CutReport(
        parts=(
            "Report on a painting. It was found in {month1} in {town1}, where it hung in the kitchen of {name1}.",
            "Two buyers wrote a letter. The first, {name2}, offered {number1} crowns for it, and the second, {name3}, "
            "offered {number2} crowns.",
            "The owner took the offer of the second. So the painting was sent to {town2} in a box full of {good1}.",
            "There, it was cleaned by {name4}. A small {thing1} came to light in the corner, which surprised them all.",
        ),
        questions={
            "town1": "In which town was the painting found?",
            "name1": "In whose kitchen did the painting hang?",
            "number1": "How many crowns did the first buyer offer?",
            "number2": "How many crowns did the second buyer offer?",
            "town2": "To which town was the painting sent?",
            "name4": "Who cleaned the painting?",
            "thing1": "What came to light in the corner of the painting?",
        },
    ),
)
_MONTHS = ("January", "February", "April", "June", "July", "August", "September", "October", "November", "December")


def draw_parts(rng: Random, module_tokens: int) -> Quiz:
    """Return a report that was cut into parts, which refer to each other."""
    report = rng.choice(_REPORTS)
    drawn = {
        "month": rng.sample(_MONTHS, 1),
        "name": rng.sample(SUBJECTS["mayor"], 4),
        "town": towns(rng, 2),
        "thing": rng.sample(SUBJECTS["mascot"], 2),
        "number": [str(each) for each in rng.sample(range(110, 990, 10), 2)],
        "good": rng.sample(("tea", "coffee", "cocoa", "rice", "salt", "wool", "paper", "sugar"), 1),
    }
    words = {
        name: value
        for kind, values in drawn.items()
        for name, value in ((f"{kind}{number}", each) for number, each in enumerate(values, 1))
        if f"{{{name}}}" in "".join(report.parts)
    }
    questions = tuple(
        question(report.questions[name], words[name], [words[each] for each in words if each[:-1] == name[:-1]])
        for name in rng.sample(sorted(report.questions), NUM_QUESTIONS)
    )
    modules = tuple((padded(rng, each.format(**words), module_tokens),) for each in report.parts)
    return Quiz(modules=modules, questions=questions, instruction="Answer the question from this report.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    """A topic of short texts, with labels of one meaning and the parts of sentences."""

    labels: tuple[str, ...]
    who: tuple[str, ...]
    did: tuple[str, ...]
    what: tuple[str, ...]

    @property
    def texts(self) -> Sequence[str]:
        """All sentences."""
        return [f"{' '.join(parts)}." for parts in product(self.who, self.did, self.what)]


_TOPICS = (
    _Topic(
        labels=("sport", "sports", "game"),
        who=("The goalkeeper", "The coach", "Our team", "The runner", "The champion", "The referee"),
        did=("won", "lost", "missed", "watched", "prepared", "celebrated"),
        what=("the football match", "the final", "the race", "the tournament", "the penalty kick"),
    ),
    _Topic(
        labels=("food", "cooking", "meal"),
        who=("The chef", "The baker", "My aunt", "The waiter", "The hungry guest", "The cook"),
        did=("tasted", "served", "salted", "burned", "warmed up", "ate"),
        what=("the soup", "the fresh bread", "the roast chicken", "the cheese cake", "the noodles"),
    ),
    _Topic(
        labels=("weather", "climate", "storms"),
        who=("A storm", "Heavy rain", "Thick fog", "Fresh snow", "A cold wind", "Bright sunshine"),
        did=("reached", "covered", "hit", "left", "crossed"),
        what=("the coast", "the valley", "the hills", "the islands", "the whole north"),
    ),
    _Topic(
        labels=("music", "song", "concert"),
        who=("The singer", "The band", "The pianist", "The choir", "The violinist", "The drummer"),
        did=("played", "recorded", "practiced", "composed", "performed"),
        what=("a slow melody", "the new album", "a waltz", "the symphony", "an old tune"),
    ),
    _Topic(
        labels=("money", "finance", "banking"),
        who=("The bank", "An investor", "The treasurer", "The broker", "The accountant"),
        did=("raised", "sold", "paid back", "checked", "bought"),
        what=("the loan", "the shares", "the savings", "the bonds", "the mortgage"),
    ),
    _Topic(
        labels=("health", "medicine", "medical"),
        who=("The nurse", "The surgeon", "The patient", "The dentist", "A young doctor"),
        did=("treated", "described", "examined", "cured", "noticed"),
        what=("the fever", "the broken arm", "the infection", "the headache", "the bad cough"),
    ),
)
_EXAMPLE_TOKENS = 20  # with the frame of two turns


def draw_classes(rng: Random, module_tokens: int) -> Quiz:
    """Return labeled texts as turns of a chat, one label in each module, and ask for the label of a new text."""
    topics = rng.sample(_TOPICS, NUM_MODULES)
    labels = [rng.choice(topic.labels) for topic in topics]
    count = max(1, round(module_tokens / _EXAMPLE_TOKENS))
    texts = [rng.sample(topic.texts, count + 1) for topic in topics]
    modules = tuple(
        tuple(turn for text in each[:-1] for turn in (_turn(Role.USER, text), _turn(Role.ASSISTANT, label)))
        for each, label in zip(texts, labels, strict=True)
    )
    questions = tuple(
        question(texts[place][-1], labels[place], labels) for place in rng.sample(range(NUM_MODULES), NUM_QUESTIONS)
    )
    return Quiz(modules=modules, questions=questions, instruction="Give the label of each text.")


def _turn(role: Role, text: str) -> QuizTurn:
    return QuizTurn(role=role, text=text)


_LANGUAGES = ("English", "German", "French")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """A fact about a town: its sentence by language, and its question. The value is the same in all languages."""

    sentences: tuple[str, str, str]
    question: str
    values: Sequence[object]


_BILINGUAL_SUBJECTS = (
    _Subject(
        sentences=(
            "The mayor of {town} is called {value}.",
            "Der Bürgermeister von {town} heißt {value}.",
            "Le maire de {town} s'appelle {value}.",
        ),
        question="What is the mayor of {town} called?",
        values=("Peter", "Thomas", "Robert", "Simon", "Victor", "Oscar"),
    ),
    _Subject(
        sentences=(
            "The doctor of {town} is called {value}.",
            "Der Arzt von {town} heißt {value}.",
            "Le médecin de {town} s'appelle {value}.",
        ),
        question="What is the doctor of {town} called?",
        values=SURNAMES,
    ),
    _Subject(
        sentences=(
            "The bridge of {town} was built in {value}.",
            "Die Brücke von {town} wurde im Jahr {value} gebaut.",
            "Le pont de {town} a été construit en {value}.",
        ),
        question="In which year was the bridge of {town} built?",
        values=range(1801, 1990),
    ),
    _Subject(
        sentences=(
            "{town} has {value} inhabitants.",
            "{town} hat {value} Einwohner.",
            "{town} compte {value} habitants.",
        ),
        question="How many inhabitants does {town} have?",
        values=range(110, 990, 10),
    ),
)


def draw_bilingual(rng: Random, module_tokens: int) -> Quiz:
    """Return facts about towns, in 2 modules in English and in 2 in German or French; questions are in English."""
    places, subjects = towns(rng, NUM_MODULES), rng.sample(_BILINGUAL_SUBJECTS, 2)
    languages = [0, 0] + [rng.choice((1, 2))] * 2
    rng.shuffle(languages)
    values = [[*map(str, rng.sample(each.values, NUM_MODULES))] for each in subjects]
    modules = []
    for index, (town, language) in enumerate(zip(places, languages, strict=True)):
        facts = (
            subject.sentences[language].format(town=town, value=drawn[index])
            for subject, drawn in zip(subjects, values, strict=True)
        )
        modules.append((padded(rng, " ".join(facts), module_tokens, _LANGUAGES[language]),))
    questions = []
    for place in rng.sample(range(NUM_MODULES), NUM_QUESTIONS):
        subject, drawn = rng.choice([*zip(subjects, values, strict=True)])
        questions.append(question(subject.question.format(town=places[place]), drawn[place], drawn))
    return Quiz(modules=tuple(modules), questions=tuple(questions))


_EVENTS = (
    (
        *("The next guest in the list is {}.", SUBJECTS["mayor"]),
        *("Who is the {} guest in the list?", "Who is the guest right after {} in the list?"),
    ),
    (
        *("The next fruit in the recipe is {}.", SUBJECTS["favorite fruit"]),
        *("What is the {} fruit in the recipe?", "What is the fruit right after {} in the recipe?"),
    ),
    (
        *("The train stopped in {}.", ()),
        *("What was the {} stop of the train?", "What was the next stop of the train after {}?"),
    ),
)
"""A sentence, its words (towns if there are none), a question for the first or last, and for the next after one."""


def draw_order(rng: Random, module_tokens: int) -> Quiz:
    """Return events without dates or numbers: only the order of modules says which one is the first."""
    sentence, words, ask_end, ask_next = rng.choice(_EVENTS)
    values = rng.sample(words, NUM_MODULES) if words else towns(rng, NUM_MODULES)
    middle = rng.randrange(NUM_MODULES - 1)
    asked = [(ask_end.format("first"), 0), (ask_end.format("last"), -1), (ask_next.format(values[middle]), middle + 1)]
    return Quiz(
        modules=tuple((padded(rng, sentence.format(each), module_tokens),) for each in values),
        questions=tuple(question(text, values[place], values) for text, place in rng.sample(asked, NUM_QUESTIONS)),
        instruction="Answer the question from these notes. They are in the right order.",
    )
