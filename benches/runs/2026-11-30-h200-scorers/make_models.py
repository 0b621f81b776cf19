"""Writes folders of an 8B generator and a 1B scorer of Llama's shapes with random weights: make_models.py TOKENIZER OUT"""
import json, math, os, shutil, struct, sys
import torch

tokenizer, out = sys.argv[1], sys.argv[2]
device = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = len(sys.argv) > 3


def folder(name, config, head):
    path = os.path.join(out, name)
    os.makedirs(path, exist_ok=True)
    json.dump(config, open(os.path.join(path, "config.json"), "w"), indent=1)
    shutil.copy(os.path.join(tokenizer, "tokenizer.json"), path)
    json.dump({"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}, open(os.path.join(path, "tokenizer_config.json"), "w"))
    h, f, v, n = config["hidden_size"], config["intermediate_size"], config["vocab_size"], config["num_hidden_layers"]
    d = config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    residual = 1 / math.sqrt(2 * n)
    tensors = [("model.embed_tokens.weight", (v, h), 1.0)]
    for i in range(n):
        p = f"model.layers.{i}."
        tensors += [(p + "self_attn.q_proj.weight", (q, h), h**-0.5), (p + "self_attn.k_proj.weight", (kv, h), h**-0.5),
                    (p + "self_attn.v_proj.weight", (kv, h), h**-0.5), (p + "self_attn.o_proj.weight", (h, q), residual * q**-0.5),
                    (p + "mlp.gate_proj.weight", (f, h), h**-0.5), (p + "mlp.up_proj.weight", (f, h), h**-0.5),
                    (p + "mlp.down_proj.weight", (h, f), residual * f**-0.5),
                    (p + "input_layernorm.weight", (h,), 0), (p + "post_attention_layernorm.weight", (h,), 0)]
    tensors += [("model.norm.weight", (h,), 0), head]
    header, at = {}, 0
    for tensor, shape, _ in tensors:
        size = 2 * math.prod(shape)
        header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator(device=device).manual_seed(51)
    with open(os.path.join(path, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape, deviation in tensors:
            if deviation == 0:
                tensor = torch.ones(shape, dtype=torch.bfloat16, device=device)
            else:
                tensor = torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device) * deviation
            tensor.view(torch.uint8 if tensor.dim() else torch.uint8).cpu().numpy().tofile(file)
    print(name, at / 1e9, "GB")


def llama(hidden, inner, layers, heads, kv_heads, head_dim, **more):
    return {"model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": 128256,
            "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
            "torch_dtype": "bfloat16", "bos_token_id": 128000, "eos_token_id": 128001, "tie_word_embeddings": False, **more}


big = (256, 512, 2, 4, 2, 64) if SMALL else (4096, 14336, 32, 32, 8, 128)
small = (128, 256, 2, 4, 2, 32) if SMALL else (2048, 8192, 16, 32, 8, 64)
folder("generator", llama(*big, architectures=["LlamaForCausalLM"]), ("lm_head.weight", (128256, big[0]), big[0]**-0.5))
folder("scorer", llama(*small, architectures=["LlamaForTokenClassification"], num_labels=2), ("score.weight", (2, small[0]), small[0]**-0.5))
