"""Writes low-rank adapters of golden models as PEFT saves them, and what transformers and PEFT compute with them, in
float32 on the CPU.

    pip install torch transformers==5.24.0 peft==0.21.2 && python make_lora.py goldens lora

The numbers are numpy's, of seed 49: A about 1 / sqrt(inputs), B about 0.3, so that an adapter changes most tokens.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

# Each with another way to say what it adapts: by names with patterns, everything that is linear in a model with fused
# projections, a
# regular expression in a model with biases, and one layer of two in a model with norms behind its blocks.
ADAPTERS = {
    "llama3-gqa-ropescaled": {
        "r": 4,
        "lora_alpha": 8,
        "use_rslora": True,
        "target_modules": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "lm_head"],
        "rank_pattern": {r"layers\.1\.self_attn\.q_proj": 2},
        "alpha_pattern": {"o_proj": 3},
    },
    "phi3-longrope60": {"r": 3, "lora_alpha": 5, "target_modules": "all-linear"},
    "qwen2-tied": {"r": 2, "lora_alpha": 4, "target_modules": r".*\.(q|k|gate)_proj"},
    "gemma2-softcaps": {"r": 4, "lora_alpha": 4, "target_modules": ["k_proj", "gate_proj"], "layers_to_transform": [1]},
}


def write(golden: Path, to: Path, fields: dict) -> None:
    to.mkdir(parents=True, exist_ok=True)
    numbers = numpy.random.default_rng(49)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(golden / "config.rope_parameters.json", Path(folder, "config.json"))
        shutil.copy(golden / "model.safetensors", folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                size = 0.3 if "lora_B" in name else weight.shape[1] ** -0.5
                drawn = numbers.standard_normal(tuple(weight.shape), dtype=numpy.float32) * numpy.float32(size)
                weight.copy_(torch.from_numpy(drawn))
    model.save_pretrained(to, save_embedding_layers=False)
    (to / "README.md").unlink()
    # The base model's name would be a folder that is gone.
    config = json.loads((to / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = golden.name
    (to / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    prompt = json.loads((golden / "golden.json").read_text())["prompt"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0].double()
    scores = torch.log_softmax(logits, -1)
    result = {
        "prompt": prompt,
        "last_logits": [round(x, 6) for x in logits[-1].tolist()],
        "prompt_logprobs": [round(scores[i, token].item(), 6) for i, token in enumerate(prompt[1:])],
    }
    (to / "golden.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    goldens, adapters = Path(sys.argv[1]), Path(sys.argv[2])
    for name, fields in ADAPTERS.items():
        write(goldens / name, adapters / name, fields)
