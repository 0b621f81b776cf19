"""Scorers for its_hub's algorithms (1.2): reward models that score with a ``Scorer`` of this process. What the texts of
a search have in common is computed once. Needs its_hub.

    scorer = offshoot.Scorer("REWARD")
    algorithm = ParticleFiltering(sg, offshoot.its_hub.ProcessReward(scorer))
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from offshoot._scorer import Scorer

try:
    from its_hub.api.reward_models.orm import AbstractOutcomeRewardModel
    from its_hub.api.reward_models.prm import AbstractProcessRewardModel
    from its_hub.api.types import ChatMessages
except ImportError as error:
    raise ImportError("offshoot.its_hub needs its_hub 1.2: pip install its_hub") from error


def _turns(messages: Any) -> list[dict[str, str]]:
    """The turns of a conversation as its_hub has it."""
    turns = ChatMessages.from_prompt_or_messages(messages).to_chat_messages()
    return [{"role": turn.role, "content": turn.extract_text_content()} for turn in turns]


def _scores(scorer: Scorer, question: Any, answers: Sequence[str], aggregate: Any, strict: bool) -> list[float]:
    """The answers' scores as numbers from 0 to 1. An answer without one has 0, and a warning says so, or raises."""
    rated = scorer.rate(question, list(answers), aggregate=aggregate)
    unscored = [each.error or "no step has a score" for each in rated if each.probability is None]
    if unscored and strict:
        raise ValueError(f"an answer has no score: {unscored[0]}")
    if unscored:
        warnings.warn(f"{len(unscored)} of {len(rated)} answers have no score and count as 0: {unscored[0]}",
                      stacklevel=3)
    return [0.0 if each.probability is None else each.probability for each in rated]


class ProcessReward(AbstractProcessRewardModel):  # type: ignore[misc]
    """Scores partial answers for beam search and particles, as numbers from 0 to 1. ``aggregate``: how the scores of an
    answer's steps become its own; by default as the scorer's form says. An answer that cannot be scored, as it is
    longer than the scorer's context, has 0 and a warning; with ``strict`` it raises ``ValueError``."""

    def __init__(
        self, scorer: Scorer, aggregate: Literal["last", "min", "product", "mean"] | None = None, *,
        strict: bool = False,
    ):
        self.scorer, self.aggregate, self.strict = scorer, aggregate, strict

    def score(self, prompt_or_messages: Any, steps: Any) -> Any:
        if isinstance(steps, str):
            return _scores(self.scorer, _turns(prompt_or_messages), [steps], self.aggregate, self.strict)[0]
        return _scores(self.scorer, _turns(prompt_or_messages), steps, self.aggregate, self.strict)

    async def ascore(self, prompt_or_messages: Any, steps: Any) -> Any:
        return await asyncio.to_thread(self.score, prompt_or_messages, steps)


class OutcomeReward(AbstractOutcomeRewardModel):  # type: ignore[misc]
    """Scores whole conversations, whose last turn is the assistant's, for BestOfN: as numbers from 0 to 1. ``strict``
    as of ``ProcessReward``."""

    def __init__(self, scorer: Scorer, *, strict: bool = False):
        self.scorer, self.strict = scorer, strict

    def score(self, messages: Any, **_: Any) -> Any:
        is_batch = isinstance(messages, list) and len(messages) > 0 and isinstance(messages[0], list)
        scores = []
        for conversation in messages if is_batch else [messages]:
            *question, answer = _turns(conversation)
            scores += _scores(self.scorer, question, [answer["content"]], None, self.strict)
        return scores if is_batch else scores[0]

    async def ascore(self, messages: Any, orchestrator: Any = None, **_: Any) -> Any:
        return await asyncio.to_thread(self.score, messages)
