"""Frames and values between a candidate, the judge and the tests. It is the first part of both programs, before runner.py and checker.py.

A frame is its length (four bytes, little-endian), a letter for its kind, and its payload. Values are written by marshal, version
2, which has no references and no code here. What marshal has no form for is a tuple that begins with Ellipsis, then a word:
an Ellipsis never stands anywhere else, so no plain value can be mistaken for one of these.
"""

import builtins
import marshal
import posix
import sys

CHANNEL = 3
TAG = Ellipsis
ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
MUTABLE = (list, dict, set, bytearray)


def send(kind, payload=b""):
    frame = (1 + len(payload)).to_bytes(4, "little") + kind + payload
    view = memoryview(frame)
    while view:
        view = view[posix.write(CHANNEL, view):]


def take(count):
    parts = []
    while count:
        part = posix.read(CHANNEL, min(count, 1 << 20))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def receive():
    """The kind and payload of the next frame; (None, None) if the other side has closed."""
    head = take(4)
    frame = head and take(int.from_bytes(head, "little"))
    return (frame[:1], frame[1:]) if frame else (None, None)


# Types whose values are sent as parts and rebuilt: by type, or by module and name if the module may not be loaded.
BUILTIN_PARTS = {
    range: lambda v: (v.start, v.stop, v.step),
    slice: lambda v: (v.start, v.stop, v.step),
    bytearray: lambda v: (bytes(v),),
    type({}.keys()): lambda v: (list(v),),
    type({}.items()): lambda v: (list(v),),
}
BUILTIN_MAKERS = {
    "range": range,
    "slice": slice,
    "bytearray": bytearray,
    "dict_keys": lambda keys: dict.fromkeys(keys).keys(),
    "dict_items": lambda items: dict(items).items(),
}
LIBRARY_PARTS = {
    ("collections", "Counter"): lambda v: (dict(v),),
    ("collections", "OrderedDict"): lambda v: (list(v.items()),),
    ("collections", "defaultdict"): lambda v: (None, dict(v)),
    ("collections", "deque"): lambda v: (list(v), v.maxlen),
    ("decimal", "Decimal"): lambda v: (str(v),),
    ("fractions", "Fraction"): lambda v: (v.numerator, v.denominator),
    ("datetime", "date"): lambda v: v.__reduce__()[1],
    ("datetime", "time"): lambda v: v.__reduce__()[1],
    ("datetime", "datetime"): lambda v: v.__reduce__()[1],
    ("datetime", "timedelta"): lambda v: v.__reduce__()[1],
}
# A value of a subclass is sent as the first of these types that it is, so that its own == is not used.
BASES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, bytearray)


def pack(value, opaque):
    """`value` in types that marshal can write; an object that is not plain data becomes `opaque(value)`."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        if ATOMS.issuperset(map(type, value)):
            return value
        parts = [pack(part, opaque) for part in value]
        if kind is list:
            return parts
        if kind is tuple:
            return tuple(parts)
        return (TAG, kind.__name__, parts)
    if kind is dict:
        if ATOMS.issuperset(map(type, value)):
            if ATOMS.issuperset(map(type, value.values())):
                return value
            return {key: pack(part, opaque) for key, part in value.items()}
        return (TAG, "dict", [(pack(key, opaque), pack(part, opaque)) for key, part in value.items()])
    return pack_other(value, kind, opaque)


def pack_other(value, kind, opaque):
    if value is Ellipsis or value is NotImplemented:
        return (TAG, "name", str(value))
    parts = BUILTIN_PARTS.get(kind)
    if parts is not None:
        return (TAG, "made", kind.__name__, pack(parts(value), opaque))
    key = (kind.__module__, kind.__name__)
    parts = LIBRARY_PARTS.get(key)
    if parts is not None and getattr(sys.modules.get(key[0]), key[1], None) is kind:
        return (TAG, "library", *key, pack(parts(value), opaque))
    if kind is type and builtins.__dict__.get(value.__name__) is value:
        return (TAG, "name", value.__name__)
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        plain = value.item()
        if type(plain) in ATOMS:
            return plain
    for base in BASES:
        if isinstance(value, base):
            return pack(base(value), opaque)
    return opaque(value)


def unpack(value, resolve):
    """Reverses `pack`; `resolve(word, rest)` handles the words that it does not know."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is tuple and value and value[0] is TAG:
        return unpack_tagged(value, resolve)
    if kind is dict:
        if ATOMS.issuperset(map(type, value.values())):
            return value
        return {key: unpack(part, resolve) for key, part in value.items()}
    if ATOMS.issuperset(map(type, value)):
        return value
    return kind([unpack(part, resolve) for part in value])


def unpack_tagged(value, resolve):
    word, rest = value[1], value[2:]
    if word == "set" or word == "frozenset":
        return getattr(builtins, word)([unpack(part, resolve) for part in rest[0]])
    if word == "dict":
        return {unpack(key, resolve): unpack(part, resolve) for key, part in rest[0]}
    if word == "made":
        return BUILTIN_MAKERS[rest[0]](*unpack(rest[1], resolve))
    if word == "library":
        if tuple(rest[:2]) not in LIBRARY_PARTS:
            raise ValueError("no such type travels")
        return getattr(__import__(rest[0]), rest[1])(*unpack(rest[2], resolve))
    if word == "name":
        found = getattr(builtins, rest[0])
        if found is Ellipsis or found is NotImplemented or type(found) is type:
            return found
        raise ValueError("no such name travels")
    return resolve(word, rest)


def write(value, opaque):
    return marshal.dumps(pack(value, opaque), 2)


def read(payload, resolve):
    return unpack(marshal.loads(payload), resolve)


def brief(error):
    """An exception in one line; its own `str` may fail or lie."""
    try:
        words = " ".join(str(error).split())
    except BaseException:
        words = ""
    name = type(error).__name__
    return f"{name}: {words[:300]}" if words else name
"""Runs the tests of candidates, in one child of this process per candidate. The candidate's functions are proxies that send
requests to its process and get data back, so that no candidate can change the code that compares and judges.
"""

import __future__
import ast
import cmath
import collections.abc
import contextlib
import copy
import datetime
import decimal
import fractions
import functools
import itertools
import json
import math
import operator
import random
import re
import string
import symtable
import traceback
import types


class Gone(BaseException):
    """The candidate's process has ended, or its reply is invalid."""


class TestFault(BaseException):
    """The tests themselves fail, whatever the candidate does."""


class Remote:
    """A proxy of an object of the candidate. It equals only itself, because the candidate's own == cannot be trusted. For the same
    reason `in` iterates over it, and it has no order, no arithmetic and no value as a number."""

    __slots__ = ("number", "kind")

    def __init__(self, number, kind):
        self.number, self.kind = number, kind

    def __call__(self, *args, **keywords):
        return call(self, args, keywords)

    def __getattr__(self, name):
        # Such names are protocols: reading one, NumPy would follow pointers that the candidate chose.
        if name.startswith("__") and name not in PLAIN_DUNDERS:
            raise AttributeError(f"a candidate's {self.kind} has no {name} here")
        return ask("attribute", self, name)

    def __setattr__(self, name, value):
        if name in Remote.__slots__:
            object.__setattr__(self, name, value)
        else:
            ask("set", self, name, value)

    def __len__(self):
        return ask("length", self)

    def __getitem__(self, key):
        return ask("item", self, key)

    def __setitem__(self, key, value):
        ask("assign", self, key, value)

    def __iter__(self):
        return ask("iterate", self)

    def __next__(self):
        return ask("next", self)

    def __contains__(self, value):
        return any(value is part or value == part for part in self)

    def __bool__(self):
        return ask("truth", self)

    def __str__(self):
        return ask("text", self)

    def __repr__(self):
        return ask("picture", self)

    def __instancecheck__(self, value):
        return ask("instance", self, value)

    def __reduce_ex__(self, _):
        raise TypeError(f"a candidate's {self.kind} cannot be copied")


PLAIN_DUNDERS = {"__name__", "__qualname__", "__doc__", "__dict__", "__annotations__", "__members__"}
remotes = {}
functions = []


def resolve(word, rest):
    if word == "object":
        number, kind = rest
        if type(number) is not int or type(kind) is not str:
            raise ValueError("no object")
        return remotes.setdefault(number, Remote(number, kind))
    if word == "module" and rest[0] != "__main__":
        __import__(rest[0])
        return sys.modules[rest[0]]
    raise ValueError(word)


def opaque(value):
    if type(value) is Remote:
        return (TAG, "object", value.number)
    if type(value) is types.FunctionType:
        functions.append(value)
        return (TAG, "function", len(functions) - 1)
    if isinstance(value, types.BuiltinFunctionType) and builtins.__dict__.get(value.__name__) is value:
        return (TAG, "builtin", value.__name__)
    if isinstance(value, collections.abc.Iterator):
        return (TAG, "iterator", [pack(part, opaque) for part in value])
    raise TypeError(f"the tests give a candidate a {type(value).__name__}, which is not plain data")


def hear(payload):
    try:
        return read(payload, resolve)
    except Exception as error:
        raise Gone(f"its answer makes no sense ({brief(error)})")


def ask(what, *rest):
    return answer(what, write((what, *rest), opaque))[0]


def call(function, args, keywords={}, cpu=0, mutable=True):
    value, changes = answer("call", write(("call", function, list(args), keywords, cpu, mutable), opaque))
    if not mutable:
        # The tests compare with the original arguments.
        return value
    for ix, new in changes:
        old = args[ix]
        if type(new) is not type(old):
            raise Gone("its answer changes the type of an argument")
        if isinstance(old, (list, bytearray)):
            old[:] = new
        else:
            old.clear()
            old.update(new)
    return value


def answer(what, question):
    """The candidate's result, with its changes to the arguments. Its exception is raised here if its type is known."""
    Job.has_asked = True
    send(b"C", question)
    while True:
        kind, payload = receive()
        if kind == b"R":
            break
        if kind != b"Q":
            posix._exit(0)
        send(b"C", write(("answer", *called_back(hear(payload))), opaque))
    reply = hear(payload)
    try:
        if reply[0] == "value":
            _, value, changes = reply
            return value, changes
        _, name, args, words, _ = reply
        if type(words) is not str:
            raise ValueError("no words")
        # Raised by anything but `next`, it would silently end an iteration of the tests.
        if name == "StopIteration" and what != "next":
            name = "RuntimeError"
        error = known_exception(name, args)
        error.candidate = words
    except Exception:
        raise Gone("its answer has a wrong form")
    raise error


def known_exception(name, args):
    kind = getattr(builtins, name)
    if not issubclass(kind, Exception):
        raise ValueError("no such exception travels")
    for base in kind.__mro__:
        try:
            return base(*args)
        except TypeError:
            continue


def called_back(asked):
    number, args = asked
    try:
        return ("value", functions[number](*args))
    except Exception as error:
        known = next(base for base in type(error).__mro__ if builtins.__dict__.get(base.__name__) is base)
        return ("raise", known.__name__, str(error))


class Job:
    """The tests of one candidate."""

    # Whether anything has been asked of the candidate, whose answers may from then on be at fault.
    has_asked = False

    def __init__(self, order):
        self.order = order
        # The lines of the tests' import statements, each with its file.
        self.imports = frozenset()

    def say(self, verdict, message=None):
        # A text may contain unpaired surrogates, which other JSON parsers refuse.
        message = message and message.encode("utf-8", "replace").decode()
        words = {"nonce": self.order["nonce"], "verdict": verdict, "message": message}
        send(b"V", json.dumps(words).encode())
        return verdict == "AC"

    def judge(self, test):
        """Runs one test. It returns False, or raises an exception with the reason, if the answer is wrong."""
        try:
            wrong = test()
        except BaseException as error:
            if fails_an_import(error, self.imports):
                raise TestFault(brief(error) + at_test(error))
            try:
                verdict = verdict_of(error)
            except BaseException:
                # The message is made from the candidate's values, which may fail.
                verdict = ("RE", type(error).__name__)
            return self.say(*verdict)
        return self.say("WA", wrong) if wrong else self.say("AC")

    def judge_all(self, tests):
        """Runs the tests with their time limits: up to the first failure, or all."""
        first = self.order["first"]
        for ix, (seconds, test) in enumerate(tests):
            if ix < first:
                continue
            send(b"T", json.dumps({"seconds": seconds}).encode())
            if not self.judge(test) and not self.order["all"]:
                break

    def done(self):
        send(b"D", json.dumps({"nonce": self.order["nonce"]}).encode())


def verdict_of(error):
    words = getattr(error, "candidate", None)
    if words is not None:
        return "RE", f"{words}{at_test(error)}"
    if isinstance(error, AssertionError):
        return "WA", f"{brief(error)}{at_test(error)}"
    if isinstance(error, Gone):
        return "RE", str(error)
    return "RE", f"{brief(error)}{at_test(error)}"


OWN_CODE = ("<tests>", "<helpers>")


def own_lines(error):
    """The lines of the tests' and helpers' code through which the exception passed, outermost first; each with its file."""
    frames = traceback.extract_tb(error.__traceback__)
    return [(frame.filename, frame.lineno) for frame in frames if frame.filename in OWN_CODE]


def at_test(error):
    """The line of the test code in which the exception occurred."""
    lines = [line for file, line in own_lines(error) if file == "<tests>"]
    return f" (test line {lines[-1]})" if lines else ""


def fails_an_import(error, imports):
    """Whether one of the tests' import statements, at these lines, names what this interpreter lacks. A candidate cannot bring that
    about: its own exceptions are marked, and a shortage of memory, which its answers can cause, has another message."""
    if not isinstance(error, ImportError) or hasattr(error, "candidate"):
        return False
    lacks = isinstance(error, ModuleNotFoundError) or str(error).startswith("cannot import name ")
    return lacks and own_lines(error)[-1:] and own_lines(error)[-1] in imports


def is_defined(symbol):
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def names_wanted(code):
    """The names that test code reads but does not define."""
    wanted, defined = set(), set()
    tables = [symtable.symtable(code, "<tests>", "exec")]
    top = tables[0]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            if table is top and is_defined(symbol):
                defined.add(symbol.get_name())
            elif symbol.is_referenced() and (table is top or symbol.is_global()):
                wanted.add(symbol.get_name())
    return wanted - defined


def named(wanted):
    """The candidate's values of exactly these names."""
    found = ask("names", sorted(wanted))
    if type(found) is not dict:
        raise Gone("its answer has a wrong form")
    return {name: found[name] for name in wanted if name in found}


def tested_builtin(called):
    """If tests use no other name of the candidate, the tested function has the name of a Python builtin: the one function that they
    call and the candidate defines. Otherwise builtins stay Python's."""
    found = named(called)
    return found if len(found) == 1 else {}


def as_module(name, value, code):
    """If the tests use a module that the candidate has imported, they get Python's own module."""
    if name not in sys.stdlib_module_names:
        return value
    tree = ast.parse(code)
    names = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))
    attributes = sum(
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
        for node in ast.walk(tree)
    )
    return __import__(name) if names == attributes else value


FUTURE = functools.reduce(operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))


@functools.lru_cache(maxsize=2)
def compiled_script(helpers, code, entry):
    """The tests as code: the helpers, the statements before the first that mentions a name of the candidate, the others; then the
    names wanted of the candidate, the names called, and the lines of import statements. The parent of all tests keeps it."""
    entries = {entry} - {None}
    top = symtable.symtable(helpers, "<helpers>", "exec")
    helped = {symbol.get_name() for symbol in top.get_symbols() if is_defined(symbol)} - entries
    wanted = names_wanted(code) - helped - set(builtins.__dict__) | entries
    tree = ast.parse(code, "<tests>")
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    touched = wanted or called

    def mentions(statement):
        nodes = ast.walk(statement)
        return any(getattr(node, field, None) in touched for node in nodes for field in ("id", "name", "asname"))

    count = next((ix for ix, statement in enumerate(tree.body) if mentions(statement)), len(tree.body))
    # A `from __future__` applies to all of the code.
    flags = compile(code, "<tests>", "exec", dont_inherit=True).co_flags & FUTURE
    before, rest = (
        compile(ast.Module(body, []), "<tests>", "exec", flags, dont_inherit=True)
        for body in (tree.body[:count], tree.body[count:])
    )
    imports = import_lines(tree, "<tests>") | import_lines(ast.parse(helpers), "<helpers>")
    return compile(helpers, "<helpers>", "exec", dont_inherit=True), before, rest, wanted, called, imports


def import_lines(tree, file):
    imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return frozenset((file, line) for node in imports for line in range(node.lineno, node.end_lineno + 1))


def run_script(job):
    order = job.order
    code, entry = order["code"], order["entry"]
    helpers, before, rest, wanted, called, job.imports = compiled_script(order["helpers"], code, entry)
    scope = {}
    exec(helpers, scope)
    scope.pop(entry, None)
    wanted = wanted - set(scope)
    # Nothing has been asked of the candidate yet: whatever fails up to here is the tests' own fault.
    exec(before, scope)

    def test():
        found = named(wanted) if wanted else tested_builtin(called)
        scope.update((name, as_module(name, value, code)) for name, value in found.items())
        exec(rest, scope)

    job.judge(test)


def function_named(name):
    """The candidate's function, or the method of its class `Solution`."""
    found = named({name, "Solution"})
    if "Solution" in found:
        return getattr(found["Solution"](), name)
    if name not in found:
        raise NameError(f"name '{name}' is not defined")
    return found[name]


def own(make, *args):
    """`make(*args)`, of the tests' own data: if it fails, the tests do, unless answers of the candidate take up the memory."""
    try:
        return make(*args)
    except MemoryError:
        raise
    except Exception as error:
        raise TestFault(brief(error))


def data(text):
    """Parses a value of a problem file, which may have integers of any length."""
    most = getattr(sys.int_info, "default_max_str_digits", None)
    if most is None:
        return json.loads(text)
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(text)
    finally:
        sys.set_int_max_str_digits(most)


def run_calls(job):
    order = job.order
    function = []

    def tests():
        for given in order["tests"]:
            arguments = [whole_keys(argument) for argument in own(data, given["arguments"])]
            expected = [whole_keys(own(data, text)) for text in given["expected"]]

            def test():
                if not function:
                    function.append(function_named(order["function"]))
                found = call(function[0], arguments, cpu=order["cpu"], mutable=False)
                if not any(same_data(found, value) for value in expected):
                    return f"expected {picture(expected[0]) if expected else 'nothing'}, found {picture(found)}"

            yield order["cpu"], test

    job.judge_all(tests())


def whole_keys(value):
    """Converts keys to integers if all of them can be: JSON has only strings as keys, but APPS means integers."""
    if isinstance(value, dict):
        try:
            return {int(key): part for key, part in value.items()}
        except ValueError:
            pass
    return value


def picture(value):
    try:
        words = repr(value)
    except Exception as error:
        words = f"({brief(error)})"
    return words if len(words) <= 120 else words[:100] + "..."


def same_data(found, expected):
    """Whether two values are equal: tuples count as lists, NaN equals NaN, and the tolerance is 1e-6 if a float is expected."""
    if isinstance(expected, list):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(expected)
            and all(map(same_data, found, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(same_data(found[key], part) for key, part in expected.items())
        )
    if isinstance(expected, float) and isinstance(found, (int, float)):
        return found == expected or near(found, expected)
    return found == expected


def near(found, expected):
    if expected != expected:
        return found != found
    try:
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-6)
    except OverflowError:
        # An integer too large for a double.
        return False
"""EvalPlus's tests: converts inputs to the types that a task requires, and compares a result with the reference's (Liu et al. 2023;
the rules are those of evalplus 0.3). The part of the checker program after checker.py.
"""

import time

NOT_NONE = {"check_str", "text_match_three", "text_starta_endb"}
AS_SETS = {
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum", "intersection_array",
    "find_dissimilar", "Diff",
}

# The types of the inputs of MBPP's tasks, by task; JSON has only lists.
TUPLES = {2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809}
LISTS_OF_TUPLES = {63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780}
FIRST_LIST_OF_TUPLES = {75, 413, 444, 753}
SECOND_TUPLE = {106, 750}
FIRST_TUPLE = {250, 307, 405, 446, 617, 720, 763, 808}
TUPLES_OF_TUPLES = {259, 401, 445}
DEEP_TUPLES = {580, 615, 791}


def deep_tuple(value):
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value


def meant(task, call):
    """One argument list, with the types that the task requires."""
    if task in TUPLES:
        return [tuple(argument) for argument in call]
    if task in LISTS_OF_TUPLES:
        return [[tuple(part) for part in argument] for argument in call]
    if task in FIRST_LIST_OF_TUPLES:
        return [[tuple(part) for part in call[0]], call[1]]
    if task in SECOND_TUPLE:
        return [call[0], tuple(call[1])]
    if task in FIRST_TUPLE:
        return [tuple(call[0]), *call[1:]]
    if task in TUPLES_OF_TUPLES:
        return [tuple(tuple(part) for part in argument) for argument in call]
    if task in DEEP_TUPLES:
        return deep_tuple(call)
    if task == 115:
        return [[set(part) if isinstance(part, list) and part else {} for part in call[0]]]
    if task == 124:
        return [float(call[0]), complex(call[1])]
    if task == 252:
        return [complex(call[0])]
    if task == 278:
        return [tuple(tuple(part) if isinstance(part, list) else part for part in call[0])]
    if task == 722:
        return [{key: tuple(value) for key, value in call[0].items()}, *call[1:]]
    return call


def run_expect(job):
    """The reference's results, and its time for each."""
    order = job.order
    scope = {}
    exec(compile(order["program"], "<reference>", "exec"), scope)
    function = scope[order["entry"]]
    answers, seconds = [], []
    for text in order["inputs"]:
        send(b"T")
        call = meant(order["mbpp"], data(text))
        start = time.process_time()
        answer = function(*call)
        seconds.append(time.process_time() - start)
        if order["mbpp"] is not None and order["entry"] in NOT_NONE:
            answer = answer is not None
        answers.append(pack(answer, lambda value: (TAG, "object", 0, type(value).__name__)))
    send(b"E", marshal.dumps((answers, seconds), 2))


def run_reference(job):
    order = job.order
    _, payload = receive()
    answers, seconds = marshal.loads(payload)
    compare = Comparison(order["entry"], order["mbpp"], order["atol"])
    function = []

    def tests():
        for text, answer, took in zip(order["inputs"], answers, seconds):
            arguments = own(meant, order["mbpp"], own(data, text))
            limit = max(order["cpu"], 4 * took)

            def test():
                if not function:
                    function.extend(named({order["entry"]}).values())
                if not function:
                    raise NameError(f"name '{order['entry']}' is not defined")
                found = call(function[0], arguments, cpu=limit, mutable=False)
                expected = unpack(answer, lambda word, rest: object())
                if not compare.same(found, expected, arguments):
                    call_made = f"{order['entry']}({', '.join(map(picture, arguments))})"
                    return f"{call_made}: expected {picture(expected)}, found {picture(found)}"

            yield limit, test

    job.judge_all(tests())


class Comparison:
    def __init__(self, entry, mbpp, atol):
        self.entry, self.mbpp, self.atol = entry, mbpp, atol

    def same(self, found, expected, arguments):
        if self.mbpp is None and self.entry == "find_zero":
            coefficients, = arguments
            return abs(sum(c * math.pow(found, power) for power, c in enumerate(coefficients))) <= self.atol
        equal = found == expected
        if self.mbpp is not None:
            equal = self.by_task(equal, found, expected, arguments)
        if self.atol == 0 and floats(expected):
            # The change also applies to later tests, as in EvalPlus.
            self.atol = 1e-6
        if equal or self.atol == 0:
            return bool(equal)
        if type(found) is not type(expected):
            return False
        return close(found, expected, self.atol)

    def by_task(self, equal, found, expected, arguments):
        entry = self.entry
        if entry == "are_equivalent":
            return True
        if entry == "sum_div":
            return equal or found == 0
        if entry == "surface_Area":
            base, height = arguments
            area = round(base * base + 2 * base * math.sqrt((base / 2) ** 2 + height**2))
            return equal or abs(found - area) <= self.atol
        if entry == "digit_distance_nums":
            one, other = map(str, arguments)
            width = max(len(one), len(other))
            pairs = zip(one.zfill(width), other.zfill(width))
            return equal or found == sum(abs(int(a) - int(b)) for a, b in pairs)
        if entry in AS_SETS:
            return set(found) == set(expected)
        if entry in NOT_NONE:
            return found == expected if isinstance(found, bool) else expected == (found is not None)
        return equal


def floats(value):
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(part, float) for part in value)
    return isinstance(value, float)


def close(found, expected, atol):
    """Like NumPy's allclose: within the absolute tolerance plus 1e-7 times the expected value."""
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(found) == len(expected)
            and all(close(a, b, atol) for a, b in zip(found, expected))
        )
    if not all(isinstance(value, (int, float, complex)) for value in (found, expected)):
        raise TypeError("no numbers")
    return found == expected or (cmath.isfinite(expected) and abs(found - expected) <= atol + 1e-7 * abs(expected))
"""The checker's loop; the last part of the checker program."""

SUITES = {"script": run_script, "calls": run_calls, "expect": run_expect, "reference": run_reference}


def serve():
    while True:
        kind, payload = receive()
        if kind is None:
            posix._exit(0)
        if kind != b"J":
            # For a child that has already ended.
            continue
        order = json.loads(payload)
        if order["suite"] == "script":
            # Compiled here, once for all candidates of a problem. The child meets the same error and reports it.
            with contextlib.suppress(Exception):
                compiled_script(order["helpers"], order["code"], order["entry"])
        child = posix.fork()
        if child == 0:
            job = Job(order)
            try:
                SUITES[order["suite"]](job)
                job.done()
            except TestFault as fault:
                send(b"F", str(fault).encode("utf-8", "replace"))
            except BaseException as error:
                if not Job.has_asked:
                    send(b"F", (brief(error) + at_test(error)).encode("utf-8", "replace"))
            posix._exit(0)
        _, status = posix.waitpid(child, 0)
        send(b"Z", str(status).encode())


sys.path += sys.argv[1:]
serve()
