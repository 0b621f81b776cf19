"""``LLM``: a loaded model that samples prompts, with the methods of vLLM's ``LLM`` and trees, streams and scores."""

from __future__ import annotations

import array
import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import numbers
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast, overload

from offshoot._adapters import AdapterName, Adapters, LoadedAdapter
from offshoot._beams import BeamSearchOutput, BeamSearchParams, beam_search
from offshoot._facts import EngineFacts, EngineMetrics
from offshoot._native import (
    Context,
    Engine,
    Finish,
    Generation,
    NativeForm,
    NativeTokenizer,
    Request,
    SampleFailed,
    SampleFinished,
    Samples,
    SampleTokens,
    Sampling,
    model_role,
)
from offshoot._outputs import (
    ChatBegin,
    ChoiceScore,
    CompletionOutput,
    KeptTokens,
    Logprob,
    RequestOutput,
    ScoredChoices,
    StreamOutput,
    token_logprobs,
)
from offshoot._params import LOGPROBS_MODES, SamplingParams, _choice, _flag, _listed, _number, _whole
from offshoot._scorer import Scorer, open_pooling
from offshoot._tree import Tree
from offshoot._vllm import (
    OTHER_WEIGHTS,
    EngineView,
    FlatLogprobs,
    LoRARequest,
    ModelConfig,
    asks,
)
from offshoot._vllm import WITHOUT_MEANING as _WITHOUT_MEANING
from offshoot._vllm import WOULD_CHANGE as _WOULD_CHANGE
from offshoot._weights import Given, NamedTensors, is_folder, tags_of
from offshoot.inputs import PromptType

if TYPE_CHECKING:
    import numpy
    import pyarrow as pa

    from offshoot._pooling import ClassificationRequestOutput, EmbeddingRequestOutput, PoolingRequestOutput
    from offshoot.search import Outcome

#: Seconds between two looks at Ctrl-C and the progress bar.
WAIT = 0.1

#: Fields of a generation_config.json, and what `SamplingParams` calls them.
_DEFAULTS = {
    "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_tokens",
}

#: The adapter of all prompts, or of each.
LoraRequests = AdapterName | Sequence[AdapterName | None] | None

#: A turn of a conversation.
_Message = Mapping[str, Any]

#: Waits for samples that asyncio's tasks have at once; further ones take turns.
_WAITS_AT_ONCE = 256

_open: "weakref.WeakSet[LLM]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # The engine's thread ends before the interpreter does, so that no call to a device is under way then.
    for llm in list(_open):
        llm.close()
    for pooling in list(open_pooling):
        pooling.close()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a generation or a search. ``outputs`` has what was finished: of unfinished samples the beginnings,
    with the finish reason ``abort``; prompts that had not begun have no outputs. Of a search it has the outcomes of the
    prompts, None for those that were not finished. ``table`` is what ``generate_table`` had, beginnings too; else
    None."""

    def __init__(self, outputs: list[RequestOutput] | list[Outcome | None], table: pa.Table | None = None):
        self.outputs, self.table = outputs, table
        done = sum(output is not None and getattr(output, "finished", True) for output in outputs)
        super().__init__(
            f"{done} of {len(outputs)} prompts were finished: see this exception's `outputs`" if table is None
            else f"{len(table)} samples had begun: see this exception's `table`")

    def __reduce__(self) -> tuple[Any, ...]:
        return Interrupted, (self.outputs, self.table)


def _devices(device: str, devices: str | Sequence[str] | None, replicas: int) -> str | None:
    """Several devices as the command line names them; None for one."""
    if devices is None:
        if replicas == 1:
            return None
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"data_parallel_size: expected 1 with device={device!r}, found {replicas}")
        return ",".join("cpu" if device == "cpu" else f"cuda:{at}" for at in range(replicas))
    if device != "auto":
        raise ValueError(f"devices: expected None with device={device!r}, found {devices!r}")
    names = devices if isinstance(devices, str) else ",".join(str(name) for name in devices)
    if replicas not in (1, len(names.split(","))):
        raise ValueError(f"data_parallel_size: expected 1, or the number of devices, found {replicas}")
    return names


class LLM:
    """A model in memory and the engine that runs it; threads may share it.

    ``model``: a folder as Hugging Face has it. ``device``: auto, cpu, cuda or cuda:N. ``devices``: several instead,
    each with the whole model and a part of the prompts: "all" (every GPU) or a list such as ["cuda:0", "cuda:1"]; the
    samples are those of one. ``data_parallel_size`` means the first so many GPUs. ``tensor_parallel_size``: so many
    GPUs, the given one and those behind it or all of ``devices``, compute one model together. ``memory``: the share of
    each device's free memory for keys and values, or ``kv_memory`` in MiB; ``latent_copies``: MiB of it for expanded
    copies of latents (models with latent attention). ``swap_memory``: MiB of host memory for samples that make
    room for others on a GPU. ``seed``: what samples without a seed of their own follow from.
    ``plan``: how attention is shared (balanced, tree, single, flat; samples are the same). ``kv_dtype``: auto or fp8.
    ``state_dtype``: f32, or bf16 for states of recurrent layers in half the memory. ``weights``: fp8, int8 or int4,
    which dense weights become when they are loaded (on the CPU; int4 on GPUs too, fp8 on Hopper); ``activations``: bf16
    to round none. ``deterministic``: on a GPU, samples do not depend on what else runs, to the last bit.
    ``prefix_store``: a folder where computed prompts are kept. ``threads``: of the CPU backend; one number for a
    process. ``chat_template``: its text, or a file of it, in place of the model's. ``logprobs_mode``: whose
    log-probabilities are reported of samples, "raw_logprobs" (the model's own) or "processed_logprobs" (of the
    distribution that each token was drawn from, after penalties, temperature and cuts); those of prompts and choices
    are always the model's. ``return_sampling_mask``: as ``return_kept="ids"`` of all ``SamplingParams``.
    ``enable_return_routed_experts``: of a mixture of experts, samples have ``routed_experts``. ``enable_lora``:
    adapters may be loaded, ``max_loras`` at once, of ranks up to ``max_lora_rank``; their memory is set aside.
    ``scorer``: the folder of a reward model beside the model, which ``llm.scorer`` is; ``scorer_form``: how it reads
    texts, as of ``Scorer``; ``scorer_memory``: its share of the memory for keys and values, which both divide.

    The folder of a reward model, or ``runner="pooling"``, gives an ``LLM`` with vLLM's methods for pooling models:
    ``encode``, ``classify``, ``score`` and ``reward``; that of an embedder, or ``convert="embed"``, gives one with
    ``embed``, ``encode`` and ``score``.

    The other arguments of ``vllm.LLM`` are taken, too: those without a meaning here (``swap_space`` among them, as
    there) with one warning; those that would change the samples and are not supported raise ``NotImplementedError``.
    """

    #: The scorer beside the model; None without one.
    scorer: Scorer | None

    def __new__(cls, model: Any = None, *_: Any, **given: Any) -> "LLM":
        if cls is LLM and isinstance(model, (str, os.PathLike)):
            from offshoot._pooling_llm import EmbeddingLLM, PoolingLLM

            role, runner = model_role(os.fspath(model)), given.get("runner")
            embeds = role == "embedder" and runner != "generate" and given.get("form") is None
            if embeds or "embed" in (given.get("convert"), given.get("task")):
                return super().__new__(EmbeddingLLM)
            if runner == "pooling" or role == "scorer":
                return super().__new__(PoolingLLM)
        return super().__new__(cls)

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        device: str = "auto",
        devices: str | Sequence[str] | None = None,
        memory: float | None = None,
        kv_memory: int | None = None,
        swap_memory: int | None = None,
        seed: int | None = 0,
        plan: str = "balanced",
        kv_dtype: str | None = None,
        state_dtype: str | None = None,
        weights: str | None = None,
        activations: str | None = None,
        deterministic: bool = False,
        prefix_store: str | os.PathLike[str] | None = None,
        prefix_store_size: float = 20.0,
        threads: int | None = None,
        dtype: Any = "auto",
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        data_parallel_size: int = 1,
        gpu_memory_utilization: float | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        generation_config: str | os.PathLike[str] = "auto",
        override_generation_config: dict[str, Any] | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        logprobs_mode: str | None = "raw_logprobs",
        enable_sleep_mode: bool = False,
        return_sampling_mask: bool = False,
        enable_return_routed_experts: bool = False,
        enable_lora: bool = False,
        max_loras: int = 1,
        max_lora_rank: int = 16,
        scorer: str | os.PathLike[str] | None = None,
        scorer_form: str | Mapping[str, Any] | None = None,
        scorer_memory: float | None = None,
        latent_copies: int | None = None,
        runner: str | None = "auto",
        convert: str | None = "auto",
        task: str | None = "auto",
        **more: Any,
    ):
        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else _refuse_model(model)
        if _whole("pipeline_parallel_size", pipeline_parallel_size, 1) != 1:
            raise NotImplementedError(
                f"pipeline_parallel_size: expected 1, found {pipeline_parallel_size}: use tensor_parallel_size")
        ranks, replicas = (
            _whole("tensor_parallel_size", tensor_parallel_size, 1),
            _whole("data_parallel_size", data_parallel_size, 1))
        if ranks > 1 and replicas > 1:
            raise NotImplementedError(
                f"data_parallel_size: expected 1 with tensor_parallel_size={ranks}, found {replicas}")
        devices = _devices(str(device), devices, replicas)
        weights = None if weights is None else _choice("weights", weights, ("fp8", "int8", "int4"))
        activations = None if activations is None else _choice("activations", activations, ("format", "bf16"))
        if quantization is not None:
            raise NotImplementedError(
                f"quantization: expected None (a folder says itself how it is quantised; weights=\"fp8\" makes dense "
                f"weights smaller), found {quantization!r}")
        if tokenizer is not None and os.path.realpath(tokenizer) != os.path.realpath(path):
            raise NotImplementedError(f"tokenizer: expected the model's own folder, found {os.fspath(tokenizer)!r}")
        _check_dtype(path, dtype)
        for name, share in (("memory", memory), ("gpu_memory_utilization", gpu_memory_utilization)):
            if share is not None and not 0.0 < _number(name, share) <= 1.0:
                raise ValueError(f"{name}: expected a number above 0 and up to 1, found {share}")
        kv_memory = None if kv_memory is None else _whole("kv_memory", kv_memory, 1)
        latent_copies = None if latent_copies is None else _whole("latent_copies", latent_copies, 0)
        swap_memory = None if swap_memory is None else _whole("swap_memory", swap_memory, 0)
        max_model_len = None if max_model_len is None else _whole("max_model_len", max_model_len, 1)
        max_num_seqs = None if max_num_seqs is None else _whole("max_num_seqs", max_num_seqs, 1)
        threads = None if threads is None else _whole("threads", threads, 1)
        own_seed = 0 if seed is None else _whole("seed", seed)
        _choice("plan", plan, ("balanced", "tree", "single", "flat"))
        _flag("enable_sleep_mode", enable_sleep_mode)  # An engine can always sleep.
        loras, rank = _whole("max_loras", max_loras, 1), _whole("max_lora_rank", max_lora_rank, 1)
        loras = loras if _flag("enable_lora", enable_lora) else 0
        template = None if chat_template is None else _template(chat_template)
        for name in sorted(_WOULD_CHANGE & set(more)):
            if asks(more.pop(name)):
                instead = ": say which GPUs by `devices`" if name == "device_ids" else ""
                raise NotImplementedError(f"{name} is not supported: it would change what is sampled{instead}")
        #: Whose log-probabilities are reported where `SamplingParams` do not say.
        self._logprobs_mode = logprobs_mode or "raw_logprobs"
        self._routes = _flag("enable_return_routed_experts", enable_return_routed_experts)
        self._return_kept = "ids" if _flag("return_sampling_mask", return_sampling_mask) else None
        for name, found, meant in (
            ("runner", runner, ("auto", "generate")), ("task", task, ("auto", "generate")),
            ("convert", convert, ("auto", "none")),
            ("logprobs_mode", logprobs_mode, LOGPROBS_MODES),
        ):
            if found is not None and found not in meant:
                raise NotImplementedError(f"{name}: expected {' or '.join(meant)}, found {found!r}")
        if (way := more.get("load_format")) in OTHER_WEIGHTS:
            raise NotImplementedError(f"load_format: expected a way to load the folder's own weights, found {way!r}")
        unknown = sorted(set(more) - _WITHOUT_MEANING)
        if unknown:
            raise TypeError(f"LLM: there is no argument {unknown[0]!r}")
        if more:
            warnings.warn(f"without a meaning in Offshoot, ignored: {', '.join(sorted(more))}", stacklevel=2)
        if kv_dtype is None:
            kv_dtype = _choice("kv_cache_dtype", kv_cache_dtype, ("auto", "fp8", "fp8_e4m3"))
            kv_dtype = "fp8" if kv_dtype == "fp8_e4m3" else kv_dtype
        self._defaults = _defaults(path, generation_config, override_generation_config)
        kv_dtype = _choice("kv_dtype", kv_dtype, ("auto", "model", "fp8"))
        state_dtype = None if state_dtype is None else _choice("state_dtype", state_dtype, ("f32", "bf16"))
        engine = Engine(
            path, device=str(device), devices=devices, tensor_parallel=ranks, plan=plan,
            kv_dtype=None if kv_dtype == "auto" else kv_dtype, state_dtype=state_dtype, weights=weights,
            activations=activations, memory=memory, gpu_memory=gpu_memory_utilization, kv_memory=kv_memory,
            swap_memory=swap_memory, max_branches=max_num_seqs, context=max_model_len,
            deterministic=bool(deterministic), return_routed_experts=self._routes, prefix_store=prefix_store,
            prefix_store_size=float(prefix_store_size), threads=threads, max_loras=loras, max_lora_rank=rank,
            scorer=None if scorer is None else os.fspath(scorer), scorer_form=Scorer.form_json(scorer_form),
            scorer_memory=None if scorer_memory is None else _number("scorer_memory", scorer_memory),
            latent_copies=latent_copies)
        self.scorer = None if scorer is None else Scorer.beside(engine.scorer(), os.fspath(scorer))
        self._engine, self._given, self._adapters = engine, Given(engine), Adapters(engine, loras)
        self._facts = engine.facts()
        self.model = path
        self.seed = own_seed
        self.max_model_len = min(self._facts["context"], max_model_len or self._facts["context"])
        self.tokenizer = Tokenizer(engine.tokenizer, self._facts)
        if template is not None:
            self.tokenizer.chat_template = template
        self._names = itertools.count()
        self._naming = threading.Lock()
        _open.add(self)

    def __repr__(self) -> str:
        return f"LLM({self.model!r}, device={self._facts['device']!r})"

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the engine and frees its memory, once running generations have ended."""
        self._given.drop()
        if self.scorer is not None:
            self.scorer.close()
        self._engine.close()

    @property
    def _updated(self) -> Engine:
        """The engine, with all weights in force that were given to it, unless its weights sleep."""
        self._given.put_in_force()
        return self._engine

    @property
    def facts(self) -> EngineFacts:
        """What never changes: device, context, bytes of keys and values and so on."""
        return self._facts.copy()

    def metrics(self) -> EngineMetrics:
        """Counters since the start, such as ``prompt_tokens_logical``, ``prompt_tokens_computed``, ``tokens_sampled``;
        and what is held now: ``running``, ``waiting``, ``branches``, ``pages``."""
        return cast(EngineMetrics, json.loads(self._engine.metrics()))

    def get_tokenizer(self) -> "Tokenizer":
        return self.tokenizer

    @property
    def model_config(self) -> ModelConfig:
        """What scripts read of vLLM's: ``model``, ``tokenizer``, ``max_model_len``, ``seed``."""
        return ModelConfig(
            self.model, self.model, self.max_model_len, self.seed, _vocab_size=self._facts["vocab"],
            _defaults=self._defaults)

    @property
    def llm_engine(self) -> EngineView:
        """This LLM as scripts see vLLM's engine behind it: ``model_config``, ``tokenizer``."""
        return EngineView(self)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Gives up cached prompts, so that the next ones are computed anew: samples are the same, but what computing
        them costs can be measured. Whether nothing is cached any more: what runs, and trees, keep theirs. A
        ``prefix_store`` keeps what it has. Trainers end an update of weights by it: what ``load_weights`` was given is
        in force afterwards."""
        _refuse(reset_running_requests=reset_running_requests, reset_connector=reset_connector)
        return self._updated.evict()

    def get_default_sampling_params(self) -> SamplingParams:
        """What holds where no ``SamplingParams`` are given: the values of the model's generation_config.json. With
        ``LLM(generation_config="vllm")`` they are those of ``SamplingParams()``; ``override_generation_config`` goes
        before both."""
        return SamplingParams.from_optional(**self._defaults)

    # Weights that change.

    def load_weights(
        self, weights: str | os.PathLike[str] | NamedTensors, *, commit: bool = False, label: str | None = None,
    ) -> set[str]:
        """Changes weights: tensors by the names of the model's own files, all or only those that have changed, as pairs
        of name and tensor or as a dict. A tensor is one of numpy, torch or another library with ``__dlpack__``, in
        bf16, f16 or f32, which becomes the dtype that the engine computes in; one on a GPU is copied from there.

        They are kept until the next call that uses the engine, ``reset_prefix_cache()`` or ``wake_up()``, and put in
        force there, all that were given since the last time together; with ``commit`` at once. If one is unknown,
        of another shape, or not finite, that call raises and the old weights stay in force. A folder of safetensors
        files is read at once. Samples in progress go on under the new weights; what old ones computed is not used any
        more. Returns the names of the tensors. ``label``: as ``weight_label``, with ``commit`` or a folder."""
        if is_folder(weights):
            self._given.put_in_force()
            return set(self._engine.update_weights_from(cast(str, weights), label=label))
        given = cast(NamedTensors, weights)
        if not commit and label is not None:
            raise ValueError("label: expected None without commit: weights have a label once they are in force")
        return self._given.commit(given, label) if commit else self._given.take(given)

    @property
    def weight_version(self) -> int:
        """The version of the weights in force; each update adds one."""
        return self._engine.weights()[0]

    @property
    def weight_label(self) -> str:
        """What people call the weights in force; the version unless it was set."""
        return self._engine.weights()[1]

    @weight_label.setter
    def weight_label(self, label: str) -> None:
        self._updated.set_label(str(label))

    # Adapters.

    def load_adapter(
        self, name: str, adapter: str | os.PathLike[str] | NamedTensors, *, config: Any = None,
    ) -> int:
        """Loads an adapter (LoRA) under a name, in place of one that has it: a folder as PEFT writes it, or its tensors
        by PEFT's names (``…q_proj.lora_A.weight``) as ``load_weights`` takes tensors, with ``config``, the fields of
        adapter_config.json or PEFT's LoraConfig. Samples name it as ``lora_request=name``. One that does not fit the
        model, or is of a larger rank than ``max_lora_rank``, is refused, and the old one stays. Samples in progress
        keep the adapter that they began with, while there is room for both. Returns its version, which no other has
        had."""
        return self._adapters.load(name, adapter, config)

    def unload_adapter(self, name: str) -> None:
        """Removes an adapter: no sample can name it any more."""
        self._adapters.unload(name)

    @property
    def adapters(self) -> dict[str, LoadedAdapter]:
        """The adapters that are loaded, by name."""
        return self._adapters.loaded()

    def sleep(self, level: int = 1, mode: str = "abort", tags: Sequence[str] | str | None = None) -> None:
        """Gives memory of the device back, and lets nothing run until ``wake_up``: level 1 keeps the weights in host
        memory, 2 drops them too, so that all must be loaded before the next sample, 0 gives nothing back. Keys and
        values are dropped. ``tags`` "weights" or "kv_cache": only that memory is given back, the other stays. Samples
        in progress end with what they have (``mode`` "abort"), are waited for ("wait"), or go on afterwards
        ("keep")."""
        chosen, level = tags_of(tags), _whole("level", level, 0, 2)
        if level == 2 and (chosen is None or "weights" in chosen):
            self._given.drop()
        (self._updated if level else self._engine).sleep(level, mode, chosen)

    def wake_up(self, tags: Sequence[str] | str | None = None) -> None:
        """Takes memory again that ``sleep`` gave back: of ``tags`` "weights" and "kv_cache", or all. Once both are
        there, samples run again."""
        self._given.put_in_force()
        self._engine.wake(tags_of(tags))
        self._given.put_in_force()

    @property
    def is_sleeping(self) -> bool:
        """Whether memory was given back that ``wake_up`` has not taken again."""
        return any(self._engine.asleep())

    def pause(self, mode: str = "abort") -> None:
        """Lets nothing run until ``resume``; what is asked for meanwhile waits. ``mode`` as for ``sleep``."""
        self._engine.pause(mode)

    def resume(self) -> None:
        """Ends a pause."""
        self._engine.resume()

    @property
    def is_paused(self) -> bool:
        """Whether what is asked for waits."""
        return self._engine.is_paused()

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of vLLM's workers, of which there is one here: load_weights, reload_weights (with
        ``weights_path``), sleep or wake_up."""
        known: dict[str, Any] = {
            "load_weights": self.load_weights, "sleep": self.sleep, "wake_up": self.wake_up,
            "reload_weights": lambda weights_path: self.load_weights(weights_path),
        }
        if method not in known:
            raise NotImplementedError(f"method: expected {', '.join(sorted(known))}, found {method!r}: there are no "
                                      "worker processes to call it in")
        return [known[method](*args, **(kwargs or {}))]

    # Sampling.

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType] | None = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: list[int] | list[list[int]] | None = None,
        use_tqdm: bool = True,
        lora_request: LoraRequests = None,
        priority: int | Sequence[int] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        mm_processor_kwargs: Any = None,
        names: Sequence[str] | None = None,
        min_finished: int | None = None,
        stragglers: Literal["cancel", "keep"] = "cancel",
    ) -> list[RequestOutput]:
        """Samples prompts and returns a ``RequestOutput`` each, in their order.

        A prompt is a text, a list of token ids, or a dict with ``prompt`` or ``prompt_token_ids``. One
        ``SamplingParams`` holds for all prompts, a list has one for each. What prompts begin with alike is computed
        once. ``lora_request``: the adapter, one for all prompts or a list of one or None for each; a ``LoRARequest``,
        whose folder is read when it is used first, or the name of one that is loaded.
        ``priority``: one for all prompts, or a list of one for each; lower numbers are served earlier.
        ``tokenization_kwargs``: how texts become tokens, by ``add_special_tokens``, ``truncation`` and ``max_length``
        as transformers' tokenizers take them.
        ``names``: what the random numbers of each prompt follow from, beside the seed; by default its place among all
        prompts of this LLM, or with a seed of its own nothing else.
        ``min_finished``: a prompt ends once so many of its ``n`` samples have finished; the others are cancelled and
        have the finish reason ``abort``. With ``stragglers="keep"`` their branches stay, to be finished later by
        ``finish``, also under other weights, or given up by ``release``.
        """
        if asks(mm_processor_kwargs):
            warnings.warn("without a meaning in Offshoot, ignored: mm_processor_kwargs", stacklevel=2)
        job = self._begin(
            prompts, sampling_params, prompt_token_ids, lora_request, priority, names, tokenization_kwargs,
            min_finished, stragglers, stream=False)
        with _progress(use_tqdm, len(job.prompts)) as bar:
            try:
                for event in job.events():
                    if job.take(event):
                        bar.update(1)
            except KeyboardInterrupt:
                job.stop()
                raise Interrupted(job.outputs()) from None
        return job.outputs()

    def finish(self, outputs: RequestOutput | Sequence[RequestOutput]) -> list[RequestOutput]:
        """Continues the stragglers that ``generate(…, min_finished=…, stragglers="keep")`` kept of these outputs to
        their ends, and returns the outputs with all samples; those that were continued have ``continued``. A sample
        goes on where it stopped, with the random numbers that it would have had: under the same weights it becomes what
        it would have been. (A stop string that begins before the pause and ends behind it is not found.)"""
        each = [outputs] if isinstance(outputs, RequestOutput) else list(outputs)
        jobs: dict[int, tuple[_Job, list[int]]] = {}
        for output in each:
            if not isinstance(output, RequestOutput):
                raise TypeError(f"outputs: expected outputs of generate, found {output!r}")
            if output._kept is not None:
                job, at = output._kept
                jobs.setdefault(id(job), (job, []))[1].append(at)
        if jobs:
            self._given.put_in_force()
        for job, prompts in jobs.values():
            for at in dict.fromkeys(prompts):
                job.resume(at)
            for event in job.events():
                job.take(event)
        return [output if output._kept is None else output._kept[0].output(output._kept[1]) for output in each]

    def release(self, outputs: RequestOutput | Sequence[RequestOutput]) -> None:
        """Gives up the stragglers that are kept of these outputs; so does forgetting all outputs of the call."""
        for output in [outputs] if isinstance(outputs, RequestOutput) else outputs:
            if output._kept is not None:
                job, at = output._kept
                job.generation.release_kept(at)
                output._kept = None

    def generate_table(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: LoraRequests = None,
        priority: int | Sequence[int] | None = None,
        names: Sequence[str] | None = None,
    ) -> pa.Table:
        """The samples that ``generate`` draws as a ``pyarrow.Table``, a row a sample in the order of prompts and
        samples: ``prompt`` (its number), ``index``, ``text``, ``token_ids``, ``logprobs``, ``cumulative_logprob``,
        ``finish_reason``, ``stop_reason``; with ``return_kept``, ``return_entropy`` and ``return_confidence`` also
        ``kept_counts``, ``kept_lowest``, ``kept_ids``, ``entropies`` and ``confidences``, and with forms ``forced``,
        null of samples without. Its memory is the engine's own: there is no Python object a sample, which matters from
        some 100,000 on. Needs pyarrow."""
        import pyarrow as pa

        job = self._begin(
            prompts, sampling_params, lora_request=lora_request, priority=priority, names=names, stream=False)
        for prompt in job.prompts:
            params = prompt.params
            for name, used in (("prompt_logprobs", params.prompt_logprobs is not None),
                               ("best_of", params.samples > params.n)):
                if used:
                    raise NotImplementedError(f"{name} is not supported for a table of samples: use generate")
        modes = [self._mode(prompt.params) for prompt in job.prompts]
        table, left = Samples(modes), [prompt.params.samples for prompt in job.prompts]
        with _progress(use_tqdm, len(job.prompts)) as bar:
            try:
                while (ended := job.generation.next_samples(WAIT, table)) is not None:
                    for at in ended:
                        left[at] -= 1
                        bar.update(not left[at])
            except KeyboardInterrupt:
                for at, samples in enumerate(left):
                    if samples:
                        job.generation.cancel_prompt(at)
                while job.generation.next_samples(WAIT, table) is not None:
                    pass
                raise Interrupted([], pa.table(table)) from None
        return pa.table(table)

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: LoraRequests = None,
        priority: int | Sequence[int] | None = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        special_tokens_in_text: str = "allow",
    ) -> list[RequestOutput]:
        """Samples the assistant's next turn of one conversation or of several, read as the server reads them. A
        message's content is a text or a list of parts of texts; several become one text, a line each, unless the
        template takes lists. The texts of special tokens in messages and tools become the tokens,
        ``special_tokens_in_text`` "allow", are plain text, "escape", or are an error, "refuse"."""
        _choice("chat_template_content_format", chat_template_content_format, ("auto", "string"))
        _choice("special_tokens_in_text", special_tokens_in_text, ("allow", "escape", "refuse"))
        if not isinstance(messages, (list, tuple)):
            raise TypeError(f"messages: expected a list of messages or of conversations, found {messages!r}")
        conversations: Any = [messages] if messages and isinstance(messages[0], dict) else messages
        prompts: list[PromptType] = []
        for conversation in conversations:
            body = self.tokenizer._chat(
                conversation, chat_template, add_generation_prompt, continue_final_message, tools,
                chat_template_kwargs or {})
            text, ids = self._engine.tokenizer.chat_tokens(json.dumps(
                {**body, "special_tokens_in_text": special_tokens_in_text}, ensure_ascii=False))
            begun = conversation[-1].get("content") if continue_final_message else None
            chat = ChatBegin(
                body["chat_template"] or self.tokenizer.chat_template, begun if isinstance(begun, str) else None)
            prompts.append(_ChatPrompt(text, ids, chat))
        sampling_params = self._ending_turns(sampling_params)
        return self.generate(
            prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request, priority=priority)

    def _ending_turns(
        self, sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> SamplingParams | list[SamplingParams]:
        """The parameters with the texts that end the assistant's turn where the model has no token for it."""
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if isinstance(sampling_params, (list, tuple)):
            return [cast(SamplingParams, self._ending_turns(each)) for each in sampling_params]
        own = self._engine.tokenizer.chat_stops()
        if not own or not isinstance(sampling_params, SamplingParams) or sampling_params.ignore_eos:
            return cast(SamplingParams, sampling_params)
        # A form says where its text may end, and a cut one would lack it.
        if sampling_params.has_form:
            return sampling_params
        params = sampling_params.clone()
        stop = [params.stop] if isinstance(params.stop, str) else list(params.stop or [])
        params.stop = stop + [text for text in own if text not in stop]
        return params

    def stream(
        self, prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        lora_request: LoraRequests = None,
    ) -> Iterator[StreamOutput]:
        """New tokens of all samples as they come, each sample's in order; its last item has its whole ``output``.
        Leaving the loop, or deleting the iterator, ends the samples, which begin at once."""
        job = self._begin(prompts, sampling_params, lora_request=lora_request, stream=True)
        return (item for event in job.events() for item in job.streamed(event))

    def astream(
        self, prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        lora_request: LoraRequests = None,
    ) -> AsyncIterator[StreamOutput]:
        """``stream`` for asyncio."""
        return _streamed(self._begin(prompts, sampling_params, lora_request=lora_request, stream=True))

    async def agenerate(
        self, prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
        prompt_token_ids: list[int] | list[list[int]] | None = None, lora_request: LoraRequests = None,
        priority: int | Sequence[int] | None = None, names: Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        """``generate`` for asyncio; many may run at once and share what they can. A task that is cancelled ends its
        samples."""
        job = self._begin(prompts, sampling_params, prompt_token_ids, lora_request, priority, names, stream=False)
        async with _ending(job):
            while await _waited(job):
                for event in job.unread():
                    job.take(event)
        return job.outputs()

    @overload
    def score(  # type: ignore[overload-overlap]
        self, prompts: PromptType, choices: Sequence[str] | Sequence[list[int]], *, add_special_tokens: bool = ...,
        lora_request: AdapterName | None = ...,
    ) -> ScoredChoices: ...
    @overload
    def score(
        self, prompts: Sequence[PromptType], choices: Sequence[str] | Sequence[Sequence[str] | Sequence[list[int]]], *,
        add_special_tokens: bool = ..., lora_request: AdapterName | None = ...,
    ) -> list[ScoredChoices]: ...
    def score(
        self, prompts: Any, choices: Any, *, add_special_tokens: bool = True, lora_request: AdapterName | None = None,
    ) -> ScoredChoices | list[ScoredChoices]:
        """The log-probabilities of the continuations ``choices`` of a prompt; or of a list of prompts, each with its
        own list of choices or all with the same. Contexts are computed once. ``lora_request``: the adapter of all."""
        if isinstance(choices, (str, bytes)) or not hasattr(choices, "__iter__"):
            raise TypeError(f"choices: expected a list of continuations, found {choices!r}")
        choices = list(choices)
        if _is_one(prompts):
            return self._score([prompts], [choices], add_special_tokens, lora_request)[0]
        prompts = _several(prompts)
        if not prompts:
            return []
        lists = ([list(choices)] * len(prompts) if choices and isinstance(choices[0], str)
                 else [list(c) for c in choices])
        if len(lists) != len(prompts):
            raise ValueError(f"choices: expected {len(prompts)} lists, one for each prompt, found {len(lists)}")
        return self._score(prompts, lists, add_special_tokens, lora_request)

    def _score(
        self, prompts: list[Any], lists: list[Any], special: bool, lora_request: AdapterName | None,
    ) -> list[ScoredChoices]:
        adapter = self._adapters.version(lora_request)
        encoded = []
        for at, (prompt, choices) in enumerate(zip(prompts, lists)):
            place = at if len(prompts) > 1 else None
            if not choices:
                raise ValueError("choices: expected at least one, found none")
            if isinstance(prompt, dict) and prompt.get("prompt_token_ids") is None:
                prompt = prompt.get("prompt")
            if isinstance(prompt, str) and not any(_is_ids(choice) for choice in choices):
                encoded.append(self._engine.tokenizer.encode_choices(prompt, choices, special, place))
            else:
                ((_, ids),) = self._encoded([prompt], place)
                tails = [_ids_of(c) if _is_ids(c) else self._engine.tokenizer.encode([c], False)[0] for c in choices]
                encoded.append(Context(ids, tails))
        scored = []
        for prompt, choices, context, finishes in zip(
                prompts, lists, encoded, self._updated.score(encoded, 1, adapter)):
            scores = []
            for choice, tail, finish in zip(choices, context.continuations, finishes):
                likeliest = [next((other for other, _ in top), None) for top in finish.tops]
                text = choice if isinstance(choice, str) else None
                scores.append(ChoiceScore(text, tail, finish.logprob, finish.logprobs, likeliest == tail))
            scored.append(ScoredChoices(prompt if isinstance(prompt, str) else None, context.token_ids, scores))
        return scored

    def rescore(
        self, outputs: RequestOutput | Sequence[RequestOutput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """The samples of what ``generate`` returned, scored as if ``sampling_params`` drew their tokens now: the
        ``logprobs``, ``cumulative_logprob``, ``kept`` and ``entropies`` that these ask for. Samples with an adapter are
        scored with what has its name now. A token that they could not draw has a processed log-probability of -inf. On
        the CPU, and with ``deterministic=True``, records are the same bits as when the samples were drawn by the same
        parameters, weights and adapter."""
        requests = [outputs] if isinstance(outputs, RequestOutput) else list(outputs)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        each = (list(sampling_params) if isinstance(sampling_params, (list, tuple))
                else [sampling_params] * len(requests))
        if len(each) != len(requests):
            raise ValueError(f"sampling_params: expected {len(requests)}, one for each request, found {len(each)}")
        samples, scored_by = [], list[SamplingParams]()
        for request, params in zip(requests, each):
            if not isinstance(request, RequestOutput) or not isinstance(params, SamplingParams):
                raise TypeError(f"rescore: expected RequestOutput and SamplingParams, found {request!r}, {params!r}")
            sampling = self._sampling(params.checked(), self.max_model_len)
            if params.has_form:
                sampling = self._behind(sampling, request.prompt, request.prompt_token_ids, request._chat)
            adapter = self._adapters.version(request.lora_request)
            samples += [(request.prompt_token_ids, list(output.token_ids), sampling, adapter)
                        for output in request.outputs]
            scored_by.append(params)
        finishes = iter(self._updated.rescore(samples))
        rescored = []
        for request, params in zip(requests, scored_by):
            made = []
            for output in request.outputs:
                scored = self._completion(output.index, next(finishes), params)
                made.append(dataclasses.replace(
                    output, logprobs=scored.logprobs, cumulative_logprob=scored.cumulative_logprob, kept=scored.kept,
                    entropies=scored.entropies, confidences=scored.confidences, forced=scored.forced))
            rescored.append(dataclasses.replace(request, outputs=made))
        return rescored

    def beam_search(
        self, prompts: PromptType | Sequence[PromptType], params: BeamSearchParams, lora_request: LoraRequests = None,
        use_tqdm: bool = False, concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Beam search over tokens after each prompt, as vLLM's; ``offshoot.beam_search`` searches over steps of
        text. ``concurrency_limit``: so many prompts at a time."""
        if not isinstance(params, BeamSearchParams):
            raise TypeError(f"params: expected BeamSearchParams, found {params!r}")
        params = params.checked()
        encoded = [ids for _, ids in self._encoded([prompts] if _is_one(prompts) else _several(prompts))]
        most = len(encoded) if concurrency_limit is None else _whole("concurrency_limit", concurrency_limit, 1)
        adapters, _ = self._adapters.of_prompts(lora_request, len(encoded))
        found: list[BeamSearchOutput] = []
        for first in range(0, len(encoded), most or 1):
            found += beam_search(self, encoded[first:first + most], params, adapters[first:first + most])
        return found

    # Trees.

    def tree(
        self, prompt: PromptType, *, seed: int | None = None, name: str | None = None,
        adapter: AdapterName | None = None,
    ) -> Tree:
        """A sampling tree whose root is the prompt. With a seed it samples the same each time. ``adapter``: what the
        prompt and all nodes are computed with, unless ``fork`` says otherwise."""
        text, ids = self._encoded([prompt])[0]
        if name is None:
            name = "" if seed is not None else str(self._take_names(1)[0])
        return Tree(self, ids, text, self.seed if seed is None else _whole("seed", seed), name,
                    self._adapters.version(adapter))

    def encode(self, text: str, add_special_tokens: bool = True, **pooling: Any) -> list[int]:
        """The tokens of a text. With the arguments of vLLM's ``encode`` (``pooling_task``, ``pooling_params``) it is
        refused: that is for models that score."""
        if any(value is not None for value in pooling.values()):
            self._not_pooling("encode")
        return self._engine.tokenizer.encode([text], add_special_tokens)[0]

    def classify(self, prompts: Any, **_: Any) -> "list[ClassificationRequestOutput]":
        """As vLLM's: the classes of each prompt, of a model that scores."""
        self._not_pooling("classify")

    def reward(self, prompts: Any, /, **_: Any) -> "list[PoolingRequestOutput]":
        """As older versions of vLLM had it: the classes of each token or step, of a model that scores."""
        self._not_pooling("reward")

    def embed(self, prompts: Any, **_: Any) -> "list[EmbeddingRequestOutput]":
        """As vLLM's: the vector of each prompt, of an embedder or a model that was opened with ``convert="embed"``."""
        self._not_pooling("embed")

    # What the methods share.

    def _not_pooling(self, method: str) -> NoReturn:
        beside = "" if self.scorer is None else "; `llm.scorer` has the scorer's"
        if method == "embed":
            beside = "; convert=\"embed\" opens it as one that makes vectors"
        raise ValueError(f"LLM.{method}() is only supported for pooling models, found {self.model}{beside}")

    def _mode(self, params: SamplingParams) -> str:
        """Whose log-probabilities are reported of samples by these."""
        return params.logprobs_mode or self._logprobs_mode

    def _completion(
        self, index: int, finish: Finish, params: SamplingParams, adapter: LoRARequest | None = None,
    ) -> CompletionOutput:
        """A sample by these parameters."""
        mode = self._mode(params)
        ids, logprobs, ranks, tops = _sampled(finish, mode)
        text = finish.text if params.detokenize else ""
        texts = self._engine.tokenizer.token_texts
        rows = None if params.logprobs is None else token_logprobs(ids, logprobs, ranks, tops, texts)
        shown = FlatLogprobs.of(rows) if rows is not None and params.flat_logprobs else rows
        total = finish.logprob if mode == "raw_logprobs" else math.fsum(logprobs)
        return CompletionOutput(
            index, text, ids, total, shown, finish.finish_reason, finish.stop_reason, adapter,
            kept=_kept(finish, params.return_kept or self._return_kept),
            entropies=finish.records.entropies() if params.return_entropy else None,
            confidences=finish.records.confidences() if params.return_confidence else None,
            forced=finish.records.forced() if params.has_form else None, weights=finish.weights,
            adapters=finish.adapters,
            routed_experts=_routed_experts(finish, params.routed_experts_prompt_start))

    def _sampling(self, params: SamplingParams, room: int) -> Sampling:
        """The engine's parameters for a prompt that leaves room for so many tokens, with what this LLM says. Refuses a
        form that no text of the model has."""
        if params.has_form and (said := params.form()) is not None:
            self._check_form(*said)
        return params.sampling(room, self._engine.tokenizer, logprobs_mode=self._logprobs_mode,
                               return_kept=self._return_kept, return_routed_experts=self._routes)

    def _check_form(self, argument: str, form: NativeForm) -> None:
        self._engine.check_form(form, f"{argument}.{form.kind}")

    def _take_names(self, count: int) -> range:
        with self._naming:
            first = next(self._names)
            for _ in range(count - 1):
                next(self._names)
        return range(first, first + count)

    def _encoded(
        self, prompts: list[Any], place: int | None = None, *, special: bool = True, most: int | None = None,
    ) -> list[tuple[str | None, list[int]]]:
        """The text, if there is one, and the tokens of each prompt: of texts with special tokens around them, unless
        ``special`` is False, and the first ``most``. ``place``: the number of the only one, for an error."""
        texts: list[Any] = [prompt.get("prompt") if isinstance(prompt, dict) else prompt for prompt in prompts]
        ids: list[Any] = [None] * len(prompts)
        for at, prompt in enumerate(prompts):
            if isinstance(prompt, dict):
                known = set(prompt) & {"prompt", "prompt_token_ids"}
                if not known:
                    raise TypeError(f"prompt: expected `prompt` or `prompt_token_ids`, found {sorted(prompt)}")
                for unsupported in set(prompt) & {"multi_modal_data", "prompt_embeds"}:
                    raise NotImplementedError(f"{unsupported} is not supported")
                ids[at] = None if prompt.get("prompt_token_ids") is None else _ids_of(prompt["prompt_token_ids"])
                if not isinstance(texts[at], str) and (ids[at] is None or texts[at] is not None):
                    raise TypeError(f"prompt: expected a text, found {texts[at]!r}")
            elif _is_ids(prompt):
                texts[at], ids[at] = None, _ids_of(prompt)
            elif not isinstance(prompt, str):
                raise TypeError(f"prompt: expected a text, token ids or a dict, found {prompt!r}")
        missing = [at for at, tokens in enumerate(ids) if tokens is None]
        places = missing if len(prompts) > 1 else None if place is None else [place]
        for at, tokens in zip(missing, self._engine.tokenizer.encode([texts[at] for at in missing], special, places)):
            ids[at] = tokens[:most]
        return list(zip(texts, ids))

    def _begin(
        self, prompts: Any, sampling_params: Any, prompt_token_ids: Any = None, lora_request: LoraRequests = None,
        priority: int | Sequence[int] | None = None, names: Sequence[str] | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None, min_finished: int | None = None,
        stragglers: str = "cancel", *, stream: bool,
    ) -> _Job:
        if self.is_sleeping:
            raise RuntimeError("the LLM sleeps: call wake_up() before it samples")
        if prompts is None and prompt_token_ids is None:
            raise TypeError("prompts: expected a text, token ids or a list of them, found None")
        prompts = prompt_token_ids if prompts is None else prompts
        prompts = [prompts] if _is_one(prompts) else _several(prompts)
        special, most = self._encoding(tokenization_kwargs or {})
        encoded = self._encoded(prompts, special=special, most=most)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = (list(sampling_params) if isinstance(sampling_params, (list, tuple))
                  else [sampling_params] * len(prompts))
        if len(params) != len(prompts):
            raise ValueError(f"sampling_params: expected {len(prompts)}, one for each prompt, found {len(params)}")
        for each in params:
            if not isinstance(each, SamplingParams):
                raise TypeError(f"sampling_params: expected SamplingParams, found {each!r}")
        # Fields may have been set since they were made, and may be while samples run.
        checked = {id(each): each.checked() for each in {id(each): each for each in params}.values()}
        params = [checked[id(each)] for each in params]
        keeps = _choice("stragglers", stragglers, ("cancel", "keep")) == "keep"
        if keeps and min_finished is None:
            raise ValueError('stragglers: expected "cancel" without min_finished, found "keep"')
        if min_finished is not None:
            _whole("min_finished", min_finished, 1, min((each.samples for each in params), default=None))
        priorities = _priorities(priority, len(prompts))
        adapters, versions = self._adapters.of_prompts(lora_request, len(prompts))
        if names is not None and len(names) != len(prompts):
            raise ValueError(f"names: expected {len(prompts)}, one for each prompt, found {len(names)}")
        first = self._take_names(len(prompts)) if prompts else range(0)
        requests: list[Request] = []
        kept: list[_JobPrompt] = []
        made: dict[tuple[int, int | None], Sampling] = {}
        for at, ((text, ids), each) in enumerate(zip(encoded, params)):
            ids = each.truncated(ids, self.max_model_len)
            room = self.max_model_len - len(ids)
            if room <= 0:
                raise ValueError(f"prompt {at} has {len(ids)} tokens; the model's context is {self.max_model_len}")
            # Most prompts of a call have the same parameters and room for all of their tokens.
            key = (id(each), room if each.max_tokens is None or each.max_tokens > room else None)
            if key not in made:
                made[key] = self._sampling(_limited(each, room), room)
            name = names[at] if names is not None else "" if each.seed is not None else str(first[at])
            seed = self.seed if each.seed is None else each.seed
            sampling = made[key]
            if each.has_form:
                sampling = self._behind(sampling, text, ids, _chat_of(prompts[at]))
            requests.append(
                Request(ids, sampling, seed % (1 << 64), name, priorities[at], min_finished, keeps, versions[at]))
            kept.append(_JobPrompt(text, ids, each, adapters[at], _chat_of(prompts[at])))
        generation = self._updated.generate(requests, stream=stream)
        return _Job(self, generation, kept, first, keeps)

    def _behind(self, sampling: Sampling, text: str | None, ids: list[int], chat: ChatBegin | None) -> Sampling:
        """The sampling with a form that begins where the content of an answer to the prompt does."""
        if text is None:
            text = self._engine.tokenizer.decode(ids, skip_special_tokens=False)
        return sampling.behind(text) if chat is None else sampling.behind(text, chat.begun, chat.template)

    def _encoding(self, given: Mapping[str, Any]) -> tuple[bool, int | None]:
        """Whether special tokens are added to texts, and the most tokens of one, by a tokenizer's arguments."""
        if unknown := sorted(set(given) - {"add_special_tokens", "truncation", "max_length"}):
            raise NotImplementedError(f"tokenization_kwargs: {unknown[0]} is not supported")
        special = _flag("add_special_tokens", given.get("add_special_tokens", True))
        if not given.get("truncation"):
            return special, None
        most = given.get("max_length")
        return special, self.max_model_len if most is None else _whole("max_length", most, 1)


def _priorities(given: int | Sequence[int] | None, prompts: int) -> list[int]:
    """The priority of each prompt."""
    one = given is None or isinstance(given, numbers.Integral)
    each = [given or 0] * prompts if one else _listed("priority", given)
    if len(each) != prompts:
        raise ValueError(f"priority: expected {prompts}, one for each prompt, found {len(each)}")
    return [_whole("priority", priority, -(1 << 31), (1 << 31) - 1) for priority in each]


def _limited(params: SamplingParams, room: int) -> SamplingParams:
    """The same with at most so many tokens."""
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    limited = params.clone()
    limited.max_tokens, limited.min_tokens = room, min(params.min_tokens, room)
    return limited


def _sampled(
    finish: Finish, mode: str,
) -> tuple[list[int], list[float], list[int | None], list[list[tuple[int, float]]]]:
    """A sample's tokens, their log-probabilities by ``mode``, ranks and likeliest tokens, as vLLM counts them: with the
    end-of-text or stop token that ended it."""
    ids, logprobs, ranks, tops = finish.token_ids, finish.logprobs, finish.ranks, finish.tops
    if (stop := finish.stop_token) is not None:
        ids, logprobs = [*ids, stop.id], [*logprobs, stop.logprob]
        ranks, tops = [*ranks, stop.rank], [*tops, stop.top]
    if mode == "processed_logprobs":
        logprobs = finish.records.logprobs()
    return ids, logprobs, ranks, tops


def _routed_experts(finish: Finish, start: int) -> numpy.ndarray[Any, Any] | None:
    """The experts of a sample's tokens from number ``start`` on, if they were asked for."""
    if finish.routed_experts is None:
        return None
    import numpy

    ids, shape, id_bytes = finish.routed_experts
    return numpy.frombuffer(ids, dtype=f"<u{id_bytes}").reshape(shape)[start:]


def _kept(finish: Finish, form: str | None) -> KeptTokens | None:
    """The sets that a sample's tokens were drawn from, as ``return_kept`` asks for them."""
    if form is None:
        return None
    records = finish.records
    return KeptTokens(
        records.counts(), records.lowest(), records.ids() if form == "ids" else None,
        records.masks() if form == "mask" else None)


@dataclasses.dataclass(frozen=True, slots=True)
class _JobPrompt:
    """A prompt of a job: its text, if it is known, its tokens, how it is sampled, and its adapter."""

    text: str | None
    ids: list[int]
    params: SamplingParams
    adapter: LoRARequest | None
    chat: ChatBegin | None

    @property
    def results(self) -> int:
        """Samples, and the prompt's own scores."""
        return self.params.samples + (self.params.prompt_logprobs is not None)


#: What a job hears of its samples.
_Event = SampleTokens | SampleFinished | SampleFailed


class _Job:
    """A running generation and its results."""

    def __init__(
        self, llm: LLM, generation: Generation, prompts: list[_JobPrompt], numbers: range, keeps: bool = False,
    ):
        self.llm, self.generation, self.prompts, self.numbers = llm, generation, prompts, numbers
        #: Whether stragglers are kept, and the samples that were continued, by prompt and index.
        self.keeps, self.continued = keeps, set[tuple[int, int]]()
        self.samples: list[dict[int, Finish]] = [{} for _ in prompts]
        #: Tokens and characters of each sample that were streamed, by prompt and index.
        self.told: dict[tuple[int, int], tuple[int, int]] = {}
        self.arrived: list[_Event] = []

    def wait(self) -> bool:
        """Waits a moment for events; False once there are none to come."""
        return self.generation.next_events(WAIT, self.arrived)

    def unread(self) -> Iterator[_Event]:
        """Events that have arrived; each is forgotten once the next one is asked for, so that Ctrl-C loses none."""
        while self.arrived:
            yield self.arrived[0]
            del self.arrived[0]

    def events(self) -> Iterator[_Event | None]:
        """All events, and None at moments without one."""
        while self.wait():
            yield None
            yield from self.unread()

    def resume(self, at: int) -> None:
        """Continues the kept stragglers of a prompt."""
        self.continued.update((at, index) for index in self.generation.resume(at))

    def stop(self) -> None:
        """Cancels what runs and takes what it had; prompts that had not begun stay empty."""
        for arrived in self.unread():
            self.take(arrived)
        self.cancel()
        for event in self.events():
            self.take(event)

    def cancel(self) -> None:
        """Cancels what runs."""
        for at, prompt in enumerate(self.prompts):
            if len(self.samples[at]) < prompt.results:
                self.generation.cancel_prompt(at)

    def take(self, event: _Event | None) -> bool:
        """Keeps an event; whether it ended its prompt. Raises what made a prompt fail."""
        if isinstance(event, SampleFailed):
            raise event.error
        if not isinstance(event, SampleFinished):
            return False
        samples = self.samples[event.prompt]
        samples[event.sample] = event.finish
        return len(samples) == self.prompts[event.prompt].results

    def streamed(self, event: _Event | None) -> Iterator[StreamOutput]:
        if isinstance(event, SampleTokens):
            tokens, characters = self.told.get((event.prompt, event.sample), (0, 0))
            told = tokens + len(event.token_ids), characters + len(event.text)
            self.told[event.prompt, event.sample] = told
            mode = self.llm._mode(self.prompts[event.prompt].params)
            logprobs = event.records.logprobs() if mode == "processed_logprobs" else event.logprobs
            yield StreamOutput(event.prompt, event.sample, event.text, event.token_ids, logprobs)
            return
        self.take(event)
        if isinstance(event, SampleFinished):
            prompt = self.prompts[event.prompt]
            if event.sample < prompt.params.samples:
                output = self.llm._completion(event.sample, event.finish, prompt.params, prompt.adapter)
                tokens, characters = self.told.pop((event.prompt, event.sample), (0, 0))
                ids, logprobs, _, _ = _sampled(event.finish, self.llm._mode(prompt.params))
                yield StreamOutput(event.prompt, event.sample, event.finish.text[characters:], ids[tokens:],
                                   logprobs[tokens:], output)

    def outputs(self) -> list[RequestOutput]:
        return [self.output(prompt) for prompt in range(len(self.prompts))]

    def output(self, at: int) -> RequestOutput:
        prompt, samples = self.prompts[at], self.samples[at]
        params = prompt.params
        ended = [index for index in range(params.samples) if index in samples]
        made = [self.llm._completion(index, samples[index], params, prompt.adapter) for index in ended]
        for output in made:
            output.continued = (at, output.index) in self.continued
        if params.samples > params.n and len(made) > params.n:
            made = sorted(made, key=lambda output: -(output.cumulative_logprob or 0.0))[:params.n]
            for index, output in enumerate(made):
                output.index = index
        scored = samples.get(params.samples) if params.prompt_logprobs is not None else None
        prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if scored is not None:
            texts = self.llm._engine.tokenizer.token_texts
            tops = [top[:params.prompt_logprobs] for top in scored.tops]
            rows = token_logprobs(prompt.ids[1:], scored.logprobs, scored.ranks, tops, texts)
            prompt_logprobs = [None, *rows]
        finished = len(samples) == prompt.results and all(output.finish_reason != "abort" for output in made)
        flat = FlatLogprobs.of(prompt_logprobs) if prompt_logprobs is not None and params.flat_logprobs else None
        return RequestOutput(
            str(self.numbers[at]), prompt.text, prompt.ids, flat or prompt_logprobs, made, finished,
            lora_request=prompt.adapter, _kept=(self, at) if self.keeps and not finished else None, _chat=prompt.chat)


class Tokenizer:
    """The model's tokenizer, with the methods of transformers' that scripts use."""

    def __init__(self, native: NativeTokenizer, facts: Mapping[str, Any]):
        self._native = native
        self.chat_template: str | None = native.chat_template()
        self._own_template = self.chat_template
        self.bos_token, self.eos_token = native.named_token("bos_token"), native.named_token("eos_token")
        self.pad_token, self.unk_token = native.named_token("pad_token"), native.named_token("unk_token")
        self.bos_token_id: int | None = facts["bos"]
        self.eos_token_id: int | None = facts["eos"][0] if facts["eos"] else None
        self.vocab_size = native.vocab_size()
        self._vocab: dict[str, int] | None = None
        self.model_max_length: int | None = facts["context"]
        self.name_or_path = os.fspath(native.folder())
        #: As transformers' tokenizers say it. Nothing is padded here, and long texts lose their ends.
        self.padding_side = self.truncation_side = "right"
        self.is_fast = True

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """The tokenizer in a model's folder, without the model: ``bos_token_id``, ``eos_token_id`` and
        ``model_max_length``, which the model's config has, are None."""
        return cls(NativeTokenizer(os.fspath(folder)), {"bos": None, "eos": [], "context": None})

    def __len__(self) -> int:
        return self.vocab_size

    def encode(
        self, text: str, add_special_tokens: bool = True, *, split_special_tokens: bool = False,
    ) -> list[int]:
        """The tokens of a text; with ``split_special_tokens`` the texts of special tokens in it are plain text."""
        return self._native.encode([text], add_special_tokens, None, split_special_tokens)[0]

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True, *, padding: Any = False, truncation: Any = False,
        max_length: int | None = None, return_tensors: Any = None, return_attention_mask: bool = True,
        split_special_tokens: bool = False,
    ) -> "Encoding":
        """``input_ids`` and ``attention_mask`` of a text, or lists of them; with ``truncation`` the first
        ``max_length``; with ``split_special_tokens`` the texts of special tokens are plain text."""
        _refuse(padding=padding, return_tensors=return_tensors)
        texts = [text] if isinstance(text, str) else _several(text, "text: expected a text or a list of them")
        ids = self._native.encode(texts, add_special_tokens, None, split_special_tokens)
        if truncation:
            most = self.model_max_length if max_length is None else _whole("max_length", max_length, 1)
            ids = [row[:most] for row in ids]
        mask = [[1] * len(row) for row in ids]
        one = isinstance(text, str)
        return Encoding(input_ids=ids[0] if one else ids, attention_mask=mask[0] if one else mask)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        return self._native.decode(self._ids(token_ids), skip_special_tokens=skip_special_tokens)

    def batch_decode(
        self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False, **_: Any,
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        """The text of each token alone."""
        texts = self._native.token_texts(self._ids(ids))
        return texts[0] if isinstance(ids, numbers.Integral) else texts

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | None | list[int | None]:
        """The id of each token by its text as ``convert_ids_to_tokens`` gives it; None for what is no token."""
        vocab = self.get_vocab()
        return vocab.get(tokens) if isinstance(tokens, str) else [vocab.get(token) for token in tokens]

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The texts of a text's tokens."""
        return self._native.token_texts(self.encode(text, add_special_tokens))

    def get_vocab(self) -> dict[str, int]:
        """Ids by the texts of tokens; of those with equal texts (parts of characters) the first."""
        if self._vocab is None:
            texts = self._native.token_texts(list(range(self.vocab_size)))
            self._vocab = {text: self.vocab_size - at for at, text in enumerate(reversed(texts), 1)}
        return dict(self._vocab)

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of tokens that are given by their texts, as ``convert_ids_to_tokens`` gives them."""
        return "".join(tokens)

    @property
    def special_tokens_map(self) -> dict[str, str | list[str]]:
        """The texts of special tokens by their names; ``additional_special_tokens`` is a list."""
        named: dict[str, str | list[str]] = json.loads(self._native.special_tokens())
        for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
            if getattr(self, name) is not None:
                named[name] = getattr(self, name)
        return named

    @property
    def all_special_tokens(self) -> list[str]:
        """The texts of the special tokens that have a name, or are named in a list, each once."""
        texts = ([named] if isinstance(named, str) else named for named in self.special_tokens_map.values())
        return list(dict.fromkeys(itertools.chain.from_iterable(texts)))

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of ``all_special_tokens``."""
        return [id for text in self.all_special_tokens if (id := self._native.token_id(text)) is not None]

    @property
    def pad_token_id(self) -> int | None:
        return None if self.pad_token is None else self.get_vocab().get(self.pad_token)

    @property
    def unk_token_id(self) -> int | None:
        return None if self.unk_token is None else self.get_vocab().get(self.unk_token)

    def _ids(self, given: int | Sequence[int]) -> list[int]:
        ids = [given] if isinstance(given, numbers.Integral) else _several(given, "token_ids: expected token ids")
        for token in ids:
            if _whole("token_ids", token, 0) >= self.vocab_size:
                raise ValueError(f"token ids: expected numbers below {self.vocab_size}, found {token}")
        return list(map(int, ids))

    @overload
    def apply_chat_template(
        self, conversation: Sequence[_Message], *, tokenize: Literal[False], chat_template: str | None = ...,
        add_generation_prompt: bool = ..., continue_final_message: bool = ..., **more: Any) -> str: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[Sequence[_Message]], *, tokenize: Literal[False], chat_template: str | None = ...,
        add_generation_prompt: bool = ..., continue_final_message: bool = ..., **more: Any) -> list[str]: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[_Message], *, tokenize: Literal[True] = ..., return_dict: Literal[False] = ...,
        chat_template: str | None = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ...,
        **more: Any) -> list[int]: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[Sequence[_Message]], *, tokenize: Literal[True] = ...,
        return_dict: Literal[False] = ..., chat_template: str | None = ..., add_generation_prompt: bool = ...,
        continue_final_message: bool = ..., **more: Any) -> list[list[int]]: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[_Message], *, tokenize: Literal[True] = ..., return_dict: Literal[True],
        chat_template: str | None = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ...,
        **more: Any) -> Encoding: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[Sequence[_Message]], *, tokenize: Literal[True] = ...,
        return_dict: Literal[True], chat_template: str | None = ..., add_generation_prompt: bool = ...,
        continue_final_message: bool = ..., **more: Any) -> list[Encoding]: ...
    @overload
    def apply_chat_template(
        self, conversation: Sequence[_Message] | Sequence[Sequence[_Message]], *, tokenize: bool = ...,
        return_dict: bool = ..., chat_template: str | None = ..., add_generation_prompt: bool = ...,
        continue_final_message: bool = ..., **more: Any,
    ) -> str | list[int] | Encoding | list[str] | list[list[int]] | list[Encoding]: ...
    def apply_chat_template(
        self, conversation: Sequence[Any], *, chat_template: str | None = None, tokenize: bool = True,
        add_generation_prompt: bool = False, continue_final_message: bool = False, tools: Any = None,
        return_dict: bool = False, return_tensors: Any = None, padding: Any = False, truncation: Any = False,
        max_length: int | None = None, tokenizer_kwargs: dict[str, Any] | None = None, **variables: Any,
    ) -> Any:
        """The text of a conversation, or of several; with ``tokenize`` its tokens. The template sees the messages, and
        ``tools`` (dicts), as they are; ``variables`` are the template's."""
        _refuse(return_tensors=return_tensors, padding=padding, truncation=truncation,
                tokenizer_kwargs=tokenizer_kwargs)
        if not isinstance(conversation, (list, tuple)):
            raise TypeError(f"conversation: expected a list of messages or of conversations, found {conversation!r}")
        if conversation and isinstance(conversation[0], (list, tuple)):
            return [self.apply_chat_template(
                each, chat_template=chat_template, tokenize=tokenize, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message, tools=tools, return_dict=return_dict, **variables)
                for each in conversation]
        text = self._native.chat_prompt(json.dumps(self._chat(
            conversation, chat_template, add_generation_prompt, continue_final_message, tools, variables),
            ensure_ascii=False))
        if not tokenize:
            return text
        ids = self._native.encode([text], False)[0]
        return Encoding(input_ids=ids, attention_mask=[1] * len(ids)) if return_dict else ids

    def _chat(
        self, conversation: Sequence[Any], chat_template: str | None, add_generation_prompt: bool,
        continue_final_message: bool, tools: Any, variables: Mapping[str, Any],
    ) -> dict[str, Any]:
        """What a chat's template sees."""
        for tool in tools or ():
            if not isinstance(tool, dict):
                raise NotImplementedError(f"tools: expected dicts with a JSON schema each, found {tool!r}")
        template = chat_template or self.chat_template
        return {"chat_template": None if template == self._own_template else template, "messages": list(conversation),
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
                "continue_final_message": continue_final_message, "tools": list(tools) if tools else None,
                "chat_template_kwargs": dict(variables)}


class _ChatPrompt(dict[str, Any]):
    """The prompt of a chat, and how an answer to it begins."""

    def __init__(self, text: str, ids: list[int], chat: ChatBegin):
        super().__init__(prompt=text, prompt_token_ids=ids)
        self.chat = chat


def _chat_of(prompt: Any) -> ChatBegin | None:
    return prompt.chat if isinstance(prompt, _ChatPrompt) else None


class Encoding(dict[str, Any]):
    """What a tokenizer gives: a dict whose values are attributes, too, as transformers' ``BatchEncoding``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _refuse(**given: Any) -> None:
    """Refuses arguments that would change the result, by name."""
    for name, value in given.items():
        if value:
            raise NotImplementedError(f"{name}: is not supported, found {value!r}")


class _Bar:
    """A progress bar, or none."""

    def __init__(self, bar: Any = None):
        self.bar = bar

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def update(self, count: int) -> None:
        if self.bar is not None:
            self.bar.update(count)


def _progress(wanted: Any, total: int) -> _Bar:
    """tqdm's bar, in notebooks and terminals; ``wanted``: whether, or tqdm's own class."""
    if not wanted or total < 2:
        return _Bar()
    if callable(wanted):
        return _Bar(wanted(total=total, desc="prompts"))
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Bar()
    return _Bar(tqdm(total=total, desc="prompts", dynamic_ncols=True, disable=None))


def _is_ids(value: Any) -> bool:
    """Whether it is one list of token ids: a list of whole numbers, or an array of them."""
    if isinstance(value, (str, bytes, dict)) or value is None:
        return False
    if hasattr(value, "dtype"):
        return getattr(value, "ndim", 0) == 1 and value.dtype.kind in "iu"
    return isinstance(value, (list, tuple)) and len(value) > 0 and not isinstance(value[0], bool) and hasattr(
        value[0], "__index__")


def _is_one(prompts: Any) -> bool:
    """Whether it is one prompt, not several."""
    return isinstance(prompts, (str, bytes, dict)) or _is_ids(prompts)


def _several(
    prompts: Any, expected: str = "prompts: expected a text, token ids, a dict or a list of them",
) -> list[Any]:
    if not hasattr(prompts, "__iter__"):
        raise TypeError(f"{expected}, found {prompts!r}")
    return list(prompts)


@functools.cache
def _waiters() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_WAITS_AT_ONCE, "offshoot-wait")


async def _waited(job: _Job) -> bool:
    """``job.wait()`` for asyncio, whose own threads may be few."""
    return await asyncio.get_running_loop().run_in_executor(_waiters(), job.wait)


@contextlib.asynccontextmanager
async def _ending(job: _Job) -> AsyncIterator[None]:
    """Cancels what still runs of a job when its task is left, whoever still holds the task's exception."""
    try:
        yield
    except BaseException:
        _waiters().submit(job.cancel)  # A wait in progress keeps the generation for a moment.
        raise


async def _streamed(job: _Job) -> AsyncIterator[StreamOutput]:
    async with _ending(job):
        while await _waited(job):
            for event in job.unread():
                for item in job.streamed(event):
                    yield item


def _ids_of(value: Any) -> list[int]:
    if not _is_ids(value):
        raise TypeError(f"prompt_token_ids: expected a list of token ids that is not empty, found {value!r}")
    ids = value.tolist() if hasattr(value, "tolist") else value
    try:
        return array.array("I", ids).tolist()
    except (OverflowError, TypeError):
        wrong = next(token for token in ids if not _is_id(token))
        kind = ValueError if isinstance(wrong, numbers.Integral) else TypeError
        raise kind(f"prompt_token_ids: expected token ids, found {wrong!r}") from None


def _is_id(token: Any) -> bool:
    return isinstance(token, numbers.Integral) and 0 <= int(token) < 1 << 8 * array.array("I").itemsize


def _template(given: str | os.PathLike[str]) -> str:
    """A chat template: that of a file, or the text itself, which has braces or lines."""
    text = os.fspath(given)
    if isinstance(given, str) and any(mark in text for mark in "{}\n"):
        return text
    with open(text, encoding="utf-8-sig") as file:
        return file.read()


def _refuse_model(model: Any) -> NoReturn:
    raise TypeError(f"model: expected a folder, found {model!r}")


def _defaults(folder: str, source: Any, override: dict[str, Any] | None) -> dict[str, Any]:
    """Fields of ``SamplingParams`` as a generation_config.json has them: the folder's own (auto), that of another
    folder, or none (vllm)."""
    source = os.fspath(source)
    found = {}
    if source != "vllm":
        try:
            with open(os.path.join(folder if source == "auto" else source, "generation_config.json"),
                      encoding="utf-8-sig") as file:
                found = json.load(file)
        except OSError:
            if source != "auto":
                raise
        except ValueError:
            pass  # The engine says what is wrong with the folder.
    found = {**(found if isinstance(found, dict) else {}), **(override or {})}
    fields = {field: found[name] for name, field in _DEFAULTS.items() if found.get(name) is not None}
    SamplingParams.from_optional(**fields)
    return fields


def _check_dtype(folder: str, dtype: Any) -> None:
    """Refuses another dtype than the folder's: it is the one that is computed in."""
    asked = str(dtype).removeprefix("torch.").lower()
    asked = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(asked, asked)
    if asked in ("auto", "none"):
        return
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8-sig") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return  # The engine says what is wrong with the folder.
    own = str(config.get("dtype") or config.get("torch_dtype") or asked).removeprefix("torch.")
    if own != asked:
        raise NotImplementedError(f"dtype: expected auto or {own}, the folder's, found {dtype}")
