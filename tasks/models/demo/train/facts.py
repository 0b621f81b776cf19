"""Long documents of filler with facts strewn in, and questions about the facts.

Held out: every name with crc32(name) % 10 == 0.
"""

import random
from typing import NamedTuple

from document import Piece, given, is_heldout, produced

HELDOUT_ONE_IN = 10
TOKENS_PER_SENTENCE = 15.5

SYLLABLES = (
    "ba be bi bo bu da de di do du fa fe fi ga go gu ha he hi ka ke ki ko la le li lo lu ma me mi mo mu na "
    "ne ni no nu pa pe pi po ra re ri ro ru sa se si so ta te ti to tu va ve vi za ze zo"
).split()
COLOURS = "red blue green black white brown grey golden silver orange purple yellow pink cream violet copper".split()
PLACES = (
    "garden kitchen attic cellar barn library tower stable office harbour market museum chapel station bakery theatre"
).split()
PROFESSIONS = (
    "baker pilot nurse farmer lawyer painter teacher sailor singer weaver miner potter judge tailor guard clerk"
).split()
FOODS = "bread soup rice cheese fish honey beans melon pasta cake salad corn pears stew nuts grapes".split()


class FactKind(NamedTuple):
    statement: str
    question: str
    values: list[str] | None  # None: a number of three digits


KINDS = (
    FactKind(
        "The dog named {name} has fur that is {value}.",
        "What color is the fur of the dog named {name}?",
        COLOURS,
    ),
    FactKind("The cat named {name} sleeps in the {value}.", "Where does the cat named {name} sleep?", PLACES),
    FactKind(
        "The person called {name} works as a {value}.",
        "What is the job of the person called {name}?",
        PROFESSIONS,
    ),
    FactKind(
        "The horse named {name} likes to eat {value}.",
        "What does the horse named {name} like to eat?",
        FOODS,
    ),
    FactKind(
        "The key for room {name} has the number {value}.",
        "What is the number of the key for room {name}?",
        None,
    ),
)

ADJECTIVES = (
    "old quiet small long bright cold narrow wide green busy empty gentle dusty warm heavy simple plain "
    "famous hidden modern"
).split()
NOUNS = (
    "river street bridge village hill window market road field tower garden boat train letter table winter "
    "morning song wall lamp"
).split()
HAPPENED = (
    "was repaired|was painted|was closed|stood empty|looked different|was admired|seemed larger|"
    "was forgotten|was visited|changed slowly|was described in a book|could be seen from far away"
).split("|")
WHEN = (
    "in the spring|last year|after the storm|before noon|during the holidays|for many years|"
    "at the end of the week|in those days|every summer|on a rainy day|without any reason|"
    "as the guide explained"
).split("|")
FILLERS = (
    "The {a} {n} {v} {w}.",
    "Nobody knew why the {a} {n} {v}.",
    "Most people agreed that the {n} near the {m} {v} {w}.",
    "One {a} {n} is better than one {b} {m}.",
    "It rained {w}, and the {n} {v}.",
    "They talked about the {a} {n} and the {b} {m} {w}.",
    "Some say the {n} {v}, while others prefer the {a} {m}.",
    "The {n} and the {m} were {a} {w}.",
)


class Question(NamedTuple):
    text: str
    answer: str
    depth: float  # where the fact stands: 0 = start of the document, 1 = end


def filler(rng: random.Random) -> str:
    return rng.choice(FILLERS).format(
        a=rng.choice(ADJECTIVES),
        b=rng.choice(ADJECTIVES),
        n=rng.choice(NOUNS),
        m=rng.choice(NOUNS),
        v=rng.choice(HAPPENED),
        w=rng.choice(WHEN),
    )


def new_name(rng: random.Random, taken: set[str], heldout: bool) -> str:
    while True:
        name = "".join(rng.choices(SYLLABLES, k=rng.choice((2, 3, 3)))).capitalize()
        if name not in taken and is_heldout(name, HELDOUT_ONE_IN) == heldout:
            taken.add(name)
            return name


def text_with_facts(rng: random.Random, tokens: float, facts: int, heldout: bool = False):
    """A text of about `tokens` tokens, and one question a fact, in the order of the text."""
    sentences = [filler(rng) for _ in range(max(facts, int(tokens / TOKENS_PER_SENTENCE)))]
    names: set[str] = set()
    questions = []
    for place in sorted(rng.sample(range(len(sentences)), facts)):
        name, kind = new_name(rng, names, heldout), rng.choice(KINDS)
        value = rng.choice(kind.values) if kind.values else str(rng.randint(100, 999))
        sentences[place] = kind.statement.format(name=name, value=value)
        questions.append(Question(kind.question.format(name=name), value, place / len(sentences)))
    paragraphs = [" ".join(sentences[i : i + 8]) for i in range(0, len(sentences), 8)]
    return "\n\n".join(paragraphs), questions


def question_text(question: str) -> str:
    return f"\n\nQuestion: {question}\nAnswer:"


def document(rng: random.Random, tokens: float) -> list[Piece]:
    facts = rng.randint(2, max(3, min(24, int(tokens / 50))))
    text, questions = text_with_facts(rng, tokens, facts)
    rng.shuffle(questions)
    pieces = [given(text)]
    for question in questions[: rng.choice((4, 8, 16))]:
        pieces += [given(question_text(question.text)), produced(f" {question.answer}")]
    return pieces
