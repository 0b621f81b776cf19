"""Writes a process reward model as Qwen2.5-Math-PRM is published, but tiny and random: tiny_prm.py FOLDER

Two classes at the token `<extra_0>`, ChatML's template, and the bundled model's tokens. What it computes is the same on
every machine; it makes no sense.
"""

import json
import random
import struct
import sys
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "tasks" / "models" / "demo"
TAG = "<extra_0>"
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
            "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, WIDTH = 32, 64, 2, 4, 2, 8


def shapes(vocabulary):
    yield "model.embed_tokens.weight", [vocabulary, HIDDEN]
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name, rows in (("q", HEADS * WIDTH), ("k", KV_HEADS * WIDTH), ("v", KV_HEADS * WIDTH)):
            yield f"{at}self_attn.{name}_proj.weight", [rows, HIDDEN]
            yield f"{at}self_attn.{name}_proj.bias", [rows]
        yield f"{at}self_attn.o_proj.weight", [HIDDEN, HEADS * WIDTH]
        yield f"{at}mlp.gate_proj.weight", [INNER, HIDDEN]
        yield f"{at}mlp.up_proj.weight", [INNER, HIDDEN]
        yield f"{at}mlp.down_proj.weight", [HIDDEN, INNER]
        yield f"{at}input_layernorm.weight", [HIDDEN]
        yield f"{at}post_attention_layernorm.weight", [HIDDEN]
    yield "model.norm.weight", [HIDDEN]
    yield "score.0.weight", [HIDDEN, HIDDEN]
    yield "score.0.bias", [HIDDEN]
    yield "score.2.weight", [2, HIDDEN]
    yield "score.2.bias", [2]


def numbers(generator, name, count):
    if "norm" in name:
        return [1.0] * count
    return [generator.gauss(0, 0.25) for _ in range(count)]


def weights(vocabulary):
    """A safetensors file."""
    generator, header, data = random.Random(51), {}, b""
    for name, shape in shapes(vocabulary):
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        drawn = struct.pack(f"<{count}f", *numbers(generator, name, count))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(drawn)]}
        data += drawn
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


def write(folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((DEMO / "tokenizer.json").read_text())
    first = max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]) + 1
    for i, text in enumerate(("<|im_start|>", "<|im_end|>", TAG)):
        added = {**tokenizer["added_tokens"][0], "id": first + i, "content": text, "special": text != TAG}
        tokenizer["added_tokens"].append(added)
    # Texts are encoded as they are, as Qwen's tokenizer does it.
    tokenizer["post_processor"] = None
    config = {
        "architectures": ["Qwen2ForProcessRewardModel"], "model_type": "qwen2", "num_labels": 2,
        "vocab_size": first + 3, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "eos_token_id": first + 1, "pad_token_id": first + 1, "torch_dtype": "float32",
    }
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    files = {"tokenizer.json": tokenizer, "config.json": config, "tokenizer_config.json": names}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(weights(first + 3))
    return folder


if __name__ == "__main__":
    write(sys.argv[1])
