"""Simulates votes that a warm-up's confidences stop, from one recorded run: samples of up to 256 of an item with the 20
likeliest tokens in each place. `python3 simulate.py RUN` prints a line for each number of likeliest tokens, window and
share kept, alone and with a vote that stops once it is decided; `own` is the sampled token's own log-probability."""

import array
import collections
import json
import math
import random
import sys


def read(folder):
    """The samples of each item: index, tokens, answer, verdict, confidences by number of likeliest tokens."""
    items = collections.defaultdict(list)
    for line in open(folder + "/samples.jsonl"):
        sample = json.loads(line)
        tokens = sample["logprobs"] + ([sample["ending"]] if sample.get("ending") else [])
        each = {k: array.array("d", [-sum(p for _, p in token["top"][:k]) / k for token in tokens])
                for k in (2, 3, 5, 10, 20)}
        each["own"] = array.array("d", [token["logprob"] for token in tokens])
        told = (sample["index"], sample["tokens"], sample.get("answer"), sample.get("correct"), each)
        items[sample["id"]].append(told)
    for samples in items.values():
        samples.sort(key=lambda sample: sample[0])
    return items


def means(conf, window):
    if len(conf) < window:
        return None
    total = sum(conf[:window])
    out = [total / window]
    for i in range(window, len(conf)):
        total += conf[i] - conf[i - window]
        out.append(total / window)
    return out


def percentile(values, share):
    values = sorted(values)
    place = (len(values) - 1) * share
    low = int(place)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (place - low)


def beta(first, second):
    coins = first + second + 1
    return sum(math.comb(coins, heads) for heads in range(first + 1)) / 2**coins


def run(items, keep, order=None, stop=None, warm_up=16, most=256):
    """Accuracy, share of the tokens of whole samples, share of samples stopped, voters and samples drawn of an item."""
    right = tokens = whole = 0.0
    stopped = voters = drawn = 0
    for samples in items.values():
        samples = [samples[i] for i in order] if order else samples[:most]
        bar = percentile([sample[1] for sample in samples[:warm_up]], 1 - keep)
        votes, counts = collections.OrderedDict(), collections.Counter()
        whole += sum(sample[2] for sample in samples)
        for i, (windows, lowest, length, answer, correct, window) in enumerate(samples):
            drawn += 1
            if i >= warm_up and windows and lowest < bar:
                at = next(j for j, mean in enumerate(windows) if mean < bar) + window
                tokens += min(at, length)
                stopped += at <= length
            else:
                tokens += length
            if lowest >= bar and answer is not None:
                votes.setdefault(answer, [0, correct])[0] += 1
                counts[answer] += 1
                voters += 1
            if stop and i >= warm_up - 1:
                first, second = ([votes for _, votes in counts.most_common(2)] + [0, 0])[:2]
                if first - second > most - 1 - i or (stop != "certain" and first and beta(first, second) >= stop):
                    break
        if votes:
            best = max(count for count, _ in votes.values())
            tied = [correct for count, correct in votes.values() if count == best]
            right += sum(map(bool, tied)) / len(tied)
    n = len(items)
    return right / n, tokens / whole, stopped / (n * (most - warm_up)), voters / n, drawn / n


def main():
    items = read(sys.argv[1])
    random_numbers = random.Random(1)
    orders = [None] + [random_numbers.sample(range(256), 256) for _ in range(3)]
    for k in ("own", 2, 3, 5, 10, 20):
        for window in (1, 2, 8, 16):
            measured = {}
            for key, samples in items.items():
                measured[key] = []
                for sample in samples:
                    conf = sample[4][k]
                    windows = means(conf, window)
                    lowest = min(windows) if windows else sum(conf) / len(conf)
                    measured[key].append((windows, lowest, *sample[1:4], window))
            for keep in (0.1, 0.5, 0.9):
                for stop in (None, "certain", 0.95):
                    results = [run(measured, keep, order, stop) for order in orders[:2 if stop is None else 4]]
                    accuracy, tokens, stopped, voters, drawn = [sum(x) / len(results) for x in zip(*results)]
                    print(f"k {k} window {window:2} keep {keep} stop {stop}: accuracy {accuracy:.3f} "
                          f"tokens {tokens:.3f} stopped {stopped:.3f} voters {voters:.1f} drawn {drawn:.1f}",
                          flush=True)


main()
