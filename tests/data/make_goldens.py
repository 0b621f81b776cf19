"""Writes a tiny random model of each family and what Hugging Face transformers computes with it, in float32 on the CPU.

    pip install torch transformers==5.23.0 && python make_goldens.py goldens
    pip install torch transformers==4.57.6 && python make_goldens.py goldens

The first run writes config.json in the style of its transformers (`rope_parameters` from version 5, `rope_scaling`
before), the weights and golden.json. A run by another version reads these weights, adds its own style of config.json,
and fails where it computes something else.
"""

import json
import shutil
import sys
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

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
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}
FACTORS = {"short_factor": [1.0, 1.25, 1.5, 2.0], "long_factor": [1.0, 2.0, 4.0, 6.0]}
SLIDING = {"rope_type": "default", "rope_theta": 10000.0}
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
    # With 5.17.0 instead of 5.23.0.
    "mixtral": {
        "model_type": "mixtral",
        "num_key_value_heads": 2,
        "rope_theta": 1000000.0,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 20,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "mlp_only_layers": [0],
    },
    # The original context ends between the prompt and the last greedy token.
    "phi3-longrope60": {
        "model_type": "phi3",
        "num_key_value_heads": 2,
        "original_max_position_embeddings": 60,
        "rope": {"rope_type": "longrope", **FACTORS},
    },
    "smollm3-nope": {
        "model_type": "smollm3",
        "num_key_value_heads": 2,
        "rope_theta": 2000000.0,
        "no_rope_layers": [1, 0],
        "tie_word_embeddings": True,
    },
    "olmo2": {"model_type": "olmo2", "num_key_value_heads": 2},
    "olmo3-yarn": {
        "model_type": "olmo3",
        "num_key_value_heads": 2,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": 500000.0,
        "ropes": {"full_attention": YARN, "sliding_attention": {**SLIDING, "rope_theta": 500000.0}},
    },
    "gemma2-softcaps": {
        "model_type": "gemma2",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3-tworopes": {
        "model_type": "gemma3_text",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 16,
        "query_pre_attn_scalar": 24,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "ropes": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": SLIDING},
    },
    "gpt-oss-sinks": {
        "model_type": "gpt_oss",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "intermediate_size": 20,
        "sliding_window": 16,
        "rope_theta": 150000.0,
        "rope": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    },
    # Versions before 5 do not know the last two.
    "gemma4-mixture": {
        "model_type": "gemma4_text",
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 128,
        "intermediate_size": 24,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 8,
        "final_logit_softcapping": 3.0,
        "tie_word_embeddings": True,
        "ropes": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
            "sliding_attention": SLIDING,
        },
    },
    "ministral3-growth": {
        "model_type": "ministral3",
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_theta": 1000000.0,
        "rope": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    },
}


def config_of(family):
    fields = {**COMMON, **family}
    rope, ropes = fields.pop("rope", None), fields.pop("ropes", None)
    if STYLE == "rope_scaling":
        scaling = rope or (ropes and ropes["full_attention"])
        if fields["model_type"] == "phi3":
            scaling = {"type": scaling["rope_type"], **FACTORS}
        return AutoConfig.for_model(**fields, **({"rope_scaling": scaling} if scaling else {}))
    if ropes:
        theta = fields.pop("rope_theta", None)
        fields.pop("rope_local_base_freq", None)
        return AutoConfig.for_model(
            **fields, rope_parameters={kind: {"rope_theta": theta, **rope} for kind, rope in ropes.items()}
        )
    rope = rope or {"rope_type": "default"}
    for name in ["rope_theta", "partial_rotary_factor"]:
        if name in fields:
            rope = {**rope, name: fields.pop(name)}
    return AutoConfig.for_model(**fields, rope_parameters={"rope_theta": 10000.0, **rope})


def draw(model):
    """Norms about 1 (or about 0 where they count from 1) and biases about 0, so that a forgotten one shows; matrices so
    that logits reach some units."""
    buffers = ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar"))
    for name, tensor in [*model.named_parameters(), *buffers]:
        random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        numbers = torch.randn(tensor.shape, generator=random)
        is_scale = name.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
        if is_scale or (tensor.dim() == 1 and name.endswith("weight")):
            centre = 0 if model.config.model_type in ["gemma2", "gemma3_text"] else 1
            tensor.data = centre + 0.3 * numbers
        else:
            tensor.data = 0.2 * numbers


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
    made, weights = folder / "made", folder / "model.safetensors"
    how = {"dtype": torch.float32, "attn_implementation": "eager"}
    if weights.exists():
        config.save_pretrained(made)
        shutil.copy(weights, made)
        model = AutoModelForCausalLM.from_pretrained(made, **how).eval()
    else:
        model = AutoModelForCausalLM.from_config(config, **how).eval()
        draw(model)
        model.tie_weights()
    golden = golden_of(model)
    model.save_pretrained(made)
    (made / "config.json").rename(folder / f"config.{STYLE}.json")
    if weights.exists():
        found, kept = load_file(made / "model.safetensors"), load_file(weights)
        assert found.keys() == kept.keys() and all(torch.equal(found[name], kept[name]) for name in kept), folder
        assert same(golden, json.loads((folder / "golden.json").read_text())), folder
    else:
        (made / "model.safetensors").rename(weights)
        (folder / "golden.json").write_text(json.dumps(golden))
    shutil.rmtree(made)


if __name__ == "__main__":
    for name, family in FAMILIES.items():
        if family["model_type"] not in CONFIG_MAPPING:
            print(f"{name}: transformers {transformers.__version__} does not know it")
            continue
        folder = Path(sys.argv[1]) / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, family)
        print(f"{folder}: {STYLE}, transformers {transformers.__version__}")
