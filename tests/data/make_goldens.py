"""Writes a tiny random model of each family and what Hugging Face transformers computes with it, in float32 on the CPU.

    pip install torch transformers==5.23.0 && python make_goldens.py goldens
    pip install torch transformers==4.57.6 && python make_goldens.py goldens

The first run writes config.json in the style of its transformers (`rope_parameters` from version 5, `rope_scaling` before), the
weights and golden.json. A run by another version adds its own style of config.json, and fails where it computes something else.
Weights are drawn by name, so that they do not depend on the version.
"""

import json
import sys
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

STYLE = "rope_parameters" if int(transformers.__version__.split(".")[0]) >= 5 else "rope_scaling"
PROMPT, GREEDY = 48, 32

COMMON = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
FAMILIES = {
    "llama2-mha": {"model_type": "llama", "num_key_value_heads": 4},
    "llama3-gqa-ropescaled": {
        "model_type": "llama",
        "num_key_value_heads": 2,
        "rope_theta": 500000.0,
        "rope": {"rope_type": "llama3", **LLAMA3},
    },
    "mistral-sliding16": {"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 16},
    "phi2": {"model_type": "phi", "num_key_value_heads": 4, "partial_rotary_factor": 0.5, "hidden_act": "gelu_new"},
    "qwen3-qknorm": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16},
}


def config_of(family):
    fields = {**COMMON, **family}
    rope = fields.pop("rope", None)
    if STYLE == "rope_scaling":
        return AutoConfig.for_model(**fields, **({"rope_scaling": rope} if rope else {}))
    rope = rope or {"rope_type": "default"}
    for name in ["rope_theta", "partial_rotary_factor"]:
        if name in fields:
            rope[name] = fields.pop(name)
    return AutoConfig.for_model(**fields, rope_parameters={"rope_theta": 10000.0, **rope})


def draw(model):
    """Norms about 1 and biases about 0, so that a forgotten one shows; matrices so that logits reach some units."""
    for name, tensor in model.named_parameters():
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        numbers = torch.randn(tensor.shape, generator=random)
        is_norm = tensor.dim() == 1 and name.endswith("weight")
        tensor.data = 1 + 0.3 * numbers if is_norm else 0.2 * numbers


def golden_of(model):
    random = torch.Generator().manual_seed(7)
    prompt = torch.randint(3, COMMON["vocab_size"], (PROMPT,), generator=random).tolist()
    with torch.no_grad():
        logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits, -1)
        greedy, margin = [], float("inf")
        for _ in range(GREEDY):
            last = model(torch.tensor([prompt + greedy]), use_cache=False).logits[0, -1]
            best = torch.topk(last, 2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            greedy.append(best.indices[0].item())
    return {
        "prompt": prompt,
        "last_logits": [round(x, 6) for x in logits[-1].tolist()],
        "prompt_logprobs": [round(logprobs[i, token].item(), 6) for i, token in enumerate(prompt[1:])],
        "greedy": greedy,
        "greedy_min_margin": margin,
    }


def same(golden, before):
    numbers = ["last_logits", "prompt_logprobs"]
    near = all(abs(a - b) < 1e-5 for name in numbers for a, b in zip(golden[name], before[name], strict=True))
    return near and golden["prompt"] == before["prompt"] and golden["greedy"] == before["greedy"]


def write(folder, family):
    config = config_of(family)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    draw(model)
    golden = golden_of(model)
    made = folder / "made"
    model.save_pretrained(made)
    (made / "config.json").rename(folder / f"config.{STYLE}.json")
    if (folder / "golden.json").exists():
        found, kept = load_file(made / "model.safetensors"), load_file(folder / "model.safetensors")
        assert found.keys() == kept.keys() and all(torch.equal(found[name], kept[name]) for name in kept), folder
        assert same(golden, json.loads((folder / "golden.json").read_text())), folder
    else:
        (made / "model.safetensors").rename(folder / "model.safetensors")
        (folder / "golden.json").write_text(json.dumps(golden))
    for left in made.iterdir():
        left.unlink()
    made.rmdir()


if __name__ == "__main__":
    for name, family in FAMILIES.items():
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, family)
        print(f"{folder}: {STYLE}, transformers {transformers.__version__}")
