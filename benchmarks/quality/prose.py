"""Neutral sentences in three languages that bring a module to its size, and words that documents are about.

Sentences are drawn from the lists here. None of them contains a value, a place or a name that a question asks about.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

_WORDS_PER_TOKEN = {
    "English": 0.88,
    "German": 0.45,
    "French": 0.5,
}  # of these texts, with an ordinary subword tokenizer

_WHO = (
    *("the gardener", "a young clerk", "the night guard", "an old neighbor", "the visitor", "a tired driver"),
    *("the librarian", "a quiet student", "the carpenter", "my cousin", "the postman", "a careful engineer"),
    *("the landlord", "an early guest", "the secretary", "a retired officer"),
)
_DID = (
    *("walked slowly past", "waited a while beside", "looked twice at", "cleaned the steps of", "took a photo of"),
    *("talked about", "sat down in front of", "stopped near", "left early from", "swept the floor of"),
    *("made a sketch of", "often thought about", "closed the door of", "painted the fence around"),
)
_WHERE = (
    *("the old library", "the narrow lane", "the bus stop", "the wooden shed", "the corner shop", "the small office"),
    *("the town hall", "the long wall", "the empty yard", "the post office", "the stone stairs", "the quiet park"),
    *("the open gate", "the brick house", "the garage", "the waiting room"),
)
_WHEN = (
    *("after lunch", "before the rain came", "as usual", "in the late afternoon", "without any hurry", "once more"),
    *("while the wind grew", "on the way home", "during the short break", "just before dawn", "again this week"),
    *("for no clear reason", "with an umbrella", "when the light faded"),
)
_SCENE = (
    *("The weather stayed mild", "The street was calm", "Nothing unusual happened", "The windows were open"),
    *("The air smelled of wet leaves", "A bell rang far away", "The lamps were switched on", "The sky turned gray"),
    *("Most of the chairs were taken", "The paint had begun to peel", "The clock was a little slow"),
)


def event(rng: Random) -> dict[str, str]:
    """Return who did what, where and when, as parts of a sentence."""
    parts = {"who": _WHO, "did": _DID, "where": _WHERE, "when": _WHEN}
    return {name: rng.choice(words) for name, words in parts.items()}


def told(parts: Mapping[str, str] | Mapping[int, str]) -> str:
    """Return the sentence of an event."""
    text = " ".join(parts.values())
    return f"{text[0].upper()}{text[1:]}."


_GERMAN = (
    *(("der Gärtner", "die Nachbarin", "ein junger Lehrer", "der Postbote", "die Verkäuferin", "ein müder Fahrer"),),
    *(("wartete", "saß", "stand", "schlief", "arbeitete", "sang", "malte", "träumte", "telefonierte", "kochte"),),
    *(("am Nachmittag", "vor dem Regen", "wie immer", "nach dem Essen", "eine Stunde lang", "ohne Eile", "allein"),),
    *(("vor dem Rathaus", "neben der Brücke", "hinter dem Bahnhof", "im Park", "an der Haltestelle", "auf dem Markt"),),
)
_FRENCH = (
    *(("le jardinier", "la voisine", "un jeune professeur", "le facteur", "la vendeuse", "un chauffeur fatigué"),),
    *(("attendait", "dormait", "travaillait", "chantait", "lisait", "dessinait", "se reposait", "cuisinait"),),
    *(("devant la mairie", "près du pont", "derrière la gare", "dans le parc", "au marché", "à la maison"),),
    *(("avant la pluie", "comme toujours", "après le repas", "pendant une heure", "sans se presser", "ce jour-là"),),
)


def _sentence(rng: Random, language: str) -> str:
    if language != "English":
        return told(dict(enumerate(map(rng.choice, _GERMAN if language == "German" else _FRENCH))))
    return f"{rng.choice(_SCENE)} {rng.choice(_WHEN)}." if rng.random() < 0.3 else told(event(rng))


def padding_for(rng: Random, own: str, num_tokens: int, language: str = "English") -> list[str]:
    """Return different sentences that bring a module with the text `own` to about `num_tokens` tokens."""
    chosen: list[str] = []
    left = num_tokens * _WORDS_PER_TOKEN[language] - len(own.split())
    while left >= 5:  # half a sentence
        drawn = _sentence(rng, language)
        if drawn not in chosen:
            chosen.append(drawn)
            left -= len(drawn.split())
    return chosen


def padded(rng: Random, own: str, num_tokens: int, language: str = "English") -> str:
    """Return `own` between other sentences, about `num_tokens` tokens in all."""
    others = padding_for(rng, own, num_tokens, language)
    place = rng.randint(0, len(others))
    return " ".join([*others[:place], own, *others[place:]])


_TOWN_STARTS = (
    *("Ash", "Mill", "Oak", "Stone", "Hart", "West", "Lin", "Black", "Wood", "Clay", "Brad", "Hol", "King", "Marsh"),
    *("North", "Pem", "Red", "Thorn", "Wal", "Fern"),
)
_TOWN_ENDS = ("ford", "field", "ton", "wick", "bury", "ham", "brook", "dale", "ley", "worth")

SUBJECTS = {
    "mayor": (
        *("Anna", "Peter", "Clara", "Thomas", "Laura", "Robert"),
        *("Julia", "Simon", "Emma", "Victor", "Nina", "Oscar"),
    ),
    "mascot": (
        *("otter", "falcon", "horse", "tiger", "rabbit", "eagle"),
        *("wolf", "bear", "swan", "lion", "fox", "owl"),
    ),
    "flag color": (
        *("red", "blue", "green", "yellow", "purple", "orange"),
        *("white", "silver", "pink", "brown", "black", "gold"),
    ),
    "favorite drink": (
        *("tea", "coffee", "juice", "milk", "wine", "beer"),
        *("cocoa", "lemonade", "cider", "water", "soda", "rum"),
    ),
    "favorite sport": (
        *("tennis", "golf", "chess", "hockey", "rowing"),
        *("boxing", "cricket", "rugby", "fencing", "skating"),
    ),
    "favorite fruit": (
        *("apple", "banana", "cherry", "lemon", "melon", "peach"),
        *("grape", "mango", "plum", "pear", "fig", "kiwi"),
    ),
    "main metal": (
        *("iron", "copper", "steel", "zinc", "bronze"),
        *("nickel", "lead", "tin", "brass", "aluminum"),
    ),
}
"""What a town has one of, with single words that it may be."""

SURNAMES = ("Berg", "Petrov", "Lopez", "Wolf", "Hill", "Khan", "Chen", "Brown", "Novak", "Rossi", "Lund", "Moreau")


def towns(rng: Random, count: int) -> list[str]:
    """Return different names of towns, such as "Ashford"."""
    return rng.sample([start + end for start in _TOWN_STARTS for end in _TOWN_ENDS], count)
