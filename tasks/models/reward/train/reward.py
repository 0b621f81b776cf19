"""The model: the demo's Llama in a smaller shape with one value for each line, and its files.

The form (`scorer.json`): begin of text, the question, and the lines of the answer,
each encoded alone and followed by a line break. The value at a line break is the
logit that the answer will be right in the end.
"""

import json
from pathlib import Path

import llama
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizer import BEGIN, END, SPECIAL
from torch import nn

SHAPE = llama.Shape(hidden=192, layers=6, heads=6, kv_heads=3, head_dim=32, ffn=432)
FORM = {
    "text": {
        "plain": {
            "text": "{{bos}}{{question}}{{answer}}",
            "special_tokens": False,
            "read": {"parts": {"separator": "\n"}},
        }
    },
    "output": {"column": {"activation": "sigmoid"}},
    "aggregate": "last",
}


class Reward(llama.Llama):
    def __init__(self, shape: llama.Shape = SHAPE):
        super().__init__(shape)
        self.score = nn.Parameter(torch.zeros(1, shape.hidden))

    def hidden_states(self, tokens, cos, sin, dtype):
        """(batch, length, hidden), behind the final norm."""
        x = F.embedding(tokens, self.embedding).to(dtype)
        cos, sin = cos.to(dtype), sin.to(dtype)
        for block in self.blocks:
            x, _, _ = block(x, cos, sin)
        return llama.rms_norm(x, self.final_norm, self.shape.norm_eps)

    def losses(self, tokens, targets, weights, labels, cos, sin):
        """Mean loss of the values where `labels` is 0 or 1 (elsewhere -1), and the weighted one of next tokens."""
        x = self.hidden_states(tokens, cos, sin, torch.bfloat16 if tokens.is_cuda else torch.float32)
        values = llama.linear(x, self.score).float()[..., 0]
        there = (labels >= 0).float()
        wrong = F.binary_cross_entropy_with_logits(values, labels.clamp(min=0).float(), reduction="none")
        logits = llama.linear(x, self.embedding).float()
        surprise = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        weights = weights.flatten()
        return (wrong * there).sum() / there.sum(), (surprise * weights).sum() / weights.sum()

    def named_tensors(self) -> dict[str, nn.Parameter]:
        return {**super().named_tensors(), "score.weight": self.score}


def hf_config(shape: llama.Shape) -> dict:
    return {
        **llama.hf_config(shape),
        "architectures": ["LlamaForSequenceClassification"],
        "num_labels": 1,
        "id2label": {"0": "right"},
        "label2id": {"right": 0},
    }


def save(model: Reward, tokenizer, folder: Path) -> None:
    """All files of a Hugging Face model folder, and the form; weights in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.named_tensors().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "config.json": hf_config(model.shape),
        "scorer.json": FORM,
        "tokenizer_config.json": llama.tokenizer_config(model.shape),
        "special_tokens_map.json": {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def load(folder: Path) -> Reward:
    model = Reward()
    stored = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, tensor in model.named_tensors().items():
            tensor.copy_(stored[name])
    return model
