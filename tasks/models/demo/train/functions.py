"""Small Python functions: signature, docstring with examples, body.

Each function comes with a description at one of three wording levels:
0 says everything, 1 hides the constants and operations ("change the special
numbers"), 2 hides the kind of result too. At 1 and 2 the examples must tell the
rest, and a few examples often leave several bodies possible: this is where many
samples find what one sample misses.

Held out: every function whose parts have crc32 % 20 == 0, whatever its wording.
"""

import random
from collections.abc import Callable
from typing import NamedTuple

from document import Piece, given, is_heldout, produced

HELDOUT_ONE_IN = 20
LEVELS = (0, 1, 2)
LEVEL_WEIGHTS = (1, 4, 4)
NAMES = "solve transform compute change build apply work process convert handle make_it do_it run_it f g".split()

# kind: (source of x, words that take an object)
ELEMENTS = {
    "add": ("{x} + {a}", "add {a} to"),
    "subtract": ("{x} - {a}", "subtract {a} from"),
    "multiply": ("{x} * {a}", "multiply by {a}"),
    "linear": ("{x} * {a} + {b}", "multiply by {a} and add {b} to"),
    "linear_minus": ("{x} * {a} - {b}", "multiply by {a} and subtract {b} from"),
    "square": ("{x} * {x}", "square"),
    "from": ("{a} - {x}", "subtract from {a}"),
    "square_add": ("{x} * {x} + {a}", "square and add {a} to"),
    "modulo": ("{x} % {a}", "take modulo {a}"),
    "divide": ("{x} // {a}", "divide by {a}"),
    "absolute": ("abs({x})", "take the absolute value of"),
    "negate": ("-{x}", "negate"),
    "next": ("{x} * ({x} + 1)", "multiply by the next number"),
    "cube": ("{x} ** 3", "cube"),
    "add_multiply": ("({x} + {a}) * {b}", "add {a} and multiply by {b}"),
}
CONDITIONS = {
    "even": ("{x} % 2 == 0", "even"),
    "odd": ("{x} % 2 == 1", "odd"),
    "multiple": ("{x} % {a} == 0", "multiple of {a}"),
    "above": ("{x} > {a}", "above {a}"),
    "below": ("{x} < {a}", "below {a}"),
    "remainder": ("{x} % {a} == {b}", "remainder {b} by {a}"),
    "even_above": ("{x} % 2 == 0 and {x} > {a}", "even above {a}"),
    "odd_below": ("{x} % 2 == 1 and {x} < {a}", "odd below {a}"),
    "positive": ("{x} > 0", "positive"),
    "negative": ("{x} < 0", "negative"),
}
SHAPES = {
    "reverse": ("{0}[::-1]", "reverse"),
    "sort": ("sorted({0})", "sort"),
    "descending": ("sorted({0}, reverse=True)", "sort from large to small"),
    "distinct": ("sorted(set({0}))", "sort without repeats"),
    "tail": ("{0}[1:]", "drop the first"),
    "init": ("{0}[:-1]", "drop the last"),
    "second": ("{0}[1::2]", "keep every second"),
    "other": ("{0}[::2]", "keep every other"),
    "last_two": ("{0}[-2:]", "keep the last two"),
    "first_three": ("{0}[:3]", "keep the first three"),
    "twice": ("{0} + {0}", "repeat"),
}
REDUCTIONS = {
    "sum": ("sum({0})", "the sum"),
    "count": ("len({0})", "the count"),
    "max": ("max({0}, default=0)", "the largest"),
    "min": ("min({0}, default=0)", "the smallest"),
    "square": ("sum({0}) ** 2", "the square of the sum"),
    "half": ("sum({0}) // 2", "half of the sum"),
}
COMBINATIONS = {
    "a + b": "the sum",
    "a * b": "the product",
    "a - b": "the difference",
    "max(a, b)": "the larger",
    "min(a, b)": "the smaller",
    "a * a + b * b": "the sum of the squares",
    "abs(a - b)": "the distance",
    "a % b": "a modulo b",
    "a // b": "a divided by b",
    "2 * a + b": "twice a plus b",
    "a + 2 * b": "a plus twice b",
    "a * b - a": "a times b minus a",
    "a * b + b": "a times b plus b",
}
WITH_K = {
    "[x for x in xs if x > k]": "Keep the numbers above k",
    "[x for x in xs if x < k]": "Keep the numbers below k",
    "[x for x in xs if x % k == 0]": "Keep the multiples of k",
    "[x + k for x in xs]": "Add k to each number",
    "[x * k for x in xs]": "Multiply each number by k",
    "[x % k for x in xs]": "Take each number modulo k",
    "[x - k for x in xs]": "Subtract k from each number",
    "xs[k:]": "Drop the first k numbers",
    "xs[:k]": "Keep the first k numbers",
    "xs[::k]": "Keep every k-th number",
    "xs[k:] + xs[:k]": "Rotate by k",
    "[x // k for x in xs]": "Divide each number by k",
}
NEIGHBOURS = {
    "a + b": "sums",
    "b - a": "differences",
    "a * b": "products",
    "max(a, b)": "larger numbers",
    "min(a, b)": "smaller numbers",
    "abs(a - b)": "distances",
    "a + 2 * b": "weighted sums",
    "2 * a - b": "weighted differences",
}


class Part(NamedTuple):
    """An element expression or a condition, with its constants."""

    kind: str
    a: int = 0
    b: int = 0


class Function(NamedTuple):
    key: tuple  # its parts: what makes two functions the same
    signature: str
    body: str
    descriptions: tuple[str, str, str]
    inputs: str


class Problem(NamedTuple):
    key: tuple
    family: str
    name: str
    level: int
    prompt: str
    body: str
    call: Callable
    inputs: str


def element(rng: random.Random) -> Part:
    if rng.random() < 0.25:
        kind = rng.choice(("modulo", "divide", "absolute", "negate", "next", "cube", "add_multiply"))
    else:
        kind = rng.choice(
            ("add", "add", "subtract", "multiply", "multiply", "linear", "linear_minus", "square", "from", "square_add")
        )
    small, large = rng.randint(1, 9), rng.randint(2, 9)
    if kind in ("add", "subtract"):
        return Part(kind, rng.randint(1, 10))
    if kind in ("linear", "linear_minus"):
        return Part(kind, large, small)
    if kind == "add_multiply":
        return Part(kind, small, large)
    if kind in ("square", "absolute", "negate", "next", "cube"):
        return Part(kind)
    return Part(kind, {"from": rng.randint(3, 12), "modulo": large + 1, "square_add": small}.get(kind, large))


def condition(rng: random.Random) -> Part:
    kind = rng.choice((*CONDITIONS, "above"))
    ranges = {"multiple": (3, 7), "above": (0, 9), "below": (2, 12), "even_above": (1, 8), "odd_below": (4, 12)}
    if kind == "remainder":
        return Part(kind, rng.choice((3, 4, 5)), rng.choice((1, 2)))
    return Part(kind, rng.randint(*ranges[kind])) if kind in ranges else Part(kind)


def source(part: Part | None, x: str) -> str:
    """Python for the part applied to the variable x."""
    if part is None:
        return x
    return (ELEMENTS | CONDITIONS)[part.kind][0].format(x=x, a=part.a, b=part.b)


def words(part: Part, level: int) -> str:
    if level > 0:
        return "change" if part.kind in ELEMENTS else "special"
    return (ELEMENTS | CONDITIONS)[part.kind][1].format(a=part.a, b=part.b)


def shape_words(shape: str, level: int, hidden_from: int = 2) -> str:
    return "reorder or cut" if level >= hidden_from else SHAPES[shape][1]


def reduction_words(reduction: str, level: int) -> str:
    return "a number" if level == 2 else REDUCTIONS[reduction][1]


def suffix(part: Part | None, x: str) -> str:
    return f" if {source(part, x)}" if part else ""


def comprehension(x: str, change: Part | None, keep: Part | None, over: str) -> str:
    return f"[{source(change, x)} for {x} in {over}{suffix(keep, x)}]"


def loop(start: str, x: str, over: str, keep: Part | None, inner: str, end: str) -> str:
    """The same as a comprehension or sum, written as a loop."""
    lines = [f"    {start}", f"    for {x} in {over}:"]
    if keep:
        lines += [f"        if {source(keep, x)}:", f"            {inner}"]
    else:
        lines += [f"        {inner}"]
    return "\n".join([*lines, f"    {end}"])


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def all_levels(describe: Callable[[int], str]) -> tuple[str, str, str]:
    return tuple(sentence(describe(level)) for level in LEVELS)


def variable(rng: random.Random) -> str:
    return "x" if rng.random() < 0.8 else rng.choice("nvea")


def sometimes(rng: random.Random, chance: float, make: Callable[[random.Random], Part]) -> Part | None:
    return make(rng) if rng.random() < chance else None


# Families. Each draws one function.


def filter_map(rng: random.Random) -> Function:
    x, change, keep = variable(rng), element(rng), condition(rng)
    without = rng.choice(("keep", "change", "nothing", "nothing"))
    change = None if without == "change" else change
    keep = None if without == "keep" else keep
    if rng.random() < 0.8:
        body = f"    return {comprehension(x, change, keep, 'xs')}"
    else:
        body = loop("out = []", x, "xs", keep, f"out.append({source(change, x)})", "return out")

    def describe(level):
        parts = [f"keep the {words(keep, level)} numbers"] if keep else []
        parts += [f"{words(change, level)} each number"] if change else []
        return " and ".join(parts) + "."

    return Function(("filter_map", change, keep), "xs", body, all_levels(describe), "list")


def change_some(rng: random.Random) -> Function:
    x, change, which = variable(rng), element(rng), condition(rng)
    others = sometimes(rng, 0.4, element)
    if rng.random() < 0.7:
        body = f"    return [{source(change, x)} if {source(which, x)} else {source(others, x)} for {x} in xs]"
    else:
        body = (
            f"    out = []\n    for {x} in xs:\n        if {source(which, x)}:\n"
            f"            out.append({source(change, x)})\n        else:\n"
            f"            out.append({source(others, x)})\n    return out"
        )

    def describe(level):
        rest = f" and {words(others, level)} the others." if others else "."
        return f"{words(change, level)} each {words(which, level)} number{rest}"

    return Function(("change_some", change, which, others), "xs", body, all_levels(describe), "list")


def reduce_list(rng: random.Random) -> Function:
    x, reduction = variable(rng), rng.choice(list(REDUCTIONS))
    change = sometimes(rng, 0.5, element) if reduction != "count" else None
    keep = sometimes(rng, 0.7, condition)
    if not change and not keep:
        keep = condition(rng)
    if reduction in ("sum", "count") and rng.random() < 0.35:
        step = "1" if reduction == "count" else source(change, x)
        body = loop("total = 0", x, "xs", keep, f"total += {step}", "return total")
    else:
        body = "    return " + REDUCTIONS[reduction][0].format(comprehension(x, change, keep, "xs"))

    def describe(level):
        start = f"{words(change, level)} each of the " if change else "take the "
        kept = f"{words(keep, level)} " if keep else ""
        return f"{start}{kept}numbers and return {reduction_words(reduction, level)}."

    return Function(("reduce", reduction, change, keep), "xs", body, all_levels(describe), "list")


def number_twice(rng: random.Random) -> Function:
    first, second = element(rng), element(rng)
    body = f"    n = {source(first, 'n')}\n    return {source(second, 'n')}"

    def describe(level):
        return f"{words(first, level)} n, then {words(second, level)} the result."

    return Function(("number_twice", first, second), "n", body, all_levels(describe), "number")


def number_branch(rng: random.Random) -> Function:
    first, when, second = element(rng), condition(rng), element(rng)
    then_both = rng.random() < 0.5
    if then_both:
        body = f"    if {source(when, 'n')}:\n        n = {source(first, 'n')}\n    return {source(second, 'n')}"
    elif rng.random() < 0.6:
        body = f"    if {source(when, 'n')}:\n        return {source(first, 'n')}\n    return {source(second, 'n')}"
    else:
        body = f"    return {source(first, 'n')} if {source(when, 'n')} else {source(second, 'n')}"

    def describe(level):
        start = f"if n is {words(when, level)}, {words(first, level)} it"
        return start + (" first. Then " if then_both else ", or else ") + f"{words(second, level)} it."

    key = ("number_branch", then_both, first, when, second)
    return Function(key, "n", body, all_levels(describe), "number")


def two_numbers(rng: random.Random) -> Function:
    combined = rng.choice(list(COMBINATIONS))
    change = sometimes(rng, 0.6, element)
    when = sometimes(rng, 0.3, condition) if change else None
    if not change:
        body = f"    return {combined}"
    elif when:
        body = f"    n = {combined}\n    if {source(when, 'n')}:\n        return {source(change, 'n')}\n    return n"
    else:
        body = f"    n = {combined}\n    return {source(change, 'n')}"

    def describe(level):
        text = "combine a and b" if level else f"take {COMBINATIONS[combined]} of a and b"
        if when:
            text += f", and if it is {words(when, level)}"
        return text + (f", then {words(change, level)} the result." if change else ".")

    return Function(("two_numbers", combined, change, when), "a, b", body, all_levels(describe), "pair")


def count_up(rng: random.Random) -> Function:
    change, keep = sometimes(rng, 0.6, element), sometimes(rng, 0.6, condition)
    start, end = rng.choice((0, 1, 1)), rng.choice(("n", "n + 1", "n + 1"))
    result = rng.choice(("sum", "sum", "list", "count"))
    over = f"range({end})" if start == 0 else f"range(1, {end})"
    if result == "count":
        change, keep = None, keep or condition(rng)
    items = comprehension("i", change, keep, over)
    if result == "sum" and rng.random() < 0.5:
        body = loop("total = 0", "i", over, keep, f"total += {source(change, 'i')}", "return total")
    else:
        body = "    return " + {"sum": f"sum({items})", "list": items, "count": f"len({items})"}[result]

    def describe(level):
        text = f"go from {start} to " + ("n" if level or end != "n" else "n - 1")
        text += f", keep the {words(keep, level)} numbers" if keep else ""
        text += f", {words(change, level)} each" if change else ""
        return f"{text} and return the {result}."

    key = ("count_up", result, start, end, change, keep)
    return Function(key, "n", body, all_levels(describe), "size")


def digits(rng: random.Random) -> Function:
    change, keep = sometimes(rng, 0.5, element), sometimes(rng, 0.5, condition)
    result = rng.choice(("the sum", "the largest", "the count", "them in reverse", "them"))
    if result in ("the count", "them in reverse"):
        change = None
    items = comprehension("d", change, keep, "ds[::-1]" if result == "them in reverse" else "ds")
    wrapped = {"the sum": f"sum({items})", "the largest": f"max({items}, default=0)", "the count": f"len({items})"}
    body = f"    ds = [int(ch) for ch in str(n)]\n    return {wrapped.get(result, items)}"

    def describe(level):
        kept = f"{words(keep, level)} " if keep else ""
        changed = f", {words(change, level)} each" if change else ""
        return f"take the {kept}digits of n{changed} and return {'something' if level == 2 else result}."

    return Function(("digits", result, change, keep), "n", body, all_levels(describe), "digits")


def reshape(rng: random.Random) -> Function:
    x, change = variable(rng), sometimes(rng, 0.5, element)
    first = rng.choice(list(SHAPES))
    second = rng.choice(list(SHAPES)) if rng.random() < 0.4 else None
    body = f"    xs = {comprehension(x, change, None, 'xs')}\n" if change else ""
    shaped = SHAPES[first][0].format("xs")
    body += f"    xs = {shaped}\n    return {SHAPES[second][0].format('xs')}" if second else f"    return {shaped}"

    def describe(level):
        text = f"{words(change, level)} each number, then " if change else ""
        text += f"{shape_words(first, level)} the list"
        return text + (f", then {shape_words(second, level, hidden_from=1)} it." if second else ".")

    return Function(("reshape", first, second, change), "xs", body, all_levels(describe), "list")


def list_with_k(rng: random.Random) -> Function:
    use = rng.choice(list(WITH_K))
    finish = rng.choice((None, "sum", "count", "max", "min", "reverse", "sort", "descending"))
    if finish is None:
        body = f"    return {use}"
    elif finish in REDUCTIONS:
        body = f"    return {REDUCTIONS[finish][0].format(use)}"
    else:
        body = f"    ys = {use}\n    return {SHAPES[finish][0].format('ys')}"

    def describe(level):
        text = "Use k on the list" if level else WITH_K[use]
        if finish is None:
            return f"{text}."
        if finish in REDUCTIONS:
            return f"{text} and return {reduction_words(finish, level)}."
        return f"{text} and {'reorder it' if level == 2 else SHAPES[finish][1]}."

    return Function(("list_with_k", use, finish), "xs, k", body, all_levels(describe), "list_and_k")


def neighbours(rng: random.Random) -> Function:
    pair = rng.choice(list(NEIGHBOURS))
    finish = rng.choice((None, "sum", "max", "min", "sort", "reverse"))
    pairs = f"[{pair} for a, b in zip(xs, xs[1:])]"
    body = f"    return {pairs}"
    if finish:
        body = f"    ys = {pairs}\n    return {(REDUCTIONS | SHAPES)[finish][0].format('ys')}"

    def describe(level):
        inner = "something" if level else f"the {NEIGHBOURS[pair]}"
        if finish is None:
            return f"return a list from neighbours: {inner}."
        if level == 2:
            return "return something from neighbours."
        if finish in REDUCTIONS:
            return f"return {REDUCTIONS[finish][1]} of {inner} of neighbours."
        return f"take {inner} of neighbours and {SHAPES[finish][1]} the list."

    return Function(("neighbours", pair, finish), "xs", body, all_levels(describe), "list")


def pipeline(rng: random.Random) -> Function:
    x, change, keep = variable(rng), element(rng), condition(rng)
    reduce = rng.random() < 0.67
    finish = rng.choice(list(REDUCTIONS if reduce else SHAPES))
    last = (REDUCTIONS if reduce else SHAPES)[finish][0].format("ys")
    body = f"    ys = {comprehension(x, change, keep, 'xs')}\n    return {last}"

    def describe(level):
        end = f"return {reduction_words(finish, level)}." if reduce else f"{shape_words(finish, level)} the list."
        return f"keep the {words(keep, level)} numbers, {words(change, level)} each and {end}"

    return Function(("pipeline", change, keep, reduce, finish), "xs", body, all_levels(describe), "list")


FAMILIES = {
    filter_map: 14,
    change_some: 10,
    reduce_list: 16,
    number_twice: 4,
    number_branch: 6,
    two_numbers: 8,
    count_up: 10,
    digits: 5,
    reshape: 10,
    list_with_k: 7,
    neighbours: 5,
    pipeline: 8,
}


def number_list(rng: random.Random, longest: int) -> list[int]:
    def number():
        return rng.randint(-9, 20) if rng.random() < 0.9 else rng.randint(-30, 60)

    return [number() for _ in range(rng.randint(3, longest))]


def arguments(rng: random.Random, inputs: str, longest: int = 6) -> tuple:
    if inputs == "list":
        return (number_list(rng, longest),)
    if inputs == "list_and_k":
        return number_list(rng, longest), rng.randint(1, 6)
    if inputs == "pair":
        return rng.randint(1, 20), rng.randint(1, 12)
    if inputs == "number":
        return (rng.randint(-5, 30) if rng.random() < 0.8 else rng.randint(-20, 99),)
    return (rng.randint(1, 12) if inputs == "size" else rng.randint(10, 99999),)


def call_text(name: str, values: tuple) -> str:
    return f"{name}({', '.join(map(repr, values))})"


def executable(function: Function) -> Callable:
    scope: dict = {}
    exec(f"def f({function.signature}):\n{function.body}\n", scope)  # our own text, made above
    return scope["f"]


def telling(inputs: list[tuple], outputs: list) -> bool:
    """Examples that differ, show a change and fit a line."""
    texts = [repr(output) for output in outputs]
    unchanged = any(text == repr(values[0]) for text, values in zip(texts, inputs))
    return len(set(texts)) == len(texts) and "[]" not in texts and not unchanged and max(map(len, texts)) <= 60


def problem(rng: random.Random, heldout: bool = False, level: int | None = None) -> Problem:
    chosen = rng.choices(LEVELS, LEVEL_WEIGHTS)[0] if level is None else level
    while True:
        function = rng.choices(list(FAMILIES), list(FAMILIES.values()))[0](rng)
        if is_heldout(repr(function.key), HELDOUT_ONE_IN) != heldout:
            continue
        call = executable(function)
        inputs = [arguments(rng, function.inputs) for _ in range(rng.choice((2, 3, 3)))]
        outputs = [call(*values) for values in inputs]
        if telling(inputs, outputs):
            break
    name = rng.choice(NAMES)
    examples = "".join(f"    >>> {call_text(name, i)}\n    {o!r}\n" for i, o in zip(inputs, outputs))
    prompt = f'def {name}({function.signature}):\n    """{function.descriptions[chosen]}\n\n{examples}    """\n'
    return Problem(function.key, function.key[0], name, chosen, prompt, function.body + "\n", call, function.inputs)


def test_text(rng: random.Random, one: Problem, cases: int = 10) -> str:
    """A HumanEval `check(candidate)` over fresh and longer inputs."""
    inputs = [arguments(rng, one.inputs, longest=8) for _ in range(cases)]
    if one.inputs == "list":
        inputs.append(([],))
    lines = [f"    assert {call_text('candidate', values)} == {one.call(*values)!r}" for values in inputs]
    return "def check(candidate):\n" + "\n".join(lines) + "\n"


def document(rng: random.Random, functions: int) -> list[Piece]:
    pieces = []
    for i in range(functions):
        one = problem(rng)
        pieces += [given(("\n\n" if i else "") + one.prompt), produced(one.body)]
    return pieces
