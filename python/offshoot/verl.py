"""verl's rollouts by Offshoot: ``actor_rollout_ref.rollout.name=offshoot``.

Importing this module registers the name; verl imports it by itself (entry point ``verl.plugins``) in each of its
processes. A ``Replica`` starts an actor of Ray with an engine, a ``Server``, beside the trainer's workers of one
machine; a ``ServerAdapter`` in each of these workers sends it weights, through Ray's memory, and lets it sleep and
wake. Arguments of ``LLM`` are given as ``actor_rollout_ref.rollout.engine_kwargs.offshoot``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import numpy
import ray
import torch
import verl.workers.rollout.base as rollouts
import verl.workers.rollout.replica as replicas
from verl.workers.rollout.replica import RolloutMode, TokenOutput

from offshoot._llm import LLM, _ending, _Job, _waited
from offshoot._params import SamplingParams

__all__ = ["Replica", "Server", "ServerAdapter"]

NAME = "offshoot"

#: What the adapter is called that a trainer sends.
POLICY = "policy"

#: A tensor as it travels: its name, torch's name of its dtype, its shape, and its bytes.
Sent = tuple[str, str, list[int], "numpy.ndarray[Any, Any]"]


class Server:
    """An engine that serves the samples of one replica: an actor of Ray."""

    def __init__(self, config: Any, model_config: Any, mode: RolloutMode, replica_rank: int, devices: str):
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
        self.config, self.mode = config, mode
        self.most = config.max_model_len or config.prompt_length + config.response_length
        given: dict[str, Any] = {
            "device": "auto" if devices else "cpu", "max_model_len": self.most, "max_num_seqs": config.max_num_seqs,
            "logprobs_mode": config.logprobs_mode, "seed": config.seed + replica_rank,
        }
        if devices:
            given["tensor_parallel_size"] = config.tensor_model_parallel_size
            given["gpu_memory_utilization"] = config.gpu_memory_utilization
        if rank := _adapter_rank(model_config):
            given.update(enable_lora=True, max_loras=1, max_lora_rank=rank)
        self.llm = LLM(model_config.local_path, **{**given, **dict((config.engine_kwargs or {}).get(NAME) or {})})
        self.running: dict[str, _Job] = {}
        self.sent: list[Sent] = []
        self.global_steps: int | None = None
        self.rejects = False
        self.admits = asyncio.Event()
        self.admits.set()
        #: Held while weights or an adapter are loaded: a sample that began then would hold up the events of all others.
        self.updates = asyncio.Lock()

    async def address(self) -> str:
        """What verl's balancer knows it by. Nothing listens there: samples come by calls of the actor."""
        return f"{ray.get_runtime_context().get_node_id()}:{os.getpid()}"

    # Samples.

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, image_data: Any = None,
        video_data: Any = None, audio_data: Any = None, mm_processor_kwargs: Any = None, priority: int = 0,
    ) -> TokenOutput:
        if image_data or video_data or audio_data:
            raise NotImplementedError("images, videos and audio are not supported")
        while self.updates.locked() or not self.admits.is_set():
            if self.rejects and not self.admits.is_set():
                return self._output([], None, "aborted")
            await self.admits.wait()
            async with self.updates:
                pass
        prompt = [int(token) for token in prompt_ids]
        params = self._params(sampling_params, len(prompt))
        adapter = POLICY if POLICY in self.llm.adapters else None
        job = self.llm._begin(
            [{"prompt_token_ids": prompt}], params, lora_request=adapter, priority=priority, stream=False)
        self.running[request_id] = job
        try:
            async with _ending(job):
                while await _waited(job):
                    for event in job.unread():
                        job.take(event)
        finally:
            del self.running[request_id]
        (sample,) = job.output(0).outputs
        logprobs = None if sample.logprobs is None else [
            row[token].logprob for token, row in zip(sample.token_ids, sample.logprobs)]
        return self._output(
            sample.token_ids, logprobs, "aborted" if sample.finish_reason == "abort" else "completed")

    def _output(self, ids: list[int], logprobs: list[float] | None, reason: str) -> TokenOutput:
        return TokenOutput(token_ids=ids, log_probs=logprobs, stop_reason=reason,
                           extra_fields={"global_steps": self.global_steps})

    def _params(self, given: dict[str, Any], prompt: int) -> SamplingParams:
        """verl's options of a sample: ``logprobs`` says whether, ``max_new_tokens`` is another name."""
        fields, config = dict(given), self.config
        room = min(config.response_length, config.prompt_length + config.response_length - prompt)
        most = fields.pop("max_tokens", None) or fields.pop("max_new_tokens", None) or room
        fields.pop("max_new_tokens", None)
        fields["logprobs"] = 0 if fields.pop("logprobs", False) else None
        return SamplingParams(max_tokens=max(1, min(most, self.most - prompt)), **fields)

    async def abort_all_requests(
        self, reset_prefix_cache: bool = True, reject_request: bool = False,
    ) -> dict[str, Any]:
        """Ends all samples with what they have; later ones wait for ``resume_generation``, or are sent back."""
        self.rejects = reject_request
        self.admits.clear()
        ended = sorted(self.running)
        await asyncio.to_thread(self.llm.pause, "abort")
        if reset_prefix_cache:
            await self.clear_kv_cache()
        return {"aborted_count": len(ended), "request_ids": ended}

    async def abort_request(self, request_id: str, reset_prefix_cache: bool = True) -> dict[str, Any]:
        job = self.running.get(request_id)
        if job is not None:
            job.cancel()
        return {"aborted": job is not None, "request_id": request_id}

    async def resume_generation(self) -> None:
        await asyncio.to_thread(self.llm.resume)
        self.rejects = False
        self.admits.set()

    async def wait_for_requests_to_drain(self) -> None:
        while self.running:
            await asyncio.sleep(0.02)

    # Weights and memory.

    async def take(self, sent: list[Sent], begins: bool) -> None:
        """Keeps tensors until `finish_update`. With the first ones of an update those of an earlier one are forgotten,
        which was not finished."""
        if begins:
            self.sent.clear()
        self.sent += sent

    async def drop_update(self) -> None:
        """Forgets the tensors of an update that is not finished."""
        self.sent.clear()

    async def finish_update(self, global_steps: int | None, adapter: dict[str, Any] | None) -> None:
        """Puts all tensors in force that were sent; with an error none, and they are forgotten. ``adapter``: the fields
        of the configuration of the one that they are, if they are not the model's own."""
        sent, self.sent = self.sent, []
        weights = [(name, _tensor(dtype, shape, data)) for name, dtype, shape, data in sent]
        async with self.updates:
            if adapter is None:
                label = None if global_steps is None else str(global_steps)
                await asyncio.to_thread(self.llm.load_weights, weights, commit=True, label=label)
            else:
                await asyncio.to_thread(self.llm.load_adapter, POLICY, weights, config=adapter)
        if global_steps is not None:
            self.global_steps = global_steps

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps
        await asyncio.to_thread(setattr, self.llm, "weight_label", str(global_steps))

    async def sleep(self) -> None:
        """Gives memory back. Without an update to come, weights wait in host memory."""
        if self.config.free_cache_engine and self.mode != RolloutMode.STANDALONE:
            await asyncio.to_thread(self.llm.sleep, 2 if self.mode == RolloutMode.HYBRID else 1)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        await asyncio.to_thread(self.llm.wake_up, tags)

    async def release_kv_cache(self) -> None:
        """Gives the memory of keys and values back. Weights stay: they are in force if the next update fails."""
        if self.config.free_cache_engine and self.mode != RolloutMode.COLOCATED:
            await asyncio.to_thread(self.llm.sleep, 1, tags=["kv_cache"])

    async def resume_kv_cache(self) -> None:
        await asyncio.to_thread(self.llm.wake_up, ["kv_cache"])

    async def clear_kv_cache(self) -> None:
        await asyncio.to_thread(self.llm.reset_prefix_cache)

    async def start_profile(self, **_: Any) -> None:
        """Nothing is profiled."""

    async def stop_profile(self) -> None:
        """Nothing is profiled."""


class Replica(replicas.RolloutReplica):  # type: ignore[misc, unused-ignore]
    """Starts one server beside the workers of one machine, on all of whose GPUs it computes one model."""

    async def launch_servers(self) -> None:
        if self.nnodes != 1:
            raise NotImplementedError(f"a replica: expected one machine, found {self.nnodes}")
        places: list[tuple[str, list[str]]] = await asyncio.gather(
            *(worker.__ray_call__.remote(_place) for worker in self.workers))
        kind = "reward_" if self.is_reward_model else "teacher_" if self.is_teacher_model else ""
        actor: Any = ray.remote(Server)
        server = actor.options(
            scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                node_id=places[0][0], soft=False),
            name=f"{NAME}_server_{kind}{self.replica_rank}_0{self.name_suffix}", max_concurrency=self.max_concurrency,
            # The actor takes the GPUs that its workers have; Ray must not hide them.
            runtime_env={"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}},
        ).remote(self.config, self.model_config, self.rollout_mode, self.replica_rank,
                 ",".join(gpu for _, gpus in places for gpu in gpus))
        self.servers, self._server_handle = [server], server
        self._server_address = await server.address.remote()


def _place(_: Any) -> tuple[str, list[str]]:
    """Where a worker is: its machine and its GPUs."""
    context = ray.get_runtime_context()
    return context.get_node_id(), [str(gpu) for gpu in context.get_accelerator_ids().get("GPU", [])]


class ServerAdapter(rollouts.BaseRollout):  # type: ignore[misc, unused-ignore]
    """What a trainer's worker has of its replica's server. The first worker of a replica speaks to it; all take part in
    making the tensors that are sent."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any = None, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        size = (self.config.tensor_model_parallel_size * self.config.data_parallel_size
                * self.config.pipeline_model_parallel_size)
        rank = int(os.environ["RANK"])
        self.replica_rank = rank // size if replica_rank == -1 else replica_rank
        self.is_leader_rank = rank % size == 0
        #: verl sets it to 1 where an update brings adapters alone: weights that were given back would not come again.
        self.sleep_level = 2
        self._server: Any = None

    def _call(self, method: str, *arguments: Any) -> Any:
        """Begins a call of the server, which is started after this."""
        if self._server is None:
            self._server = ray.get_actor(f"{NAME}_server_{self.replica_rank}_0")
        return getattr(self._server, method).remote(*arguments)

    async def resume(self, tags: list[str]) -> None:
        if self.is_leader_rank and self.config.free_cache_engine:
            await self._call("wake_up", tags)

    async def release(self) -> None:
        if self.is_leader_rank and self.config.free_cache_engine:
            await self._call("sleep" if self.sleep_level == 2 else "release_kv_cache")

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None,
        peft_config: Any = None, base_sync_done: bool = True, **_: Any,
    ) -> None:
        """Sends all tensors and puts them in force; with an error none, and the weights stay that the server has.
        (After ``release`` it has none: then it samples once an update has succeeded.) An error of the server is raised
        when all tensors have been made, in which the other workers take part."""
        if wire_format != "named_tensors":
            raise NotImplementedError(
                f"weights: expected whole tensors (wire_format named_tensors), found wire_format {wire_format}")
        adapter = _fields(peft_config) if peft_config is not None and base_sync_done else None
        most = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        update = _Update(self._call, most) if self.is_leader_rank else None
        try:
            async for name, tensor in _each(weights):
                if update is not None:
                    await update.add(name.replace(".base_layer.", "."), tensor)
            if update is not None:
                await update.finish(global_steps, adapter)
        except BaseException:
            if update is not None:
                update.drop()
            raise


class _Update:
    """Tensors on their way to a server, a bucket at a time. Its first error waits until all have been made."""

    def __init__(self, call: Callable[..., Any], most: int):
        self._call, self._most = call, most
        self._bucket: list[Sent] = []
        self._size, self._has_begun = 0, False
        self._error: Exception | None = None

    async def add(self, name: str, tensor: torch.Tensor) -> None:
        if self._error is not None:
            return
        try:
            self._bucket.append(_sent(name, tensor))
            self._size += self._bucket[-1][-1].nbytes
            if self._size >= self._most:
                await self._send()
        except Exception as error:
            self._error, self._bucket = error, []

    async def finish(self, global_steps: int | None, adapter: dict[str, Any] | None) -> None:
        if self._error is not None:
            raise self._error
        await self._send()
        await self._call("finish_update", global_steps, adapter)

    def drop(self) -> None:
        """Lets the server forget what it was sent. A server that is gone never answers: nothing is awaited."""
        if self._has_begun:
            self._call("drop_update")

    async def _send(self) -> None:
        begins, self._has_begun = not self._has_begun, True
        await self._call("take", self._bucket, begins)
        self._bucket, self._size = [], 0


def _adapter_rank(model_config: Any) -> int:
    """The rank of the adapter that is trained; 0: there is none, or it is merged before it is sent."""
    lora = getattr(model_config, "lora", None) or {}
    if lora.get("merge", False):
        return 0
    return int(lora.get("rank", 0) or getattr(model_config, "lora_rank", 0) or 0)


def _fields(peft_config: Any) -> dict[str, Any]:
    """The fields of an adapter's configuration, as they travel."""
    if hasattr(peft_config, "to_dict"):
        return dict(peft_config.to_dict())
    if dataclasses.is_dataclass(peft_config) and not isinstance(peft_config, type):
        return dataclasses.asdict(peft_config)
    return dict(peft_config)


async def _each(given: Any) -> AsyncIterator[tuple[str, torch.Tensor]]:
    """The items of an iterator or of an asynchronous one."""
    if hasattr(given, "__aiter__"):
        async for pair in given:
            yield pair
        return
    items: Iterator[tuple[str, torch.Tensor]] = iter(given)
    for pair in items:
        yield pair


def _sent(name: str, tensor: torch.Tensor) -> Sent:
    tensor = tensor.detach().cpu().contiguous()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return name, dtype, list(tensor.shape), tensor.flatten().view(torch.uint8).numpy()


def _tensor(dtype: str, shape: Iterable[int], data: numpy.ndarray[Any, Any]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's memory is not writable, and nothing is written.
        return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(tuple(shape))


replicas.RolloutReplicaRegistry.register(NAME, lambda: Replica)
rollouts._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{ServerAdapter.__name__}"
