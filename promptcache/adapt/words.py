"""Names, values and sentences of synthetic documents."""

from __future__ import annotations

GIVEN = (
    *("Aisha", "Boris", "Carmen", "Dmitri", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kaori", "Leila"),
    *("Marcus", "Nadia", "Otto", "Petra", "Quentin", "Rania", "Stefan", "Tomoko", "Ulrich", "Vesna", "Wanda", "Yusuf"),
)
FAMILY = (
    *("Adler", "Bianchi", "Cohen", "Duarte", "Eriksen", "Fischer", "Greco", "Haddad", "Ito", "Jansen", "Kaya"),
    *("Lindgren", "Mendes", "Nowak", "Osei", "Pereira", "Quist", "Rahman", "Sato", "Tamm", "Ueda", "Vasquez", "Zhang"),
)
PLACES = (
    *("Berlin", "Cairo", "Dakar", "Geneva", "Hanoi", "Izmir", "Kyoto", "Lagos", "Lima", "Madrid", "Nairobi", "Oslo"),
    *("Perth", "Quito", "Riga", "Seoul", "Turin", "Utrecht", "Vienna", "Warsaw"),
)
JOBS = (
    *("architect", "baker", "chemist", "dentist", "editor", "florist", "geologist", "judge", "lawyer", "mechanic"),
    *("nurse", "optician", "pilot", "plumber", "surgeon", "tailor", "translator", "violinist", "welder", "zoologist"),
)
HOBBIES = (
    *("archery", "astronomy", "baking", "climbing", "cycling", "diving", "drawing", "judo", "kayaking", "knitting"),
    *("origami", "photography", "pottery", "running", "sailing", "sculpture", "skiing", "surfing", "swimming", "yoga"),
)
ITEMS = (
    *("anchor", "backpack", "blanket", "candle", "compass", "drill", "guitar", "hammer", "helmet", "kettle", "ladder"),
    *("lantern", "mirror", "notebook", "pillow", "printer", "radio", "saddle", "scissors", "shovel", "suitcase"),
    *("teapot", "tent", "tripod", "umbrella", "vase", "wallet", "whistle"),
)
FOODS = (
    *("almonds", "beans", "bread", "butter", "carrots", "cheese", "flour", "garlic", "honey", "lentils", "mushrooms"),
    *("noodles", "olives", "onions", "pepper", "potatoes", "rice", "spinach", "sugar", "tomatoes", "walnuts", "yogurt"),
)
COUNTRIES = (
    *("Brazil", "Canada", "Chile", "Denmark", "Egypt", "Finland", "Ghana", "India", "Japan", "Kenya", "Mexico"),
    *("Nepal", "Norway", "Peru", "Poland", "Spain", "Sweden", "Turkey"),
)
SURFACES = (
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
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
STARTS = ("Al", "Bel", "Cor", "Del", "Er", "Fal", "Gar", "Hel", "Il", "Jor", "Kel", "Lor", "Mor", "Nor", "Ol", "Pel")
ENDS = (
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

ASIDES = (
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
INTRODUCTIONS = (
    "You are a helpful assistant.",
    "Use the entries below to reply.",
    "Reply briefly and only from the given material.",
    "Here is some background.",
    "These are entries of a handbook.",
    "Read the following records with care.",
    "Keep to what the material says.",
)
