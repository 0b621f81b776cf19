"""Prompts as dicts, by the names that vLLM has for them in its module of the same name."""

from __future__ import annotations

from typing import TypedDict, Union


class TextPrompt(TypedDict):
    """A text."""

    prompt: str


class _TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class TokensPrompt(_TokensPrompt, total=False):
    """Token ids, and the text that they stand for, if it is known."""

    prompt: str


#: What ``LLM.generate`` takes as one prompt.
PromptType = Union[str, list[int], TextPrompt, TokensPrompt]

__all__ = ["TextPrompt", "TokensPrompt", "PromptType"]
