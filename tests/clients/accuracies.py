"""Compares lm-eval's own `hf` model with `local-completions` to a server of the same folder, both in float32.

    accuracies.py --base-url URL --model NAME --folder DIR [--hf-python PYTHON] [--json FILE]

Accuracies must be equal, perplexities to 4 decimals of their logarithm. `--hf-python` is the interpreter of an
environment with requirements-reference.txt, if that is another one.
"""

import json
import math
import os
import subprocess
import sys
import tempfile

import checks

SCORED = ["local_choices", "local_words", "local_rolling", "local_greedy"]


def evaluate(model, arguments, folder):
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    os.environ["HF_HOME"] = folder
    import lm_eval

    import local_tasks

    manager = local_tasks.write(folder)
    results = lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=SCORED, task_manager=manager,
                                      bootstrap_iters=0, log_samples=True, verbosity="ERROR")
    greedy = [sample["resps"][0][0] for sample in sorted(results["samples"]["local_greedy"], key=lambda s: s["doc_id"])]
    likelihoods = [[float(pair[0]) for pair in sample["filtered_resps"]]
                   for sample in sorted(results["samples"]["local_choices"], key=lambda s: s["doc_id"])]
    return {"metrics": local_tasks.metrics(results), "greedy": greedy, "likelihoods": likelihoods}


def reference(model_folder, out, work):
    # `local-completions` asks the server for the tokens of a text without special ones.
    arguments = {"pretrained": model_folder, "dtype": "float32", "device": "cpu", "add_bos_token": False}
    with open(out, "w") as file:
        json.dump(evaluate("hf", arguments, work), file)


def compare(given):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "hf.json")
        # Threads of one forward pass of a small model only wait for each other.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([given.hf_python, __file__, "--as-reference", out, "--folder", given.folder], check=True,
                       env=environment)
        with open(out) as file:
            theirs = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        arguments = {"model": given.model, "base_url": f"{given.base_url}/v1/completions", "max_length": given.context,
                     "tokenizer_backend": "remote", "num_concurrent": 16, "max_retries": 1}
        ours = evaluate("local-completions", arguments, folder)
    failed = 0
    for name, value in theirs["metrics"].items():
        own = ours["metrics"][name]
        if "perplexity" in name:
            own, value = math.log(own), math.log(value)
        is_equal = round(own, 4) == round(value, 4) or abs(own - value) < 5e-5
        failed += not is_equal
        print(f"{'ok    ' if is_equal else 'FAILED'}  {name:36} hf {value:.6f}   served {own:.6f}")
    # Decoders of some tokenizers drop the space at the beginning of a text.
    same = sum(a.strip() == b.strip() for a, b in zip(theirs["greedy"], ours["greedy"]))
    count = len(theirs["greedy"])
    print(f"{'ok    ' if same == count else 'FAILED'}  {same} of {count} greedy texts are equal")
    failed += same != count
    most = max(abs(a - b) for one, other in zip(theirs["likelihoods"], ours["likelihoods"]) for a, b in zip(one, other))
    print(f"        log-likelihoods of choices differ by at most {most:.2e}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"hf": theirs["metrics"], "served": ours["metrics"], "greedy_equal": same,
                       "greedy": count, "largest_difference": most}, file, indent=1)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    checks.skip_without("lm_eval")

    def more(parser):
        parser.add_argument("--folder", required=True, help="the model's folder")
        parser.add_argument("--context", type=int, default=512, help="the model's positions")
        parser.add_argument("--hf-python", default=sys.executable, help="interpreter with torch and transformers")
        parser.add_argument("--json", help="file for the figures")
        parser.add_argument("--as-reference", help=checks.argparse.SUPPRESS)

    given = checks.options(more)
    if given.as_reference:
        with tempfile.TemporaryDirectory() as folder:
            reference(given.folder, given.as_reference, folder)
    else:
        compare(given)
