import json, numpy as np, gguf
tok=json.load(open('/work/shared/data/tokenizers/llama2/tokenizer.json'))
v=tok['model']['vocab']; toks=[None]*32000
for t,i in v.items(): toks[i]=t
w=gguf.GGUFWriter('f16.gguf','llama')
w.add_context_length(4096); w.add_embedding_length(768); w.add_block_count(12); w.add_feed_forward_length(2048)
w.add_head_count(12); w.add_head_count_kv(12); w.add_layer_norm_rms_eps(1e-5); w.add_rope_dimension_count(64); w.add_rope_freq_base(10000.0); w.add_vocab_size(32000); w.add_key_length(64); w.add_value_length(64)
w.add_tokenizer_model('llama'); w.add_token_list(toks); w.add_token_scores([-float(i) for i in range(32000)])
ty=[gguf.TokenType.NORMAL]*32000; ty[0]=gguf.TokenType.UNKNOWN; ty[1]=ty[2]=gguf.TokenType.CONTROL
for i in range(3,259): ty[i]=gguf.TokenType.BYTE
w.add_token_types(ty); w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0)
r=np.random.default_rng(1)
def t(n,*s,norm=False): w.add_tensor(n, np.ones(s,np.float32) if norm else (r.standard_normal(s)*0.02).astype(np.float16))
t('token_embd.weight',32000,768); t('output.weight',32000,768); t('output_norm.weight',768,norm=True)
for i in range(12):
    b=f'blk.{i}.'
    t(b+'attn_norm.weight',768,norm=True); t(b+'ffn_norm.weight',768,norm=True)
    for n in 'qkv': t(b+f'attn_{n}.weight',768,768)
    t(b+'attn_output.weight',768,768)
    t(b+'ffn_gate.weight',2048,768); t(b+'ffn_up.weight',2048,768); t(b+'ffn_down.weight',768,2048)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
