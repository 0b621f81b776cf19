//! The numbers of a run, as data (`summary.json`) and, by `page`, as lines for people. Counts and rates come in; nothing is
//! measured or sampled here.

mod page;

use std::collections::BTreeMap;
use std::ops::Add;

use serde::{Deserialize, Serialize};

use crate::backend::KvDtype;
use crate::engine::Metrics;
use crate::eval::task::Spares;
use crate::judge;
use crate::plan::Planner;

/// A share and its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    /// `None`: the values, all equal, say nothing about it.
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

/// Values of k that were asked for and that no row has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LeftOut {
    pub k: Vec<u32>,
    pub why: String,
}

/// What one level of the trees takes: a level of the prompts, or the samples.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelUse {
    pub level: String,
    /// Tokens, each common beginning counted once.
    pub tokens: u64,
    /// Tokens, if every sample had them for itself.
    pub tokens_unshared: u64,
    /// Keys and values of these, all layers, all items at once.
    pub kv_bytes: u64,
    pub kv_bytes_unshared: u64,
    /// The share of attention that fell on it, the mean over the tokens of those samples whose lines say it ([`Told`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<f64>,
}

/// How many of the samples that drew anything have lines that say where their attention fell: earlier versions recorded it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    pub samples: usize,
    pub of: usize,
}

/// Tokens of prompts and of what was given beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptTokens {
    /// As many as would be computed if nothing were shared.
    pub asked: u64,
    pub computed: u64,
}

impl PromptTokens {
    pub fn of(engine: &Metrics) -> Self {
        Self { asked: engine.prompt_tokens_logical, computed: engine.prompt_tokens_computed }
    }
}

impl Add for PromptTokens {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { asked: self.asked + other.asked, computed: self.computed + other.computed }
    }
}

/// What samples and their verdicts say: what a rescore makes anew.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scores {
    /// Items finished.
    pub items: usize,
    pub samples: usize,
    /// Tokens of these samples.
    pub samples_tokens: usize,
    /// Samples that the outcome does without: never begun, or stopped.
    pub cancelled: usize,
    /// Why, as the task's method has it.
    pub spares: Option<Spares>,
    /// Tokens that those had drawn, in vain.
    pub cancelled_tokens: usize,
    /// Tokens that they would have drawn beside, had each become as long as the mean of its item's samples: an estimate.
    pub tokens_spared: usize,
    /// Samples by the judge's verdict; empty without a judge.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub verdicts: BTreeMap<judge::Verdict, usize>,
    /// Samples in which no answer was found.
    pub without_answer: usize,
    /// Share of items whose chosen answer is right; `None` without a grader or a choice.
    pub accuracy: Option<Estimate>,
    /// Whether the grader itself chose the answers, so that `accuracy` is an upper bound.
    pub chosen_by_grader: bool,
    /// Share of single samples that are right; `None` also where samples were cancelled, which makes it biased, and so it is
    /// with those below.
    pub single: Option<Estimate>,
    /// Unbiased, over the items that have at least k samples.
    pub pass_at: Vec<AtK>,
    pub maj_at: Vec<AtK>,
    /// Of k samples the best: by what a scorer gave them or by the log-probability of the whole, where the method chooses so,
    /// else by log-probability a token. Empty also where the scorer's values are not known.
    pub best_at: Vec<AtK>,
    /// `None`: every k that was asked for is in a row.
    pub k_left_out: Option<LeftOut>,
    /// The vote of all samples, each with the weight of its probability a token.
    pub weighted_vote: Option<Estimate>,
}

/// What a run found and what it cost.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub task: String,
    pub method: String,
    pub model: String,
    pub device: String,
    /// What keys and values are rounded to.
    pub kv_dtype: KvDtype,
    /// Why it is none of CUDA's, where that was left to the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_cuda: Option<String>,
    pub plan: Planner,
    pub seed: u64,
    pub items_asked: usize,
    /// Samples on disk of items that are not finished; no other number counts them.
    pub unfinished_samples: usize,
    /// Items that could not be searched, of those asked for.
    pub failed: usize,
    /// Branches that failed of items that went on without them.
    pub failed_branches: usize,
    #[serde(flatten)]
    pub scores: Scores,
    /// Of all processes that worked on the run, but for those that left no count of it: they were killed.
    pub prompts: PromptTokens,
    pub uncounted_processes: usize,
    /// Root first, the samples last; none where no item has finished.
    pub levels: Vec<LevelUse>,
    /// `None` where no sample says where its attention fell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<Told>,
    /// Of this process, as all that follows. Wall clock from the first prompt to the last sample; loading the model is not in it.
    pub seconds: f64,
    pub seconds_loading: f64,
    pub engine: Metrics,
}

impl Summary {
    pub fn tokens_per_second(&self) -> f64 {
        self.engine.tokens_sampled as f64 / self.seconds.max(1e-9)
    }
}
