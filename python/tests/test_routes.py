"""The experts that a mixture has chosen for each token, as ``routed_experts`` of a sample."""

import json
import pathlib
import shutil

import numpy
import pytest

import offshoot
from offshoot import LLM, SamplingParams

LAYERS, HIDDEN, HEADS, DIM, EXPERTS, CHOSEN, WIDTH = 3, 32, 4, 8, 6, 2, 16


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """A small mixture of random weights with the bundled model's tokenizer, whose first layer is dense."""
    folder = tmp_path_factory.mktemp("mixture")
    demo = pathlib.Path(offshoot.demo_model())
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(demo / name, folder)
    vocab = json.loads((demo / "config.json").read_text())["vocab_size"]
    config = dict(
        model_type="qwen3_moe", hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, head_dim=DIM, intermediate_size=48, vocab_size=vocab, num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN, moe_intermediate_size=WIDTH, norm_topk_prob=True, mlp_only_layers=[0],
        max_position_embeddings=512, rms_norm_eps=1e-6, tie_word_embeddings=True, eos_token_id=1)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (vocab, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + f"{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {at + f"self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {at + f"self_attn.{name}_norm.weight": (DIM,) for name in "qk"}
        blocks = {at + "mlp.": 48} if layer == 0 else {at + f"mlp.experts.{each}.": WIDTH for each in range(EXPERTS)}
        for block, width in blocks.items():
            shapes |= {block + f"{name}_proj.weight": (width, HIDDEN) for name in ("gate", "up")}
            shapes[block + "down_proj.weight"] = (HIDDEN, width)
        if layer > 0:
            shapes[at + "mlp.gate.weight"] = (EXPERTS, HIDDEN)
    random, head, data = numpy.random.default_rng(3), {}, b""
    for name, shape in shapes.items():
        values = (random.standard_normal(shape) / 4 + ("norm" in name)).astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    head = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    return folder


def test_samples_have_the_experts_of_their_tokens(mixture, question):
    params = SamplingParams(n=2, max_tokens=12, temperature=0.8, seed=4, ignore_eos=True)
    with LLM(mixture, device="cpu", kv_memory=64, enable_return_routed_experts=True) as llm:
        (request,) = llm.generate(question, params, use_tqdm=False)
        prompt = len(request.prompt_token_ids)
        for output in request.outputs:
            experts = output.routed_experts
            assert (experts.dtype, experts.shape) == (numpy.uint8, (prompt + 11, LAYERS, CHOSEN))
            assert not experts[:, 0].any(), "the first layer has no experts"
            assert (experts[:, 1:, 0] != experts[:, 1:, 1]).all() and experts.max() < EXPERTS
        first, second = (output.routed_experts for output in request.outputs)
        assert (first[:prompt] == second[:prompt]).all() and len(numpy.unique(first[:, 1])) > 2
        params.routed_experts_prompt_start = prompt - 1
        (cut,) = llm.generate(question, params, use_tqdm=False)
        assert cut.outputs == request.outputs and (cut.outputs[0].routed_experts == first[prompt - 1:]).all()
    with LLM(mixture, device="cpu", kv_memory=64) as llm:
        (plain,) = llm.generate(question, params, use_tqdm=False)
        assert plain == request and plain.outputs[0].routed_experts is None


def test_a_model_without_experts_is_refused():
    with pytest.raises(ValueError, match="enable_return_routed_experts: expected a model with mixtures of experts"):
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, enable_return_routed_experts=True)
