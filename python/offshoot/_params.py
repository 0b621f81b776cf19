"""``SamplingParams``, with the fields of vLLM's: read, checked and turned into the engine's. Fields may be set at any
time, so whoever samples by them takes ``checked()`` ones."""

from __future__ import annotations

import copy
import dataclasses
import math
import numbers
import warnings
from collections.abc import Mapping
from typing import Any, cast

from offshoot._forms import native_form
from offshoot._native import NativeForm, NativeTokenizer, Sampling
from offshoot._vllm import RequestOutputKind, asks

_MOST_TOKENS = 1 << 30
#: Whose log-probabilities are reported.
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
#: Most samples of a prompt, as in a task.
MOST_SAMPLES = 1_000_000


def _whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """A whole number, numpy's included; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name}: expected a whole number, found {value!r}")
    number = int(value)
    if least is not None and number < least:
        raise ValueError(f"{name}: expected a whole number from {least} up, found {number}")
    if most is not None and number > most:
        raise ValueError(f"{name}: expected at most {most:,}, found {number}")
    return number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: expected a number, found {value!r}")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    """Whether something holds: a boolean, numpy's included, or 0 or 1."""
    if not isinstance(value, bool) and getattr(getattr(value, "dtype", None), "kind", None) != "b" and not (
            isinstance(value, numbers.Integral) and value in (0, 1)):
        raise TypeError(f"{name}: expected True or False, found {value!r}")
    return bool(value)


def _token(value: Any) -> int:
    """A token id as a key of ``logit_bias``, which JSON writes as a text."""
    return _whole("logit_bias", int(value) if isinstance(value, str) and value.isdecimal() else value, 0)


def _choice(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name}: expected {', '.join(known[:-1])} or {known[-1]}, found {value!r}")
    return cast(str, value)


def _listed(name: str, value: Any) -> list[Any]:
    """The values of a list, a tuple, an array and the like; None has none."""
    if value is None:
        return []
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name}: expected a list, found {value!r}")
    return value.tolist() if hasattr(value, "tolist") else list(value)


#: Fields that change nothing here, and what they are where nothing is said.
_WITHOUT_MEANING = {
    "spaces_between_special_tokens": True, "length_penalty": 1.0, "early_stopping": False, "stream_interval": None,
    "skip_clone": False, "output_text_buffer_length": 0, "skip_reading_prefix_cache": None,
}

#: What deepconf's processor reads of ``extra_args``.
_DEEPCONF = {"conf_threshold", "conf_group_size", "conf_topk", "eos_token_id"}

#: The most likeliest tokens that a confidence is the mean of.
_MOST_TOP = 2048

#: Fields of vLLM's that would change what is sampled or returned.
_NOT_SUPPORTED = (
    "watermarking", "thinking_token_budget", "repetition_detection", "logprob_token_ids", "prompt_logprob_token_ids",
    "prompt_logprob_start", "trace_decode_token_ids",
)


def _output_kind(value: Any) -> RequestOutputKind:
    """A kind, vLLM's own too, or its number."""
    name = getattr(value, "name", None)
    if isinstance(name, str) and name in RequestOutputKind.__members__:
        return RequestOutputKind[name]
    return RequestOutputKind(_whole("output_kind", value, 0, len(RequestOutputKind) - 1))


@dataclasses.dataclass(kw_only=True, slots=True)
class SamplingParams:
    """How a prompt is sampled. The names, defaults and meanings are those of ``vllm.SamplingParams``.

    ``n`` samples share their prompt: it is computed once. With a ``seed`` a prompt has the same samples in every call
    and on every machine of the same arithmetic; each of the ``n`` has random numbers of its own, and more samples leave
    the first ones as they are. ``logprobs=k`` reports the k likeliest tokens in each one's place, ``prompt_logprobs=k``
    those of the prompt.

    ``structured_outputs``: a ``StructuredOutputsParams`` with the form that samples must have, ``guided_decoding`` the
    same by its older name. Behind a prompt that has opened the model's reasoning, or of a chat whose template may, the
    form begins where the reasoning ends. A sample whose form allows no token, and does not end there, has the finish
    reason ``dead_end``, and one whose form takes too much work to keep ``form_limit``.

    Five fields are not vLLM's. ``logprobs_mode``: whose log-probabilities are reported, in place of the ``LLM``'s.
    ``return_kept``: the sets that tokens were drawn from, as ``CompletionOutput.kept``: "count" their sizes, "ids" or
    "mask" also which tokens. ``return_entropy``: ``CompletionOutput.entropies``. ``return_confidence=k``:
    ``CompletionOutput.confidences``. ``confidence_stop={"window": 2048, "below": 17.5, "top": 20}`` ends a sample
    behind the first token at which the mean confidence of the last ``window`` tokens is below ``below``, in nats; its
    finish reason is ``low_confidence``. ``extra_args`` may ask for the same by the names that deepconf's processor
    reads: ``conf_threshold``, ``conf_group_size`` and ``conf_topk`` (``eos_token_id`` is ignored).
    """

    n: int = 1
    best_of: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    logits_processors: Any = None
    guided_decoding: Any = None
    structured_outputs: Any = None
    extra_args: dict[str, Any] | None = None
    output_kind: Any = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    flat_logprobs: bool = False
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    skip_reading_prefix_cache: bool | None = None
    routed_experts_prompt_start: int = 0
    watermarking: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    logprob_token_ids: list[int] | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: int | None = None
    trace_decode_token_ids: list[int] | None = None
    logprobs_mode: str | None = None
    return_kept: str | None = None
    return_entropy: bool = False
    return_confidence: int | None = None
    confidence_stop: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        self._check()
        ignored = [name for name, usual in _WITHOUT_MEANING.items() if getattr(self, name) != usual]
        if ignored:
            warnings.warn(f"without a meaning in Offshoot, ignored: {', '.join(sorted(ignored))}", stacklevel=3)

    def checked(self) -> "SamplingParams":
        """A copy, refused as when it was made if a field that was set since is wrong. What is set later does not reach
        the copy."""
        made = copy.copy(self)
        made._check()
        return made

    def _check(self) -> None:
        """Refuses what is wrong, and brings the fields into one form."""
        if self.use_beam_search:
            raise NotImplementedError("use_beam_search is not supported: use LLM.beam_search")
        self.n = _whole("n", self.n, 1, MOST_SAMPLES)
        if self.best_of is not None:
            self.best_of = _whole("best_of", self.best_of, 1, MOST_SAMPLES)
            if self.best_of < self.n:
                raise ValueError(f"best_of: expected at least n ({self.n}), found {self.best_of}")
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p"):
            setattr(self, name, _number(name, getattr(self, name)))
        self.top_k = 0 if self.top_k is None else _whole("top_k", self.top_k, -1)
        self.seed = None if self.seed is None else _whole("seed", self.seed)
        if self.seed == -1:  # vLLM's other word for none.
            self.seed = None
        self.stop = self._stop()
        self.stop_token_ids = [
            _whole("stop_token_ids", token, 0) for token in _listed("stop_token_ids", self.stop_token_ids)]
        self.max_tokens = None if self.max_tokens is None else _whole("max_tokens", self.max_tokens, 1)
        self.min_tokens = _whole("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens: expected at most max_tokens ({self.max_tokens}), found {self.min_tokens}")
        if self.truncate_prompt_tokens is not None:
            self.truncate_prompt_tokens = _whole("truncate_prompt_tokens", self.truncate_prompt_tokens, -1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is True:
                setattr(self, name, 1)
            count = getattr(self, name)
            if count is not None and _whole(name, count) < 0:
                raise NotImplementedError(f"{name}: expected a number from 0 up, found {count}: the log-probabilities "
                                          "of the whole vocabulary are not supported")
        self.bad_words = self._bad_words()
        if self.logits_processors:
            raise NotImplementedError("logits_processors is not supported: it would change what is sampled")
        if set(self.extra_args or ()) - _DEEPCONF:
            raise NotImplementedError(f"extra_args is not supported, found {sorted(self.extra_args or ())}")
        for name in _NOT_SUPPORTED:
            if asks(getattr(self, name)):
                raise NotImplementedError(f"{name} is not supported: it would change what is sampled or returned")
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens", "flat_logprobs"):
            setattr(self, name, _flag(name, getattr(self, name)))
        self.return_entropy = _flag("return_entropy", self.return_entropy)
        if self.return_confidence is not None:
            self.return_confidence = _whole("return_confidence", self.return_confidence, 1, _MOST_TOP)
        stop = self._confidence_stop()
        if stop is not None and self.return_confidence not in (None, stop[2]):
            raise ValueError(f"return_confidence: expected {stop[2]}, of which the confidences are that end the "
                             f"samples, found {self.return_confidence}")
        self.routed_experts_prompt_start = _whole("routed_experts_prompt_start", self.routed_experts_prompt_start, 0)
        if self.logprobs_mode is not None:
            _choice("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        if self.return_kept is not None:
            _choice("return_kept", self.return_kept, ("count", "ids", "mask"))
        if self.output_kind is not None:
            self.output_kind = _output_kind(self.output_kind)
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: expected a number from 0 up, found {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: expected a number above 0 and up to 1, found {self.top_p}")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p: expected a number from 0 to 1, found {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2.0 <= getattr(self, name) <= 2.0:
                raise ValueError(f"{name}: expected a number from -2 to 2, found {getattr(self, name)}")
        if not 0.0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty: expected a number above 0, found {self.repetition_penalty}")
        if self.logit_bias is not None and not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias: expected a dict of biases by token id, found {self.logit_bias!r}")
        for bias in (self.logit_bias or {}).values():
            if math.isnan(_number("logit_bias", bias)):
                raise ValueError(f"logit_bias: expected numbers, found {bias}")
        self.sampling(room=_MOST_TOKENS)

    @classmethod
    def from_optional(cls, **fields: Any) -> "SamplingParams":
        """The same; fields that are None have their defaults."""
        return cls(**{name: value for name, value in fields.items() if value is not None})

    def clone(self) -> "SamplingParams":
        return copy.deepcopy(self)

    @property
    def samples(self) -> int:
        """Samples drawn of a prompt, of which ``n`` are returned."""
        return self.best_of or self.n

    @property
    def has_form(self) -> bool:
        """Whether a field asks for a form."""
        return self.structured_outputs is not None or self.guided_decoding is not None

    def form(self) -> tuple[str, NativeForm] | None:
        """The form that samples must have, and the field that says so."""
        said = [(name, getattr(self, name)) for name in ("structured_outputs", "guided_decoding")]
        forms = [(name, native_form(name, given)) for name, given in said if given is not None]
        named = [(name, form) for name, form in forms if form is not None]
        if len(named) > 1:
            raise ValueError("guided_decoding: expected None beside structured_outputs, whose older name it is, found "
                             f"{self.guided_decoding!r}")
        return named[0] if named else None

    def _stop(self) -> list[str]:
        stop = [self.stop] if isinstance(self.stop, str) else _listed("stop", self.stop)
        for text in stop:
            if not isinstance(text, str) or not text:
                raise ValueError(f"stop: expected texts that are not empty, found {text!r}")
        return stop

    def _bad_words(self) -> list[str]:
        words = _listed("bad_words", self.bad_words)
        for word in words:
            if not isinstance(word, str) or not word.strip():
                raise ValueError(f"bad_words: expected words that are not empty, found {word!r}")
        return words

    def _confidence_stop(self) -> tuple[int, float, int] | None:
        """The window, the lowest mean and the number of likeliest tokens by which a sample ends."""
        deepconf = self.extra_args or {}
        if self.confidence_stop is None:
            window, below = deepconf.get("conf_group_size"), deepconf.get("conf_threshold")
            if window is None and below is None:
                return None
            if window is None or below is None:
                raise ValueError(f"extra_args: expected conf_threshold with conf_group_size, found {deepconf!r}")
            top, of = deepconf.get("conf_topk"), "extra_args.conf_"
            names = (f"{of}group_size", f"{of}threshold", f"{of}topk")
        else:
            said = self.confidence_stop
            if not isinstance(said, Mapping) or not {"window", "below"} <= set(said) <= {"window", "below", "top"}:
                raise ValueError(f"confidence_stop: expected a dict of window, below and top, found {said!r}")
            if deepconf:
                raise ValueError(f"extra_args: expected none beside confidence_stop, found {deepconf!r}")
            window, below, top = said["window"], said["below"], said.get("top")
            names = ("confidence_stop.window", "confidence_stop.below", "confidence_stop.top")
        lowest = _number(names[1], below)
        if not math.isfinite(lowest):
            raise ValueError(f"{names[1]}: expected a finite number, found {below}")
        return (_whole(names[0], window, 1, _MOST_TOKENS), lowest,
                _whole(names[2], 20 if top is None else top, 1, _MOST_TOP))

    def _allowed(self) -> list[int] | None:
        if self.allowed_token_ids is None:
            return None
        allowed = [_whole("allowed_token_ids", token, 0)
                   for token in _listed("allowed_token_ids", self.allowed_token_ids)]
        if not allowed:
            raise ValueError("allowed_token_ids: expected at least one token, found none")
        return allowed

    def truncated(self, ids: list[int], context: int) -> list[int]:
        """The last tokens of a prompt, as many as ``truncate_prompt_tokens`` leaves of it; -1: as many as the model's
        context holds beside ``max_tokens``, or beside one token without it."""
        kept = self.truncate_prompt_tokens
        if kept == -1:
            kept = max(context - (self.max_tokens or 1), 1)
        return ids[-kept:] if kept else ids

    def sampling(
        self, room: int, tokenizer: NativeTokenizer | None = None, *, logprobs_mode: str = "raw_logprobs",
        return_kept: str | None = None, return_routed_experts: bool = False,
    ) -> Sampling:
        """The engine's parameters, for a prompt that leaves room for so many tokens; of ``checked()`` ones.
        ``tokenizer``: what spells ``bad_words``; without it they are only checked. The others hold where the fields of
        these names are None."""
        words = self._bad_words()
        spelt = [] if tokenizer is None else [run for word in words for run in tokenizer.spellings(word)]
        form = self.form()
        stop = self._confidence_stop()
        return Sampling(
            n=self.samples, temperature=self.temperature, top_p=self.top_p,
            top_k=self.top_k if self.top_k > 0 else None,
            min_p=self.min_p, repetition_penalty=self.repetition_penalty, frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=[(_token(token), _number("logit_bias", bias))
                        for token, bias in (self.logit_bias or {}).items()],
            allowed_token_ids=self._allowed(), bad_words=spelt,
            logprobs=self.logprobs, prompt_logprobs=self.prompt_logprobs,
            max_tokens=self.max_tokens if self.max_tokens is not None else max(1, room),
            min_tokens=self.min_tokens, stop=self._stop(),
            stop_token_ids=_listed("stop_token_ids", self.stop_token_ids), ignore_eos=self.ignore_eos,
            include_stop=self.include_stop_str_in_output, show_special=not self.skip_special_tokens,
            logprobs_mode=self.logprobs_mode or logprobs_mode, return_kept=self.return_kept or return_kept,
            return_entropy=self.return_entropy, return_routed_experts=return_routed_experts,
            form=None if form is None else form[1],
            confidence_of=self.return_confidence if stop is None else stop[2],
            confidence_stop=None if stop is None else stop[:2])
