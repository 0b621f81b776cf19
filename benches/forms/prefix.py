"""Whether a text is JSON, the beginning of JSON, or neither. Independent of the grammars that held the text."""

import re

NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
NUMBER_BEGINS = re.compile(r"-?((0|[1-9][0-9]*)(\.([0-9]+([eE]([+-]?[0-9]*)?)?)?|[eE]([+-]?[0-9]*)?)?)?")
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
STRING_BEGINS = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*(?:\\(?:u[0-9a-fA-F]{0,3})?)?')
WHITE = re.compile(r"[ \t\n\r]*")


class Cut(Exception):
    """The text ends before the value does."""


class Wrong(Exception):
    """No JSON begins so."""


def kind(text):
    """`whole` if `text` is JSON, `cut` if it is the beginning of JSON, else `wrong`."""
    try:
        at = blank(text, value(text, blank(text, 0)))
        return "whole" if at == len(text) else "wrong"
    except Cut:
        return "cut"
    except Wrong:
        return "wrong"


def blank(text, at):
    return WHITE.match(text, at).end()


def value(text, at):
    """Where the value ends that begins at `at`."""
    if at == len(text):
        raise Cut
    match text[at]:
        case "{":
            return items(text, at + 1, "}", field)
        case "[":
            return items(text, at + 1, "]", value)
        case '"':
            return token(text, at, STRING, STRING_BEGINS)
        case "-" | "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9":
            return token(text, at, NUMBER, NUMBER_BEGINS)
    for word in ("true", "false", "null"):
        if text.startswith(word, at):
            return at + len(word)
        if word.startswith(text[at:]):
            raise Cut
    raise Wrong


def token(text, at, whole, begins):
    if begun := begins.match(text, at):
        # A number that reaches the end of the text may go on: where all of it is a number it is taken as whole.
        found = whole.match(text, at)
        if begun.end() == len(text) and (not found or found.end() < len(text)):
            raise Cut
        if found:
            return found.end()
    raise Wrong


def items(text, at, close, item):
    """Where the object or array ends whose items begin at `at`."""
    at = blank(text, at)
    if text.startswith(close, at):
        return at + 1
    while True:
        at = blank(text, item(text, blank(text, at)))
        if at == len(text):
            raise Cut
        if text[at] == close:
            return at + 1
        if text[at] != ",":
            raise Wrong
        at += 1


def field(text, at):
    if at == len(text):
        raise Cut
    if text[at] != '"':
        raise Wrong
    at = blank(text, token(text, at, STRING, STRING_BEGINS))
    if at == len(text):
        raise Cut
    if text[at] != ":":
        raise Wrong
    return value(text, blank(text, at + 1))


def check_itself():
    """Every proper beginning of these texts is cut, but for numbers that could end there; what follows is wrong."""
    for text in ('{"a\\u00e9\\"": [1, -2.5e+10, {}, [], "x"], "b": {"c": null}}', "[true, false]", '"\\\\"'):
        assert kind(text) == "whole", text
        for end in range(1, len(text)):
            assert kind(text[:end]) == "cut", text[:end]
    for text in ("1.", "-", "1e", "nul", "", " "):
        assert kind(text) == "cut", text
    for text in ("{,", "[1 2", '{"a" 1', "01", "+1", "nulx", '"\n', '"\\x', "{}}", "[1,]", '{"a":1,}', "{1"):
        assert kind(text) == "wrong", text


if __name__ == "__main__":
    check_itself()
