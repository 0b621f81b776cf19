"""Bad forms against one kind of process: each is refused or compiled within a second and 200 MB.

Tries the forms of hostile.py, the schemas of public interfaces, and mutated schemas (--mutations, --seed), and prints
how many were refused, the slowest, those that took the most memory, and the errors.

    python benches/forms/bad.py lab --lab target/release/offshoot-lab      # a process of Rust
    python benches/forms/bad.py python                                     # a process of Python, with the wheel
    python benches/forms/bad.py server --base-url http://127.0.0.1:8000 --pid PID

Of a server it also measures how long others wait meanwhile: single tokens without a form, again and again.
"""

import argparse
import collections
import json
import pathlib
import sys
import threading
import time
import urllib.error
import urllib.request

import hostile
import lab

SECONDS, MEGABYTES = 1.0, 200.0
#: Tokens that are drawn from the masks of a form that is accepted.
DRAWN = 60
FIELDS = {"json": "json", "regex": "regex", "lark": "grammar", "choice": "choice"}


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("process", choices=["lab", "python", "server"])
    lab.add_options(parser)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="the server, without /v1")
    parser.add_argument("--model", default="demo", help="the model's name at the server")
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is read")
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=50)
    parser.add_argument("--only", default="", help="only forms whose names have this text")
    parser.add_argument("--record", help="file that gets one JSON object for each form")
    return parser.parse_args()


def forms(given):
    """All forms: name, kind, and the text of the value."""
    found = hostile.forms() | hostile.public() | hostile.mutations(given.mutations, given.seed)
    listed = [(name, kind, json.dumps(value)) for name, (kind, value) in found.items()]
    listed += [(f"schema: arrays {depth:,} deep", "json", hostile.deep_text(depth)) for depth in (120, 1_000, 10_000)]
    return [one for one in listed if given.only in one[0]]


class Memory:
    """The most memory that a process has had since it was last asked, in MB."""

    def __init__(self, pid):
        self.folder = pathlib.Path("/proc") / str(pid)
        self.now = self.read("VmRSS")
        self.start()

    def read(self, field):
        lines = (self.folder / "status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))

    def start(self):
        self.now = self.read("VmRSS")
        # Linux: the peak begins anew.
        (self.folder / "clear_refs").write_text("5")

    def risen(self):
        return self.read("VmHWM") - self.now


def in_lab(given, found):
    """In a process of Rust; of an accepted form tokens are drawn from its masks alone, without a model."""
    lines = [f'{{"name":{json.dumps(name)},"form":{{"{kind}":{text}}},"draw":{DRAWN}}}'
             for name, kind, text in found]
    for (name, _, _), answer in zip(found, lab.ask(given, lines), strict=True):
        drawn = answer.get("drawn") or {"finish": None, "slowest_seconds": 0.0}
        yield {"name": name, "error": answer.get("error"), "seconds": answer["seconds"], "mb": answer["peak_mb"] or 0.0,
               "finish": drawn["finish"], "slowest mask": drawn["slowest_seconds"]}


def in_python(_, found):
    """In this process, through the package; of an accepted form tokens are sampled."""
    import offshoot
    from offshoot.sampling_params import StructuredOutputsParams

    with offshoot.LLM(offshoot.demo_model(), device="cpu", kv_memory=256) as llm:
        llm.generate(["Question:"], offshoot.SamplingParams(
            max_tokens=1, structured_outputs=StructuredOutputsParams(choice=["a"])))
        memory = Memory("self")
        for name, kind, text in found:
            value = text if kind == "json" else json.loads(text)
            memory.start()
            begun, error = time.monotonic(), None
            try:
                form = StructuredOutputsParams(**{FIELDS[kind]: value})
                params = offshoot.SamplingParams(max_tokens=DRAWN, seed=1, structured_outputs=form)
                llm.generate(["Question:"], params, use_tqdm=False)
            except (ValueError, TypeError, RuntimeError) as caught:
                error = f"{type(caught).__name__}: {caught}"
            yield {"name": name, "error": error, "seconds": time.monotonic() - begun, "mb": memory.risen()}


def post(given, body):
    """An answer's status and its object."""
    request = urllib.request.Request(given.base_url + "/v1/completions", body.encode(),
                                     {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def at_server(given, found):
    """Through the protocol; of an accepted form tokens are sampled. Others ask meanwhile."""
    memory, waits, done = Memory(given.pid) if given.pid else None, [], threading.Event()

    def ask_others():
        body = json.dumps({"model": given.model, "prompt": "Question:", "max_tokens": 1})
        while not done.is_set():
            begun = time.monotonic()
            status, answer = post(given, body)
            waits.append(time.monotonic() - begun)
            assert status == 200, answer
            time.sleep(0.01)

    others = threading.Thread(target=ask_others)
    others.start()
    try:
        for name, kind, text in found:
            if memory:
                memory.start()
            begun = time.monotonic()
            status, answer = post(given, f'{{"model":{json.dumps(given.model)},"prompt":"Question:",'
                                         f'"max_tokens":{DRAWN},"structured_outputs":{{"{FIELDS[kind]}":{text}}}}}')
            seconds = time.monotonic() - begun
            error = f"{status}: {answer['error']['message']}" if status != 200 else None
            assert status in (200, 400), (name, status, answer)
            yield {"name": name, "error": error, "seconds": seconds, "mb": memory.risen() if memory else 0.0}
    finally:
        done.set()
        others.join()
    waits.sort()
    print(f"others waited {waits[len(waits) // 2] * 1e3:.0f} ms in the middle, {waits[-1] * 1e3:.0f} ms at most, of "
          f"{len(waits)} requests")


def main():
    given = options()
    found = forms(given)
    begun = time.monotonic()
    lines = list({"lab": in_lab, "python": in_python, "server": at_server}[given.process](given, found))
    accepted = sum(not line["error"] for line in lines)
    print(f"{len(lines)} forms in {time.monotonic() - begun:.1f} s: {accepted} accepted")
    for word, unit in (("seconds", "s"), ("mb", "MB"), ("slowest mask", "s")):
        print(f"\nmost {word}:")
        for line in sorted((line for line in lines if word in line), key=lambda line: -line[word])[:8]:
            print(f"  {line[word]:8.3f} {unit}  {line['name']}: {(line['error'] or 'accepted')[:150]}")
    print("\nforms by hand:")
    for line in lines:
        if not line["name"].startswith("mutation"):
            said = (line["error"] or f"accepted; {line.get('finish') or ''}")[:200]
            print(f"  {line['seconds']:6.3f} s {line['mb']:6.1f} MB  {line['name']}: {said!r}")
    print("\nerrors of mutations:")
    errors = collections.Counter((line["error"] or "accepted")[:110] for line in lines
                                 if line["name"].startswith("mutation"))
    for error, count in errors.most_common(40):
        print(f"  {count:5} {error!r}")
    print("\nends of texts:", collections.Counter(str(line.get("finish"))[:110] for line in lines).most_common(20))
    if given.record:
        pathlib.Path(given.record).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    beyond = [line["name"] for line in lines if line["seconds"] > SECONDS or line["mb"] > MEGABYTES]
    print(f"\nbeyond {SECONDS} s or {MEGABYTES} MB: {beyond or 'none'}")
    sys.exit(1 if beyond else 0)


if __name__ == "__main__":
    main()
