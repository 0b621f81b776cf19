"""LLM.generate beside `offshoot run` on the same prompt, by turns, on a GPU. Prints JSON lines."""
import json, os, subprocess, sys, time
import offshoot
from offshoot import LLM, SamplingParams
folder, n, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
prompt = " ".join(f"{i*7919%10007} plus {i*104729%997}" for i in range(330))
open("/tmp/items.jsonl", "w").write(json.dumps({"id": "0", "question": prompt}) + "\n")
task = {"name": "gpu", "model": folder, "items": {"path": "/tmp/items.jsonl", "id": "id"}, "prompt": {"item": "{{question}}"},
        "method": {"sample": {"samples": n}}, "sampling": {"max_tokens": most, "ignore_eos": True, "seed": 1}}
json.dump(task, open("/tmp/task.json", "w"))
def run(k):
    t = time.time()
    job = offshoot.run("/tmp/task.json", device="cuda", out=f"/tmp/run{k}", show=False)
    s = job.summary
    print(json.dumps({"what": "run", "wall": time.time() - t, "tokens": s.get("tokens_sampled"), "seconds": s["seconds"], "sampled": s["engine"]["tokens_sampled"], "rate": s["engine"]["tokens_sampled"] / s["seconds"]}), flush=True)
def generate(llm, k):
    before = llm.metrics()["tokens_sampled"]
    t = time.time()
    out = llm.generate(prompt, SamplingParams(n=n, max_tokens=most, ignore_eos=True, seed=1), use_tqdm=False)
    s = time.time() - t
    tokens = llm.metrics()["tokens_sampled"] - before
    print(json.dumps({"what": "generate", "call": k, "seconds": s, "tokens": tokens, "rate": tokens / s, "prompt_tokens": len(out[0].prompt_token_ids)}), flush=True)
for k in range(2):
    run(k)
    with LLM(folder, device="cuda") as llm:
        print(json.dumps({"what": "facts", **llm.facts}), flush=True)
        for call in range(3):
            generate(llm, call)
