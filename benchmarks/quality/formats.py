"""Documents of the quality benchmark in formats that programs read too: Python code, tables and descriptions of tools.

Each document has 4 modules. All numbers, names of functions and names of tools in a document differ, so each answer
stands in one module only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TypeAlias

from benchmarks.quality.documents import Quiz, question
from benchmarks.quality.prose import towns

NUM_MODULES = 4
NUM_QUESTIONS = 3

_TOKEN = re.compile(r"\d|_|[^\W\d_]+|[^\w\s]+|\n\s*")  # about what an ordinary subword tokenizer makes of such text


def _sized(own: str, further: Iterator[str], num_tokens: int, separator: str, rng: Random) -> str:
    """Return `own` among further blocks, about `num_tokens` tokens in all, joined by `separator`."""
    blocks: list[str] = []
    left = num_tokens - _num_tokens(own)
    for block in further:
        left -= _num_tokens(separator + block)
        if left < -num_tokens / 10:
            break
        blocks.append(block)
    blocks.insert(rng.randint(0, len(blocks)), own)
    return separator.join(blocks)


def _num_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


_STARTS = ("mos", "tar", "vel", "bri", "gon", "lum", "pex", "dor", "fin", "kal", "zan", "rup", "wes", "hob")
_ENDS = ("sel", "dan", "mic", "tor", "ner", "vit", "lop", "gar", "mund", "kin")
_THINGS = ("parcel", "ticket", "garden", "meal", "boat", "house", "letter", "bicycle", "room", "tree", "book", "lamp")
_RESULTS = ("price", "weight", "age", "length", "height", "cost", "size", "value")
_ATTRIBUTES = ("seats", "wheels", "doors", "windows", "lights", "handles")
_NUMBER_SHARE = 0.7  # of the questions; the others ask for a name
_VERBS = ("sort", "count", "print", "merge", "filter", "copy", "check", "load", "store", "join", "split", "clean")
_NOUNS = ("lines", "words", "rows", "pages", "files", "names", "keys", "items", "points", "pairs", "parts", "dates")
_PAIRS = [(verb, noun) for verb in _VERBS for noun in _NOUNS]


def draw_code(rng: Random, module_tokens: int) -> Quiz:
    """Return Python functions or classes of made-up names: default values, returned values, attributes."""
    names = rng.sample([start + end for start in _STARTS for end in _ENDS], NUM_MODULES)
    things = rng.sample(_THINGS, NUM_MODULES)
    numbers = [str(each) for each in rng.sample(range(12, 99), NUM_MODULES)]
    write, ask_number, ask_name, words = rng.choice(_KINDS)
    word = rng.choice(words)
    further = _further_functions(rng)
    own = [write(*each, word) for each in zip(names, things, numbers, strict=True)]
    modules = tuple((_sized(each, further, module_tokens, "\n\n\n", rng),) for each in own)
    questions = tuple(
        question(ask_number(names[place], word), numbers[place], numbers)
        if rng.random() < _NUMBER_SHARE
        else question(ask_name(things[place], word), names[place], names)
        for place in rng.sample(range(NUM_MODULES), NUM_QUESTIONS)
    )
    return Quiz(modules=modules, questions=questions, instruction="Answer the question from this Python code.")


def _default(name: str, thing: str, number: str, result: str) -> str:
    return f'def {name}(amount, rate={number}):\n    """Return the {result} of a {thing}."""\n    return amount * rate'


def _ask_default(name: str, _result: str) -> str:
    return f"What is the default value of rate in the function {name}?"


def _constant(name: str, thing: str, number: str, result: str) -> str:
    return f'def {name}():\n    """Return the {result} of a {thing}."""\n    return {number}'


def _ask_constant(name: str, _result: str) -> str:
    return f"What number does the function {name} return?"


def _ask_function(thing: str, result: str) -> str:
    return f"What is the name of the function that returns the {result} of a {thing}?"


def _class(name: str, thing: str, number: str, attribute: str) -> str:
    return f'class {name.title()}:\n    """A kind of {thing}."""\n\n    {attribute} = {number}'


def _ask_attribute(name: str, attribute: str) -> str:
    return f"What is the value of {attribute} in the class {name.title()}?"


def _ask_class(thing: str, _attribute: str) -> str:
    return f"What is the name of the class for a kind of {thing}?"


_KINDS = (
    (_default, _ask_default, _ask_function, _RESULTS),
    (_constant, _ask_constant, _ask_function, _RESULTS),
    (_class, _ask_attribute, _ask_class, _ATTRIBUTES),
)


def _further_functions(rng: Random) -> Iterator[str]:
    """Yield different functions without numbers, in whose names no question is."""
    for verb, noun in rng.sample(_PAIRS, len(_PAIRS)):
        yield f'def {verb}_{noun}({noun}):\n    """{verb.title()} all {noun}."""\n    return {noun}.{verb}()'


_GOODS = (
    *("lamp", "chair", "table", "mirror", "carpet", "clock", "basket", "candle", "pillow", "bottle", "bucket"),
    *("ladder", "hammer", "blanket", "kettle", "spoon", "plate", "broom", "rope", "towel", "vase", "bench", "drum"),
    *("guitar", "pencil", "helmet", "jacket", "umbrella", "wallet", "tent", "shovel", "stove", "mattress", "curtain"),
    *("brush", "scarf", "glove", "hat", "boot", "belt", "ring", "comb", "soap", "pot", "pan", "cup", "fork", "knife"),
)


def draw_tables(rng: Random, module_tokens: int) -> Quiz:
    """Return price lists of 4 towns with the same goods, as Markdown or as CSV."""
    write = rng.choice((_markdown, _csv))
    places = towns(rng, NUM_MODULES)
    goods = rng.sample(_GOODS, _num_rows(write, module_tokens))
    prices = [*map(str, rng.sample(range(100, 999), NUM_MODULES * len(goods)))]
    rows = [*zip(*[iter(prices)] * NUM_MODULES, strict=True)]  # of each of the goods, by town
    modules = tuple(
        (write(town, [*zip(goods, column, strict=True)]),)
        for town, column in zip(places, zip(*rows, strict=True), strict=True)
    )
    questions = []
    for place in rng.sample(range(NUM_MODULES), NUM_QUESTIONS):
        item, row = rng.choice([*zip(goods, rows, strict=True)])
        questions.append(question(f"What is the price of a {item} in {places[place]}?", row[place], row))
    return Quiz(modules=modules, questions=tuple(questions), instruction="Answer the question from these tables.")


_TableWriter: TypeAlias = Callable[[str, Sequence[tuple[str, str]]], str]


def _num_rows(write: _TableWriter, num_tokens: int) -> int:
    """Return how many rows a table of about `num_tokens` tokens has; at least two."""
    sizes = (_num_tokens(write("Ashford", [("lamp", "100")] * count)) for count in range(2, len(_GOODS)))
    return next((count for count, size in enumerate(sizes, 2) if size >= num_tokens), len(_GOODS))


def _markdown(town: str, rows: Sequence[tuple[str, str]]) -> str:
    lines = "\n".join(f"| {item} | {price} |" for item, price in (("item", "price"), ("---", "---"), *rows))
    return f"Prices in {town}:\n\n{lines}"


def _csv(town: str, rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["town,item,price", *(f"{town},{item},{price}" for item, price in rows)])


_TOOLS = {
    "email": ("Send a message to an email address", "Write to Anna by email that I am late."),
    "weather": ("Show the weather of a city", "Will it rain in Paris today?"),
    "flight": ("Book a flight to a city", "I want to fly to Madrid."),
    "taxi": ("Call a taxi to an address", "I need a taxi to the station."),
    "music": ("Play a song", "Play a song by the Beatles."),
    "alarm": ("Set an alarm clock", "Wake me up tomorrow morning with an alarm."),
    "pizza": ("Order a pizza", "I would like to eat a pizza."),
    "translation": ("Translate a text into a language", "How do you say this sentence in French?"),
    "photo": ("Take a photo with the camera", "Take a photo of us."),
    "lamp": ("Switch a lamp on or off", "Turn off the lamp in the kitchen."),
    "heating": ("Set the heating of a room", "Make the heating in the bedroom warmer."),
    "doctor": ("Make an appointment with a doctor", "I am ill and have to see a doctor."),
    "hotel": ("Book a room in a hotel", "Find me a hotel in Rome for two nights."),
    "invoice": ("Print an invoice for a customer", "Print the invoice of our new customer."),
    "stock": ("Show the price of a stock", "What is the price of the stock of that company?"),
    "news": ("Show news about a topic", "What is in the news about science?"),
    "recipe": ("Find a recipe with an ingredient", "Find me a recipe with potatoes."),
    "parking": ("Find a parking place", "Where is a parking place for my car?"),
    "movie": ("Find a movie of a genre", "Which funny movie can we watch?"),
    "library": ("Borrow a book from the library", "I want to borrow a book from the library."),
}
"""What a tool is for, and a request for it."""

_TOOL_VERBS = ("run", "do", "new", "open", "call", "begin", "get", "use")
_DAYS = ("when", "date", "slot", "start")
_PEOPLE = ("user", "client", "owner", "account")


def draw_tools(rng: Random, module_tokens: int) -> Quiz:
    """Return descriptions of tools in JSON: which one serves a request, and what its parameter is called."""
    topics = rng.sample(sorted(_TOOLS), NUM_MODULES)
    names = [f"{verb}_{topic}" for verb, topic in zip(rng.sample(_TOOL_VERBS, NUM_MODULES), topics, strict=True)]
    days, people = rng.sample(_DAYS, NUM_MODULES), rng.sample(_PEOPLE, NUM_MODULES)
    further = _further_tools(rng)
    modules = []
    for name, topic, day, person in zip(names, topics, days, people, strict=True):
        own = _tool(name, _TOOLS[topic][0], {day: "the day", person: "the person"})
        modules.append((_sized(own, further, module_tokens, "\n", rng),))
    questions = []
    for place in rng.sample(range(NUM_MODULES), NUM_QUESTIONS):
        what, values = rng.choice((("day", days), ("person", people), ("", names)))
        if what:
            text = f"What is the name of the parameter for the {what} in the tool {names[place]}?"
        else:
            text = f"What is the name of the tool for this request? {_TOOLS[topics[place]][1]}"
        questions.append(question(text, values[place], values))
    return Quiz(modules=tuple(modules), questions=tuple(questions), instruction="These are the tools.")


def _further_tools(rng: Random) -> Iterator[str]:
    """Yield different tools that no question is about."""
    for verb, noun in rng.sample(_PAIRS, len(_PAIRS)):
        yield _tool(f"{verb}_{noun}", f"{verb.title()} all {noun}", {noun: f"the {noun}"})


def _tool(name: str, description: str, parameters: Mapping[str, str]) -> str:
    return json.dumps({"name": name, "description": description, "parameters": parameters})
