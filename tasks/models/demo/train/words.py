"""Word problems with one calculation a line, and slips.

A problem is a question and its working: a list of calculations whose operands
are numbers of the question or results of earlier lines.

**Slips are deliberate.** When working is rendered with `slip` > 0, each result
is replaced with that probability by one of up to 18 equally likely wrong ones
(another last digit, or another tens digit), and the rest of the chain goes on
from the wrong number. Where a chain slips does not depend on the problem, so
samples disagree with each other while the right answer stays the most likely
one: voting has something to repair. Held-out answers are rendered without slips.

Held out: every question with crc32(question) % 64 == 0.
"""

import random
from typing import NamedTuple

from document import Piece, given, is_heldout, produced

HELDOUT_ONE_IN = 64
SLIP = 0.25
LEVELS = (0, 1, 2)
LINES = (2, 3, 3, 4, 4, 5, 5, 6, 7, 8)

NAMES = (
    "Mia Tom Ana Ben Eva Leo Zoe Max Ida Sam Lia Jon Amy Dan Kim Roy Una Ned Ivy Gus Nora Omar Pia Raj Tess "
    "Vera Will Yara Hugo Lena"
).split()
ITEMS = (
    "pens apples coins cards marbles books stickers stamps shells buttons beads cookies eggs bricks plums "
    "nuts rings kites cups seeds"
).split()
BOXES = "boxes bags jars crates baskets trays packs drawers".split()
PRICED = "pens cups hats books lamps bowls bags maps toys mugs belts chairs scarves plates ropes candles".split()
JOBS = "paints fences|walks dogs|repairs bikes|bakes bread|cleans windows|teaches chess|drives a van".split("|")
VEHICLES = "train car bus bike boat tram".split()

LARGEST_SUMMAND = ((3, 60), (20, 400), (100, 1500))
LARGEST_RESULT = (3000, 9999, 30000)


class Result(NamedTuple):
    """An operand: the result of an earlier line."""

    line: int


class Calculation(NamedTuple):
    """One line: `{before} {a} {op} {b} = {value} {after}`."""

    before: str
    a: int | Result
    op: str
    b: int | Result
    after: str


class Problem(NamedTuple):
    question: str
    working: list[Calculation]
    level: int


class Working:
    """Collects calculations and knows their right results."""

    def __init__(self):
        self.lines: list[Calculation] = []
        self.values: list[int] = []

    def calculate(self, before: str, a, op: str, b, after: str) -> Result:
        self.values.append(apply(op, self.value(a), self.value(b)))
        self.lines.append(Calculation(before, a, op, b, after))
        return Result(len(self.lines) - 1)

    def value(self, operand) -> int:
        return self.values[operand.line] if isinstance(operand, Result) else operand

    def add_up(self, operands: list, unit: str):
        """Lines that sum the operands from left to right."""
        total = operands[0]
        for operand in operands[1:]:
            total = self.calculate("Together that is", total, "+", operand, f"{unit}.")
        return total


def apply(op: str, a: int, b: int) -> int:
    """Quotients are rounded down."""
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    return a * b if op == "*" else a // b


def slipped(rng: random.Random, value: int) -> int:
    """`value` with its last or its tens digit replaced by another one."""
    place = rng.choice((1, 10)) if value >= 10 else 1
    digit = value // place % 10
    lowest = 1 if place == 10 and value < 100 else 0
    return value + place * (rng.choice([d for d in range(lowest, 10) if d != digit]) - digit)


def render(problem: Problem, rng: random.Random, slip: float) -> tuple[str, int]:
    """The working as text and its final number; redrawn when a slip leads below zero."""
    while True:
        values: list[int] = []
        lines = []
        for before, a, op, b, after in problem.working:
            a = values[a.line] if isinstance(a, Result) else a
            b = values[b.line] if isinstance(b, Result) else b
            value = apply(op, a, b)
            if rng.random() < slip:
                value = slipped(rng, value)
            values.append(value)
            lines.append(f"{before} {a} {op} {b} = {value} {after}")
        if min(values) >= 0:
            return "\n".join(lines) + f"\n#### {values[-1]}", values[-1]


# Stories. Each takes (rng, level, lines wanted) and returns question, working.


def factors(rng: random.Random, level: int) -> tuple[int, int]:
    """Two factors whose product is one line."""
    if level == 0:
        return rng.randint(2, 9), rng.randint(2, 12)
    if level == 1:
        return rng.randint(3, 12), rng.randint(11, 60)
    return rng.randint(11, 60), rng.randint(11, 60)


def summand(rng: random.Random, level: int) -> int:
    return rng.randint(*LARGEST_SUMMAND[level])


class Hoard:
    """Someone's things, and the events that change their number."""

    def __init__(self, rng: random.Random, level: int):
        self.rng, self.level = rng, level
        self.name, self.item = rng.choice(NAMES), rng.choice(ITEMS)
        self.work = Working()
        self.told: list[str] = []
        if rng.random() < 0.6:
            boxes, each = factors(rng, level)
            self.told.append(f"{self.name} has {boxes} {rng.choice(BOXES)} with {each} {self.item} in each.")
            self.now = self.work.calculate(f"{self.name} has", boxes, "*", each, f"{self.item}.")
        else:
            self.now = summand(rng, level) + 10
            self.told.append(f"{self.name} has {self.now} {self.item}.")

    def value(self) -> int:
        return self.work.value(self.now)

    def then(self, op: str, operand) -> None:
        self.now = self.work.calculate(f"Then {self.name} has", self.now, op, operand, f"{self.item}.")

    def gain(self) -> None:
        amount = summand(self.rng, self.level)
        self.told.append(
            self.rng.choice(
                (
                    f"{self.name} buys {amount} more {self.item}.",
                    f"A friend gives {self.name} {amount} {self.item}.",
                    f"{self.name} finds {amount} {self.item}.",
                )
            )
        )
        self.then("+", amount)

    def lose(self) -> None:
        if self.value() < 8:
            return
        amount = self.rng.randint(2, self.value() - 2)
        verb = self.rng.choice(("gives away", "loses", "sells"))
        self.told.append(f"{self.name} {verb} {amount} {self.item}.")
        self.then("-", amount)

    def grow(self) -> None:
        times = self.rng.choice((2, 3, 4, 5))
        if self.value() * times > LARGEST_RESULT[self.level]:
            return
        becomes = {2: "doubles", 3: "triples"}.get(times, f"becomes {times} times as large")
        self.told.append(f"The number of {self.item} then {becomes}.")
        self.then("*", times)

    def share(self) -> None:
        people = [n for n in range(2, 10) if self.value() % n == 0 and self.value() // n > 3]
        if not people:
            return
        count = self.rng.choice(people)
        if count == 2 and self.rng.random() < 0.4:
            self.told.append(f"{self.name} gives half of the {self.item} to a friend.")
        else:
            self.told.append(f"{self.name} shares the {self.item} equally among {count} people and keeps one share.")
        self.then("/", count)

    def gain_boxes(self) -> None:
        count, each = factors(self.rng, self.level)
        self.told.append(
            self.rng.choice(
                (
                    f"Each of {count} friends gives {self.name} {each} {self.item}.",
                    f"{self.name} then buys {count} {self.rng.choice(BOXES)} of {each} {self.item}.",
                )
            )
        )
        self.then("+", self.work.calculate("That is", count, "*", each, f"more {self.item}."))

    def lose_boxes(self) -> None:
        count, each = factors(self.rng, max(self.level - 1, 0))
        if count * each >= self.value():
            return
        self.told.append(
            self.rng.choice(
                (
                    f"{self.name} gives {each} {self.item} to each of {count} children.",
                    f"{self.name} sells {count} {self.rng.choice(BOXES)} of {each} {self.item}.",
                )
            )
        )
        self.then("-", self.work.calculate("That is", count, "*", each, f"fewer {self.item}."))

    def lose_percent(self) -> None:
        percent = self.rng.choice((10, 20, 25, 50))
        if self.value() * percent % 100:
            return
        self.told.append(f"{self.name} loses {percent} percent of the {self.item}.")
        self.then("-", self.work.calculate("That is", self.now, "/", 100 // percent, f"fewer {self.item}."))

    def gain_twice(self) -> None:
        monday, tuesday = summand(self.rng, self.level), summand(self.rng, self.level)
        self.told.append(f"On Monday {self.name} gets {monday} {self.item} and on Tuesday {tuesday} {self.item}.")
        self.then("+", self.work.calculate("That is", monday, "+", tuesday, f"more {self.item}."))


ONE_LINE_EVENTS = (Hoard.gain, Hoard.lose, Hoard.grow, Hoard.share)
TWO_LINE_EVENTS = (
    Hoard.gain_boxes,
    Hoard.gain_boxes,
    Hoard.lose_boxes,
    Hoard.lose_percent,
    Hoard.gain_twice,
)


def hoard_story(rng: random.Random, level: int, lines: int):
    hoard = Hoard(rng, level)
    while (left := lines - len(hoard.work.lines)) > 0:
        events = ONE_LINE_EVENTS if left == 1 else ONE_LINE_EVENTS + TWO_LINE_EVENTS
        rng.choice(events)(hoard)
    end = rng.choice(("now", "in the end"))
    hoard.told.append(f"How many {hoard.item} does {hoard.name} have {end}?")
    return " ".join(hoard.told), hoard.work


def shopping_story(rng: random.Random, level: int, lines: int):
    work, name = Working(), rng.choice(NAMES)
    basket = [(item, *factors(rng, level)) for item in rng.sample(PRICED, max(2, min(4, (lines + 1) // 2)))]
    listed = [f"{count} {item} at {price} dollars each" for item, count, price in basket]
    if rng.random() < 0.4:
        rng.shuffle(basket)
    costs = [work.calculate(f"The {item} cost", n, "*", price, "dollars.") for item, n, price in basket]
    total = work.add_up(costs, "dollars")
    question = f"{name} buys " + ", ".join(listed[:-1]) + f" and {listed[-1]}."
    ending = rng.choice(("pay", "coupon", "change", "change"))
    if ending == "pay":
        return f"{question} How many dollars does {name} pay?", work
    if ending == "coupon":
        off = rng.randint(2, work.value(total) // 2)
        work.calculate("With the coupon that is", total, "-", off, "dollars.")
        return f"{question} A coupon takes {off} dollars off. How many dollars does {name} pay?", work
    paid = work.value(total) + rng.randint(10, 40 * 5**level)
    work.calculate("The change is", paid, "-", total, "dollars.")
    return f"{question} {name} pays with {paid} dollars. How many dollars of change does {name} get?", work


def comparison_story(rng: random.Random, level: int, lines: int):
    people = rng.sample(NAMES, max(2, min(5, (lines + 2) // 2)))
    item, work = rng.choice(ITEMS), Working()
    amounts = [summand(rng, level) + 5]
    told = [f"{people[0]} has {amounts[0]} {item}."]
    for i, person in enumerate(people[1:], start=1):
        j = rng.choice((i - 1, i - 1, rng.randrange(i)))
        known, other = work.value(amounts[j]), people[j]
        relation = rng.choice(("more", "fewer", "half", "times"))
        if relation == "fewer" and known > 8:
            op, by, said = "-", rng.randint(2, known - 3), f"{{}} fewer {item} than {other}"
        elif relation == "half" and known % 2 == 0 and known > 3:
            op, by, said = "/", 2, f"half as many {item} as {other}"
        elif relation == "times" and known * 2 < LARGEST_RESULT[level]:
            most = min((4, 5, 9)[level], LARGEST_RESULT[level] // known)
            op, by, said = "*", rng.randint(2, most), f"{{}} times as many {item} as {other}"
        else:
            op, by, said = "+", summand(rng, level), f"{{}} more {item} than {other}"
        told.append(f"{person} has {said.format(by)}.")
        amounts.append(work.calculate(f"{person} has", amounts[j], op, by, f"{item}."))
    if rng.random() < 0.67:
        work.add_up(amounts, item)
        return " ".join(told) + f" How many {item} do they have altogether?", work
    high, low = 0, len(people) - 1
    if work.value(amounts[high]) < work.value(amounts[low]):
        high, low = low, high
    work.calculate("The difference is", amounts[high], "-", amounts[low], f"{item}.")
    return " ".join(told) + f" How many more {item} does {people[high]} have than {people[low]}?", work


def wages_story(rng: random.Random, level: int, lines: int):
    name, work = rng.choice(NAMES), Working()
    hours, days = rng.randint(2, 9), rng.randint(2, (6, 9, 10)[level])
    wage = rng.randint(*((5, 12), (8, 30), (12, 60))[level])
    told = [f"{name} {rng.choice(JOBS)} {hours} hours a day for {days} days and earns {wage} dollars an hour."]
    worked = work.calculate(f"{name} works", hours, "*", days, "hours.")
    money = work.calculate(f"{name} earns", worked, "*", wage, "dollars.")

    def then(op: str, operand):
        return work.calculate(f"Then {name} has", money, op, operand, "dollars.")

    while (left := lines - len(work.lines)) > 0:
        event, have = rng.choice(("spend", "bonus", "buy")), work.value(money)
        if event == "spend" and have > 20:
            spent = rng.randint(5, max(6, have // 2))
            told.append(f"{name} spends {spent} dollars on {rng.choice(PRICED)}.")
            money = then("-", spent)
        elif event == "buy" and left > 1:
            count, price = factors(rng, max(0, level - 1))
            if count * price < have:
                item = rng.choice(PRICED)
                told.append(f"{name} buys {count} {item} at {price} dollars each.")
                money = then("-", work.calculate(f"The {item} cost", count, "*", price, "dollars."))
        elif event == "bonus":
            bonus = summand(rng, level)
            told.append(f"{name} gets a bonus of {bonus} dollars.")
            money = then("+", bonus)
    return " ".join(told) + f" How many dollars does {name} have now?", work


def machine_story(rng: random.Random, level: int, lines: int):
    item, box, work = rng.choice(ITEMS), rng.choice(BOXES), Working()
    rate, minutes = factors(rng, level)
    told = [f"A machine makes {rate} {item} a minute and runs for {minutes} minutes."]
    made = work.calculate("The machine makes", rate, "*", minutes, f"{item}.")
    if lines > 2 and work.value(made) > 20:
        broken = rng.randint(1, work.value(made) // 3)
        told.append(f"{broken} of the {item} are broken and thrown away.")
        made = work.calculate("There are", made, "-", broken, f"good {item}.")
    if lines > 3 and rng.random() < 0.6:
        older = summand(rng, level)
        told.append(f"There are {older} older {item} in the store too.")
        made = work.calculate("With the old ones there are", made, "+", older, f"{item}.")
    size = rng.randint(2, 9)
    told.append(f"The {item} are packed into {box} of {size}.")
    full = work.calculate("There are", made, "/", size, f"full {box}.")
    ending = rng.choice(("count", "money", "money", "left"))
    if ending == "money" and work.value(full) > 0:
        price = rng.randint(2, (5, 9, 9)[level])
        work.calculate(f"The {box} bring", full, "*", price, "dollars.")
        told.append(f"Each full one is sold for {price} dollars. How many dollars do the full {box} bring?")
    elif ending == "left":
        packed = work.calculate("They hold", full, "*", size, f"{item}.")
        work.calculate("There are", made, "-", packed, f"{item} left.")
        told.append(f"How many {item} are left over?")
    else:
        told.append(f"How many full {box} are there?")
    return " ".join(told), work


def trip_story(rng: random.Random, level: int, lines: int):
    name, work = rng.choice(NAMES), Working()
    legs = [(f"by {v}", *factors(rng, level)) for v in rng.sample(VEHICLES, max(2, min(4, (lines + 1) // 2)))]
    listed = [f"{hours} hours {how} at {speed} km an hour" for how, hours, speed in legs]
    parts = [work.calculate(f"The part {how} is", hours, "*", speed, "km.") for how, hours, speed in legs]
    total = work.add_up(parts, "km")
    question = f"{name} travels " + ", ".join(listed[:-1]) + f" and {listed[-1]}."
    if lines > len(work.lines) and rng.random() < 0.7:
        whole = work.value(total) + rng.randint(5, 900)
        work.calculate("There are", whole, "-", total, "km left.")
        return f"{question} The whole trip is {whole} km. How many km are left?", work
    return f"{question} How many km is that?", work


STORIES = (
    hoard_story,
    hoard_story,
    shopping_story,
    comparison_story,
    comparison_story,
    wages_story,
    machine_story,
    trip_story,
)


def problem(rng: random.Random, heldout: bool = False, level: int | None = None, lines: int | None = None) -> Problem:
    while True:
        chosen = rng.choice(LEVELS) if level is None else level
        question, work = rng.choice(STORIES)(rng, chosen, lines or rng.choice(LINES))
        right = 0 <= min(work.values) and max(work.values) <= LARGEST_RESULT[chosen]
        if right and is_heldout(question, HELDOUT_ONE_IN) == heldout:
            return Problem(question, work.lines, chosen)


def question_text(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def document(rng: random.Random, problems: int) -> list[Piece]:
    pieces = []
    level = rng.choice((None, None, *LEVELS))
    for i in range(problems):
        one = problem(rng, level=level)
        pieces.append(given(("\n\n" if i else "") + question_text(one.question)))
        pieces.append(produced(" " + render(one, rng, SLIP)[0]))
    return pieces
