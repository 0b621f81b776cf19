"""``LLM``: a loaded model that samples prompts, with the methods of vLLM's ``LLM`` and trees, streams and scores."""

from __future__ import annotations

import atexit
import asyncio
import itertools
import json
import os
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from offshoot._native import Engine, NativeTokenizer
from offshoot._outputs import (
    ChoiceScore,
    CompletionOutput,
    RequestOutput,
    ScoredChoices,
    StreamOutput,
    token_logprobs,
)
from offshoot._params import SamplingParams, _whole
from offshoot._tree import Tree

#: Seconds between two looks at Ctrl-C and the progress bar.
WAIT = 0.1

#: Arguments of vLLM's LLM that change nothing here.
_WITHOUT_MEANING = {
    "tokenizer_mode", "skip_tokenizer_init", "trust_remote_code", "allowed_local_media_path", "revision",
    "tokenizer_revision", "cpu_offload_gb", "enforce_eager", "max_seq_len_to_capture", "disable_custom_all_reduce",
    "disable_async_output_proc", "enable_prefix_caching", "disable_log_stats", "enable_chunked_prefill",
    "max_num_batched_tokens", "block_size", "load_format", "download_dir", "distributed_executor_backend",
    "compilation_config", "disable_log_requests", "use_v2_block_manager", "num_scheduler_steps", "mm_processor_kwargs",
    "limit_mm_per_prompt", "generation_config", "async_scheduling", "disable_cascade_attn", "worker_use_ray",
}

_open: "weakref.WeakSet[LLM]" = weakref.WeakSet()


@atexit.register
def _close_all():
    # The engine's thread ends before the interpreter does, so that no call to a device is under way then.
    for llm in list(_open):
        llm.close()


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a generation. ``outputs`` has what was finished: of unfinished samples the beginnings, with the finish
    reason ``abort``; prompts that had not begun have no outputs."""

    def __init__(self, outputs: list[RequestOutput]):
        self.outputs = outputs
        done = sum(request.finished for request in outputs)
        super().__init__(f"{done} of {len(outputs)} prompts were finished: see this exception's `outputs`")


class LLM:
    """A model in memory and the engine that runs it; threads may share it.

    ``model``: a folder as Hugging Face has it. ``device``: auto, cpu, cuda or cuda:N. ``memory``: the share of the device's
    free memory for keys and values, or ``kv_memory`` in MiB. ``seed``: what samples without a seed of their own follow
    from. ``plan``: how attention is shared (balanced, tree, single, flat; samples are the same). ``kv_dtype``: auto or
    fp8. ``deterministic``: on a GPU, samples do not depend on what else runs, to the last bit. ``prefix_store``: a folder
    where computed prompts are kept. ``threads``: of the CPU backend; one number for a process.

    The other arguments of ``vllm.LLM`` are taken, too: those without a meaning here with one warning; those that would
    change the samples and are not supported raise ``NotImplementedError``.
    """

    def __init__(
        self,
        model: str | os.PathLike,
        *,
        tokenizer: str | os.PathLike | None = None,
        device: str = "auto",
        memory: float | None = None,
        kv_memory: int | None = None,
        seed: int | None = 0,
        plan: str = "balanced",
        kv_dtype: str | None = None,
        weights: str | None = None,
        deterministic: bool = False,
        prefix_store: str | os.PathLike | None = None,
        prefix_store_size: float = 20.0,
        threads: int | None = None,
        dtype: Any = "auto",
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        data_parallel_size: int = 1,
        gpu_memory_utilization: float | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        swap_space: float | None = None,
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        **more: Any,
    ):
        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else _refuse_model(model)
        for name, size in (("tensor_parallel_size", tensor_parallel_size), ("pipeline_parallel_size", pipeline_parallel_size),
                           ("data_parallel_size", data_parallel_size)):
            if _whole(name, size, 1) != 1:
                raise NotImplementedError(f"{name}: expected 1, found {size}: several GPUs are not supported yet")
        for name, value in (("weights", weights), ("quantization", quantization)):
            if value is not None:
                raise NotImplementedError(f"{name}: expected None, found {value!r}: quantised weights are not supported yet")
        if tokenizer is not None and os.path.realpath(tokenizer) != os.path.realpath(path):
            raise NotImplementedError(f"tokenizer: expected the model's own folder, found {os.fspath(tokenizer)!r}")
        _check_dtype(path, dtype)
        unknown = sorted(set(more) - _WITHOUT_MEANING)
        if unknown:
            raise TypeError(f"LLM: there is no argument {unknown[0]!r}")
        if more:
            warnings.warn(f"without a meaning in Offshoot, ignored: {', '.join(sorted(more))}", stacklevel=2)
        if kv_dtype is None and kv_cache_dtype != "auto":
            kv_dtype = "fp8" if kv_cache_dtype in ("fp8", "fp8_e4m3") else kv_cache_dtype
        self._engine = Engine(
            path, device=str(device), plan=plan, kv_dtype=None if kv_dtype == "auto" else kv_dtype, memory=memory,
            gpu_memory=gpu_memory_utilization, kv_memory=kv_memory,
            swap_memory=None if swap_space is None else int(swap_space * 1024),
            max_branches=max_num_seqs, deterministic=bool(deterministic), prefix_store=prefix_store,
            prefix_store_size=float(prefix_store_size), threads=threads)
        self._facts = self._engine.facts()
        self.model = path
        self.seed = 0 if seed is None else _whole("seed", seed)
        self.max_model_len = min(self._facts["context"], max_model_len or self._facts["context"])
        self.tokenizer = Tokenizer(self._engine.tokenizer, self._facts)
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
        self._engine.close()

    @property
    def facts(self) -> dict[str, Any]:
        """What never changes: device, context, bytes of keys and values and so on."""
        return dict(self._facts)

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, such as ``prompt_tokens_logical``, ``prompt_tokens_computed``, ``tokens_sampled``; and
        what is held now: ``running``, ``waiting``, ``branches``, ``pages``."""
        return json.loads(self._engine.metrics())

    def get_tokenizer(self) -> "Tokenizer":
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        return SamplingParams()

    # Sampling.

    def generate(
        self,
        prompts: Any = None,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        prompt_token_ids: list[int] | list[list[int]] | None = None,
        use_tqdm: bool = True,
        lora_request: Any = None,
        priority: int | None = None,
        names: Sequence[str] | None = None,
    ) -> list[RequestOutput]:
        """Samples prompts and returns a ``RequestOutput`` each, in their order.

        A prompt is a text, a list of token ids, or a dict with ``prompt`` or ``prompt_token_ids``. One ``SamplingParams``
        holds for all prompts, a list has one for each. What prompts begin with alike is computed once.
        ``names``: what the random numbers of each prompt follow from, beside the seed; by default its place among all
        prompts of this LLM, or with a seed of its own nothing else.
        """
        job = self._begin(prompts, sampling_params, prompt_token_ids, lora_request, priority, names, stream=False)
        with _progress(use_tqdm, len(job.prompts)) as bar:
            try:
                for event in job.events():
                    if job.take(event):
                        bar.update(1)
            except KeyboardInterrupt:
                job.stop()
                raise Interrupted(job.outputs()) from None
        return job.outputs()

    def chat(
        self,
        messages: list[dict[str, Any]] | list[list[dict[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        lora_request: Any = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Samples the assistant's next turn of one conversation or of several."""
        if tools:
            raise NotImplementedError("tools is not supported")
        if not isinstance(messages, (list, tuple)):
            raise TypeError(f"messages: expected a list of messages or of conversations, found {messages!r}")
        conversations = [messages] if messages and isinstance(messages[0], dict) else messages
        texts = [
            self.tokenizer.apply_chat_template(
                conversation, chat_template=chat_template, tokenize=False, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message, **(chat_template_kwargs or {}))
            for conversation in conversations
        ]
        tokens = self._engine.tokenizer.encode(texts, False)
        prompts = [{"prompt": text, "prompt_token_ids": ids} for text, ids in zip(texts, tokens)]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, lora_request=lora_request)

    def stream(
        self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Iterator[StreamOutput]:
        """New tokens of all samples as they come, each sample's in order; its last item has its whole ``output``. Leaving
        the loop, or deleting the iterator, ends the samples."""
        job = self._begin(prompts, sampling_params, stream=True)
        for event in job.events():
            yield from job.streamed(event)

    async def astream(
        self, prompts: Any, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> AsyncIterator[StreamOutput]:
        """``stream`` for asyncio."""
        job = self._begin(prompts, sampling_params, stream=True)
        while await asyncio.to_thread(job.wait):
            for event in job.unread():
                for item in job.streamed(event):
                    yield item

    async def agenerate(self, prompts: Any, sampling_params: Any = None, **more: Any) -> list[RequestOutput]:
        """``generate`` for asyncio, in a thread of its own; many may run at once and share what they can."""
        return await asyncio.to_thread(self.generate, prompts, sampling_params, use_tqdm=False, **more)

    def score(
        self, prompts: Any, choices: Sequence[str] | Sequence[Sequence[str]], *, add_special_tokens: bool = True
    ) -> ScoredChoices | list[ScoredChoices]:
        """The log-probabilities of the continuations ``choices`` of a prompt; or of a list of prompts, each with its own list
        of choices or all with the same. Contexts are computed once."""
        if isinstance(prompts, (str, dict)) or _is_ids(prompts):
            return self._score([prompts], [list(choices)], add_special_tokens)[0]
        prompts = list(prompts)
        if not prompts:
            return []
        lists = [list(choices)] * len(prompts) if choices and isinstance(choices[0], str) else [list(c) for c in choices]
        if len(lists) != len(prompts):
            raise ValueError(f"choices: expected {len(prompts)} lists, one for each prompt, found {len(lists)}")
        return self._score(prompts, lists, add_special_tokens)

    def _score(self, prompts: list, lists: list, special: bool) -> list[ScoredChoices]:
        encoded = []
        for prompt, choices in zip(prompts, lists):
            if not choices:
                raise ValueError("choices: expected at least one, found none")
            if isinstance(prompt, str):
                encoded.append(self._engine.tokenizer.encode_choices(prompt, choices, special))
            else:
                ids = _ids_of(prompt)
                tails = [_ids_of(c) if _is_ids(c) else self._engine.tokenizer.encode([c], False)[0] for c in choices]
                encoded.append((ids, tails))
        scored = []
        for prompt, choices, (ids, tails), finishes in zip(prompts, lists, encoded, self._engine.score(encoded, 1)):
            scores = []
            for choice, tail, finish in zip(choices, tails, finishes):
                logprobs, tops = finish[5], finish[6]
                greedy = all(top and top[0][0] == token for token, top in zip(tail, tops))
                scores.append(ChoiceScore(choice if isinstance(choice, str) else None, tail, finish[4], logprobs, greedy))
            scored.append(ScoredChoices(prompt if isinstance(prompt, str) else None, ids, scores))
        return scored

    # Trees.

    def tree(self, prompt: Any, *, seed: int | None = None, name: str | None = None) -> Tree:
        """A sampling tree whose root is the prompt. With a seed it samples the same each time."""
        text, ids = self._encoded([prompt])[0]
        if name is None:
            name = "" if seed is not None else str(self._take_names(1)[0])
        return Tree(self, ids, text, self.seed if seed is None else seed, name)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._engine.tokenizer.encode([text], add_special_tokens)[0]

    # What the methods share.

    def _take_names(self, count: int) -> range:
        with self._naming:
            first = next(self._names)
            for _ in range(count - 1):
                next(self._names)
        return range(first, first + count)

    def _encoded(self, prompts: list) -> list[tuple[str | None, list[int]]]:
        """The text, if there is one, and the tokens of each prompt."""
        texts = [prompt.get("prompt") if isinstance(prompt, dict) else prompt for prompt in prompts]
        ids: list[Any] = [None] * len(prompts)
        for at, prompt in enumerate(prompts):
            if isinstance(prompt, dict):
                known = set(prompt) & {"prompt", "prompt_token_ids"}
                if not known:
                    raise TypeError(f"prompt: expected `prompt` or `prompt_token_ids`, found {sorted(prompt)}")
                for unsupported in set(prompt) & {"multi_modal_data", "prompt_embeds"}:
                    raise NotImplementedError(f"{unsupported} is not supported")
                ids[at] = None if prompt.get("prompt_token_ids") is None else _ids_of(prompt["prompt_token_ids"])
            elif _is_ids(prompt):
                texts[at], ids[at] = None, _ids_of(prompt)
            elif not isinstance(prompt, str):
                raise TypeError(f"prompt: expected a text, token ids or a dict, found {prompt!r}")
        missing = [at for at, tokens in enumerate(ids) if tokens is None]
        for at, tokens in zip(missing, self._engine.tokenizer.encode([str(texts[at]) for at in missing], True)):
            ids[at] = tokens
        return list(zip(texts, ids))

    def _begin(self, prompts, sampling_params, prompt_token_ids=None, lora_request=None, priority=None, names=None, *,
               stream) -> "_Job":
        if lora_request is not None:
            raise NotImplementedError("lora_request is not supported")
        if prompts is None and prompt_token_ids is None:
            raise TypeError("prompts: expected a text, token ids or a list of them, found None")
        prompts = prompt_token_ids if prompts is None else prompts
        prompts = [prompts] if isinstance(prompts, (str, dict)) or _is_ids(prompts) else list(prompts)
        encoded = self._encoded(prompts)
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        params = list(sampling_params) if isinstance(sampling_params, (list, tuple)) else [sampling_params] * len(prompts)
        if len(params) != len(prompts):
            raise ValueError(f"sampling_params: expected {len(prompts)}, one for each prompt, found {len(params)}")
        for each in params:
            if not isinstance(each, SamplingParams):
                raise TypeError(f"sampling_params: expected SamplingParams, found {each!r}")
        if names is not None and len(names) != len(prompts):
            raise ValueError(f"names: expected {len(prompts)}, one for each prompt, found {len(names)}")
        first = self._take_names(len(prompts)) if prompts else range(0)
        requests, kept, made = [], [], {}
        for at, ((text, ids), each) in enumerate(zip(encoded, params)):
            if each.truncate_prompt_tokens:
                ids = ids[-each.truncate_prompt_tokens:]
            room = self.max_model_len - len(ids)
            if room <= 0:
                raise ValueError(f"prompt {at} has {len(ids)} tokens; the model's context is {self.max_model_len}")
            # Most prompts of a call have the same parameters and room for all of their tokens.
            key = (id(each), room if each.max_tokens is None or each.max_tokens > room else None)
            if key not in made:
                made[key] = _limited(each, room).sampling(room)
            name = names[at] if names is not None else "" if each.seed is not None else str(first[at])
            seed = self.seed if each.seed is None else each.seed
            requests.append((ids, made[key], seed % (1 << 64), name))
            kept.append((text, ids, each))
        generation = self._engine.generate(requests, stream=stream, priority=priority or 0)
        return _Job(self, generation, kept, first)


def _limited(params: SamplingParams, room: int) -> SamplingParams:
    """The same with at most so many tokens."""
    if params.max_tokens is None or params.max_tokens <= room:
        return params
    limited = params.clone()
    limited.max_tokens, limited.min_tokens = room, min(params.min_tokens, room)
    return limited


class _Job:
    """A running generation and its results."""

    def __init__(self, llm: LLM, generation, prompts: list, numbers: range):
        self.llm, self.generation, self.prompts, self.numbers = llm, generation, prompts, numbers
        self.samples: list[dict[int, tuple]] = [{} for _ in prompts]
        self.arrived: list[tuple] = []

    def wait(self) -> bool:
        """Waits a moment for events; False once there are none to come."""
        return self.generation.next_events(WAIT, self.arrived)

    def unread(self):
        """Events that have arrived; each is forgotten once the next one is asked for, so that Ctrl-C loses none."""
        while self.arrived:
            yield self.arrived[0]
            del self.arrived[0]

    def events(self):
        """All events, and None at moments without one."""
        while self.wait():
            yield None
            yield from self.unread()

    def stop(self) -> None:
        """Cancels what runs and takes what it had; prompts that had not begun stay empty."""
        for event in self.unread():
            self.take(event)
        for prompt, (_, _, params) in enumerate(self.prompts):
            if len(self.samples[prompt]) < self._expected(params):
                self.generation.cancel_prompt(prompt)
        for event in self.events():
            self.take(event)

    @staticmethod
    def _expected(params: SamplingParams) -> int:
        return params.samples + (params.prompt_logprobs is not None)

    def take(self, event) -> bool:
        """Keeps an event; whether it ended its prompt. Raises what made a prompt fail."""
        if event is None or event[0] == "tokens":
            return False
        if event[0] != "finished":
            raise event[-1]
        _, prompt, sample, finish = event
        self.samples[prompt][sample] = finish
        return len(self.samples[prompt]) == self._expected(self.prompts[prompt][2])

    def streamed(self, event) -> Iterator[StreamOutput]:
        if event is None:
            return
        if event[0] == "tokens":
            _, prompt, sample, (ids, text, logprobs, _) = event
            yield StreamOutput(prompt, sample, text, ids, logprobs)
            return
        self.take(event)
        _, prompt, sample, finish = event
        text, ids, params = self.prompts[prompt]
        if sample < params.samples:
            yield StreamOutput(prompt, sample, "", [], [], self.completion(sample, finish, params, ids))

    def completion(self, index: int, finish: tuple, params: SamplingParams, prompt: list[int]) -> CompletionOutput:
        reason, stop_reason, ids, text, logprob, logprobs, tops, stop_token = finish
        if stop_token is not None:
            ids, logprobs, tops = [*ids, stop_token[0]], [*logprobs, stop_token[1]], [*tops, stop_token[2]]
        if not params.detokenize:
            text = ""
        elif not params.skip_special_tokens:
            text = self._with_special(finish, params, prompt)
        engine = self.llm._engine
        rows = None if params.logprobs is None else token_logprobs(ids, logprobs, tops, engine.token_texts)
        return CompletionOutput(index, text, ids, logprob, rows, reason, stop_reason)

    def _with_special(self, finish: tuple, params: SamplingParams, prompt: list[int]) -> str:
        text = self.llm._engine.tokenizer.decode(finish[2], skip_special_tokens=False, after=prompt[-16:])
        stop = finish[1]
        if isinstance(stop, str) and not params.include_stop_str_in_output and stop in text:
            text = text[:text.index(stop)]
        return text

    def outputs(self) -> list[RequestOutput]:
        return [self.output(prompt) for prompt in range(len(self.prompts))]

    def output(self, at: int) -> RequestOutput:
        (text, ids, params), samples = self.prompts[at], self.samples[at]
        made = [self.completion(index, samples[index], params, ids) for index in range(params.samples) if index in samples]
        if params.samples > params.n and len(made) > params.n:
            made = sorted(made, key=lambda output: -output.cumulative_logprob)[:params.n]
            for index, output in enumerate(made):
                output.index = index
        scored = samples.get(params.samples) if params.prompt_logprobs is not None else None
        prompt_logprobs = None
        if scored is not None:
            texts = self.llm._engine.tokenizer.token_texts
            prompt_logprobs = [None, *token_logprobs(ids[1:], scored[5], scored[6], texts)]
        finished = len(samples) == self._expected(params) and all(output.finish_reason != "abort" for output in made)
        return RequestOutput(str(self.numbers[at]), text, ids, prompt_logprobs, made, finished)


class Tokenizer:
    """The model's tokenizer, with the methods of transformers' that scripts use."""

    def __init__(self, native: NativeTokenizer, facts: dict[str, Any]):
        self._native = native
        self.chat_template: str | None = native.chat_template()
        self._own_template = self.chat_template
        self.bos_token, self.eos_token = native.named_token("bos_token"), native.named_token("eos_token")
        self.pad_token = native.named_token("pad_token")
        self.bos_token_id = facts["bos"]
        self.eos_token_id = facts["eos"][0] if facts["eos"] else None
        self.vocab_size = native.vocab_size()
        self.model_max_length = facts["context"]

    @classmethod
    def of_folder(cls, folder: str | os.PathLike) -> "Tokenizer":
        """The tokenizer in a model's folder, without the model: ``bos_token_id``, ``eos_token_id`` and
        ``model_max_length``, which the model's config has, are None."""
        return cls(NativeTokenizer(os.fspath(folder)), {"bos": None, "eos": [], "context": None})

    def __len__(self) -> int:
        return self.vocab_size

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._native.encode([text], add_special_tokens)[0]

    def __call__(self, text: str | list[str], add_special_tokens: bool = True, **_: Any) -> dict[str, Any]:
        texts = [text] if isinstance(text, str) else list(text)
        ids = self._native.encode(texts, add_special_tokens)
        mask = [[1] * len(row) for row in ids]
        one = isinstance(text, str)
        return {"input_ids": ids[0] if one else ids, "attention_mask": mask[0] if one else mask}

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else [_whole("token_ids", token, 0) for token in token_ids]
        return self._native.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, sequences: Sequence[Sequence[int]], skip_special_tokens: bool = False, **_: Any) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        one = isinstance(ids, int)
        texts = self._native.token_texts([ids] if one else list(ids))
        return texts[0] if one else texts

    def apply_chat_template(
        self, conversation: list, *, chat_template: str | None = None, tokenize: bool = True,
        add_generation_prompt: bool = False, continue_final_message: bool = False, tools: Any = None, **variables: Any,
    ) -> Any:
        """The text of a conversation, or of several; with ``tokenize`` its tokens."""
        if tools:
            raise NotImplementedError("tools is not supported")
        if conversation and isinstance(conversation[0], (list, tuple)):
            return [self.apply_chat_template(
                each, chat_template=chat_template, tokenize=tokenize, add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message, **variables) for each in conversation]
        template = chat_template or self.chat_template
        text = self._native.chat_prompt(json.dumps({
            "chat_template": None if template == self._own_template else template, "messages": list(conversation), "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message, "chat_template_kwargs": variables}))
        return self._native.encode([text], False)[0] if tokenize else text


class _Bar:
    """A progress bar, or none."""

    def __init__(self, bar=None):
        self.bar = bar

    def __enter__(self):
        return self

    def __exit__(self, *_):
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


def _ids_of(value: Any) -> list[int]:
    if not _is_ids(value):
        raise TypeError(f"prompt_token_ids: expected a list of token ids that is not empty, found {value!r}")
    return [_whole("prompt_token_ids", token, 0) for token in (value.tolist() if hasattr(value, "tolist") else value)]


def _refuse_model(model: Any):
    raise TypeError(f"model: expected a folder, found {model!r}")


def _check_dtype(folder: str, dtype: Any) -> None:
    """Refuses another dtype than the folder's: it is the one that is computed in."""
    asked = str(dtype).removeprefix("torch.").lower()
    asked = {"half": "float16", "float": "float32", "bf16": "bfloat16", "fp16": "float16"}.get(asked, asked)
    if asked in ("auto", "none"):
        return
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return  # The engine says what is wrong with the folder.
    own = str(config.get("dtype") or config.get("torch_dtype") or asked).removeprefix("torch.")
    if own != asked:
        raise NotImplementedError(f"dtype: expected auto or {own}, the folder's, found {dtype}")
