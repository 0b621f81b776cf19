"""What Python costs: `LLM.generate` beside `offshoot run` on the same prompts, and trees of thousands of nodes with functions
of Python. Prints one JSON line a measurement.

    python benches/python/overhead.py [--model DIR --prompt-tokens 2048 --samples 1024 --max-tokens 64] [--pairs 3]

Without --model: the bundled model on its word problems, 32 prompts of 32 samples.
"""

import argparse
import json
import os
import random
import tempfile
import threading
import time

import offshoot
from offshoot import LLM, SamplingParams


def write_task(folder, given):
    """The task that `offshoot run` gets: the prompts of `generate`."""
    if given.model:
        task = json.load(open(os.path.join(given.model, "config.json")))
        random.seed(7)
        ids = [random.randrange(1000, task["vocab_size"] - 1000) for _ in range(given.prompt_tokens)]
        return [{"prompt_token_ids": ids}], dict(max_tokens=given.max_tokens, ignore_eos=True, seed=1)
    fewshot = open("tasks/words_fewshot.txt").read()
    rows = [json.loads(line) for line in open("tasks/words.jsonl")][:32]
    prompts = [f"{fewshot}Question: {row['question']}\nAnswer:" for row in rows]
    return prompts, dict(temperature=0.8, max_tokens=280, stop=["\n\n", "\nQuestion"], seed=1)


def generate(llm, prompts, settings, n):
    sampled = llm.metrics()["tokens_sampled"]
    begun = time.perf_counter()
    outputs = llm.generate(prompts, SamplingParams(n=n, **settings), use_tqdm=False)
    seconds = time.perf_counter() - begun
    sampled = llm.metrics()["tokens_sampled"] - sampled
    return {"tokens": sampled, "seconds": seconds, "rate": sampled / seconds,
            "kept": sum(len(output.token_ids) for request in outputs for output in request.outputs)}


def batch(given, prompts, settings, n, folder):
    """The same requests by the command, whose rate is from the loaded model to the end."""
    if not given.model:
        job = offshoot.run("tasks/words-vote.json", limit=32, out=os.path.join(folder, "run"), device=given.device, show=False)
        sampled = job["engine"]["tokens_sampled"]
        return {"tokens": sampled, "seconds": job["seconds"], "rate": sampled / job["seconds"]}
    raise SystemExit("with --model, compare with `offshoot-lab bench workloads` of the same shape")


def tree(llm, nodes):
    """A frontier of 100 nodes, forked in two, the better half kept, until so many nodes are made."""
    grown = llm.tree("Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:", seed=1)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    begun, worked = time.perf_counter(), time.thread_time()
    frontier = grown.extend(grown.fork(grown.root, 100), params)
    while len(grown) < nodes:
        children = [child for node in frontier for child in node.fork(2)]
        for node in grown.growing(children, params):
            node.score = node.logprob
        best = sorted(children, key=lambda node: -node.score)
        frontier = best[:100]
        grown.prune(best[100:])
        for node in frontier:
            grown.close([node.parent] if node.parent.state == "open" else [])
    seconds, worked = time.perf_counter() - begun, time.thread_time() - worked
    return {"nodes": len(grown), "seconds": seconds, "python_seconds": worked, "python_share": worked / seconds}


def thoughts(llm, nodes):
    """Trees of thoughts whose value is Python's, over several prompts at once, as many as make so many nodes."""
    spent = [0.0]
    lock = threading.Lock()

    def value(path):
        begun = time.thread_time()
        worth = -abs(sum(map(len, path)) - 40 * len(path))
        with lock:
            spent[0] += time.thread_time() - begun
        return worth

    params = SamplingParams(max_tokens=16, ignore_eos=True)
    prompts = [f"Question: {count} pens and 4 more, how many?\nAnswer:" for count in range(max(1, nodes // 150))]
    begun, worked = time.perf_counter(), time.thread_time()
    outcomes = offshoot.tree_of_thoughts(llm, prompts, value=value, steps=4, breadth=8, thoughts=5, thought_stop="\n\n",
                                         thought_tokens=16, sampling_params=params, seed=1)
    seconds, worked = time.perf_counter() - begun, time.thread_time() - worked
    made = sum(outcome.nodes for outcome in outcomes)
    return {"nodes": made, "seconds": seconds, "python_seconds": worked + spent[0], "python_share": (worked + spent[0]) / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--prompt-tokens", type=int, default=2048)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=10_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LLM(given.model or offshoot.demo_model(), device=given.device) as llm:
        prompts, settings = write_task(folder, given)
        n = given.samples // len(prompts)
        for pair in range(given.pairs):
            print(json.dumps({"what": "generate", "pair": pair, **generate(llm, prompts, settings, n)}), flush=True)
            if not given.model:
                print(json.dumps({"what": "run", "pair": pair, **batch(given, prompts, settings, n, folder)}), flush=True)
        if not given.model:
            print(json.dumps({"what": "tree", **tree(llm, given.nodes)}), flush=True)
            print(json.dumps({"what": "thoughts", **thoughts(llm, given.nodes)}), flush=True)


if __name__ == "__main__":
    main()
