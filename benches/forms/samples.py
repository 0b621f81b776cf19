"""Samples answers under the forty schemas of schemas.json from a server, and checks each one.

An answer that finished parses and validates (by the package jsonschema); one that max_tokens cut is the beginning of
JSON. Prints a line for each schema, and with --record one JSON object for each. Exit code 0: all hold; 1: one does not;
77: jsonschema is not installed.

    offshoot serve --model tasks/models/demo
    python benches/forms/samples.py --samples 250 --record record.jsonl
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import sys
import time
import urllib.error
import urllib.request

import prefix

try:
    import jsonschema
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SCHEMAS = pathlib.Path(__file__).with_name("schemas.json")
#: Regular expressions take the 29th of February of every year, the year 0, and a leap second in every minute: what
#: checkers of dates and times refuse.
CALENDAR = ("date", "date-time", "time")


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="the server, without /v1")
    parser.add_argument("--model", default="demo", help="the model's name")
    parser.add_argument("--samples", type=int, default=4, help="answers under each schema")
    parser.add_argument("--temperature", type=float, default=1.2)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--together", type=int, default=8, help="schemas that are asked for at once")
    parser.add_argument("--record", help="file that gets one JSON object for each schema")
    return parser.parse_args()


def answers(given, schema):
    """The texts of the choices, each with its reason to finish."""
    body = {
        "model": given.model,
        "messages": [{"role": "user", "content": "Answer in JSON."}],
        "n": given.samples,
        "seed": given.seed,
        "temperature": given.temperature,
        "max_tokens": given.max_tokens,
        "response_format": {"type": "json_schema",
                            "json_schema": {"name": "schema", "strict": True, "schema": schema}},
    }
    request = urllib.request.Request(given.base_url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=1800) as answer:
            answer = json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{error.code}: {error.read().decode()}") from None
    texts = [(choice["message"]["content"] or "", choice["finish_reason"]) for choice in answer["choices"]]
    return texts, answer["usage"]


def verdict(validator, text, finish):
    """What an answer is, and the message if that is a fault."""
    if finish == "length":
        # A character of several tokens may be cut, too.
        cut = prefix.kind(text.rstrip("\ufffd"))
        return ("cut", None) if cut != "wrong" else ("wrong", f"no beginning of JSON: {text!r}")
    if finish != "stop":
        return finish, None
    try:
        value = json.loads(text)
    except ValueError as error:
        return "wrong", f"{error}: {text!r}"
    errors = list(validator.iter_errors(value))
    formats = [error for error in errors if error.validator == "format"]
    if len(formats) < len(errors):
        return "wrong", f"{errors[0].message}: {text!r}"
    if any(error.validator_value not in CALENDAR for error in formats):
        return "wrong", f"{formats[0].message}: {text!r}"
    return ("no day of the calendar" if formats else "valid"), None


def has_a_field_twice(text):
    """Whether an object in a text of JSON has a field twice, of which parsers take the last."""
    found = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) < len(pairs)))
    return any(found)


def trial(given, name, schema):
    """One schema's counts, and the messages of faults."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator = kind(schema, format_checker=kind.FORMAT_CHECKER)
    begun = time.monotonic()
    choices, usage = answers(given, schema)
    seconds = time.monotonic() - begun
    verdicts = [verdict(validator, text, finish) for text, finish in choices]
    counts = collections.Counter(kind for kind, _ in verdicts)
    texts = [text for text, finish in choices if finish == "stop"]
    doubled = sum(has_a_field_twice(text) for (text, _), (kind, _) in zip(choices, verdicts) if kind == "valid")
    return {
        "schema": name, "samples": len(choices), "tokens": usage["completion_tokens"], "seconds": round(seconds, 2),
        "distinct": len(set(texts)), "with a field twice": doubled, **counts,
        "faults": [message for _, message in verdicts if message], "first": texts[0] if texts else None,
    }


def main():
    given = options()
    prefix.check_itself()
    schemas = json.loads(SCHEMAS.read_text())
    with concurrent.futures.ThreadPoolExecutor(given.together) as pool:
        lines = list(pool.map(lambda one: trial(given, one["name"], one["schema"]), schemas))
    sums = collections.Counter()
    for line in lines:
        counts = {kind: count for kind, count in line.items() if isinstance(count, int) and kind != "distinct"}
        sums.update(counts)
        others = ", ".join(f"{count} {kind}" for kind, count in counts.items()
                           if count and kind not in ("samples", "tokens"))
        print(f"{line['schema']:34} {others}", flush=True)
        for fault in line["faults"][:3]:
            print(f"    {fault[:500]}")
    if given.record:
        pathlib.Path(given.record).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{len(lines)} schemas: {dict(sums)}")
    # Hardly any finished would mean that hardly anything was checked.
    holds = sums["wrong"] == 0 and sums["valid"] > sums["samples"] / 4
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
