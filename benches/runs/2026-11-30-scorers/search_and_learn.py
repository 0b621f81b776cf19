"""search-and-learn's best-of-n, beam search and DVTS, unchanged, over offshoot in place of vllm and its reward model.

    python search_and_learn.py SEARCH_AND_LEARN/src REWARD ITEMS.jsonl [PROBLEMS]

Its own modules are imported; what they import and do not need here (latex and word parsers, datasets) is a stand-in.
"""

import json
import re
import sys
import time
import types

import offshoot

source, reward, items = sys.argv[1:4]
count = int(sys.argv[4]) if len(sys.argv) > 4 else 8


def stub(name, **values):
    module = types.ModuleType(name)
    module.__dict__.update(values)
    sys.modules[name] = module


def nothing(*_, **__):
    return None


stub("vllm", LLM=offshoot.LLM, SamplingParams=offshoot.SamplingParams)
stub("datasets", Dataset=object, load_dataset=nothing, get_dataset_config_names=nothing)
stub("latex2sympy2", latex2sympy=nothing)
stub("sympy", latex=nothing, simplify=nothing, N=nothing)
stub("sympy.parsing")
stub("sympy.parsing.latex", parse_latex=nothing)
stub("sympy.parsing.sympy_parser", parse_expr=nothing)
stub("word2number", w2n=None)
stub("torch", Tensor=object)


class Scorer:
    """`load_prm` gives such an object. search-and-learn asks with the problem; the reward model reads its own form."""

    def __init__(self, scorer):
        self.scorer, self.calls, self.texts = scorer, 0, 0

    def score(self, questions, outputs):
        self.calls += 1
        self.texts += sum(map(len, outputs))
        return self.scorer.score([f"Question: {question}\nAnswer:" for question in questions], outputs)


stub("sal.models.reward_models", PRM=Scorer, load_prm=nothing)
sys.path.insert(0, source)
from sal.config import Config  # noqa: E402
from sal.search import beam_search, best_of_n, dvts  # noqa: E402

TEMPLATE = ("{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}Question: {{ m.content }}\nAnswer:"
            "{% elif m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}")
SEARCHES = [
    ("best_of_n", best_of_n, {}),
    ("beam_search", beam_search, {}),
    ("dvts", dvts, {}),
    ("dvts", dvts, {"lookahead": 1}),
]

lines = [json.loads(line) for line in open(items)][:count]
with offshoot.LLM(offshoot.demo_model(), kv_memory=512) as llm, offshoot.Scorer(reward) as scorer:
    llm.get_tokenizer().chat_template = TEMPLATE
    for name, search, more in SEARCHES:
        prm, began, right = Scorer(scorer), time.time(), 0
        before = scorer.metrics()
        for line in lines:
            config = Config(approach=name, n=16, beam_width=4, num_iterations=4, max_tokens=200, search_batch_size=1,
                            custom_chat_template=TEMPLATE, system_prompt="", **more)
            result = search({"problem": [line["question"]]}, config, llm, prm)
            assert len(result["completions"]) == 1 and result["pred"]
            # The model goes on with another question behind its answer: the first number counts.
            found = re.search("#### ([0-9]+)", result["pred"][0])
            right += found is not None and found[1] == line["answer"].rsplit("#### ", 1)[1]
        after = scorer.metrics()
        told = {key: after[key] - before[key] for key in ("prompt_tokens_logical", "prompt_tokens_computed")}
        print(json.dumps({"search": name, **more, "problems": len(lines), "right": right, "calls": prm.calls,
                          "texts": prm.texts, "seconds": round(time.time() - began, 1), **told}), flush=True)
