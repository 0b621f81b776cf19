"""search-and-learn's own modules, unchanged, over offshoot in place of vllm; the reward model is a stand-in. Argument: its folder src."""
import sys, types, time, json
import offshoot
vllm = types.ModuleType("vllm")
vllm.LLM, vllm.SamplingParams = offshoot.LLM, offshoot.SamplingParams
sys.modules["vllm"] = vllm
rewards = types.ModuleType("sal.models.reward_models")
class PRM:
    def score(self, questions, outputs):
        return [[[1.0 / (1 + abs(len(text) - 60))] for text in texts] for texts in outputs]
rewards.PRM, rewards.load_prm = PRM, lambda config: PRM()
sys.modules["sal.models.reward_models"] = rewards
sys.path.insert(0, sys.argv[1])
from datasets import Dataset
from sal.config import Config
from sal.search import beam_search, best_of_n, dvts
from sal.utils.score import score
llm = vllm.LLM(model=str(offshoot.demo_model()), gpu_memory_utilization=0.5, enable_prefix_caching=True, seed=42, tensor_parallel_size=1)
problems = [f"Mia has {a} pens and buys {b} more. How many pens does Mia have now?" for a, b in [(3, 4), (5, 2), (7, 6), (8, 9)]]
for name, fn, more in [("best_of_n", best_of_n, {}), ("beam_search", beam_search, {"search_batch_size": 1, "beam_width": 2, "num_iterations": 4, "n": 4}),
                       ("dvts", dvts, {"beam_width": 2, "num_iterations": 4, "n": 4}), ("dvts", dvts, {"beam_width": 2, "num_iterations": 3, "n": 4, "lookahead": 1})]:
    config = Config(approach=name, model_path=str(offshoot.demo_model()), max_tokens=60, **more)
    for template in (None, config.custom_chat_template):
        config.custom_chat_template = template
        if template is None:
            llm.get_tokenizer().chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}Answer:{% endif %}"
        began = time.time()
        data = Dataset.from_dict({"problem": problems, "answer": ["7", "7", "13", "17"]})
        data = data.map(fn, batched=True, batch_size=config.search_batch_size, fn_kwargs={"config": config, "llm": llm, "prm": PRM()}, load_from_cache_file=False)
        data = score(data, config)
        print(name, "own template" if template else "plain", len(data), sorted(data.column_names), f"{time.time() - began:.1f} s", json.dumps(data[0]["pred"])[:100])
