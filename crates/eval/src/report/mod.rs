//! The summary of a run: as data (`summary.json`) and as text (`page`). `run::summary` computes the numbers.

mod page;

pub(crate) use page::in_short;

use std::collections::BTreeMap;
use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::task::EarlyStop;
use offshoot_backend::KvDtype;
use offshoot_engine::Metrics;
use offshoot_judge as judge;
use offshoot_kv::plan::Planner;
use offshoot_model::WeightChoice;
use offshoot_score::ScorerIdentity;
use offshoot_verdict::{Ask, JudgeCounts, JudgeIdentity};

/// A share and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    /// `None`: all values are equal, so a bootstrap gives no interval.
    #[serde(flatten)]
    pub interval: Option<Interval>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// An estimate for each k.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AtK {
    pub k: usize,
    /// Items with at least k samples.
    pub items: usize,
    #[serde(flatten)]
    pub estimate: Estimate,
}

/// Values of k that were requested and are in no row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OmittedKs {
    pub k: Vec<u32>,
    pub why: String,
}

/// Tokens and KV bytes of one level of the trees: a level of the prompts, or the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LevelUse {
    pub level: String,
    /// Tokens, each shared prefix counted once.
    pub tokens: u64,
    /// Tokens if nothing were shared: every sample has its own copy.
    pub tokens_unshared: u64,
    /// KV bytes of `tokens`, over all layers and all items.
    pub kv_bytes: u64,
    pub kv_bytes_unshared: u64,
}

/// Numbers of samples that were cut short, by their `finish`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CutShort {
    /// Samples cut by `max_tokens`.
    pub length: usize,
    /// The model's context was full.
    pub context_full: usize,
    /// The form allowed no token, and did not end there.
    pub dead_end: usize,
    /// What the form allows took too much work to find.
    pub form_limit: usize,
}

/// What ending samples by low confidence did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ConfidenceStops {
    /// Samples that ended so; they have no vote. All numbers of samples and tokens are among those of all samples.
    pub stopped: usize,
    pub stopped_tokens: usize,
    /// Samples of the warm-ups, drawn whole.
    pub warm_up: usize,
    pub warm_up_tokens: usize,
    /// Samples that never had as many tokens as a window.
    pub without_window: usize,
    /// Estimate of the tokens saved, if each stopped sample had the mean length of its item's warm-up.
    pub tokens_spared: usize,
}

/// Tokens of the prompts and of texts that the search appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokens {
    /// Tokens that would be computed if nothing were shared.
    pub asked: u64,
    pub computed: u64,
    /// Read from the prefix store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stored: u64,
    /// Copied from the device that had computed them to another one (`--devices`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub copied: u64,
}

pub(crate) fn is_zero<N: Default + PartialEq>(count: &N) -> bool {
    *count == N::default()
}

impl PromptTokens {
    pub fn of(engine: &Metrics) -> Self {
        Self {
            asked: engine.prompt_tokens_logical,
            computed: engine.prompt_tokens_computed,
            stored: engine.prompt_tokens_stored,
            copied: engine.prompt_tokens_copied,
        }
    }
}

impl Add for PromptTokens {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            asked: self.asked + other.asked,
            computed: self.computed + other.computed,
            stored: self.stored + other.stored,
            copied: self.copied + other.copied,
        }
    }
}

/// What a scorer did for the items of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ScorerTotals {
    /// Texts that were scored; equal ones of an item are one.
    pub texts: usize,
    /// The scorer's tokens of these, each text counted whole.
    pub tokens: usize,
    /// Texts that could not be scored.
    pub unscored: usize,
    /// Why the first of these could not be, or was not compared with all others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
}

/// The judge of a run, which is a model, and what it did in this process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JudgeTotals {
    #[serde(flatten)]
    pub identity: JudgeIdentity,
    #[serde(flatten)]
    pub counts: JudgeCounts,
}

impl JudgeTotals {
    pub fn of(judge: &dyn Ask) -> JudgeTotals {
        JudgeTotals { identity: judge.identity().clone(), counts: judge.counts() }
    }
}

/// Scores of the samples and their verdicts: the part of the summary that `offshoot rescore` computes again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunScores {
    /// Items finished.
    pub items: usize,
    pub samples: usize,
    /// Tokens of these samples; `None` if only their texts are known.
    pub samples_tokens: Option<usize>,
    /// Samples that were never started or were stopped because the outcome was already decided.
    pub cancelled: usize,
    /// Why they were cancelled, by the method of the task.
    pub spares: Option<EarlyStop>,
    /// Tokens sampled by cancelled samples, discarded.
    pub cancelled_tokens: usize,
    /// Estimate of the tokens saved by cancelling, if each cancelled sample had the mean length of its item's samples.
    pub tokens_spared: usize,
    /// `None`: the method ends no sample by low confidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low_confidence: Option<ConfidenceStops>,
    /// Samples by the judge's verdict; empty without a judge.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub verdicts: BTreeMap<judge::Verdict, usize>,
    /// Samples that a judge, which is a model, was to grade and could not. They are in no accuracy, pass@k or maj@k.
    #[serde(skip_serializing_if = "is_zero")]
    pub ungraded: usize,
    /// Why the first of these has no grade.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_ungraded: Option<String>,
    /// Samples that did not end by themselves.
    pub cut_short: CutShort,
    /// Samples without an answer, other than those that ended by low confidence.
    pub without_answer: usize,
    /// Mean over the items of how far the chosen answer is right: 1 or 0, or, if answers tie, the share of right ones
    /// among them. `None` without a grader or a choice.
    pub accuracy: Option<Estimate>,
    /// Items of which nothing was chosen, which is not right: no sample has an answer, or none has a score.
    #[serde(skip_serializing_if = "is_zero")]
    pub without_choice: usize,
    /// Items with a graded choice on which different answers tie. The first of these is the item's prediction.
    pub tied: usize,
    /// Whether the grader chose the answers: `accuracy` is then an upper bound.
    pub chosen_by_grader: bool,
    /// Share of single samples that are right. This and the fields below are also `None` or empty if samples were
    /// cancelled, which would bias them. Where samples end by low confidence, they are of the warm-ups alone.
    pub single: Option<Estimate>,
    /// Unbiased, over the items that have at least k samples.
    pub pass_at: Vec<AtK>,
    pub maj_at: Vec<AtK>,
    /// Best of k samples: by the scorer's value or the sample's log-probability if the method chooses by it, else by
    /// the log-probability per token; of equal ones, each is as likely. Also empty if the scorer was not asked.
    pub best_at: Vec<AtK>,
    /// Whether `best_at` is by the scorer's value. Where no sample has one, none is the best.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ranked_by_score: bool,
    /// `None`: every requested k is in a row.
    pub k_left_out: Option<OmittedKs>,
    /// The vote of all samples, each weighted by its probability per token; ties as in `accuracy`.
    pub weighted_vote: Option<Estimate>,
    /// The vote of all samples, each weighted by the scorer's score as a probability, where one of them is chosen by
    /// it; ties as in `accuracy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_vote: Option<Estimate>,
    /// What the scorer did; `None`: the method asks none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer: Option<ScorerTotals>,
}

impl RunScores {
    /// The keys that are left out where a method has nothing to say of them.
    pub const OF_SOME_METHODS: [&str; 8] = [
        "low_confidence",
        "verdicts",
        "ungraded",
        "first_ungraded",
        "without_choice",
        "ranked_by_score",
        "reward_vote",
        "scorer",
    ];
}

/// The results and costs of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub task: String,
    pub method: String,
    pub model: String,
    /// The model that scores; `None`: there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer_model: Option<ScorerIdentity>,
    /// The model that answered questions about samples; `None`: none was asked, or the run's own in its own batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<JudgeTotals>,
    pub device: String,
    /// Storage format of keys and values.
    pub kv_dtype: KvDtype,
    /// What weights became when they were loaded.
    pub weights: WeightChoice,
    /// Why no GPU was used; `None` if the user chose the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_cuda: Option<String>,
    pub plan: Planner,
    pub seed: u64,
    pub items_asked: usize,
    /// Samples on disk of items that are not finished; no other number counts them.
    pub unfinished_samples: usize,
    /// Requested items whose search failed.
    pub failed: usize,
    /// Requested items that were skipped, because their prompts are too long.
    pub skipped: usize,
    /// Failed branches of items that continued without them.
    pub failed_branches: usize,
    #[serde(flatten)]
    pub scores: RunScores,
    /// Sum over all processes of the run, except killed ones, which recorded no count.
    pub prompts: PromptTokens,
    pub uncounted_processes: usize,
    /// Tokens that the scorer's engine was given and computed in this process; `None`: there was no scorer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scorer_prompts: Option<PromptTokens>,
    /// Root first, the samples last; empty if no item has finished.
    pub levels: Vec<LevelUse>,
    /// Seconds of wall-clock time of this process, from the first prompt to the last sample, without loading the model.
    /// All fields below are of this process, too.
    pub seconds: f64,
    pub seconds_loading: f64,
    pub engine: Metrics,
}

impl Summary {
    pub fn tokens_per_second(&self) -> f64 {
        self.engine.tokens_sampled as f64 / self.seconds.max(1e-9)
    }
}
