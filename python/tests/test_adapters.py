"""Adapters (LoRA) in Python: by vLLM's requests and by name, from folders and tensors, in trees, and what is
refused."""

import asyncio
import concurrent.futures
import json
import struct

import numpy as np
import pytest

import offshoot
from offshoot import LLM, SamplingParams
from offshoot.lora.request import LoRARequest

LAYERS, WIDTH = 8, 256
PARAMS = SamplingParams(n=2, max_tokens=12, seed=3, logprobs=0, ignore_eos=True)


def config(rank=4):
    return {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj"]}


def tensors(seed, rank=4, width=WIDTH):
    """An adapter of the bundled model's queries, by PEFT's names."""
    numbers = np.random.default_rng(seed)
    made = {}
    for layer in range(LAYERS):
        for side, shape in (("A", (rank, width)), ("B", (WIDTH, rank))):
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight"
            made[name] = numbers.uniform(-0.1, 0.1, shape).astype(np.float32)
    return made


def written(folder, seed, rank=4, width=WIDTH):
    """The adapter's folder as PEFT writes it; its path."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(config(rank)))
    header, data = {}, b""
    for name, tensor in tensors(seed, rank, width).items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [len(data), len(data) + tensor.nbytes]}
        data += tensor.tobytes()
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return str(folder)


@pytest.fixture(scope="module")
def llm():
    with LLM(offshoot.demo_model(), device="cpu", kv_memory=128, enable_lora=True, max_loras=2, max_lora_rank=8) as llm:
        yield llm


@pytest.fixture
def engine(llm):
    """The module's engine, without adapters afterwards."""
    yield llm
    for name in llm.adapters:
        llm.unload_adapter(name)


def logprobs(outputs):
    return [[output.cumulative_logprob for output in request.outputs] for request in outputs]


def drawn(llm, question, adapter=None):
    return logprobs(llm.generate([question], PARAMS, use_tqdm=False, lora_request=adapter))


def test_requests_name_folders_as_in_vllm(engine, question, tmp_path):
    one = LoRARequest("one", 1, written(tmp_path / "one", 1))
    two = LoRARequest(lora_name="two", lora_int_id=2, lora_path=written(tmp_path / "two", 2))
    plain, first, second = drawn(engine, question), drawn(engine, question, one), drawn(engine, question, two)
    assert plain != first != second != plain
    # One for each prompt, in one batch.
    outputs = engine.generate([question] * 3, PARAMS, use_tqdm=False, lora_request=[two, None, one])
    assert logprobs(outputs) == second + plain + first
    assert [output.lora_request for output in outputs] == [two, None, one]
    assert outputs[0].outputs[1].lora_request == two
    # By name, in other calls, and scored again.
    assert drawn(engine, question, "one") == first
    assert logprobs(engine.rescore(outputs, PARAMS)) == logprobs(outputs)
    assert engine.score(question, [" 7"], lora_request=one) != engine.score(question, [" 7"])
    assert logprobs(asyncio.run(engine.agenerate([question], PARAMS, lora_request="two"))) == second
    last = [item.output for item in engine.stream([question], PARAMS, lora_request=one) if item.output]
    assert [[output.cumulative_logprob for output in sorted(last, key=lambda output: output.index)]] == first
    turns = [{"role": "user", "content": "Hi"}]
    assert logprobs(engine.chat(turns, PARAMS, lora_request=one)) != logprobs(engine.chat(turns, PARAMS))
    beams = offshoot.BeamSearchParams(beam_width=2, max_tokens=3)
    (found,) = engine.beam_search([question], beams, lora_request=two)
    assert found.sequences[0].lora_request == two
    assert engine.llm_engine.list_loras() == {1, 2}


def test_the_adapter_used_longest_ago_makes_room(engine, question, tmp_path):
    requests = [LoRARequest(name, at, written(tmp_path / name, at)) for at, name in enumerate("abc", 1)]
    first = drawn(engine, question, requests[0])
    for request in requests[1:]:
        drawn(engine, question, request)
    assert set(engine.adapters) == {"b", "c"}
    assert drawn(engine, question, requests[0]) == first and set(engine.adapters) == {"a", "c"}
    with pytest.raises(ValueError, match="at most 2 adapters at once"):
        engine.generate([question] * 3, PARAMS, lora_request=requests)
    # What was loaded by name stays.
    engine.load_adapter("a", tensors(1), config=config())
    engine.load_adapter("c", tensors(3), config=config())
    with pytest.raises(ValueError, match="room for one more adapter"):
        drawn(engine, question, requests[1])


def test_an_adapter_whose_successor_is_refused_is_still_that_of_its_request(engine, question, tmp_path):
    one, two, three = (
        LoRARequest(name, number, written(tmp_path / name, number)) for number, name in enumerate("abc", 1))
    large = written(tmp_path / "large", 4, rank=16)
    first, second = drawn(engine, question, one), drawn(engine, question, two)
    for wrong in (lambda: engine.load_adapter("a", large), lambda: engine.load_adapter("a", tensors(1)),
                  lambda: drawn(engine, question, LoRARequest("a", 1, large)),
                  lambda: drawn(engine, question, LoRARequest("b", 2, large))):
        with pytest.raises((ValueError, TypeError), match="max_lora_rank|config"):
            wrong()
    assert engine.llm_engine.list_loras() == {1, 2}
    assert drawn(engine, question, two) == second and drawn(engine, question, one) == first
    # Both can still be removed: one for the next request, one by its number.
    drawn(engine, question, three)
    assert set(engine.adapters) == {"a", "c"} and engine.llm_engine.remove_lora(1)
    assert set(engine.adapters) == {"c"}


def test_samples_with_a_name_do_not_wait_for_what_is_loaded(engine, question):
    engine.load_adapter("one", tensors(1), config=config())
    before, during = drawn(engine, question, "one"), []

    def given():
        yield from tensors(2).items()
        during.append(threads.submit(drawn, engine, question, "one").result(timeout=60))

    with concurrent.futures.ThreadPoolExecutor() as threads:
        engine.load_adapter("two", given(), config=config())
    assert during == [before]


def test_tensors_are_loaded_and_replaced_under_a_name(engine, question, tmp_path):
    version = engine.load_adapter("policy", tensors(1), config=config())
    loaded = engine.adapters["policy"]
    assert (loaded.version, loaded.rank) == (version, 4)
    first = drawn(engine, question, "policy")
    (output,) = engine.generate([question], PARAMS, use_tqdm=False, lora_request="policy")
    assert all(sample.adapters == [(version, 0)] for sample in output.outputs)
    assert engine.load_adapter("folder", written(tmp_path / "one", 1)) > version
    assert drawn(engine, question, "folder") == first
    newer = engine.load_adapter("policy", list(tensors(2).items()), config=config())
    assert newer > version and engine.adapters["policy"].version == newer
    assert drawn(engine, question, "policy") != first
    # A request of vLLM's with a loaded name takes what is loaded, by the same path alone.
    assert drawn(engine, question, LoRARequest("folder", 9, str(tmp_path / "." / "one"))) == first
    with pytest.raises(ValueError, match="nowhere.*unload_adapter"):
        drawn(engine, question, LoRARequest("folder", 9, "nowhere"))
    engine.unload_adapter("policy")
    with pytest.raises(ValueError, match="'policy' to be loaded still, as it was given as tensors"):
        engine.rescore(output, PARAMS)
    with pytest.raises(ValueError, match="expected an adapter that is loaded"):
        drawn(engine, question, "policy")


def test_trees_go_on_with_adapters(engine, question):
    engine.load_adapter("one", tensors(1), config=config())
    engine.load_adapter("two", tensors(2), config=config())
    params = SamplingParams(max_tokens=8, ignore_eos=True)

    def grown(root, **more):
        nodes = root.tree.fork(root, 2, **more)
        return [node.logprob for node in root.tree.extend(nodes, params)]

    plain, one = engine.tree(question, seed=1), engine.tree(question, seed=1, adapter="one")
    bare, adapted = grown(plain.root), grown(one.root)
    assert bare != adapted and grown(engine.tree(question, seed=1, adapter="one").root) == adapted
    # A prompt that was computed without an adapter goes on with several.
    before = engine.metrics()["prompt_tokens_computed"]
    forked = engine.tree(question, seed=1)
    assert grown(forked.root, adapter="two") != bare
    assert engine.metrics()["prompt_tokens_computed"] - before <= 4
    (node,) = engine.tree(question, seed=1).root.fork(1)
    (other,) = engine.tree(question, seed=1).root.fork(1)
    assert node.extend(params, adapter="two").logprob != other.extend(params).logprob


def test_what_does_not_fit_is_refused(engine, question, tmp_path):
    engine.load_adapter("one", tensors(1), config=config())
    before = drawn(engine, question, "one")
    for given, more, words in (
        (tensors(1, width=512), {"config": config()}, "q_proj.lora_A.weight"),
        (tensors(1, rank=16), {"config": config(16)}, "max_lora_rank"),
        (tensors(1), {"config": config(2)}, "rank 2"),
        ({"model.norm.weight": np.zeros(4, np.float32)}, {"config": config()}, "lora_A"),
        (str(tmp_path / "none"), {}, "adapter_config.json"),
        (written(tmp_path / "large", 1, rank=16), {}, "max_lora_rank"),
        (written(tmp_path / "wide", 1, width=512), {}, "q_proj.lora_A.weight"),
    ):
        with pytest.raises((ValueError, OSError), match=words):
            engine.load_adapter("one", given, **more)
        assert drawn(engine, question, "one") == before
    for call, kind, words in (
        (lambda: engine.load_adapter("", tensors(1), config=config()), ValueError, "name"),
        (lambda: engine.load_adapter("x", tensors(1)), TypeError, "config"),
        (lambda: engine.load_adapter("x", str(tmp_path), config=config()), ValueError, "config"),
        (lambda: engine.unload_adapter("x"), ValueError, "x"),
        (lambda: drawn(engine, question, LoRARequest("x", 1, str(tmp_path / "none"))), (ValueError, OSError), "none"),
        (lambda: drawn(engine, question, ["one", "one"]), ValueError, "lora_request: expected 1"),
        (lambda: drawn(engine, question, 7), TypeError, "lora_request"),
        (lambda: LoRARequest("x", 0, "a"), ValueError, "lora_int_id"),
        (lambda: LoRARequest("x", 1), ValueError, "lora_path"),
    ):
        with pytest.raises(kind, match=words):
            call()
    assert set(engine.adapters) == {"one"}
