import sys, types, json, time
sys.path[:0] = ["shim", "search-and-learn/src"]
import datasets
datasets.Dataset = object
def stub(name, **values):
    module = types.ModuleType(name); module.__dict__.update(values); sys.modules[name] = module
nothing = lambda *a, **k: None
stub("latex2sympy2", latex2sympy=nothing); stub("sympy", latex=nothing, simplify=nothing, N=nothing)
stub("sympy.parsing"); stub("sympy.parsing.latex", parse_latex=nothing); stub("sympy.parsing.sympy_parser", parse_expr=nothing)
stub("word2number", w2n=None)
class PRM:
    # Rewards texts with digits and equals signs, by step.
    def score(self, questions, outputs):
        return [[[sum(map(text.count, "=0123456789")) / (1 + len(text))] for text in texts] for texts in outputs]
stub("sal.models.reward_models", PRM=PRM)
from sal.config import Config
from sal.search import beam_search, best_of_n, dvts
from vllm import LLM
problems = [json.loads(line)["question"] for line in open("gsm8k/test.jsonl")][:4]
template = open("demo/chat_template.jinja").read()
for approach, search in [("best_of_n", best_of_n), ("beam_search", beam_search), ("dvts", dvts)]:
    config = Config(approach=approach, n=16, beam_width=4, num_iterations=6, max_tokens=48, custom_chat_template=template,
                    search_batch_size=1, system_prompt="Solve it.")
    llm, began = LLM("http://127.0.0.1:8102", "demo"), time.time()
    for problem in problems:
        x = search({"problem": [problem]}, config, llm, PRM())
        assert len(x["completions"]) == 1 and x["pred"], x.keys()
    print(approach, "problems", len(problems), "calls", llm.calls, "prompts", llm.prompts, "s", round(time.time() - began, 1), repr(x["pred"][0][-60:]), flush=True)
