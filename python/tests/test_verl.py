"""verl finds Offshoot by its name, and a replica samples, changes its weights, sleeps and is interrupted as verl's
trainers ask it to. On one machine, on the CPU."""

import asyncio
import dataclasses
import os
import sys
import threading
import types

import pytest

os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray's workers are as nice as this process: a busy machine would starve them.
os.environ.setdefault("RAY_worker_niceness", "0")
torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("verl", reason="verl is not installed")
ray = pytest.importorskip("ray", reason="ray is not installed")

from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import RolloutMode, get_rollout_replica_class

import offshoot
import offshoot.verl

QUESTION = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:"
STEPS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True, "max_new_tokens": 24}


def config(**more):
    return RolloutConfig(
        name="offshoot", mode="async", tensor_model_parallel_size=1, prompt_length=256, response_length=512,
        max_num_seqs=16, logprobs_mode="processed_logprobs",
        engine_kwargs={"offshoot": {"kv_memory": 64, "threads": 1}}, **more)


@dataclasses.dataclass
class Model:
    local_path: str
    lora: dict = dataclasses.field(default_factory=dict)


class Worker:
    """A trainer's worker: what a replica asks of it is where it is."""


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=4, logging_level="error", log_to_driver=False)
    # Ray's workers cannot import this file.
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.shutdown()


@pytest.fixture
def replica(cluster):
    made = get_rollout_replica_class("offshoot")(0, config(), Model(offshoot.demo_model()), gpus_per_node=1)
    made.rollout_mode = RolloutMode.HYBRID
    made.workers = [ray.remote(Worker).remote()]
    asyncio.run(made.launch_servers())
    yield made
    ray.kill(made.server_handle)
    for worker in made.workers:
        ray.kill(worker)


@pytest.fixture
def adapter(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    return get_rollout_class("offshoot", "async")(
        config=config(), model_config=Model(offshoot.demo_model()), device_mesh=None)


def weights(scale=1.0):
    from safetensors.torch import load_file

    for name, tensor in load_file(os.path.join(offshoot.demo_model(), "model.safetensors")).items():
        yield name, tensor * scale if "layernorm" in name else tensor


def drawn(replica, ids, **more):
    params = {**STEPS, "seed": 3, **more}
    return ray.get(replica.server_handle.generate.remote(ids, params, "one"))


def ids_of(text):
    return offshoot.Tokenizer.of_folder(offshoot.demo_model()).encode(text)


def test_the_name_is_registered():
    assert get_rollout_replica_class("offshoot") is offshoot.verl.Replica
    assert get_rollout_class("offshoot", "async") is offshoot.verl.ServerAdapter


def test_weights_go_from_a_worker_to_the_samples(replica, adapter):
    ids = ids_of(QUESTION)
    before = drawn(replica, ids)
    assert before.stop_reason == "completed" and len(before.log_probs) == len(before.token_ids) > 0
    asyncio.run(adapter.update_weights(weights(1.25), global_steps=7))
    changed = drawn(replica, ids)
    assert changed.log_probs != before.log_probs and changed.extra_fields["global_steps"] == 7

    async def sent():
        for pair in weights():
            yield pair

    async def step():
        await adapter.release()
        await adapter.resume(["weights"])
        await adapter.update_weights(sent(), global_steps=8)
        await adapter.resume(["kv_cache"])

    asyncio.run(step())
    assert drawn(replica, ids).log_probs == before.log_probs
    # A worker that fails midway changes nothing, and the next update does not have its tensors.
    def broken():
        yield from list(weights(1.25))[:3]
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        asyncio.run(adapter.update_weights(broken()))
    assert drawn(replica, ids).log_probs == before.log_probs
    with pytest.raises(ValueError, match="enable_lora=True"):
        asyncio.run(adapter.update_weights(weights(), peft_config={"r": 8}))
    assert drawn(replica, ids).log_probs == before.log_probs


def test_an_adapter_goes_from_a_worker_to_the_samples(cluster, adapter):
    model = Model(offshoot.demo_model(), {"rank": 4})
    made = get_rollout_replica_class("offshoot")(0, config(), model, gpus_per_node=1)
    made.rollout_mode = RolloutMode.HYBRID
    made.workers = [ray.remote(Worker).remote()]
    asyncio.run(made.launch_servers())
    try:
        ids = ids_of(QUESTION)
        before = drawn(made, ids)
        numbers = torch.Generator().manual_seed(1)
        tensors = {
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight":
            0.2 * torch.rand(shape, generator=numbers) - 0.1
            for layer in range(8) for side, shape in (("A", (4, 256)), ("B", (256, 4)))}
        fields = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
        # The model below it comes first, by the names that it has there.
        base = ((name.replace("q_proj.", "q_proj.base_layer."), tensor) for name, tensor in weights())
        asyncio.run(adapter.update_weights(base, peft_config=fields, base_sync_done=False))
        assert drawn(made, ids).log_probs == before.log_probs
        asyncio.run(adapter.update_weights(iter(tensors.items()), peft_config=fields, global_steps=3))
        changed = drawn(made, ids)
        assert changed.log_probs != before.log_probs and changed.extra_fields["global_steps"] == 3
    finally:
        ray.kill(made.server_handle)
        ray.kill(made.workers[0])


def held(replica):
    """Tensors that a replica's server has of an update."""
    return ray.get(replica.server_handle.__ray_call__.remote(lambda self: len(self.sent)))


def test_samples_are_heard_of_while_an_update_is_made(monkeypatch):
    """A sample that begins meanwhile waits without holding up the loop. The server is an object of this process."""
    server = offshoot.verl.Server(config(), Model(offshoot.demo_model()), RolloutMode.HYBRID, 0, "")
    begun, goes_on, own = threading.Event(), threading.Event(), server.llm.load_weights

    def loaded(*given, **more):
        def each():
            begun.set()
            assert goes_on.wait(60), "the loop stands"
            yield from given[0]

        return own(each(), **more)

    monkeypatch.setattr(server.llm, "load_weights", loaded)

    async def step():
        update = asyncio.create_task(server.finish_update(5, None))
        while not begun.is_set():
            await asyncio.sleep(0)
        sample = asyncio.create_task(server.generate(ids_of(QUESTION), {**STEPS, "seed": 3}, "one"))
        await asyncio.sleep(0)  # It comes to its first wait.
        goes_on.set()
        await update
        return await sample

    with server.llm:
        assert asyncio.run(step()).extra_fields["global_steps"] == 5


def test_a_failed_update_leaves_the_weights(replica, adapter):
    ids = ids_of(QUESTION)
    before = drawn(replica, ids)

    def wrong():
        yield from weights(1.25)
        yield "model.norm.weight", torch.zeros(3)

    async def step(update, steps):
        await replica.abort_all_requests()
        await replica.release_kv_cache()
        try:
            await adapter.update_weights(update, global_steps=steps)
        finally:
            await replica.resume_kv_cache()
            await replica.resume_generation()

    with pytest.raises(ValueError, match=r"model.norm.weight.*expected \[256\].*, found \[3\]"):
        asyncio.run(step(wrong(), 9))
    found = drawn(replica, ids)
    assert found.log_probs == before.log_probs and found.extra_fields["global_steps"] is None
    assert held(replica) == 0
    asyncio.run(step(weights(1.25), 10))
    found = drawn(replica, ids)
    assert found.log_probs != before.log_probs and found.extra_fields["global_steps"] == 10


def test_all_tensors_are_made_also_where_the_server_fails(replica, monkeypatch):
    """Other workers take part in making each tensor: an error of the server may not end that."""
    monkeypatch.setenv("RANK", "0")
    alone = CheckpointEngineConfig(update_weights_bucket_megabytes=0)  # Each tensor goes alone.
    adapter = get_rollout_class("offshoot", "async")(
        config=config(checkpoint_engine=alone), model_config=Model(offshoot.demo_model()), device_mesh=None)
    calls, made = [], []
    own = adapter._call

    def call(method, *arguments):
        calls.append(method)
        if method == "take" and calls.count("take") == 3:
            raise ConnectionError("the server is gone")
        return own(method, *arguments)

    def each():
        for name, tensor in weights(1.25):
            made.append(name)
            yield name, tensor

    monkeypatch.setattr(adapter, "_call", call)
    with pytest.raises(ConnectionError, match="the server is gone"):
        asyncio.run(adapter.update_weights(each()))
    assert made == [name for name, _ in weights()] and calls == ["take"] * 3 + ["drop_update"]
    assert held(replica) == 0


def test_samples_are_interrupted_and_go_on_later(replica):
    server, ids = replica.server_handle, ids_of(QUESTION)
    endless = {**STEPS, "max_new_tokens": 512, "ignore_eos": True, "seed": 1}
    assert ray.get(server.abort_request.remote("nobody"))["aborted"] is False
    running = server.generate.remote(ids, endless, "long")
    while ray.get(server.__ray_call__.remote(lambda self: sorted(self.running))) != ["long"]:
        pass
    asyncio.run(replica.abort_all_requests())
    cut = ray.get(running)
    assert cut.stop_reason == "aborted" and len(cut.log_probs) == len(cut.token_ids) < 512
    late = server.generate.remote(ids, {**STEPS, "seed": 3}, "late")
    assert ray.wait([late], timeout=0.5)[0] == []
    asyncio.run(replica.resume_generation())
    assert ray.get(late).stop_reason == "completed"
    asyncio.run(replica.abort_all_requests(reject_request=True))
    assert ray.get(server.generate.remote(ids, dict(STEPS), "refused")).stop_reason == "aborted"
    asyncio.run(replica.resume_generation())


def test_what_is_not_supported(cluster):
    made = get_rollout_replica_class("offshoot")(0, config(), types.SimpleNamespace(), gpus_per_node=1)
    made.nnodes = 2
    with pytest.raises(NotImplementedError, match="expected one machine, found 2"):
        asyncio.run(made.launch_servers())
