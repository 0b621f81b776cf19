"""The model: a small Llama, its loss, and its files in the Hugging Face layout."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from tokenizer import BEGIN, END, SPECIAL, VOCABULARY


@dataclass(frozen=True)
class Shape:
    hidden: int = 256
    layers: int = 8
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    ffn: int = 704
    vocabulary: int = VOCABULARY
    context: int = 4096
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


def rotary_tables(shape: Shape, length: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each (length, head_dim), halves repeated as Llama has them."""
    exponents = torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float32) / shape.head_dim
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, 1.0 / shape.rope_theta**exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight.to(x.dtype)


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight.to(x.dtype))


class Block(nn.Module):
    """One layer. The two projections onto the residual start at zero."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        hidden, q_width, kv_width = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) * 0.7 / columns**0.5)

        self.attention_norm = nn.Parameter(torch.ones(hidden))
        self.q, self.k, self.v = matrix(q_width, hidden), matrix(kv_width, hidden), matrix(kv_width, hidden)
        self.o = nn.Parameter(torch.zeros(hidden, q_width))
        self.ffn_norm = nn.Parameter(torch.ones(hidden))
        self.gate, self.up = matrix(shape.ffn, hidden), matrix(shape.ffn, hidden)
        self.down = nn.Parameter(torch.zeros(hidden, shape.ffn))

    def project(self, x, cos, sin):
        """Rotated queries and keys, and values: (batch, heads, length, head_dim) each."""
        batch, length, _ = x.shape
        normed = rms_norm(x, self.attention_norm, self.shape.norm_eps)

        def heads(weight, count):
            return linear(normed, weight).view(batch, length, count, self.shape.head_dim).transpose(1, 2)

        q, k, v = (
            heads(self.q, self.shape.heads),
            heads(self.k, self.shape.kv_heads),
            heads(self.v, self.shape.kv_heads),
        )
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x, attended):
        x = x + linear(attended, self.o)
        normed = rms_norm(x, self.ffn_norm, self.shape.norm_eps)
        return x + linear(F.silu(linear(normed, self.gate)) * linear(normed, self.up), self.down)

    def forward(self, x, cos, sin):
        """Returns the layer's output, and its keys and values for a cache."""
        q, k, v = self.project(x, cos, sin)
        group = self.shape.heads // self.shape.kv_heads
        wide_k, wide_v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        attended = F.scaled_dot_product_attention(q, wide_k, wide_v, is_causal=True)
        return self.finish(x, attended.transpose(1, 2).flatten(2)), k, v


class Llama(nn.Module):
    def __init__(self, shape: Shape = Shape()):
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, shape.hidden) * 0.02)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.final_norm = nn.Parameter(torch.ones(shape.hidden))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return linear(rms_norm(x, self.final_norm, self.shape.norm_eps), self.embedding).float()

    def loss(self, tokens, targets, weights, cos, sin):
        """Weighted mean loss, and the mean over fully weighted targets alone."""
        x = F.embedding(tokens, self.embedding).to(torch.bfloat16 if tokens.is_cuda else torch.float32)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for block in self.blocks:
            x, _, _ = block(x, cos, sin)
        losses = F.cross_entropy(self.logits(x).flatten(0, 1), targets.flatten(), reduction="none")
        weights = weights.flatten()
        full = (weights == 1).float()
        return (losses * weights).sum() / weights.sum(), (losses.detach() * full).sum() / full.sum()

    def named_tensors(self) -> dict[str, nn.Parameter]:
        """The parameters under their Hugging Face names."""
        tensors = {"model.embed_tokens.weight": self.embedding, "model.norm.weight": self.final_norm}
        for i, block in enumerate(self.blocks):
            layer = f"model.layers.{i}"
            tensors |= {
                f"{layer}.input_layernorm.weight": block.attention_norm,
                f"{layer}.self_attn.q_proj.weight": block.q,
                f"{layer}.self_attn.k_proj.weight": block.k,
                f"{layer}.self_attn.v_proj.weight": block.v,
                f"{layer}.self_attn.o_proj.weight": block.o,
                f"{layer}.post_attention_layernorm.weight": block.ffn_norm,
                f"{layer}.mlp.gate_proj.weight": block.gate,
                f"{layer}.mlp.up_proj.weight": block.up,
                f"{layer}.mlp.down_proj.weight": block.down,
            }
        return tensors


def hf_config(shape: Shape) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "torch_dtype": "bfloat16",
    }


# The form of the word problems: a system's text stands before the questions, as a document does.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    # Tools and their calls stand as Hermes' models have them, so that clients of tools can be tried.
    "{% if tools %}{{ 'A tool is called by <tool_call>{\"name\": ..., \"arguments\": {...}}</tool_call>:\n' }}"
    "{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% set text = message.content | trim if message.content else '' %}"
    "{% if message.role == 'assistant' %}{{ 'Answer: ' + text }}"
    "{% for call in message.tool_calls or [] %}{{ '<tool_call>\n{\"name\": ' + call.function.name | tojson }}"
    "{{ ', \"arguments\": ' + call.function.arguments | tojson + '}\n</tool_call>\n' }}{% endfor %}{{ '\n\n' }}"
    "{% elif message.role == 'tool' %}{{ '<tool_response>\n' + text + '\n</tool_response>\n' }}"
    "{% elif message.role in ['system', 'developer'] %}{{ text + '\n\n' }}"
    "{% else %}{{ '' if text.startswith('Question:') else 'Question: ' }}{{ text + '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)


def tokenizer_config(shape: Shape) -> dict:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[BEGIN],
        "eos_token": SPECIAL[END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.context,
        "model_input_names": ["input_ids", "attention_mask"],
        "added_tokens_decoder": {str(i): {"content": text, **flags} for i, text in enumerate(SPECIAL)},
        "chat_template": CHAT_TEMPLATE,
        "chat_stop_strings": ["\n\n"],
    }


def save(model: Llama, tokenizer, folder: Path) -> None:
    """All files of a Hugging Face model folder; weights in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in model.named_tensors().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    files = {
        "config.json": hf_config(model.shape),
        "generation_config.json": {
            "bos_token_id": BEGIN,
            "eos_token_id": END,
            "do_sample": True,
            "temperature": 0.8,
            "top_p": 1.0,
        },
        "tokenizer_config.json": tokenizer_config(model.shape),
        "special_tokens_map.json": {"bos_token": SPECIAL[BEGIN], "eos_token": SPECIAL[END]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


def load(folder: Path) -> Llama:
    model = Llama()
    stored = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, tensor in model.named_tensors().items():
            tensor.copy_(stored[name])
    return model
