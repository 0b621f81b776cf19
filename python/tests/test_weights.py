"""Weights that change under an engine, as trainers change them: tensors of numpy, the calls of a trainer that shares
the process, sleep and pauses, and what is refused."""

import json
import pathlib
import shutil
import struct
import threading

import numpy as np
import pytest

import offshoot
from offshoot import LLM, SamplingParams

QUERY = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.norm.weight"


def tensors(folder):
    """The tensors of a safetensors file, which has bf16: as numpy's f32."""
    data = pathlib.Path(folder, "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    read = {}
    for name, about in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            assert about["dtype"] == "BF16"
            begin, end = about["data_offsets"]
            bits = np.frombuffer(data[8 + size + begin:8 + size + end], dtype="<u2").astype(np.uint32) << 16
            read[name] = bits.view(np.float32).reshape(about["shape"])
    return read


@pytest.fixture(scope="module")
def own():
    return tensors(offshoot.demo_model())


@pytest.fixture
def engine(llm, own):
    """The shared engine, with its own weights again afterwards."""
    yield llm
    llm.wake_up()
    llm.load_weights(own, commit=True)
    llm.resume()


def drawn(llm, question):
    params = SamplingParams(n=4, max_tokens=24, seed=7, logprobs=0)
    return [(output.token_ids, output.cumulative_logprob)
            for output in llm.generate([question], params, use_tqdm=False)[0].outputs]


def other(own):
    """Other weights that still write something."""
    return {name: tensor * np.float32(1.25 if "layernorm" in name else 1.0) for name, tensor in own.items()}


def test_other_weights_give_other_samples_and_the_same_ones_the_same(engine, own, question):
    before, version = drawn(engine, question), engine.weight_version
    assert engine.load_weights(other(own), commit=True) == set(own)
    assert engine.weight_version == version + 1 and engine.weight_label == str(version + 1)
    changed = drawn(engine, question)
    assert changed != before
    engine.load_weights(own, commit=True, label="own")
    assert (engine.weight_version, engine.weight_label) == (version + 2, "own")
    assert drawn(engine, question) == before
    engine.load_weights(other(own), commit=True)
    assert drawn(engine, question) == changed


def test_stragglers_that_are_finished_after_an_update_say_which_weights_drew_what(engine, own, question):
    params = SamplingParams(n=12, max_tokens=64, temperature=1.5, logprobs=0, seed=3)
    version = engine.weight_version
    outputs = engine.generate([question], params, use_tqdm=False, min_finished=1, stragglers="keep")
    kept = {sample.index: len(sample.token_ids) for sample in outputs[0].outputs if sample.finish_reason == "abort"}
    assert kept
    engine.load_weights(other(own), commit=True)
    (late,) = engine.finish(outputs)
    (new,) = engine.rescore(late, params)
    engine.load_weights(own, commit=True)
    (old,) = engine.rescore(late, params)
    for sample, under_new, under_old in zip(late.outputs, new.outputs, old.outputs):
        drawn, of_new, of_old = ([each.logprobs[at][token].logprob for at, token in enumerate(sample.token_ids)]
                                 for each in (sample, under_new, under_old))
        begin = kept.get(sample.index, len(sample.token_ids))
        assert sample.continued == (sample.index in kept) and sample.finish_reason != "abort"
        assert sample.weight_versions == [version] * begin + [version + 1] * (len(sample.token_ids) - begin)
        assert drawn == of_old[:begin] + of_new[begin:]


def test_stragglers_and_trees_go_on_under_what_was_given(engine, own, question):
    params = SamplingParams(n=12, max_tokens=64, temperature=1.5, seed=3)
    version = engine.weight_version
    outputs = engine.generate([question], params, use_tqdm=False, min_finished=1, stragglers="keep")
    (node,) = engine.tree(question, seed=1).root.fork(1)
    engine.load_weights(other(own))
    (late,) = engine.finish(outputs)
    assert engine.weight_version == version + 1
    ends = [sample.weight_versions[-1] for sample in late.outputs if sample.continued]
    assert ends and set(ends) == {version + 1}
    engine.load_weights(own)
    scored = node.append(" 7", score=True).logprob
    assert engine.weight_version == version + 2
    (again,) = engine.tree(question, seed=1).root.fork(1)
    assert again.append(" 7", score=True).logprob == scored


def test_some_tensors_change_alone(engine, own, question):
    before = drawn(engine, question)
    engine.load_weights({QUERY: -own[QUERY]}, commit=True)
    assert drawn(engine, question) != before
    engine.load_weights({QUERY: own[QUERY]}, commit=True)
    assert drawn(engine, question) == before


def test_a_trainer_sends_tensor_by_tensor_and_what_it_sent_counts_as_it_was_sent(engine, own, question):
    before, version = drawn(engine, question), engine.weight_version
    model = engine.llm_engine.model_executor.driver_worker.model_runner.model
    for name, tensor in other(own).items():
        assert model.load_weights([(name, tensor)]) == {name}
        tensor[:] = 0  # The trainer goes on with its memory.
    assert engine.weight_version == version
    engine.reset_prefix_cache()
    assert engine.weight_version == version + 1
    changed = drawn(engine, question)
    assert changed != before
    # Without that call the next one that samples puts them in force.
    engine.load_weights((name, tensor) for name, tensor in own.items())
    assert drawn(engine, question) == before and engine.weight_version == version + 2


def test_tensors_of_all_kinds_of_memory(engine, own, question):
    before, query = drawn(engine, question), own[QUERY]
    fixed = query.copy()
    fixed.flags.writeable = False
    wide = np.repeat(query, 2, axis=1)
    kinds = [np.asfortranarray(query), fixed, wide[:, ::2], query.astype(np.float16), query.astype(">f4")]
    for kind in kinds:
        engine.load_weights({QUERY: -query}, commit=True)
        assert drawn(engine, question) != before
        engine.load_weights([(QUERY, kind)], commit=True)
        assert drawn(engine, question) == before


def test_tensors_on_a_gpu_are_taken_from_there(own, question):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU of CUDA")
    with LLM(offshoot.demo_model(), device="cuda:0", kv_memory=512) as llm:
        before = drawn(llm, question)
        on_gpu = {name: torch.from_numpy(tensor).cuda() for name, tensor in own.items()}
        for dtype in (torch.bfloat16, torch.float32):
            given = {name: tensor.to(dtype) for name, tensor in on_gpu.items()}
            llm.load_weights({QUERY: -given[QUERY]}, commit=True)
            assert drawn(llm, question) != before
            llm.load_weights(given, commit=True)
            assert drawn(llm, question) == before
            # One by one, and changed before they are in force.
            llm.load_weights({QUERY: -given[QUERY]}, commit=True)
            for name, tensor in given.items():
                llm.load_weights([(name, tensor)])
                tensor.zero_()
            llm.reset_prefix_cache()
            assert drawn(llm, question) == before
        broken = on_gpu[QUERY].clone()
        broken[1, 2] = float("nan")
        with pytest.raises(ValueError, match="finite"):
            llm.load_weights({QUERY: broken}, commit=True)
        assert drawn(llm, question) == before


def test_a_tensor_is_lent_while_its_own_gpu_is_the_current_one(engine, monkeypatch):
    """Without a GPU: torch's part is played by what only tells which GPU is current."""
    pytest.importorskip("torch")
    current, seen = [0], []

    class Device:
        type = "cuda"

        def __init__(self, index):
            self.index = index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *_):
            current.pop()

    class OnGpu:
        dtype, device = "torch.bfloat16", Device(1)

        def detach(self):
            return self

        contiguous = detach

        def __dlpack__(self, stream=None):
            seen.append((current[-1], stream))
            raise BufferError("cannot be exported")

    monkeypatch.setattr("torch.cuda.device", lambda device: device)
    monkeypatch.setattr("offshoot._weights.Tensors", type("Taking", (), {"takes_from_gpu": staticmethod(bool)}))
    with pytest.raises(TypeError, match=f"weights: {QUERY}: .*cannot be exported"):
        engine.load_weights({QUERY: OnGpu()}, commit=True)
    assert seen == [(1, 1)] and current == [0]


def test_a_folder_of_files(engine, own, question, tmp_path):
    before = drawn(engine, question)
    engine.load_weights(other(own), commit=True)
    assert engine.load_weights(offshoot.demo_model(), label="files") == set(own)
    assert drawn(engine, question) == before and engine.weight_label == "files"
    with pytest.raises(ValueError, match="no weights|safetensors"):
        engine.load_weights(tmp_path)
    assert engine.collective_rpc("reload_weights", kwargs={"weights_path": offshoot.demo_model()}) == [set(own)]
    with pytest.raises(NotImplementedError, match="method: expected load_weights, .*found 'init_device'"):
        engine.collective_rpc("init_device")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("name, wrong, error, said", [
    ("model.nothing.weight", np.zeros(3, np.float32), ValueError, "expected the name of a tensor of the loaded model"),
    (NORM, np.zeros(3, np.float32), ValueError, r"expected \[256\].*, found \[3\]"),
    (NORM, np.full(256, np.nan, np.float32), ValueError, "expected finite numbers, found NaN"),
    (NORM, np.zeros(256, np.int64), ValueError, "expected F32, F16 or BF16, found I64"),
    (NORM, np.zeros(256, np.complex64), ValueError, "expected bf16, f16 or f32, found 64 bits"),
    (NORM, [0.0] * 256, TypeError, "expected a tensor of numpy, torch or another library with __dlpack__, found list"),
])
def test_a_wrong_tensor_leaves_the_old_weights_in_force(engine, own, question, commit, name, wrong, error, said):
    before, version = drawn(engine, question), engine.weight_version
    given = [(NORM, own[NORM] * 2), (name, wrong)]
    with pytest.raises(error, match=said):
        engine.load_weights(given, commit=commit)
        drawn(engine, question)
    assert drawn(engine, question) == before and engine.weight_version == version


def test_what_is_no_pair_is_refused(engine, question):
    before = drawn(engine, question)
    for wrong in ([3], [("a",)], [(3, np.zeros(3))]):
        with pytest.raises(TypeError, match="weights: expected pairs"):
            engine.load_weights(wrong)
    with pytest.raises(ValueError, match="label: expected None without commit"):
        engine.load_weights([], label="x")
    assert drawn(engine, question) == before


def test_sleep_and_wake_up(engine, own, question):
    before = drawn(engine, question)
    engine.sleep()
    assert engine.is_sleeping and engine.is_paused
    with pytest.raises(RuntimeError, match=r"the LLM sleeps: call wake_up\(\)"):
        drawn(engine, question)
    engine.wake_up()
    assert not engine.is_sleeping and drawn(engine, question) == before
    # Weights that were dropped must all come before the next sample, in the order in which TRL sends them.
    engine.sleep(level=2)
    engine.wake_up(tags=["weights"])
    with pytest.raises(ValueError, match="expected an update of all weights"):
        engine.load_weights({NORM: own[NORM]}, commit=True)
    engine.load_weights(own)
    engine.reset_prefix_cache()
    assert engine.is_sleeping
    engine.wake_up(tags="kv_cache")
    assert not engine.is_sleeping and drawn(engine, question) == before
    with pytest.raises(ValueError, match='tags: expected weights, kv_cache, scheduling, found "kv"'):
        engine.wake_up(tags=["kv"])
    with pytest.raises(ValueError, match="level: expected at most 2, found 3"):
        engine.sleep(3)


def test_what_is_given_while_weights_sleep_waits_for_them(engine, own, question):
    engine.load_weights(other(own), commit=True)
    changed = drawn(engine, question)
    engine.load_weights(own, commit=True)
    engine.sleep(level=1)
    engine.load_weights(other(own))
    with pytest.raises(RuntimeError, match=r"the LLM sleeps: call wake_up\(\)"):
        drawn(engine, question)
    with pytest.raises(ValueError, match="one whose weights sleep: wake them first"):
        engine.load_weights(offshoot.demo_model())
    engine.wake_up(["kv_cache"])
    engine.reset_prefix_cache()
    engine.sleep(level=1)
    assert engine.is_sleeping
    engine.wake_up()
    assert not engine.is_sleeping and drawn(engine, question) == changed


def test_memory_sleeps_by_parts(engine, own, question):
    before, version = drawn(engine, question), engine.weight_version
    engine.sleep(level=2, tags="kv_cache")
    engine.load_weights({NORM: own[NORM]}, commit=True)  # The weights are there.
    assert engine.is_sleeping and engine.weight_version == version + 1
    engine.wake_up(["kv_cache"])
    assert not engine.is_sleeping and not engine.is_paused and drawn(engine, question) == before
    with pytest.raises(ValueError, match='tags: expected weights, kv_cache, scheduling, found "kv"'):
        engine.sleep(tags=["kv"])
    assert not engine.is_paused
    with pytest.raises(ValueError, match="mode: expected one of abort, wait, keep, found \"stop\""):
        engine.sleep(mode="stop")


def test_without_weights_nothing_waits_for_ever(engine, own, question):
    before = drawn(engine, question)
    engine.sleep(level=2)
    engine.wake_up()
    assert not engine.is_sleeping
    for ask in (lambda: drawn(engine, question), lambda: engine.score(question, [" 1"]), lambda: engine.tree(question)):
        with pytest.raises(RuntimeError, match=r"the LLM has no weights .*call load_weights\(\)"):
            ask()
    engine.load_weights(own)
    assert drawn(engine, question) == before and not engine.is_paused


def test_what_was_begun_before_a_sleep_is_refused_until_all_is_there_again(engine, own, question):
    params = SamplingParams(n=12, max_tokens=64, temperature=1.5, seed=3)
    outputs = engine.generate([question], params, use_tqdm=False, min_finished=1, stragglers="keep")
    node, scored = engine.tree(question, seed=1).root.fork(2)
    one = SamplingParams(max_tokens=4)
    beams = offshoot.BeamSearchParams(beam_width=2, max_tokens=2)
    asks = [
        lambda: engine.finish(outputs), lambda: node.tree.score([node], " 7"), lambda: node.extend(one),
        lambda: scored.append(" 7", score=True), lambda: scored.append(" 7"),
        lambda: offshoot.vote(engine, question, 2, answer=str.strip, sampling_params=one),
        lambda: engine.beam_search([question], beams)]
    engine.sleep(level=2)
    for ask in asks:
        with pytest.raises(RuntimeError, match=r"the LLM sleeps: call wake_up\(\)"):
            ask()
    engine.wake_up()
    for ask in asks:
        with pytest.raises(RuntimeError, match=r"the LLM has no weights .*call load_weights\(\)"):
            ask()
    engine.load_weights(own)
    for ask in asks:
        ask()
    (ended,) = engine.finish(outputs)
    assert any(sample.continued for sample in ended.outputs)
    assert all(sample.finish_reason != "abort" for sample in ended.outputs)


def test_a_pause_holds_what_is_asked_for_until_it_ends(engine, own, question):
    before = drawn(engine, question)
    engine.sleep(level=0)
    assert engine.is_paused and not engine.is_sleeping
    threading.Timer(0.2, engine.wake_up).start()
    assert drawn(engine, question) == before
    with pytest.raises(ValueError, match="mode"):
        engine.pause("stop")


def test_samples_go_on_under_new_weights(engine, own, question):
    params = SamplingParams(n=2, max_tokens=400, ignore_eos=True, seed=1)
    streams = engine.stream([question], params)
    first = next(streams)
    version = engine.weight_version
    engine.load_weights(other(own), commit=True)
    ended = sorted((item.output for item in streams if item.output is not None), key=lambda output: output.index)
    assert ended[first.index].weights[0] == (version, 0), "its first tokens came before"
    assert engine.weight_version == version + 1
    assert [len(output.token_ids) for output in ended] == [400, 400]
    assert all(output.finish_reason == "length" for output in ended)
    for output in ended:
        versions = output.weight_versions
        assert len(versions) == 400 and versions == sorted(versions) and versions[-1] == version + 1
        assert output.weights[0] == (versions[0], 0) and set(versions) <= {version, version + 1}


def test_an_argument_of_trainers_is_taken(tmp_path):
    shutil.copytree(offshoot.demo_model(), tmp_path / "model")
    with LLM(tmp_path / "model", device="cpu", kv_memory=64, enable_sleep_mode=True,
             logprobs_mode="processed_logprobs") as llm:
        llm.sleep(level=1)
        llm.wake_up()
        assert len(llm.generate(["Question:"], SamplingParams(max_tokens=4), use_tqdm=False)[0].outputs) == 1
