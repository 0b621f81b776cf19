"""Writes tiny models in the forms of compressed-tensors and what transformers computes with their numbers, in float32
on the CPU.

    pip install torch transformers==5.17.0 compressed-tensors==0.20.0 && python make_quantised.py quantised

compressed-tensors makes the codes of the layers' matrices and turns them back into numbers; transformers computes with
those numbers and rounds no activation.
"""

import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from make_goldens import config_of, draw, golden_of
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

GROUP = 16
FAMILY = {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 48}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FORMS = {
    "int4-groups": (
        "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP, "symmetric": False}, None),
    "int4-channels": ("pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": True}, None),
    "int8-channels": ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True}, TOKENS),
    "fp8-channels": (
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
        {**TOKENS, "type": "float"},
    ),
}


def write(folder, form):
    packing, weights, inputs = FORMS[form]
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    compressor = BaseCompressor.get_value_from_registry(packing)
    config = config_of(FAMILY)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    draw(model)
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    del linear["lm_head"]
    coded = {}
    for name, module in linear.items():
        matrix = module.weight.data
        groups = matrix.unflatten(1, (-1, GROUP)) if weights["strategy"] == "group" else matrix.unsqueeze(1)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights)
        parts = {"weight": matrix, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
        compressed = compressor.compress(parts, scheme)
        module.weight.data = compressor.decompress(compressed, scheme)["weight"].float()
        coded |= {f"{name}.{part}": tensor.contiguous() for part, tensor in compressed.items()}
    tensors = {
        name: tensor for name, tensor in model.state_dict().items() if name.removesuffix(".weight") not in linear}
    save_file(tensors | coded, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    group = {"targets": ["Linear"], "weights": scheme.weights.model_dump(mode="json"), "input_activations": None}
    if inputs:
        group["input_activations"] = scheme.input_activations.model_dump(mode="json")
    written["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": packing,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(written, indent=2))
    (folder / "golden.json").write_text(json.dumps(golden_of(model)))


if __name__ == "__main__":
    for form in FORMS:
        folder = Path(sys.argv[1]) / form
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, form)
        print(folder)
