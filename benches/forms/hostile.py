"""Forms that no caller should send, and schemas of public interfaces that many do: what bad.py tries."""

import copy
import json
import pathlib
import random

SCHEMAS = pathlib.Path(__file__).with_name("schemas.json")
PUBLIC = pathlib.Path(__file__).with_name("public.json")


def nested(depth, inner=None):
    """An object in an object, `depth` times."""
    schema = inner if inner is not None else {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def deep_text(depth):
    """The text of a schema so deep that Python's json does not write it."""
    return '{"type":"array","items":' * depth + '{"type":"null"}' + "}" * depth


def wide(count, **more):
    """An object of many fields."""
    return {"type": "object", "properties": {f"field_{n}": {"type": "string", **more} for n in range(count)}}


def doubling(levels):
    """Definitions each of which holds the next one twice: 2 to the power of `levels` when written out."""
    names = {f"d{n}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, "minItems": 2,
                       "items": False} for n in range(levels)}
    return {"$defs": {**names, f"d{levels}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def all_of_any_of(levels):
    """An intersection of alternatives: 2 to the power of `levels` when multiplied out."""
    one = [{"anyOf": [{"properties": {f"a{n}": {"type": "string"}}, "required": [f"a{n}"]},
                      {"properties": {f"b{n}": {"type": "integer"}}, "required": [f"b{n}"]}]} for n in range(levels)]
    return {"type": "object", "allOf": one}


def forms():
    """Forms by hand, by name: what kind of form, and its value."""
    schemas = {
        "recursion without an end": {"$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}},
                                                     "required": ["a"]}}, "$ref": "#/$defs/a"},
        "reference to itself": {"$ref": "#"},
        "two references to each other": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                                         "$ref": "#/$defs/a"},
        "anyOf of itself": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        "allOf of itself": {"allOf": [{"$ref": "#"}, {"type": "integer"}]},
        "contradictory bounds": {"type": "integer", "minimum": 5, "maximum": 3},
        "contradictory types": {"allOf": [{"type": "string"}, {"type": "integer"}]},
        "contradictory lengths": {"type": "string", "minLength": 9, "maxLength": 2},
        "pattern and length that never meet": {"type": "string", "pattern": "^a{20}$", "maxLength": 5},
        "multipleOf that nothing is": {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
        "multipleOf 0": {"type": "integer", "multipleOf": 0},
        "multipleOf 1e-300": {"type": "number", "multipleOf": 1e-300, "minimum": 0, "maximum": 1},
        "multiples of many primes": {"allOf": [{"type": "integer", "multipleOf": p} for p in
                                               (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43)]},
        "bounds of hundreds of digits": {"type": "number", "minimum": -1e308, "maximum": 1e308},
        "a field required that may not be": {"type": "object", "properties": {}, "required": ["a"],
                                             "additionalProperties": False},
        "false": False,
        "an empty enum": {"enum": []},
        "a schema that is a number": 5,
        "a schema that is a list": [{"type": "string"}],
        "a type of no name": {"type": "strnig"},
        "types of a number": {"type": 7},
        "properties that are a list": {"type": "object", "properties": ["a"]},
        "not": {"not": {"type": "string"}},
        "if and then": {"if": {"type": "string"}, "then": {"minLength": 3}},
        "unique items": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        "remote reference": {"$ref": "https://example.org/schema.json"},
        "remote reference by file": {"$ref": "file:///etc/passwd"},
        "reference to nothing": {"$ref": "#/$defs/nothing"},
        "reference to a number": {"$defs": {"a": 5}, "$ref": "#/$defs/a"},
        "dynamic reference": {"$dynamicRef": "#x", "$dynamicAnchor": "x"},
        "an id elsewhere": {"$id": "https://example.org/a", "$ref": "b"},
        "objects 100 deep": nested(100),
        "objects 400 deep": nested(400),
        "enum of 50,000 words": {"enum": [f"word number {n}" for n in range(50_000)]},
        "enum of a long word": {"enum": ["x" * 90_000]},
        "enum of random words": {"enum": [random.Random(n).randbytes(20).hex() for n in range(2_000)]},
        "2,000 fields": wide(2_000),
        "2,000 optional fields with patterns": wide(1_000, pattern="^[a-z]{1,30}@[a-z]{1,30}$"),
        "500 required fields": {**wide(500), "required": [f"field_{n}" for n in range(500)]},
        "anyOf of 1,000 objects": {"anyOf": [nested(2, {"const": n}) for n in range(1_000)]},
        "definitions that double 30 times": doubling(30),
        "allOf of 20 anyOf": all_of_any_of(20),
        "arrays of a billion": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        "arrays of at most a billion": {"type": "array", "items": {"type": "integer"}, "maxItems": 10**9},
        "arrays in arrays of thousands": {"type": "array", "minItems": 1000, "items": {
            "type": "array", "minItems": 1000, "items": {
                "type": "array", "minItems": 1000, "items": {"type": "null"}}}},
        "strings of a billion": {"type": "string", "minLength": 10**9},
        "strings of at most a billion": {"type": "string", "maxLength": 10**9},
        "strings of 5,000 to 50,000": {"type": "string", "minLength": 5_000, "maxLength": 50_000},
        "minItems of 1e400": json.loads('{"type":"array","minItems":1e400}'.replace("1e400", "9" * 400)),
        "negative lengths": {"type": "string", "minLength": -3},
        "catastrophic pattern": {"type": "string", "pattern": "^(a+)+$"},
        "pattern of look-ahead": {"type": "string", "pattern": "^(?=a)b$"},
        "pattern with back references": {"type": "string", "pattern": r"^(a)\1$"},
        "pattern of open brackets": {"type": "string", "pattern": "((((((("},
        "properties by patterns that overlap": {"patternProperties": {"^a": {"type": "string"},
                                                                      "a$": {"type": "null"}}},
        "keys of 50,000 characters": {"type": "object", "properties": {"k" * 50_000: {"type": "null"}},
                                      "required": ["k" * 50_000]},
        "x-guidance of no sense": {"x-guidance": {"whitespace_pattern": "((("}, "type": "object"},
        "x-guidance with unknown fields": {"x-guidance": {"whitespace": 1}, "type": "object"},
        "x-guidance with endless white space": {"x-guidance": {"whitespace_pattern": r"[\s\S]*"}, "type": "object"},
        "x-guidance with large white space": {"x-guidance": {"whitespace_pattern": "( {1000}){1000}"},
                                              "type": "object"},
    }
    patterns = {
        "a plus of a plus": "(a+)+$",
        "nested counts": "(a{1000}){1000}",
        "counts of counts of counts": "(((a{0,99}){0,99}){0,99}){0,99}",
        "a count of a billion": "a{1000000000}",
        "exponential automaton": "(a|b)*a(a|b){40}",
        "all of Unicode, counted": r"\w{1000}\W{1000}\p{L}{1000}",
        "alternatives of 5,000 words": "|".join(f"word{n}" for n in range(5_000)),
        "alternatives with stars": "|".join(f"(a{{{n}}})*b{n}" for n in range(2, 60)),
        "nothing matches": "[^\\s\\S]",
        "contradictory anchors": "a^b",
        "open group": "(a",
        "look-behind": "(?<=a)b",
        "an empty pattern": "",
        "100 KB of letters": "x" * 100_000,
        "10,000 groups": "(" * 10_000 + "a" + ")" * 10_000,
        "dots with stars": ".*" * 200 + "a",
        "no character of it is a token's": "\U0010ffff{3}",
    }
    grammars = {
        "an empty grammar": "",
        "no start": "a: \"b\"",
        "recursion without an end": "start: start \"a\"",
        "a rule of itself": "start: start",
        "two rules of each other": "start: a\na: b\nb: a",
        "ambiguous": "start: s\ns: s s | \"a\" |",
        "very ambiguous": "start: e\ne: e e e | e e | \"a\" | \"aa\" | \"aaa\" | ",
        "a rule that is nowhere": "start: nothing",
        "not closed": "start: (\"a\"",
        "a terminal that matches nothing": "start: A\nA: /[^\\s\\S]/",
        "nested counts": "start: (((\"a\"{1000}){1000}){1000})",
        "a large count": "start: \"a\"{1000000}",
        "10,000 rules": "start: r0\n" + "\n".join(f"r{n}: \"x\" r{n + 1}" for n in range(10_000)) + "\nr10000: \"y\"",
        "many alternatives": "start: " + " | ".join(f"\"w{n}\" a" for n in range(3_000)) + "\na: /[a-z]*/",
        "a schema inside": "start: %json {\"$ref\": \"#/nothing\"}",
        "a special token of no name": "start: <|no_such_token|>",
        "deep brackets": "start: " + "(" * 5_000 + "\"a\"" + ")" * 5_000,
        "all ignored": "start: \"a\"\n%ignore /(.|\\n)+/",
        "not Lark": "SELECT * FROM grammar;",
        "control characters": "start: \"\x00\x01\"",
    }
    choices = {
        "no choice": [],
        "an empty text": [""],
        "only empty texts": ["", ""],
        "50,000 choices": [f"choice number {n}" for n in range(50_000)],
        "one of 100 KB": ["y" * 100_000],
        "characters of a private area": ["\U0010fffd\ue000"],
        "choices that begin others": ["a" * n for n in range(1, 300)],
    }
    kinds = {"schema": ("json", schemas), "pattern": ("regex", patterns), "grammar": ("lark", grammars),
             "choice": ("choice", choices)}
    return {f"{word}: {name}": (kind, value) for word, (kind, values) in kinds.items()
            for name, value in values.items()}


def public():
    """Schemas in the style of public interfaces, by name: as generators write them, with words that say nothing to a
    grammar (`example`, `x-...`, `nullable`, `deprecated`, formats of numbers)."""
    return {f"public: {one['name']}": ("json", one["schema"]) for one in json.loads(PUBLIC.read_text())}


def mutations(count, seed):
    """Schemas that are nearly those of schemas.json and public.json, each with one to four changes."""
    draw = random.Random(seed)
    bases = [one["schema"] for one in json.loads(SCHEMAS.read_text())] + [schema for _, schema in public().values()]
    found = {}
    for number in range(count):
        holder = [copy.deepcopy(draw.choice(bases))]
        for _ in range(draw.randint(1, 4)):
            mutate(draw, holder, bases)
        found[f"mutation {number}"] = ("json", holder[0])
    return found


def places(value):
    """All places in a value: what holds it, and by which name or index."""
    for key, inner in (value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


def is_schema(value):
    """Whether a value in a schema is likely a schema itself."""
    return isinstance(value, dict) and bool(value.keys() & {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref",
                                                            "properties", "items", "pattern", "format"})


def mutate(draw, holder, bases):
    """Changes one place: mostly a schema for another that means something, one time in eight anything for anything."""
    at_random = list(places(holder))
    schemas = [(held, key) for held, key in at_random if is_schema(held[key])]
    if not schemas or draw.random() < 1 / 8:
        held, key = draw.choice(at_random)
        held[key] = copy.deepcopy(draw.choice([
            None, True, False, 0, -1, 1e30, 10**12, 0.1, "", "x" * 3000, "\x00", "\ud83d\ude42", [], {}, [[]],
            {"type": []}, {"type": "object", "properties": 1}, {"enum": "a"}, {"items": [{}]}]))
        return
    held, key = draw.choice(schemas)
    old = held[key]
    match draw.randrange(8):
        case 0:
            others = [other[name] for other, name in places([draw.choice(bases)]) if is_schema(other[name])]
            held[key] = copy.deepcopy(draw.choice(others))
        case 1:
            held[key] = {"$ref": draw.choice(["#", "#/properties", "#/$defs/node", "#/nothing", "#/properties/a", "",
                                              "x.json", "http://localhost:1/s"])}
        case 2:
            held[key] = nested(draw.choice([1, 5, 20]), old)
        case 3:
            held[key] = {draw.choice(["anyOf", "oneOf", "allOf", "prefixItems"]):
                         [copy.deepcopy(old) for _ in range(draw.choice([1, 2, 30]))]}
        case 4:
            old[draw.choice(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
                             "minimum", "exclusiveMaximum", "multipleOf"])] = draw.choice(
                                 [0, 1, 3, 1000, 10**6, 10**15, -5, 0.5])
        case 5:
            held[key] = {"type": "string", "pattern": draw.choice([
                "(a+)+$", "(x{300}){300}", "^(a|b)*a(a|b){30}$", "[", "\\p{L}{500}", "(?!a)b", "^$", "\\bword\\b",
                ".*.*.*.*.*=.*", "\\d+(\\.\\d+){0,500}", "^[^\\s]+(\\s[^\\s]+)*$"])}
        case 6:
            old.pop(draw.choice(list(old)))
        case 7:
            held[key] = {"type": "array", "items": copy.deepcopy(old), "minItems": draw.choice([0, 2, 10**4])}
