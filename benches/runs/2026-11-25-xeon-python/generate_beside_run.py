"""LLM.generate beside `offshoot run` on one prompt with 1,024 samples, by turns, on the CPU. Prints JSON lines."""
import json, statistics, sys, time
import offshoot
from offshoot import LLM, SamplingParams
n, most, pairs = map(int, sys.argv[1:4])
model = str(offshoot.demo_model())
prompt = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:"
open("/tmp/items.jsonl", "w").write(json.dumps({"id": "0", "question": prompt}) + "\n")
task = {"name": "cpu", "model": model, "items": {"path": "/tmp/items.jsonl", "id": "id"}, "prompt": {"item": "{{question}}"},
        "method": {"sample": {"samples": n}}, "sampling": {"max_tokens": most, "ignore_eos": True, "seed": 1}}
json.dump(task, open("/tmp/task.json", "w"))
rates = {"run": [], "generate": []}
for k in range(pairs):
    s = offshoot.run("/tmp/task.json", device="cpu", out=f"/tmp/cpurun{k}-{time.time_ns()}", show=False).summary
    rates["run"].append(s["engine"]["tokens_sampled"] / s["seconds"])
    with LLM(model, device="cpu") as llm:
        began = time.time()
        out = llm.generate(prompt, SamplingParams(n=n, max_tokens=most, ignore_eos=True, seed=1), use_tqdm=False)
        took = time.time() - began
        rates["generate"].append(llm.metrics()["tokens_sampled"] / took)
    print(json.dumps({"pair": k, **{name: each[-1] for name, each in rates.items()}}), flush=True)
print(json.dumps({"median": {name: statistics.median(each) for name, each in rates.items()},
                  "ratio": statistics.median(rates["generate"]) / statistics.median(rates["run"])}))
