"""The public JSON-Schema-Test-Suite against forms: what is valid is accepted, and what is not is refused.

The suite comes from the source distribution of the package jsonschema, which pip downloads. An instance is written as
json.dumps writes it; as a form puts the fields of an object in the schema's order, a valid one is also tried with its
fields in other orders, and an invalid one must be refused in each. Prints counts for each draft and every difference
with its reason; exit code 1 if one has none.

    python benches/forms/suite.py --lab target/release/offshoot-lab
"""

import argparse
import collections
import itertools
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile

import lab

DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
#: The most orders of fields in which an instance is tried.
ORDERS = 120


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    lab.add_options(parser)
    parser.add_argument("--sdist", help="jsonschema's source distribution, a .tar.gz (default: pip downloads it)")
    parser.add_argument("--record", help="file that gets one JSON object for each difference")
    return parser.parse_args()


def suite(sdist):
    """All groups of the suite's drafts: the draft, the file, and the group."""
    with tempfile.TemporaryDirectory() as folder:
        if sdist is None:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
                            "--dest", folder, "jsonschema==4.26.0"], check=True)
            [sdist] = pathlib.Path(folder).glob("jsonschema-*.tar.gz")
        with tarfile.open(sdist) as archive:
            for member in archive:
                parts = pathlib.PurePosixPath(member.name).parts
                if parts[1:3] == ("json", "tests") and parts[3] in DRAFTS and member.name.endswith(".json"):
                    for group in json.load(archive.extractfile(member)):
                        yield parts[3], "/".join(parts[4:]).removesuffix(".json"), group


def in_its_draft(schema, draft):
    """The schema, which says its draft: earlier drafts' cases don't."""
    if isinstance(schema, dict) and "$schema" not in schema:
        return {"$schema": DRAFTS[draft], **schema}
    return schema


def orders(value):
    """The value with its fields in every order."""
    if isinstance(value, list):
        for items in itertools.product(*(list(orders(item)) for item in value)):
            yield list(items)
    elif isinstance(value, dict):
        for names in itertools.permutations(value):
            for items in itertools.product(*(list(orders(value[name])) for name in names)):
                yield dict(zip(names, items))
    else:
        yield value


def texts(value):
    return [json.dumps(one, ensure_ascii=False) for one in itertools.islice(orders(value), ORDERS)]


def reason(case):
    """Why a difference is as it should be, or None."""
    for said, applies in REASONS:
        if applies(case):
            return said
    return None


def has_whole_float(data):
    """Whether a number in it is written with a fraction that is zero, as in 1.0."""
    if isinstance(data, (list, dict)):
        return any(map(has_whole_float, data.values() if isinstance(data, dict) else data))
    return isinstance(data, float) and data.is_integer()


#: Formats of strings that forms hold; others only annotate, as JSON Schema lets them.
HELD = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}


def of(file, *words, valid):
    """Whether a case is of this file, of this verdict, and has one of these words in its names."""
    return lambda case: (case["file"].split("/")[-1] == file and case["valid"] == valid
                         and (not words or any(word in case["group"] + case["test"] for word in words)))


#: What a difference may come from, the first that applies. A case has `file`, `group`, `test`, `schema`, `data`, and
#: `valid`, the suite's verdict.
REASONS = [
    ("integers and constants are written without a fraction: 1.0 is never written for 1",
     lambda case: case["valid"] and has_whole_float(case["data"])),
    ("formats are held, where that draft only annotates them", of("format", valid=True)),
    ("what is encoded in a string is not read", of("content", valid=False)),
    ("what stands beside $ref is held, also in drafts that ignore it", of("ref", "sibling", valid=True)),
    ("a day of February and a leap second are held by a regular expression, not by the calendar",
     lambda case: not case["valid"] and case["file"].split("/")[-1] in ("date", "date-time", "time")
     and any(word in case["group"] + case["test"] for word in ("leap", "February"))),
    ("these rarer spellings of addresses are never written", lambda case: case["valid"]
     and case["file"] in ("optional/format/email", "optional/format/ipv6")),
    ("\\s and \\S are Unicode's white space, which has no U+FEFF", of("ecmascript-regex", "zero-width", valid=True)),
    ("\\s and \\S are Unicode's white space, which has no U+FEFF", of("ecmascript-regex", "zero-width", valid=False)),
    ("a format that is not held: " + ", ".join(sorted(HELD)) + " are", lambda case: not case["valid"]
     and case["file"].startswith("optional/format/") and isinstance(case["schema"], dict)
     and case["schema"].get("format") not in HELD),
]


def main():
    given = options()
    cases = []
    for draft, file, group in suite(given.sdist):
        for test in group["tests"]:
            cases.append({"draft": draft, "file": file, "group": group["description"], "test": test["description"],
                          "schema": in_its_draft(group["schema"], draft), "data": test["data"],
                          "valid": test["valid"], "texts": texts(test["data"])})
    by_form = collections.defaultdict(list)
    for case in cases:
        by_form[json.dumps(case["schema"])].append(case)
    groups = list(by_form.values())
    forms = [(group[0]["group"], {"json": group[0]["schema"]}, [text for case in group for text in case["texts"]])
             for group in groups]
    for group, answer in zip(groups, lab.verdicts(given, forms), strict=True):
        said = iter(answer.get("texts", []))
        for case in group:
            case["error"] = answer.get("error")
            case["said"] = None if case["error"] else list(itertools.islice(said, len(case["texts"])))
    report(given, cases)


def report(given, cases):
    counts, refusals, differences = collections.defaultdict(collections.Counter), collections.Counter(), []
    for case in cases:
        optional = case["file"].startswith("optional/")
        count = counts[case["draft"] + (" optional" if optional else "")]
        count["cases"] += 1
        if case["error"]:
            count["not supported"] += 1
            refusals[case["error"].split(":")[-1].strip()[:100]] += 1
            continue
        accepted = [said == "accepted" for said in case["said"]]
        if any(accepted) == case["valid"]:
            count["same"] += 1
            count["same in another order of fields"] += case["valid"] and not accepted[0]
            continue
        case["reason"] = reason(case)
        count["different"] += 1
        count["different without a reason"] += case["reason"] is None
        differences.append(case)
    for draft, count in counts.items():
        print(f"{draft:24} " + ", ".join(f"{number} {kind}" for kind, number in count.items() if number))
    print("\nnot supported:")
    for said, count in refusals.most_common(40):
        print(f"  {count:5} {said}")
    reasons = collections.Counter((case["reason"] or "?", case["valid"]) for case in differences)
    print("\ndifferences:")
    for (said, valid), count in reasons.most_common():
        print(f"  {count:5} {'refused though valid' if valid else 'accepted though invalid'}: {said}")
    print("\nby name:")
    for case in differences:
        valid = "valid" if case["valid"] else "invalid"
        print(f"  {case['draft']}/{case['file']}: {case['group']}: {case['test']} ({valid}): {case['reason'] or '?'}")
    if given.record:
        names = ("draft", "file", "group", "test", "valid", "reason")
        lines = [json.dumps({name: case[name] for name in names}, ensure_ascii=False) for case in differences]
        pathlib.Path(given.record).write_text("\n".join(lines) + "\n")
    sys.exit(1 if any(case["reason"] is None for case in differences) else 0)


if __name__ == "__main__":
    main()
