"""TRL's trainers with samples by Offshoot, in the trainer's own process.

``use()`` puts ``Generation`` in the place of TRL's class of samples by vLLM, whose options it takes (``use_vllm=True``,
``vllm_mode="colocate"``). Weights go to the engine in memory after each step, the prompts of a group are computed once,
and log-probabilities are those of the distribution that was sampled from, as TRL's importance sampling needs them.
``rollout_func`` is for trainers that take a function and for samples of one's own. TRL's server mode and its
asynchronous trainer need nothing of this file: they speak to ``offshoot serve --rollout``.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import trl.trainer.grpo_trainer
from trl.generation.vllm_generation import VLLMGeneration

from offshoot._llm import LLM
from offshoot._outputs import CompletionOutput, Logprob
from offshoot._params import SamplingParams
from offshoot.inputs import PromptType

__all__ = ["Generation", "use", "rollout_func", "named_adapter", "named_weights"]

#: What the adapter of a trainer is called in its engine.
POLICY = "policy"


class Generation(VLLMGeneration):  # type: ignore[misc, unused-ignore]
    """What TRL's trainers sample by. From TRL's own class it has the options and the names of weights."""

    #: An engine that is there already, and arguments for one that is made for each trainer.
    engine: LLM | None = None
    arguments: dict[str, Any] = {}

    def _init_vllm(self) -> None:
        if self.mode != "colocate":
            raise ValueError(f"vllm_mode: expected colocate, found {self.mode!r}: leave offshoot.trl.use() out and "
                             "start `offshoot serve --rollout`")
        if self.tensor_parallel_size != 1:
            raise NotImplementedError("vllm_tensor_parallel_size: expected 1, an engine for each process of the "
                                      f"trainer, found {self.tensor_parallel_size}")
        self.llm = self.engine or LLM(**self._arguments())
        self._llm_weights_sleeping = False
        #: The version that the trainer's weights became in the engine; None: they have not been there yet.
        self._version: int | None = None
        #: What the last update of weights and the last samples took.
        self.seconds = {"update": 0.0, "samples": 0.0}
        self._sleep()

    def _arguments(self) -> dict[str, Any]:
        device = self.accelerator.device
        on_gpu = device.type == "cuda"
        return {
            "model": self.model.name_or_path, "seed": self.accelerator.process_index,
            "device": f"cuda:{device.index or 0}" if on_gpu else "cpu", "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_length, "logprobs_mode": "processed_logprobs",
            **({"gpu_memory_utilization": self.gpu_memory_utilization} if on_gpu else {}), **self.arguments,
        }

    def _sleep(self) -> None:
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True

    def sampling_params(self) -> SamplingParams:
        """The trainer's options."""
        fields = {
            "repetition_penalty": self.repetition_penalty, "temperature": self.temperature, "top_p": self.top_p,
            "top_k": self.top_k, "min_p": self.min_p or 0.0, "max_tokens": self.max_completion_length,
            "logprobs": self.logprobs, **self.generation_kwargs,
        }
        if self.structured_outputs_regex is not None:
            fields["structured_outputs"] = {"regex": self.structured_outputs_regex}
        return SamplingParams(**fields)

    def sync_weights(self) -> None:
        """Makes the engine's weights those of the trainer."""
        begun = time.perf_counter()
        super().sync_weights()  # type: ignore[no-untyped-call, unused-ignore]
        self._version = _version(self.llm)
        self.seconds["update"] = time.perf_counter() - begun

    def refresh(self) -> None:
        """Makes the engine's weights those of the trainer again where they sleep or somebody else has changed them: an
        engine may have several trainers. After its own steps the trainer calls ``sync_weights``."""
        if self._llm_weights_sleeping or _version(self.llm) != self._version:
            self.sync_weights()

    def generate(
        self, prompts: list[list[int]], images: Any, num_generations: int, profiler: Any = None,
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float | None]]] | None, list[list[list[int]]] | None]:
        """The tokens of a sample for each prompt, their log-probabilities and whose these are, likeliest first."""
        if images is not None and any(images):
            raise NotImplementedError("images are not supported")
        self.refresh()
        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        begun = time.perf_counter()
        with profiler or contextlib.nullcontext():
            outputs = sampled(self.llm, prompts, self.sampling_params())
        self.seconds["samples"] = time.perf_counter() - begun
        self._sleep()
        ids = [output.token_ids for output in outputs]
        if self.logprobs is None:
            return prompts, ids, None, None
        rows = [[_by_rank(row) for row in output.logprobs or ()] for output in outputs]
        return (prompts, ids, [[[known(entry) for _, entry in row] for row in each] for each in rows],
                [[[token for token, _ in row] for row in each] for each in rows])


def _version(llm: LLM) -> int:
    """The version of an engine's weights once all that it was given are in force."""
    return llm._updated.weights()[0]


def sampled(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, adapter: str | None = None,
) -> list[CompletionOutput]:
    """A sample for each prompt, with the adapter of this name. Equal neighbours are a group: their prompt is computed
    once."""
    groups = [(ids, len(list(each))) for ids, each in itertools.groupby(prompts)]
    sizes = {size: params.clone() for _, size in groups}
    for size, each in sizes.items():
        each.n = size
    prompts_of_groups: list[PromptType] = [{"prompt_token_ids": ids} for ids, _ in groups]
    outputs = llm.generate(prompts_of_groups, [sizes[size] for _, size in groups], use_tqdm=False,
                           lora_request=adapter)
    return [sample for output in outputs for sample in output.outputs]


def _by_rank(row: dict[int, Logprob]) -> list[tuple[int, Logprob]]:
    return sorted(row.items(), key=lambda pair: pair[1].rank or 0)


def known(entry: Logprob) -> float | None:
    """A log-probability; None for none, as TRL has it."""
    return None if math.isnan(entry.logprob) else entry.logprob


class use:
    """Lets TRL's trainers that are made from now on sample by Offshoot; as a context, those that are made within it.

    ``modules``: of trainers, GRPO's by default; others that sample by vLLM have the same name in them
    (``trl.trainer.rloo_trainer``). ``llm``: an engine of the trainer's model; else each trainer has one of its own,
    made by ``arguments``, those of ``LLM``, beside what the trainer's options say.
    """

    def __init__(self, *modules: Any, llm: LLM | None = None, **arguments: Any):
        if llm is not None and arguments:
            raise ValueError(f"llm: expected None with arguments for one ({', '.join(sorted(arguments))})")
        made = type("Generation", (Generation,), {"engine": llm, "arguments": arguments})
        self._before = [(module, module.VLLMGeneration) for module in modules or (trl.trainer.grpo_trainer,)]
        for module, _ in self._before:
            module.VLLMGeneration = made

    def __enter__(self) -> "use":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Puts TRL's own class in its place again."""
        for module, before in self._before:
            module.VLLMGeneration = before


def named_weights(model: Any) -> Iterator[tuple[str, Any]]:
    """The weights of a model that is whole in this process, by the names of its files."""
    if hasattr(model, "peft_config"):
        raise NotImplementedError("adapters are loaded by LLM.load_adapter (see named_adapter), found a PEFT model")
    for name, parameter in model.named_parameters():
        yield name.replace("_checkpoint_wrapped_module.", ""), parameter


def named_adapter(model: Any) -> tuple[list[tuple[str, Any]], Any]:
    """The tensors of the active adapter of a PEFT model, and its configuration, as ``LLM.load_adapter`` takes them."""
    name = model.active_adapter if isinstance(model.active_adapter, str) else model.active_adapter[0]
    tensors = [(known.replace("_checkpoint_wrapped_module.", ""), parameter)
               for known, parameter in model.named_parameters() if ".lora_" in known and f".{name}." in known]
    return tensors, model.peft_config[name]


class _Last:
    """The last weights, or the last adapter, that a rollout function gave to its engine: of which model, in which
    training and after which step, and the version that they became. Any of these may be another one at the next
    call."""

    def __init__(self, llm: LLM, trainer: Any):
        self.adapter = POLICY if hasattr(trainer.model, "peft_config") else None
        if self.adapter is None:
            llm.load_weights(list(named_weights(trainer.model)), commit=True)
        else:
            tensors, config = named_adapter(trainer.model)
            llm.load_adapter(POLICY, tensors, config=config)
        self._model, self._training = weakref.ref(trainer.model), weakref.ref(trainer.state)
        self._step, self._version = trainer.state.global_step, self._versions(llm)

    def _versions(self, llm: LLM) -> tuple[int, int | None]:
        """Those of the engine's weights and of the adapter."""
        loaded = None if self.adapter is None else llm.adapters.get(self.adapter)
        return _version(llm), None if loaded is None else loaded.version

    def are(self, llm: LLM, trainer: Any) -> bool:
        """Whether they are the trainer's present ones, and still the engine's."""
        model, training, step = trainer.model, trainer.state, trainer.state.global_step
        return (self._model() is model and self._training() is training and self._step == step
                and self._version == self._versions(llm))


def rollout_func(llm: LLM, params: SamplingParams | None = None) -> Callable[[list[Any], Any], dict[str, Any]]:
    """A ``rollout_func`` for ``GRPOTrainer``: a sample for each prompt, of texts or of conversations, after the
    engine's weights were made those of the trainer, whoever changed them meanwhile; of a PEFT model its adapter alone
    is given to the engine (``LLM(enable_lora=True)``), whose model is the one below it. ``params``: how to sample
    instead of by the trainer's options. Without ``use_vllm=True`` TRL makes no use of the log-probabilities."""
    last: _Last | None = None

    def roll(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        nonlocal last
        if trainer.use_vllm:
            if getattr(trainer.vllm_generation, "llm", None) is llm:
                trainer.vllm_generation.refresh()
        elif last is None or not last.are(llm, trainer):
            last = _Last(llm, trainer)
        tokenizer = trainer.processing_class
        ids = [tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=False) for prompt in prompts]
        chosen = params or SamplingParams(
            temperature=trainer.temperature, top_p=trainer.top_p, top_k=trainer.top_k, min_p=trainer.min_p or 0.0,
            repetition_penalty=trainer.repetition_penalty, max_tokens=trainer.max_completion_length, logprobs=0)
        outputs = sampled(llm, ids, chosen, None if last is None else last.adapter)
        logprobs = [[known(row[token]) for token, row in zip(output.token_ids, output.logprobs)]
                    if output.logprobs is not None else None for output in outputs]
        return {"prompt_ids": ids, "completion_ids": [output.token_ids for output in outputs],
                "logprobs": None if None in logprobs else logprobs}

    return roll
