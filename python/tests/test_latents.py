"""A model with latent attention: samples, answers in a form and scores, from latents alone and from copies of them."""

import json
import pathlib
import re
import shutil

import numpy
import pytest

import offshoot
from offshoot import LLM, SamplingParams

LAYERS, HIDDEN, INNER, HEADS, RANK, NOPE, ROPE, VALUE = 2, 32, 48, 4, 128, 12, 4, 20


@pytest.fixture(scope="module")
def latents(tmp_path_factory):
    """A small DeepSeek-V2 of random weights with the bundled model's tokenizer."""
    folder = tmp_path_factory.mktemp("latents")
    demo = pathlib.Path(offshoot.demo_model())
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(demo / name, folder)
    vocab = json.loads((demo / "config.json").read_text())["vocab_size"]
    config = dict(
        model_type="deepseek_v2", hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=INNER, vocab_size=vocab, q_lora_rank=None, kv_lora_rank=RANK, qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE, v_head_dim=VALUE, first_k_dense_replace=LAYERS, n_routed_experts=None,
        max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True, eos_token_id=1)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + f"{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {
            at + "self_attn.q_proj.weight": (HEADS * (NOPE + ROPE), HIDDEN),
            at + "self_attn.kv_a_proj_with_mqa.weight": (RANK + ROPE, HIDDEN),
            at + "self_attn.kv_a_layernorm.weight": (RANK,),
            at + "self_attn.kv_b_proj.weight": (HEADS * (NOPE + VALUE), RANK),
            at + "self_attn.o_proj.weight": (HIDDEN, HEADS * VALUE),
            at + "mlp.gate_proj.weight": (INNER, HIDDEN),
            at + "mlp.up_proj.weight": (INNER, HIDDEN),
            at + "mlp.down_proj.weight": (HIDDEN, INNER),
        }
    random, head, data = numpy.random.default_rng(4), {}, b""
    for name, shape in shapes.items():
        values = (random.standard_normal(shape) / 4 + ("norm" in name)).astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    return folder


def test_samples_forms_and_scores_are_alike_from_latents_and_from_copies(latents, question):
    prompt = f"{question}\n" * 6
    pattern = "[0-9]{2}(px|em) = [a-f]{3,9}"
    free = SamplingParams(n=6, max_tokens=16, seed=7, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    formed = SamplingParams(n=6, max_tokens=60, seed=8, logprobs=0,
                            structured_outputs=dict(regex=pattern))
    found = []
    for mib in (0, 16):
        with LLM(latents, device="cpu", kv_memory=64, latent_copies=mib) as llm:
            (sampled,), (answered,) = llm.generate(prompt, free), llm.generate(prompt, formed)
            scored = llm.score(prompt, [" Mia has 7 pens.", " Tom has 3 pens."])
            found.append((sampled, answered, scored, llm.metrics()["latent_tokens_expanded"]))
    (sampled, answered, scored, none), (sampled_by, answered_by, scored_by, copied) = found
    assert none == 0 and copied > 0
    for one, other in ((sampled, sampled_by), (answered, answered_by)):
        for output, by in zip(one.outputs, other.outputs):
            assert (output.text, output.token_ids) == (by.text, by.token_ids)
            assert by.cumulative_logprob == pytest.approx(output.cumulative_logprob, abs=1e-2)
    assert all(re.fullmatch(pattern, output.text) for output in answered.outputs)
    for choice, by in zip(scored.choices, scored_by.choices):
        assert by.logprobs == pytest.approx(choice.logprobs, abs=1e-3)
    # A prompt's own scores are those of its tokens as a choice.
    begin = len(scored.prompt_token_ids)
    ids = [*scored.prompt_token_ids, *scored.choices[0].token_ids]
    with LLM(latents, device="cpu", kv_memory=64) as llm:
        (request,) = llm.generate({"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=0))
    rows = list(zip(request.prompt_token_ids, request.prompt_logprobs))[begin:]
    assert [row[token].logprob for token, row in rows] == pytest.approx(scored.choices[0].logprobs, abs=1e-5)
