"""Frames and values between a candidate, the judge and the tests. It is the first part of both programs, before
runner.py and checker.py.

A frame is its length (four bytes, little-endian), a letter for its kind, and its payload. Values are written by
marshal, version 2, which has no references and no code here. What marshal has no form for is a tuple that begins with
Ellipsis, then a word: an Ellipsis never stands anywhere else, so no plain value can be mistaken for one of these.
"""

import builtins
import itertools
import marshal
import posix
import sys

CHANNEL = 3
TAG = Ellipsis
ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))
ROWS = frozenset((list, tuple))
MUTABLE = (list, dict, set, bytearray)
# A result that is a list or tuple with more values than this stays where it is and is compared in parts of so many.
LONG = 1 << 16
PART = 1 << 12


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


def is_flat(values):
    """Whether they are atoms, or lists and tuples of atoms."""
    kinds = set(map(type, values))
    if ATOMS.issuperset(kinds):
        return True
    return ROWS.issuperset(kinds) and ATOMS.issuperset(map(type, itertools.chain.from_iterable(values)))


def pack(value, opaque):
    """`value` in types that marshal can write; an object that is not plain data becomes `opaque(value)`."""
    kind = type(value)
    if kind in ATOMS:
        return value
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        if is_flat(value):
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


def is_long(value):
    return type(value) in (list, tuple) and len(value) > LONG


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
    if is_flat(value):
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
