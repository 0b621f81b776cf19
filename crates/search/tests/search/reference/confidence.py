"""Writes confidence.json: what deepconf 0.1.0 computes from confidences and log-probabilities that a recipe makes, so
that the file stays small and the test makes the same ones.

    pip install numpy; pip download --no-deps deepconf==0.1.0; unzip deepconf-*.whl
    python confidence.py PATH_TO/deepconf/utils.py > confidence.json
"""

import importlib.util
import json
import sys
from types import SimpleNamespace

import numpy as np

spec = importlib.util.spec_from_file_location("utils", sys.argv[1])
utils = importlib.util.module_from_spec(spec)
spec.loader.exec_module(utils)


def numbers(seed, n, below):
    """The whole numbers below `below` of a linear congruential generator of 31 bits."""
    state, made = seed, []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        made.append((state >> 8) % below)
    return made


def confidences(seed, n, offset=0):
    """Thousandths, as deepconf rounds them; as numpy's numbers, which deepconf gets from its means."""
    return [np.float64((number + offset) / 1000) for number in numbers(seed, n, 4000)]


def token_cases():
    cases = [("halves", [-0.0005]), ("halves", [-0.0015]), ("halves", [-1.0005]), ("halves", [-2.0015])]
    cases += [("none", []), ("below 0", [0.25, 0.5])]
    # Multiples of 1/2000 and of 1/65536, in the numbers of log-probabilities that vLLM gives, and around borders of
    # numpy's sums.
    for seed, n in enumerate([1, 2, 7, 8, 9, 15, 16, 20, 20, 21, 21, 40, 127, 128, 129, 300]):
        cases.append(("2000", [-number / 2000 for number in numbers(seed, n, 40000)]))
        cases.append(("65536", [-number / 65536 for number in numbers(seed + 100, n, 2**20)]))
    for name, logprobs in cases:
        position = {ix: SimpleNamespace(logprob=logprob) for ix, logprob in enumerate(logprobs)}
        found = utils.compute_confidence([position])
        yield {"logprobs": logprobs, "confidence": float(found[0]) if found else None}


def window_cases():
    for window in (1, 2, 10, 16, 2048):
        for n in sorted({0, 1, window - 1, window, window + 1, 3 * window + 5}):
            for seed, offset in ((3, 0), (4, -2000)):
                made = confidences(seed, n, offset)
                groups = utils.compute_least_grouped(made, window)
                trace = {"confs": made}
                yield {
                    "window": window, "seed": seed, "tokens": n, "offset": offset,
                    "groups": len(groups), "sum": float(np.sum(groups)), "lowest_group": float(min(groups)),
                    "mean": float(utils.calculate_mean_confidence(trace)),
                    "tail": float(utils.calculate_tail_confidence(trace, window)),
                    "bottom": float(utils.calculate_bottom_window_confidence(trace, window, 0.1)),
                    "lowest": float(utils.calculate_bottom_window_confidence(trace, window, -1)),
                }


def percentile_cases():
    for n in (1, 2, 3, 11, 16, 31):
        values = confidences(n, n, -2000)
        for percent in (0, 10, 25, 50, 90, 99, 100):
            found = float(np.percentile(values, percent))
            yield {"seed": n, "values": n, "offset": -2000, "percent": percent, "value": found}


def vote_cases():
    # (answer, seed, tokens, offset) of each sample.
    many = [(str(seed % 4), seed, 40 + 97 * seed, 0) for seed in range(40)]
    cases = [
        [],
        [(None, 1, 9, 0), ("", 2, 9, 0)],
        [("a", 1, 0, 0), ("b", 2, 0, 0), ("b", 3, 0, 0)],
        [("a", 1, 30, -4000), ("b", 2, 30, -4000)],
        [("b", 1, 30, 0), ("a", 1, 30, 0)],
        [("a", 1, 0, 0), ("b", 2, 5, 0), (None, 3, 5, 9000), ("a", 4, 5, 0)],
        many,
        [(answer, seed, tokens, 100 * (seed % 7)) for answer, seed, tokens, _ in many],
    ]
    for samples in cases:
        traces = [{"extracted_answer": answer, "confs": confidences(seed, tokens, offset)}
                  for answer, seed, tokens, offset in samples]
        results = {name: result for name, result in utils.compute_all_voting_results(traces).items() if result}
        for result in results.values():
            if result["confidence"] is not None:
                result["confidence"] = float(result["confidence"])
        yield {"samples": samples, "results": results}


def lines(cases):
    return "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"


print('{"tokens": %s,\n"windows": %s,\n"percentiles": %s,\n"votes": %s}' % (
    lines(token_cases()), lines(window_cases()), lines(percentile_cases()), lines(vote_cases())))
