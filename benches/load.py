"""Loads a running server of the OpenAI protocol and measures what its clients see. Needs Python alone.

    load.py --url URL REQUESTS.jsonl --concurrency 64   # closed loop: a request that ends is followed by the next
    load.py --url URL REQUESTS.jsonl --rate 20          # Poisson arrivals, whether or not earlier requests have ended
    load.py --url URL --trace TRACE.jsonl               # lengths, shared prompts and arrivals of a Mooncake trace
    load.py --url URL --prompt-tokens 128 --choices 4   # synthetic prompts of token ids

REQUESTS.jsonl is a file as `offshoot batch` takes it. Latencies count from when a request was to be sent to the end of
its answer, times between tokens from event to event of one choice; percentiles are by nearest rank.
Prompts and arrivals depend on the options and the seed alone; they are those of `offshoot plan --replay`, and of
`offshoot bench serve`, which measured what benches/runs holds until November 2026. This program runs on one thread;
`client_cpu_s` near `wall_s` says that it was the limit.
"""

import argparse
import asyncio
import collections
import gzip
import json
import math
import os
import resource
import sys
import time
import urllib.parse

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
# Tokens that one name of a Mooncake trace stands for, and the longest prompt or answer of a trace.
HASHED_TOKENS, MOST_TOKENS = 512, 1 << 24
# Requests at once and synthetic requests, unless their number is given.
CONCURRENCY, REQUESTS = 64, 64
# SplitMix64's increment, and the mask of its words.
GOLDEN, WORD = 0x9E3779B97F4A7C15, (1 << 64) - 1

Request = collections.namedtuple("Request", "path body arrival")
# Times in seconds; `first` is None if the answer was not streamed or had no text.
Timing = collections.namedtuple("Timing", "first gaps whole prompt completion cached")


class Wrong(Exception):
    """An input that cannot be sent: file, field, what was expected and what was found."""


class Failure(Exception):
    """Why a request was not answered, in the words by which errors are counted."""


# ---- what is sent, and when -----------------------------------------------------------------------------------------


def mix(z):
    """The finaliser of SplitMix64 (crates/core/src/mix.rs)."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def poisson(rate, seed):
    """Arrival times of an endless Poisson process, `rate` per second on average."""
    at, number = 0.0, 0
    while True:
        bits = mix(mix(seed + GOLDEN & WORD) ^ number * GOLDEN & WORD) >> 11
        at -= math.log(1 - bits / 2**53) / rate
        yield at
        number += 1


class Texts:
    """Endless synthetic texts over a vocabulary: texts of different numbers below its square differ in their first two
    tokens."""

    def __init__(self, vocab):
        self.vocab, self.known = vocab, {}

    def tokens(self, text, count):
        """The first `count` tokens of a text."""
        known = self.known.get(text, [])
        if len(known) < count:
            start = (text, text // self.vocab)
            known = [(start[at] if at < 2 else mix(text * GOLDEN + at & WORD)) % self.vocab for at in range(count)]
            self.known[text] = known
        return known[:count]

    def request(self, runs, n, max_tokens, arrival=0.0):
        """A completion of a prompt of runs `(text, tokens)`; every choice has exactly `max_tokens` tokens."""
        prompt = [token for text, count in runs for token in self.tokens(text, count)]
        body = {"prompt": prompt, "n": n, "max_tokens": max_tokens, "ignore_eos": True}
        return Request(ENDPOINTS[0], body, arrival)


def lines(path):
    """The lines of a file, gzipped or not, that are not blank, each with its number."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        text = (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Wrong(f"{path}: cannot read: {error}") from error
    found = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not found:
        raise Wrong(f"{path}: expected at least one request, found none")
    return found


def parsed(path, number, line):
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise Wrong(f"{path}: line {number}: {error}") from error
    if not isinstance(value, dict):
        raise Wrong(f"{path}: line {number}: expected an object, found {line[:40]}")
    return value


def of_batch(path):
    for number, line in lines(path):
        fields = parsed(path, number, line)
        if fields.get("url") not in ENDPOINTS:
            found = f"expected {' or '.join(ENDPOINTS)}, found {fields.get('url')!r}"
            raise Wrong(f"{path}: line {number}: `url`: {found}")
        if not isinstance(fields.get("body"), dict):
            raise Wrong(f"{path}: line {number}: `body`: expected an object with the request")
        yield Request(fields["url"], fields["body"], 0.0)


def of_trace(path, shrink, texts):
    """The requests of a Mooncake trace in order of arrival, every length divided by `shrink` and rounded up."""
    requests = []
    for number, line in lines(path):
        fields = parsed(path, number, line)

        def whole(name, most):
            value = fields.get(name)
            if not isinstance(value, int) or not 1 <= value <= most:
                raise Wrong(f"{path}: line {number}: {name}: expected a number from 1 to {most}, found {value!r}")
            return value

        prompt, output = whole("input_length", MOST_TOKENS), whole("output_length", MOST_TOKENS)
        names, at = fields.get("hash_ids"), fields.get("timestamp")
        named = -(-prompt // HASHED_TOKENS)
        if not isinstance(names, list) or len(names) != named:
            raise Wrong(f"{path}: line {number}: hash_ids: expected {named} names for {prompt} tokens, "
                        f"one for each {HASHED_TOKENS}, found {names!r}")
        if not isinstance(at, (int, float)) or not 0 <= at < math.inf:
            raise Wrong(f"{path}: line {number}: timestamp: expected milliseconds from 0 up, found {at!r}")
        runs = [(name, min(HASHED_TOKENS, prompt - HASHED_TOKENS * place)) for place, name in enumerate(names)]
        runs = [(name, -(-tokens // shrink)) for name, tokens in runs]
        requests.append(texts.request(runs, 1, -(-output // shrink), at / 1e3))
    return sorted(requests, key=lambda request: request.arrival)


def synthetic(given, texts):
    shared = min(given.shared_tokens, given.prompt_tokens)
    for number in range(1, (given.requests or REQUESTS) + 1):
        runs = [(0, shared), (number, given.prompt_tokens - shared)]
        yield texts.request(runs, given.choices, given.max_tokens)


def work(given):
    """The requests of the options in order of arrival."""
    texts = Texts(given.vocab)
    if given.input:
        requests = list(of_batch(given.input))
    elif given.trace:
        requests = of_trace(given.trace, given.shrink, texts)
    else:
        requests = list(synthetic(given, texts))
    requests = requests[: given.requests]
    if given.rate:
        requests = [request._replace(arrival=at) for request, at in zip(requests, poisson(given.rate, given.seed))]
    for request in requests:
        if given.model:
            request.body["model"] = given.model
        if not given.no_stream:
            request.body.update(stream=True, stream_options={"include_usage": True})
    return requests


def has_choices(body):
    """Whether the events of an answer name several choices."""
    prompt, n = body.get("prompt"), body.get("n")
    prompts = len(prompt) if isinstance(prompt, list) and all(isinstance(p, (str, list)) for p in prompt) else 1
    return prompts > 1 or isinstance(n, int) and n > 1


# ---- one answer -----------------------------------------------------------------------------------------------------


def usage_of(answer):
    """Prompt, completion and cached tokens of an answer or event; None: it has none."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return None
    details = usage.get("prompt_tokens_details") or {}
    return usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0, details.get("cached_tokens") or 0


class Stream:
    """Reads server-sent events as they come, and parses only those that must be: the load's own work must not be what
    is measured."""

    def __init__(self, several, due):
        self.several, self.due = several, due
        self.cut = b""
        self.first, self.gaps, self.last = None, [], {}
        self.usage, self.error, self.done = (0, 0, 0), None, False

    def feed(self, data, now):
        """Reads `data`, which came at `now`; an event counts when its line ends."""
        *whole, self.cut = (self.cut + data).split(b"\n")
        for line in whole:
            if line.startswith(b"data:"):
                self.event(line[5:].strip(), now)

    def event(self, data, now):
        if data == b"[DONE]":
            self.done = True
        elif b'"usage":{' in data or data.startswith(b'{"error"'):
            self.parse(data)
        # An event that ends a choice, or only names the role, has no token's time.
        elif not (b'"content":""' in data or b'"text":""' in data or b'"finish_reason":"' in data):
            choice = index(data) if self.several else 0
            if self.first is None:
                self.first = now - self.due
            if choice in self.last:
                self.gaps.append(now - self.last[choice])
            self.last[choice] = now

    def parse(self, data):
        try:
            event = json.loads(data)
        except ValueError:
            return
        if isinstance(event.get("error"), dict):
            self.error = event["error"].get("message", "an error without a message")
        else:
            self.usage = usage_of(event) or self.usage

    def timing(self, whole):
        if self.error is not None:
            raise Failure(f"in the stream: {self.error}")
        if not self.done:
            raise Failure("the stream ends without [DONE]")
        return Timing(self.first, self.gaps, whole, *self.usage)


def index(data):
    """The number behind the first `"index":`; 0 if there is none.

    >>> index(b'{"choices":[{"index": 12,'), index(b'{"choices":[]')
    (12, 0)
    """
    at = data.find(b'"index":')
    digits = data[at + 8 : at + 24].lstrip() if at >= 0 else b""
    end = next((place for place, byte in enumerate(digits) if not 48 <= byte <= 57), len(digits))
    return int(digits[:end] or b"0")


class Connection(asyncio.Protocol):
    """A kept HTTP/1.1 connection: one request at a time. The body goes to `feed` as it comes."""

    def connection_made(self, transport):
        self.transport, self.answer, self.is_open = transport, None, True

    def ask(self, message, on_head):
        """Sends a request. `on_head(status, is_stream)` gives what is called with each part of the body and its time;
        the future has the time at which the body ended."""
        self.answer = asyncio.get_running_loop().create_future()
        self.on_head, self.feed = on_head, None
        self.buffer, self.left, self.is_chunked, self.keeps = b"", None, False, True
        self.transport.write(message)
        return self.answer

    def data_received(self, data):
        if self.answer is None or self.answer.done():
            return
        now = time.perf_counter()
        self.buffer = self.buffer + data if self.buffer else data
        if self.feed is None and not self.head():
            return
        if self.chunks(now) if self.is_chunked else self.body(now):
            self.answer.set_result(now)

    def head(self):
        """Reads the status and headers; False: they have not all come."""
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        status, *fields = head.decode("latin-1").split("\r\n")
        fields = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self.buffer, self.is_chunked = rest, fields.get("transfer-encoding", "").lower() == "chunked"
        # Where no length is given the body ends with the connection.
        self.left = None if self.is_chunked or "content-length" not in fields else int(fields["content-length"])
        self.keeps = fields.get("connection", "").lower() != "close" and (self.is_chunked or self.left is not None)
        self.feed = self.on_head(int(status.split()[1]), fields.get("content-type") == "text/event-stream")
        return True

    def chunks(self, now):
        """Reads chunks of `buffer`; True: the last one has come. `left`: bytes of the chunk that are still to come, and
        of the line end behind it; None: its size comes next."""
        data, at = self.buffer, 0
        while at < len(data):
            if self.left is None:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                size = int(data[at:end].partition(b";")[0], 16)
                if size == 0:
                    # Trailers are not expected: what is left is the empty line.
                    return True
                self.left, at = size + 2, end + 2
            part = data[at : at + self.left]
            text = part[: max(self.left - 2, 0)]
            if text:
                self.feed(text, now)
            self.left, at = self.left - len(part) or None, at + len(part)
        self.buffer = data[at:]
        return False

    def body(self, now):
        """Reads a body of known length; True: it has come whole."""
        self.feed(self.buffer, now)
        if self.left is not None:
            self.left -= len(self.buffer)
        self.buffer = b""
        return self.left == 0

    def connection_lost(self, error):
        self.is_open = False
        if self.answer is None or self.answer.done():
            return
        if self.feed is not None and not self.is_chunked and self.left is None:
            self.answer.set_result(time.perf_counter())
        else:
            why = f": {error}" if error else ""
            self.answer.set_exception(Failure(f"connection closed before message completed{why}"))


class Client:
    def __init__(self, url, key, timeout):
        parts = urllib.parse.urlsplit(url)
        try:
            self.address = parts.hostname, parts.port or 80
        except ValueError:
            self.address = None, 0
        if parts.scheme != "http" or not self.address[0]:
            raise Wrong(f"--url: expected http://HOST:PORT, found {url}")
        self.headers = f"host: {parts.netloc}\r\ncontent-type: application/json\r\n"
        self.headers += f"authorization: Bearer {key}\r\n" if key else ""
        self.timeout, self.idle = timeout, []

    def message(self, request):
        body = json.dumps(request.body, separators=(",", ":")).encode()
        return f"POST {request.path} HTTP/1.1\r\n{self.headers}content-length: {len(body)}\r\n\r\n".encode() + body

    async def connection(self):
        """An idle connection that is still open, or a new one."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_open:
                return connection
        try:
            _, connection = await asyncio.get_running_loop().create_connection(Connection, *self.address)
        except OSError as error:
            raise Failure(f"connect: {os.strerror(error.errno) if error.errno else error}") from error
        return connection

    async def answer(self, message, several, due):
        """The timing of the answer to a request that was to be sent at `due`, or why there is none."""
        try:
            return await asyncio.wait_for(self.exchange(message, several, due), self.timeout)
        except asyncio.TimeoutError:
            return Failure(f"no answer in {self.timeout:g} s")
        except Failure as failure:
            return failure

    async def exchange(self, message, several, due):
        connection = await self.connection()
        seen, parts, stream = [], [], Stream(several, due)

        def on_head(status, is_stream):
            seen.extend((status, is_stream))
            return stream.feed if status == 200 and is_stream else lambda part, now: parts.append(part)

        try:
            end = await connection.ask(message, on_head)
        except BaseException:
            connection.transport.abort()
            raise
        status, is_stream = seen
        if connection.keeps and connection.is_open:
            self.idle.append(connection)
        else:
            connection.transport.close()
        if status == 200 and is_stream:
            return stream.timing(end - due)
        try:
            answer = json.loads(b"".join(parts))
        except ValueError as error:
            raise Failure(f"HTTP {status}" if status != 200 else f"the answer is not JSON: {error}") from error
        if status != 200:
            error = answer.get("error") if isinstance(answer, dict) else None
            code = error.get("code") if isinstance(error, dict) else None
            raise Failure(f"HTTP {status}: {code}" if code else f"HTTP {status}")
        usage = usage_of(answer)
        if usage is None:
            raise Failure("the answer has no usage")
        return Timing(None, [], end - due, *usage)


# ---- all of them ----------------------------------------------------------------------------------------------------


class Load:
    """Sends requests at their pace: `concurrency` at once, or each at its arrival."""

    def __init__(self, client, requests, concurrency):
        self.client, self.concurrency = client, concurrency
        self.requests = [(client.message(one), has_choices(one.body), one.arrival) for one in requests]
        self.outcomes, self.running, self.most_running, self.late = [], 0, 0, 0.0

    async def send(self, message, several, due):
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.outcomes.append(await self.client.answer(message, several, due))
        self.running -= 1

    async def stream(self, requests):
        for message, several, _ in requests:
            await self.send(message, several, time.perf_counter())

    async def open(self, begun):
        tasks = []
        for message, several, arrival in self.requests:
            due = begun + arrival
            # Also where it is late: the loop reads answers between two requests.
            await asyncio.sleep(max(due - time.perf_counter(), 0))
            self.late = max(self.late, time.perf_counter() - due)
            tasks.append(asyncio.create_task(self.send(message, several, due)))
        await asyncio.gather(*tasks)

    async def run(self):
        begun, cpu = time.perf_counter(), time.process_time()
        if self.concurrency:
            requests = iter(self.requests)
            await asyncio.gather(*(self.stream(requests) for _ in range(self.concurrency)))
        else:
            await self.open(begun)
        self.wall, self.cpu = time.perf_counter() - begun, time.process_time() - cpu


def percentiles(times):
    """By nearest rank; None: there are no times.

    >>> percentiles(range(100, 0, -1)), percentiles([3, 1, 2])
    ({'p50': 50, 'p90': 90, 'p99': 99}, {'p50': 2, 'p90': 3, 'p99': 3})
    """
    times = sorted(times)
    return {f"p{percent}": times[-(-len(times) * percent // 100) - 1] for percent in (50, 90, 99)} if times else None


def report(load, given):
    """The figures of a load: times in seconds, rates per second of `wall_s`."""
    answers = [outcome for outcome in load.outcomes if isinstance(outcome, Timing)]
    errors = collections.Counter(str(outcome) for outcome in load.outcomes if isinstance(outcome, Failure))
    completion = sum(answer.completion for answer in answers)
    return {
        "concurrency": load.concurrency, "rate": given.rate, "stream": not given.no_stream,
        "requests": len(load.outcomes), "answered": len(answers), "wall_s": load.wall,
        "requests_per_s": len(answers) / load.wall,
        "completion_tokens": completion, "tokens_per_s": completion / load.wall,
        "prompt_tokens": sum(answer.prompt for answer in answers),
        "cached_tokens": sum(answer.cached for answer in answers),
        "latency_s": percentiles(answer.whole for answer in answers),
        "first_token_s": percentiles(answer.first for answer in answers if answer.first is not None),
        "next_token_s": percentiles(gap for answer in answers for gap in answer.gaps),
        "most_running": load.most_running, "late_s": load.late, "client_cpu_s": load.cpu,
        "errors": dict(sorted(errors.items())),
    }


def seconds(value):
    """Three figures and a unit of time."""
    times, unit = next((one for one in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if value * one[0] >= 1 or not value),
                       (1e9, "ns"))
    digits = 2 if value * times < 10 else 1 if value * times < 100 else 0
    return f"{value * times:.{digits}f} {unit}"


def show(seen):
    print(f"requests     {seen['answered']:,} of {seen['requests']:,} answered in {seconds(seen['wall_s'])}: "
          f"{seen['requests_per_s']:.1f} requests/s")
    print(f"generated    {seen['completion_tokens']:,} tokens: {seen['tokens_per_s']:.0f} tokens/s")
    # Rounded down, so that a remainder shows.
    cached = 1000 * seen["cached_tokens"] // max(seen["prompt_tokens"], 1) / 10
    print(f"prompts      {seen['prompt_tokens']:,} tokens, {cached:.1f} % cached")
    for name in ("latency", "first token", "next token"):
        times = seen[f"{name.replace(' ', '_')}_s"]
        if times:
            print(f"{name:<12} " + "   ".join(f"{place} {seconds(value)}" for place, value in times.items()))
    print(f"load         at most {seen['most_running']} at once, sent at most {seconds(seen['late_s'])} late, "
          f"{seconds(seen['client_cpu_s'])} of CPU")
    for error, count in seen["errors"].items():
        print(f"error        {count:,} x {error}")


# ---- the command line -----------------------------------------------------------------------------------------------


def number(kind, least, most=math.inf):
    """A parser of numbers from `least` up."""
    def parse(text):
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"expected a number from {least:g} up, found {text}")
        return value
    parse.__name__ = kind.__name__
    return parse


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    natural, positive = number(int, 1), number(float, 1e-6, 1e9)
    parser.add_argument("input", nargs="?", help="requests as `offshoot batch` takes them (default: synthetic ones)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--model", help="the requests' model (default: the file's, or none)")
    parser.add_argument("--requests", type=natural,
                        help="requests to send (default: all of the file or trace; 64 synthetic ones)")
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=natural, help="requests that run at once (default: 64)")
    pace.add_argument("--rate", type=positive, help="requests per second that arrive on average, a Poisson process")
    parser.add_argument("--trace", metavar="FILE",
                        help="lengths from a Mooncake trace, and its arrivals if no pace is given")
    parser.add_argument("--shrink", type=natural, help="divide the trace's lengths by this")
    for name, least, default, text in (
        ("prompt-tokens", 1, 128, "tokens of a prompt"), ("shared-tokens", 0, 96, "tokens that all prompts begin with"),
        ("max-tokens", 1, 64, "tokens of each choice"), ("choices", 1, 1, "choices of a request"),
    ):
        parser.add_argument(f"--{name}", type=number(int, least),
                            help=f"synthetic requests: {text} (default: {default})")
    parser.add_argument("--vocab", type=number(int, 2),
                        help="synthetic prompts: token ids are below this (default: 500)")
    parser.add_argument("--seed", type=number(int, 0, WORD), default=0, help="seed of the arrivals")
    parser.add_argument("--no-stream", action="store_true", help="whole answers instead of streams")
    parser.add_argument("--timeout-seconds", type=positive, default=600.0,
                        help="seconds after which a request counts as an error (default: 600)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--dry-run", action="store_true",
                        help="print the requests, one JSON object a line with path, arrival_s and body, and send none")
    given = parser.parse_args()
    ignored = {"trace": given.input, "shrink": not given.trace, "vocab": given.input}
    ignored |= dict.fromkeys(("prompt_tokens", "shared_tokens", "max_tokens", "choices"), given.input or given.trace)
    for name, is_ignored in ignored.items():
        if is_ignored and getattr(given, name) is not None:
            parser.error(f"--{name.replace('_', '-')}: these requests do not use it")
    for name, default in (("shrink", 1), ("prompt_tokens", 128), ("shared_tokens", 96), ("max_tokens", 64),
                          ("choices", 1), ("vocab", 500)):
        if getattr(given, name) is None:
            setattr(given, name, default)
    return parser, given


def main():
    parser, given = options()
    try:
        requests = work(given)
        client = Client(given.url, given.key, given.timeout_seconds)
    except Wrong as wrong:
        parser.exit(2, f"load.py: {wrong}\n")
    if given.dry_run:
        for request in requests:
            print(json.dumps({"path": request.path, "arrival_s": request.arrival, "body": request.body}))
        return
    # A stream takes a file.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    is_open = given.rate or given.trace and not given.concurrency
    load = Load(client, requests, None if is_open else given.concurrency or CONCURRENCY)
    asyncio.run(load.run())
    seen = report(load, given)
    if given.json:
        print(json.dumps(seen))
    else:
        show(seen)
    if not seen["answered"]:
        error = max(seen["errors"], key=seen["errors"].get)
        parser.exit(2, f"load.py: {given.url}: expected answers, found {error}\n")


if __name__ == "__main__":
    sys.exit(main())
