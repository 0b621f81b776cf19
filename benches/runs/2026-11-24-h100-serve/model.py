"""Writes a model folder of a Llama shape with random bf16 weights, on the GPU's machine."""
import json, sys, os, torch
from safetensors.torch import save_file
out, shape = sys.argv[1], sys.argv[2]
S = {"llama3-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, tie=False),
     "llama-1b": dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, tie=True)}[shape]
tie = S.pop("tie")
cfg = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", max_position_embeddings=8192, rms_norm_eps=1e-5,
           rope_theta=500000.0, bos_token_id=128000, eos_token_id=128001, torch_dtype="bfloat16", tie_word_embeddings=tie, head_dim=S["hidden_size"]//S["num_attention_heads"], **S)
os.makedirs(out, exist_ok=True)
json.dump(cfg, open(out+"/config.json", "w"))
H, I, L, V = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_hidden_layers"], cfg["vocab_size"]
D = cfg["head_dim"]; Q = D*cfg["num_attention_heads"]; K = D*cfg["num_key_value_heads"]
g = torch.Generator("cuda").manual_seed(1)
def r(*s): return (torch.randn(*s, generator=g, device="cuda", dtype=torch.float32)*0.02).to(torch.bfloat16).cpu()
def ones(n): return torch.ones(n, dtype=torch.bfloat16)
index, total = {}, 0
def flush(name, t):
    save_file(t, f"{out}/{name}"); index.update({k: name for k in t})
t = {"model.embed_tokens.weight": r(V, H), "model.norm.weight": ones(H)}
if not tie: t["lm_head.weight"] = r(V, H)
flush("model-00000.safetensors", t)
for l in range(L):
    p = f"model.layers.{l}."
    flush(f"model-{l+1:05}.safetensors", {p+"self_attn.q_proj.weight": r(Q, H), p+"self_attn.k_proj.weight": r(K, H), p+"self_attn.v_proj.weight": r(K, H), p+"self_attn.o_proj.weight": r(H, Q),
      p+"mlp.gate_proj.weight": r(I, H), p+"mlp.up_proj.weight": r(I, H), p+"mlp.down_proj.weight": r(H, I), p+"input_layernorm.weight": ones(H), p+"post_attention_layernorm.weight": ones(H)})
json.dump({"metadata": {}, "weight_map": index}, open(out+"/model.safetensors.index.json", "w"))
