"""Writes `routes.json` beside the mixtures among `goldens`: the experts that transformers chooses for each token of the
golden's prompt, the likeliest first, by layer with experts; and the smallest gap between two neighbouring scores of
which the first is chosen. In float32 with eager attention, as the goldens are.

    python tests/data/make_routes.py
"""

import json
import pathlib
import shutil
import tempfile

import torch
import transformers

MIXTURES = ("mixtral", "qwen3-moe", "gpt-oss-sinks", "gemma4-mixture")


def routes(golden: pathlib.Path) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(golden / "model.safetensors", folder)
        shutil.copy(golden / "config.rope_parameters.json", pathlib.Path(folder) / "config.json")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
    found = {}
    for name, module in model.named_modules():
        if type(module).__name__.endswith("Router"):
            layer = int(name.split("layers.")[1].split(".")[0])
            module.register_forward_hook(
                lambda module, inputs, outputs, layer=layer: found.__setitem__(layer, outputs))
    prompt = json.loads((golden / "golden.json").read_text())["prompt"]
    with torch.no_grad():
        model(torch.tensor([prompt]))
    layers = sorted(found)
    chosen = [found[layer][-1].reshape(len(prompt), -1) for layer in layers]
    scores = [found[layer][0].reshape(len(prompt), -1).sort(descending=True).values for layer in layers]
    gaps = [(of_layer[:, :-1] - of_layer[:, 1:])[:, :ids.shape[1]] for of_layer, ids in zip(scores, chosen)]
    return {
        "layers": layers,
        "experts": [ids.tolist() for ids in chosen],
        "min_margin": min(gap.min().item() for gap in gaps),
    }


for name in MIXTURES:
    golden = pathlib.Path(__file__).parent / "goldens" / name
    (golden / "routes.json").write_text(json.dumps(routes(golden)) + "\n")
