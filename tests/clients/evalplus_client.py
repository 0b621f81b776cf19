"""evalplus with its `openai` backend on problems that are written here, instead of those that it would download."""

import json
import os
import sys
import tempfile

import checks

checks.skip_without("evalplus")
FOLDER = tempfile.TemporaryDirectory()
os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = FOLDER.name

PROBLEMS = [
    {"task_id": f"HumanEval/{number}", "prompt": f'def {name}(a, b):\n    """Return {what}."""\n', "entry_point": name,
     "canonical_solution": f"    return {how}\n", "base_input": [[1, 2]], "plus_input": [[3, 4]], "atol": 0,
     "contract": "", "test": ""}
    for number, (name, what, how) in enumerate([("plus", "the sum", "a + b"), ("times", "the product", "a * b")])
]


def check_generation():
    path = os.path.join(FOLDER.name, "problems.jsonl")
    with open(path, "w") as file:
        file.writelines(json.dumps(problem) + "\n" for problem in PROBLEMS)
    os.environ["HUMANEVAL_OVERRIDE_PATH"] = path
    from evalplus.codegen import run_codegen

    out = run_codegen(model=MODEL, dataset="humaneval", backend="openai", base_url=URL + "/v1", root=FOLDER.name,
                      n_samples=6, bs=3, temperature=0.8)
    with open(out.replace(".jsonl", ".raw.jsonl")) as file:
        samples = [json.loads(line) for line in file]
    assert [sample["task_id"] for sample in samples] == ["HumanEval/0"] * 6 + ["HumanEval/1"] * 6
    assert len({sample["solution"] for sample in samples}) > 2, "the samples are copies"


def check_greedy():
    from evalplus.provider import make_model

    model = make_model(model=MODEL, backend="openai", base_url=URL + "/v1", batch_size=1, temperature=0,
                       dataset="humaneval", instruction_prefix="Solve:", response_prefix="Solved:")
    model.max_new_tokens = 24
    one, other = (model.codegen(PROBLEMS[0]["prompt"], do_sample=False, num_samples=1) for _ in range(2))
    assert one == other and len(one) == 1


if __name__ == "__main__":
    given = checks.options()
    URL, MODEL = given.base_url, given.model
    checks.run(sys.modules[__name__])
