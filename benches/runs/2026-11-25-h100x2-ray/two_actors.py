"""Seconds of one job with one Ray actor and with two, beside a job of one token a row (which is starting up): JSON lines.
Arguments: model folder, device, samples a row, tokens a sample, repeats."""
import json, os, random, sys, time
import ray, offshoot
from offshoot.ray import OffshootConfig, build_processor, by_prefix
model, device, n, most, repeats = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
words = int(sys.argv[6]) if len(sys.argv) > 6 else 40
gpus = 2 if device == "cuda" else 0
ray.init(num_cpus=4, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
random.seed(1)
def text(k): return " ".join(random.choice("red blue pens cards has buys more Mia Tom seven four".split()) for _ in range(k))
prefixes = [text(words) for _ in range(16)]
prompts = [{"prompt": f"{prefix}\nQuestion {k}: {text(8)}\nAnswer:", "n": n} for prefix in prefixes for k in range(16)]
random.shuffle(prompts)
parts = by_prefix(ray.data.from_items(prompts), parts=8, model=model, max_tokens=most)
print(json.dumps({"cut": str(parts.cut)}), flush=True)
def job(actors, most):
    engine = {"seed": 1, "device": device, **({"threads": 1} if device == "cpu" else {"deterministic": False})}
    make = build_processor(OffshootConfig(model=model, concurrency=actors, engine_kwargs=engine,
                           sampling_params={"max_tokens": most, "ignore_eos": True}, num_cpus=1))
    began = time.time()
    rows = make(parts).select_columns(["row_number", "num_generated_tokens", "num_input_tokens"]).to_pandas()
    took = time.time() - began
    print(json.dumps({"actors": actors, "max_tokens": most, "seconds": took, "rows": len(rows), **make.metrics(),
                      "computed": make.metrics().get("prompt_tokens_computed")}), flush=True)
    return took
for repeat in range(repeats):
    base = {a: job(a, 1) for a in (1, 2)}
    full = {a: job(a, most) for a in (1, 2)}
    print(json.dumps({"repeat": repeat, "ratio": (full[1] - base[1]) / (full[2] - base[2]), "ratio_with_start": full[1] / full[2]}), flush=True)
