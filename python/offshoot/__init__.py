"""Offshoot samples trees from language models: whatever samples share is stored, computed and read once.

``LLM`` and ``SamplingParams`` have the shape that vLLM's offline API gave them; scripts written for it run with another
import. ``llm.tree(prompt)`` is a sampling tree; ``vote``, ``best_of_n``, ``tree_of_thoughts`` and the others search
with plain Python functions; ``judge`` runs programs in a sandbox; ``run`` and ``plan`` take task files.
"""

from offshoot._beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from offshoot._facts import (
    AtK,
    EngineFacts,
    EngineMetrics,
    Estimate,
    ItemLine,
    JobEstimate,
    Judged,
    NodeFacts,
    PageCounts,
    RunSummary,
    SampleLine,
)
from offshoot._llm import LLM, Interrupted, Tokenizer
from offshoot._native import version as _version
from offshoot._outputs import (
    ChoiceScore,
    CompletionOutput,
    KeptTokens,
    Logprob,
    RequestOutput,
    ScoredChoices,
    StreamOutput,
    to_arrow,
)
from offshoot._params import SamplingParams
from offshoot._pooling import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from offshoot._rollouts import RolloutTrie
from offshoot._scorer import AnswerScore, Scorer
from offshoot._tree import Node, Tree
from offshoot.command import Job, demo_model, plan, run
from offshoot.inputs import PromptType, TextPrompt, TokensPrompt
from offshoot.judging import Judge, Judgement, TestVerdict, judge
from offshoot.search import (
    CalledTools,
    JsonPointer,
    Outcome,
    Sample,
    beam_search,
    best_of_n,
    dvts,
    entropy_branching,
    mcts,
    particle_filtering,
    particle_gibbs,
    sample,
    tree_of_thoughts,
    tree_po,
    vote,
)

__version__ = _version

__all__ = [
    "LLM", "SamplingParams", "RequestOutput", "CompletionOutput", "KeptTokens", "Logprob", "StreamOutput",
    "ScoredChoices", "ChoiceScore", "Tokenizer", "Interrupted", "Tree", "Node", "vote", "best_of_n", "sample",
    "tree_of_thoughts", "beam_search", "dvts", "mcts", "particle_filtering", "particle_gibbs", "tree_po",
    "entropy_branching", "RolloutTrie", "Outcome", "Sample", "judge", "Judge", "Judgement", "TestVerdict",
    "run", "plan", "Job", "demo_model", "to_arrow", "CalledTools", "JsonPointer", "TextPrompt", "TokensPrompt",
    "PromptType", "BeamSearchParams", "BeamSearchOutput", "BeamSearchSequence", "EngineFacts", "EngineMetrics",
    "PageCounts", "NodeFacts", "RunSummary", "Estimate", "AtK", "SampleLine", "Judged", "ItemLine",
    "JobEstimate", "Scorer", "AnswerScore", "PoolingParams", "PoolingOutput", "PoolingRequestOutput",
    "ClassificationOutput", "ClassificationRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput",
    "ScoringOutput", "ScoringRequestOutput",
]
