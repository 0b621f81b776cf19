"""What ``LLM.facts``, ``LLM.metrics()``, ``Node.facts``, the results of ``run`` and the estimate of ``plan`` hold, and
the words in them. What is not always there is in a class of its own, whose name begins with an underscore."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

#: Why a sample ended, in OpenAI's words: by itself or at a stop, by its limit or the context's, or it was cancelled;
#: ``dead_end``: its form allowed no token, and did not end there; ``form_limit``: its form takes too much work to keep.
FinishReason = Literal["stop", "length", "abort", "dead_end", "form_limit", "low_confidence"]

#: Why a sample of a search or a task ended, as samples.jsonl has it; ``given``: its tokens were not sampled.
SampleFinish = Literal[
    "stop_string", "stop_token", "end_of_text", "length", "context_full", "dead_end", "form_limit", "given"
]

#: Verdicts on programs, as contest judges abbreviate them.
Verdict = Literal["AC", "WA", "TLE", "MLE", "OLE", "RE", "CE", "SANDBOX"]


class EngineFacts(TypedDict):
    """What never changes of an engine."""

    context: int
    vocab: int
    bos: int | None
    eos: list[int]
    device: str
    batch_invariant: bool
    page_tokens: int
    kv_bytes_per_token: int
    kv_bytes: int
    max_branches: int
    replicas: int
    not_cuda: str | None
    seconds_loading: float


class PageCounts(TypedDict):
    """Pages of keys and values, now."""

    total: int
    held: int
    pinned: int
    cached: int
    free: int


class EngineCounters(TypedDict):
    """Counters since an engine started; what ends in ``held`` or ``cached`` is that of now."""

    steps: int
    steps_replanned: int
    rows: int
    prompt_tokens_logical: int
    prompt_tokens_computed: int
    scores_reused: int
    values_read: int
    values_reused: int
    prompt_tokens_stored: int
    prompt_tokens_copied: int
    chunks_written: int
    tokens_sampled: int
    tokens_discarded: int
    tokens_forced: int
    masks_requested: int
    masks_computed: int
    masks_shared: int
    mask_places_shared: int
    mask_sets_shared: int
    masks_empty: int
    masks_failed: int
    matchers_replayed: int
    matcher_tokens_replayed: int
    forms_held: int
    form_lanes_held: int
    lane_bytes_held: int
    mask_bytes_held: int
    matcher_bytes_held: int
    tokens_recomputed: int
    kv_bytes_read: int
    kv_bytes_read_flat: int
    kv_bytes_held: int
    kv_bytes_cached: int
    kv_bytes_peak: int
    kv_tokens_peak: int
    kv_bytes_peak_unshared: int
    latent_tokens_expanded: int
    latent_tokens_expanded_again: int
    latent_copies_evicted: int
    latent_copies_held: int
    states_held: int
    states_peak: int
    preemptions: int
    swapped_out: int
    swapped_out_bytes: int
    swapped_in: int
    swapped_in_bytes: int
    seconds_scheduling: float
    seconds_planning: float
    seconds_forward: float
    seconds_idle: float | None
    seconds_waiting: float
    seconds_masking: float
    seconds_committing: float


class EngineMetrics(EngineCounters):
    """Counters since an engine started, and what runs and is held now."""

    running: int
    waiting: int
    branches: int
    pages: PageCounts


class NodeFacts(TypedDict):
    """How a node stands."""

    finish_reason: FinishReason | Literal["error"] | None
    stop_reason: int | str | None
    logprob: float
    score: float | None
    state: Literal["open", "closed", "pruned"]
    error: str | None


class _Interval(TypedDict, total=False):
    low: float
    high: float


class Estimate(_Interval):
    """A share, and its 95 % interval unless all values are equal."""

    value: float


class AtK(Estimate):
    """An estimate for k samples, over the items that have so many."""

    k: int
    items: int


class OmittedKs(TypedDict):
    """Values of k that were asked for and are in no row."""

    k: list[int]
    why: str


class CutShort(TypedDict):
    """Samples that did not end by themselves."""

    length: int
    context_full: int
    dead_end: int
    form_limit: int


class LevelUse(TypedDict):
    """Tokens, and bytes of keys and values, of a level of the prompts or of the samples."""

    level: str
    tokens: int
    tokens_unshared: int
    kv_bytes: int
    kv_bytes_unshared: int


class _PromptTokens(TypedDict, total=False):
    stored: int
    copied: int


class PromptTokens(_PromptTokens):
    """Tokens of prompts and given texts; ``stored`` and ``copied`` if there are any."""

    asked: int
    computed: int


class _WeightChoice(TypedDict, total=False):
    weights: Literal["fp8", "int8", "int4"]


class WeightChoice(_WeightChoice):
    """``weights``: what dense weights became, if they did."""

    activations: Literal["format", "bf16"]


class _JudgeTotals(TypedDict, total=False):
    digest: str


class JudgeTotals(_JudgeTotals):
    """The model that was asked about samples, its questions, the tokens of their prompts and those that it wrote, and
    requests sent again; ``digest``: of its folder, if it is another one than the run's own."""

    name: str
    questions: int
    tokens: int
    written: int
    retried: int


class _RunSummary(TypedDict, total=False):
    not_cuda: str
    verdicts: dict[Verdict, int]
    judge: JudgeTotals
    ungraded: int
    first_ungraded: str


class RunSummary(_RunSummary):
    """The summary of a run, and the folder of its results. ``not_cuda``: why no GPU was used, if the device was chosen
    for the user; ``verdicts``: samples by the verdicts on them as programs, if they are; ``judge``: the model that was
    asked about samples; ``ungraded``: samples that it could not grade; ``skipped``: items that were left out, because
    their prompts are too long. Without a grader estimates are None, and those by k empty."""

    task: str
    method: str
    model: str
    device: str
    kv_dtype: Literal["model", "fp8"]
    weights: WeightChoice
    plan: Literal["balanced", "tree", "single", "flat"]
    seed: int
    items_asked: int
    unfinished_samples: int
    failed: int
    skipped: int
    failed_branches: int
    items: int
    samples: int
    samples_tokens: int
    cancelled: int
    spares: Literal["decided", "passed"] | None
    cancelled_tokens: int
    tokens_spared: int
    cut_short: CutShort
    without_answer: int
    accuracy: Estimate | None
    tied: int
    chosen_by_grader: bool
    single: Estimate | None
    pass_at: list[AtK]
    maj_at: list[AtK]
    best_at: list[AtK]
    k_left_out: OmittedKs | None
    weighted_vote: Estimate | None
    prompts: PromptTokens
    uncounted_processes: int
    levels: list[LevelUse]
    seconds: float
    seconds_loading: float
    engine: EngineCounters
    results: str


class _Judged(TypedDict, total=False):
    message: str


class Judged(_Judged):
    """The judge's result on a sample; ``message``: why it is not accepted. ``tests`` were run."""

    verdict: Verdict
    tests_passed: int
    tests: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int


class GradeByJudge(TypedDict, total=False):
    """What a judge, which is a model, made of a sample: its ``score`` from 0 to 1 and what it answered, or the
    ``error``, why it has no grade."""

    score: float
    verdict: Any
    error: str


class DrawnLine(TypedDict, total=False):
    """The distribution that a token was drawn from: its log-probability there, how many tokens could be drawn, their
    smallest score, and their ids if ``return_kept`` asks for them."""

    logprob: float
    kept: int
    lowest: float
    ids: list[int]


class _TokenLine(TypedDict, total=False):
    rank: int
    drawn: DrawnLine
    entropy: float


class TokenLine(_TokenLine):
    """A token of a sample; ``top``: pairs of a token and its log-probability, likeliest first. ``rank``, ``drawn`` and
    ``entropy`` if the task asks for them."""

    token: int
    logprob: float
    top: list[list[float]]


class _SampleLine(TypedDict, total=False):
    stop: str | int
    judged: Judged | GradeByJudge
    logprobs: list[TokenLine]
    ending: TokenLine
    score: float
    step_scores: list[float | None]
    part_scores: list[float]
    score_tokens: int
    verdict: Any
    score_error: str


class SampleLine(_SampleLine):
    """A line of samples.jsonl; ``stop``: the string or the token that ended it, if one did; ``judged`` if it was run as
    a program or graded by a judge, ``logprobs`` if the task asks for them; ``score`` or ``score_error``, why it has
    none, if the method has a scorer or a judge, whose answer is ``verdict`` (both where some comparisons failed)."""

    id: str
    index: int
    text: str
    tokens: int
    finish: SampleFinish
    logprob: float
    answer: str | None
    correct: bool | None


class FailedBranches(TypedDict):
    """How many branches failed, and why the first one did."""

    branches: int
    first: str


class _ChoiceLine(TypedDict, total=False):
    neutral: float


class ChoiceLine(_ChoiceLine):
    """The score of a choice; ``neutral``: its log-probability after the neutral prompt, if there is one."""

    choice: str
    logprob: float
    tokens: int
    score: float


class _ScorerWork(TypedDict, total=False):
    first_error: str


class ScorerWork(_ScorerWork):
    """What a scorer did for an item: ``scale`` is "probability" or "logit"; ``texts`` of ``tokens`` were scored,
    ``unscored`` ones could not be, the first because of ``first_error``."""

    scale: str
    texts: int
    unscored: int
    tokens: int


class _ItemLine(TypedDict, total=False):
    tied: list[int]
    failed: FailedBranches
    error: str
    choices: list[ChoiceLine]
    completions: list[str]
    scores: list[float | None] | list[list[float | None]]
    scorer: ScorerWork
    pred: str | None


class ItemLine(_ItemLine):
    """A line of items.jsonl; ``votes``: pairs of an answer and its votes; ``tied``: the samples on which the choice
    could have fallen as well, if there are any; ``error``: why ``offshoot rescore`` could not judge it. ``choices``,
    ``completions``, ``scores`` and ``pred`` are those of methods that have them."""

    id: str
    index: int
    question: str
    reference: str | None
    answer: str | None
    prediction: str | None
    correct: bool | None
    chosen: int | None
    votes: list[list[str | int]]
    samples: int
    samples_correct: int | None
    cancelled: int
    cancelled_tokens: int
    prompt_tokens: int
    sampled_tokens: int
    search_tokens: int
    search_prompt_tokens: int


class JobSizes(TypedDict):
    """A job's prompts and samples, and their tokens."""

    input: str
    prompts: int
    samples: int
    prompt_tokens: int
    distinct_prompt_tokens: int
    nodes: int
    drawn_tokens: int


class ModelSizes(TypedDict):
    """A model's bytes on the device."""

    path: str
    dtype: Literal["f32", "f16", "bf16"]
    weights: str
    weight_bytes: int
    active_weight_bytes: int
    kv_bytes_per_token: int


class Pool(TypedDict):
    """Pages for keys and values."""

    pages: int
    page_tokens: int
    page_bytes: int


class TreeLevel(TypedDict):
    """The nodes of a level of the tree; ``has_deeper``: with those of deeper levels."""

    nodes: int
    tokens: int
    tokens_unshared: int
    has_deeper: bool


class SharingCost(TypedDict):
    """The prompt tokens that a policy of sharing computes."""

    policy: Literal["no sharing", "lru of pages", "single level", "all levels"]
    tokens_asked: int
    tokens_computed: int
    saving: float


class WaveSizes(TypedDict):
    """What fits into memory at once."""

    prompts: int
    samples: int
    kv_bytes: int


class KvReads(TypedDict):
    """Bytes of keys and values that a decode step reads, by plan."""

    rows: int
    flat: int
    single: int
    balanced: int


class TimeSlice(TypedDict):
    """Mean tokens a step in a slice of the time."""

    prompt_tokens: float
    drawn_tokens: float


class Prediction(TypedDict):
    """A run of the job on the simulated device, by a policy."""

    policy: Literal["first come", "single level", "all levels"]
    branches: int
    steps: int
    prompt_steps: int
    decode_steps: int
    seconds: float
    drawn: int
    tokens_per_s: float
    prompt_tokens_logical: int
    prompt_tokens_computed: int
    tokens_recomputed: int
    preemptions: int
    seconds_before_cool_down: float
    rows_per_s_before_cool_down: float
    middle_fullness: float | None
    middle_full_steps: float | None
    most_running: int
    kv_bytes_peak: int
    kv_bytes_peak_unshared: int
    kv_slots_peak: int
    live_tokens_peak: int
    kv_over_live_at_peak: float
    kv_over_live_mean: float
    kv_over_live_worst: float
    normalised_latency: float
    first_token: float
    tokens_per_step: float
    parts: list[TimeSlice]


class _JobEstimate(TypedDict, total=False):
    states: dict[str, int]
    ranks: dict[str, int]
    parts: dict[str, Any]
    replicas: dict[str, Any]
    nodes: list[dict[str, Any]]


class JobEstimate(_JobEstimate):
    """What a job will cost. ``decode_step`` is None if every sample ends with its first token; ``predictions`` are
    empty where time is not predicted. What only some models and options give has the command's own fields: ``states``
    of models with recurrent layers, ``ranks`` with ``tensor_parallel=``, ``parts`` with ``parts=``, ``replicas`` with
    ``devices=``, ``nodes`` with ``explain=True``."""

    job: JobSizes
    model: ModelSizes
    device: str
    branches: int
    pool: Pool
    levels: list[TreeLevel]
    sharing: list[SharingCost]
    kv_bytes: int
    kv_bytes_unshared: int
    waves: list[WaveSizes]
    decode_step: KvReads | None
    predictions: list[Prediction]
    notes: list[str]
