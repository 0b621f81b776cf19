"""Beam search over tokens, with the names and the order of vLLM's ``LLM.beam_search``. Each step draws the likeliest
next tokens of all beams of all prompts in one generation; what beams share is computed once. Searches over steps of
text are ``search``'s."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

from offshoot._outputs import Logprob
from offshoot._params import SamplingParams, _flag, _number, _whole
from offshoot._vllm import LoRARequest, asks
from offshoot.inputs import PromptType

if TYPE_CHECKING:
    from offshoot._llm import LLM


#: Most beams of a prompt: each step asks for twice as many of the likeliest tokens, of which an engine reports 2048.
_MOST_BEAMS = 1024

#: The largest length penalty: times the logarithm of a length it is still a number.
_MOST_PENALTY = 1e300


@dataclasses.dataclass(kw_only=True, slots=True)
class BeamSearchParams:
    """How a prompt is searched: ``beam_width`` sequences of at most ``max_tokens``, ranked by their log-probability
    over their length, with the prompt's, to the power of ``length_penalty``. ``include_stop_str_in_output`` is without
    a meaning, as in vLLM's ``LLM``."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: Any = None
    watermarking: bool | None = None
    allowed_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        self._check()

    def checked(self) -> "BeamSearchParams":
        """A copy, refused as when it was made if a field that was set since is wrong."""
        made = copy.copy(self)
        made._check()
        return made

    def _check(self) -> None:
        self.beam_width = _whole("beam_width", self.beam_width, 1, _MOST_BEAMS)
        self.max_tokens = _whole("max_tokens", self.max_tokens, 1)
        self.temperature = _number("temperature", self.temperature)
        if not 0.0 <= self.temperature < math.inf:
            raise ValueError(f"temperature: expected a number from 0 up, found {self.temperature}")
        self.length_penalty = _number("length_penalty", self.length_penalty)
        if not abs(self.length_penalty) <= _MOST_PENALTY:
            raise ValueError(f"length_penalty: expected a number from -{_MOST_PENALTY} to {_MOST_PENALTY}, "
                             f"found {self.length_penalty}")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            setattr(self, name, _flag(name, getattr(self, name)))
        for name in ("structured_outputs", "watermarking", "allowed_token_ids"):
            if asks(getattr(self, name)):
                raise NotImplementedError(f"{name} is not supported: it would change what is found")


@dataclasses.dataclass(slots=True)
class BeamSearchSequence:
    """A sequence: its ``tokens`` with the prompt's, and its ``text`` with the prompt's."""

    tokens: list[int]
    logprobs: list[dict[int, Logprob]]
    lora_request: LoRARequest | None = None
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: int | str | None = None


@dataclasses.dataclass(slots=True)
class BeamSearchOutput:
    """The sequences of a prompt, the best first."""

    sequences: list[BeamSearchSequence]


def beam_search(
    llm: "LLM", prompts: list[list[int]], params: BeamSearchParams, adapters: list[LoRARequest | None],
) -> list[BeamSearchOutput]:
    """Searches after each prompt, with its adapter, all side by side."""
    ends = set() if params.ignore_eos else set(llm.facts["eos"])
    draw = SamplingParams(logprobs=2 * params.beam_width, max_tokens=1, temperature=params.temperature, seed=llm.seed)

    def score(beam: BeamSearchSequence) -> float:
        """The log-probability over the length to the power of the penalty, both in logarithms: powers may overflow."""
        length = len(beam.tokens) - (beam.tokens[-1] in llm.facts["eos"])
        unlikely = math.log(-beam.cum_logprob) if beam.cum_logprob < 0 else -math.inf
        return params.length_penalty * math.log(max(1, length)) - unlikely

    def best(beams: list[BeamSearchSequence]) -> list[BeamSearchSequence]:
        return sorted(beams, key=score, reverse=True)[:params.beam_width]

    growing = [[BeamSearchSequence(tokens, [], adapter)] for tokens, adapter in zip(prompts, adapters)]
    ended: list[list[BeamSearchSequence]] = [[] for _ in prompts]
    for _ in range(params.max_tokens):
        for prompt, beams in enumerate(growing):
            ended[prompt] += [beam for beam in beams if len(beam.tokens) >= llm.max_model_len]
        at = [(prompt, beam) for prompt, beams in enumerate(growing) for beam in beams
              if len(beam.tokens) < llm.max_model_len]
        growing = [[] for _ in prompts]
        if not at:
            break
        longest: list[PromptType] = [{"prompt_token_ids": beam.tokens} for _, beam in at]
        requests = llm.generate(longest, draw, use_tqdm=False, lora_request=[beam.lora_request for _, beam in at])
        for (prompt, beam), request in zip(at, requests):
            row = (request.outputs[0].logprobs or [{}])[0]
            for token, found in row.items():
                longer = BeamSearchSequence([*beam.tokens, token], [*beam.logprobs, row], beam.lora_request,
                                            cum_logprob=beam.cum_logprob + found.logprob)
                if token in ends:
                    longer.finish_reason = "stop"
                (ended if token in ends else growing)[prompt].append(longer)
        growing = [best(beams) for beams in growing]
    outputs = []
    for done, beams in zip(ended, growing):
        sequences = best(done + beams)
        for beam in sequences:
            beam.text = llm.tokenizer.decode(beam.tokens, params.skip_special_tokens)
            beam.finish_reason = beam.finish_reason or "length"
        outputs.append(BeamSearchOutput(sequences))
    return outputs
