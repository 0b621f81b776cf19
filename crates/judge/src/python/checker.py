"""Runs the tests of candidates, in one child of this process per candidate. The candidate's functions are proxies that
send requests to its process and get data back, so that no candidate can change the code that compares and judges.
"""

import __future__
import ast
import cmath
import collections
import collections.abc
import contextlib
import copy
import datetime
import decimal
import fractions
import functools
import gc
import itertools
import json
import math
import operator
import random
import re
import string
import symtable
import types


class Gone(BaseException):
    """The candidate's process has ended, or its reply is invalid."""


class TestFault(BaseException):
    """The tests themselves fail, whatever the candidate does."""


class Remote:
    """A proxy of an object of the candidate. It equals only itself, because the candidate's own == cannot be trusted.
    For the same reason `in` iterates over it, and it has no order, no arithmetic and no value as a number."""

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


class LongResult:
    """A list or tuple too long to be held twice, read part by part. `part_at` returns the values from a place on."""

    def __init__(self, kind, length, part_at):
        if kind not in ("list", "tuple") or type(length) is not int:
            raise ValueError("no long result")
        self.kind, self.length, self.part_at = getattr(builtins, kind), length, part_at

    def parts(self):
        return (self.kind(self.part_at(start)) for start in range(0, self.length, PART))

    def whole(self):
        return self.kind(itertools.chain.from_iterable(self.parts()))

    def __repr__(self):
        return f"a {self.kind.__name__} of {self.length} values"

    def __eq__(self, other):
        if type(other) is not LongResult:
            return NotImplemented
        same_form = self.kind is other.kind and self.length == other.length
        return same_form and all(map(operator.eq, self.parts(), other.parts()))


def whole(value):
    return value.whole() if type(value) is LongResult else value


PLAIN_DUNDERS = {"__name__", "__qualname__", "__doc__", "__dict__", "__annotations__", "__members__"}
remotes = {}
functions = []


def resolve(word, rest):
    if word == "object":
        number, kind = rest
        if type(number) is not int or type(kind) is not str:
            raise ValueError("no object")
        return remotes.setdefault(number, Remote(number, kind))
    if word == "long":
        number, kind, length = rest
        return LongResult(kind, length, lambda start: part_of(number, start))
    if word == "module" and rest[0] != "__main__":
        __import__(rest[0])
        return sys.modules[rest[0]]
    raise ValueError(word)


def part_of(number, start):
    part = ask("part", number, start)
    if type(part) not in (list, tuple):
        raise Gone("its answer has a wrong form")
    return part


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
    """The lines of the tests' and helpers' code through which the exception passed, outermost first; each with its
    file."""
    lines, at = [], error.__traceback__
    while at is not None:
        if (file := at.tb_frame.f_code.co_filename) in OWN_CODE:
            lines.append((file, at.tb_lineno))
        at = at.tb_next
    return lines


def at_test(error):
    """The line of the test code in which the exception occurred."""
    lines = [line for file, line in own_lines(error) if file == "<tests>"]
    return f" (test line {lines[-1]})" if lines else ""


def fails_an_import(error, imports):
    """Whether one of the tests' import statements, at these lines, names what this interpreter lacks. A candidate
    cannot bring that about: its own exceptions are marked, and a shortage of memory, which its answers can cause, has
    another message."""
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
    """If tests use no other name of the candidate, the tested function has the name of a Python builtin: the one
    function that they call and the candidate defines. Otherwise builtins stay Python's."""
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


FUTURE = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names))


# Tests as code: the helpers, the statements before the first that mentions a name of the candidate, and the others; the
# names wanted of the candidate, the names called, the lines of import statements, and the modules imported at the
# beginning.
Script = collections.namedtuple("Script", "helpers before rest wanted called imports modules")


@functools.lru_cache(maxsize=2)
def compiled_script(helpers, code, entry):
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
    helper_tree = ast.parse(helpers, "<helpers>")
    imports = import_lines(tree, "<tests>") | import_lines(helper_tree, "<helpers>")
    modules = [name for node in helper_tree.body + tree.body[:count] for name in modules_of(node)]
    compiled = compile(helper_tree, "<helpers>", "exec", dont_inherit=True)
    return Script(compiled, before, rest, wanted, called, imports, modules)


def modules_of(node):
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module] if node.module and not node.level else []
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def import_lines(tree, file):
    imports = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return frozenset((file, line) for node in imports for line in range(node.lineno, node.end_lineno + 1))


def run_script(job):
    order = job.order
    code, entry = order["code"], order["entry"]
    script = compiled_script(order["helpers"], code, entry)
    job.imports = script.imports
    scope = {}
    exec(script.helpers, scope)
    scope.pop(entry, None)
    wanted = script.wanted - set(scope)
    # Nothing has been asked of the candidate yet: whatever fails up to here is the tests' own fault.
    exec(script.before, scope)

    def test():
        found = named(wanted) if wanted else tested_builtin(script.called)
        scope.update((name, as_module(name, value, code)) for name, value in found.items())
        exec(script.rest, scope)

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
    """`make(*args)`, of the tests' own data: if it fails, the tests do, unless answers of the candidate take up the
    memory."""
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
                found = whole(call(function[0], arguments, cpu=order["cpu"], mutable=False))
                if not any(same_data(found, value) for value in expected):
                    return f"expected {picture(expected[0]) if expected else 'nothing'}, found {picture(found)}"

            yield order["wall"], test

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
    """Whether two values are equal: tuples count as lists, NaN equals NaN, and the tolerance is 1e-6 if a float is
    expected."""
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
