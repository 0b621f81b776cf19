//! The numbers of a run, as data (`summary.json`) and as a page for people. Counts and rates come in; nothing is measured or
//! sampled here.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

use serde::Serialize;

use crate::backend::KvDtype;
use crate::engine::Metrics;
use crate::figures::{bytes, count, counted};
use crate::judge;
use crate::plan::Planner;
use crate::task::Spares;

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
    /// What part of the samples' attention fell on it, the mean over their tokens; `None` where nobody asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<f64>,
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
    #[serde(flatten)]
    pub scores: Scores,
    /// Root first, the samples last.
    pub levels: Vec<LevelUse>,
    /// Wall clock from the first prompt to the last sample; loading the model is not in it.
    pub seconds: f64,
    pub seconds_loading: f64,
    pub engine: Metrics,
}

impl Summary {
    pub fn tokens_per_second(&self) -> f64 {
        self.engine.tokens_sampled as f64 / self.seconds.max(1e-9)
    }

    /// Why there are fewer items than were asked for.
    fn missing(&self) -> String {
        let stopped = self.scores.items + self.failed < self.items_asked;
        let failed = (self.failed > 0).then(|| format!("{} failed", self.failed));
        let early = stopped.then(|| "stopped early".to_string());
        let on_disk = (self.unfinished_samples > 0)
            .then(|| format!("{} samples of the others are on disk", self.unfinished_samples));
        [early, failed, on_disk].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Share of the prompt tokens that sharing saved (BatchLLM's saving ratio).
    pub fn prompt_saving(&self) -> f64 {
        let logical = self.engine.prompt_tokens_logical;
        1.0 - self.engine.prompt_tokens_computed as f64 / logical.max(1) as f64
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut page = Page(f);
        page.line("task", format!("{}, {}", self.task, self.method))?;
        page.line("model", &self.model)?;
        let not_cuda = self.not_cuda.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        let kv = match self.kv_dtype {
            KvDtype::Model => "",
            KvDtype::Fp8 => ", fp8 keys and values",
        };
        page.line("device", format!("{}{kv}{not_cuda}", self.device))?;
        let cut = match self.scores.items < self.items_asked {
            true => format!(" of {} ({}; --resume goes on)", self.items_asked, self.missing()),
            false => String::new(),
        };
        page.scores(&self.scores, &cut)?;
        let engine = &self.engine;
        let rate = self.tokens_per_second();
        page.line(
            "sampled",
            format!("{} tokens in {:.1} s: {rate:.0} tokens/s", count(engine.tokens_sampled), self.seconds),
        )?;
        if engine.rows == 0 {
            return Ok(()); // It ended before anything was computed: there is nothing to compare.
        }
        page.line(
            "prompts",
            format!(
                "{} tokens asked for, {} computed: {:.1} % saved",
                count(engine.prompt_tokens_logical),
                count(engine.prompt_tokens_computed),
                100.0 * self.prompt_saving()
            ),
        )?;
        for level in &self.levels {
            page.line(
                "",
                format!(
                    "{}: {} of {} tokens ({:.1} % saved), {} of {}{}",
                    level.level,
                    count(level.tokens),
                    count(level.tokens_unshared),
                    100.0 * (1.0 - level.tokens as f64 / level.tokens_unshared.max(1) as f64),
                    bytes(level.kv_bytes),
                    bytes(level.kv_bytes_unshared),
                    level.attention.map(|part| format!(", {:.1} % of attention", 100.0 * part)).unwrap_or_default()
                ),
            )?;
        }
        page.line("kv held", versus(engine.kv_bytes_peak, engine.kv_bytes_peak_unshared, "without sharing"))?;
        page.line("kv read", versus(engine.kv_bytes_read, engine.kv_bytes_read_flat, "by a flat plan"))?;
        if engine.preemptions > 0 {
            let swapped = match engine.swapped_out {
                0 => String::new(),
                n => format!(", {n} of them kept in host memory ({})", bytes(engine.swapped_out_bytes)),
            };
            page.line("preempted", format!("{} times a branch made room for older ones{swapped}", engine.preemptions))?;
        }
        Ok(())
    }
}

impl Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Page(f).scores(self, "")
    }
}

struct Page<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl Page<'_, '_> {
    fn line(&mut self, name: &str, value: impl Display) -> fmt::Result {
        writeln!(self.0, "{name:<11} {value}")
    }

    /// `cut`: what is said of items that are missing.
    fn scores(&mut self, scores: &Scores, cut: &str) -> fmt::Result {
        let cancelled = match (scores.cancelled, scores.spares) {
            (0, _) => String::new(),
            (n, Some(Spares::Decided)) => format!(", {} more not drawn: the vote was decided", count(n as u64)),
            (n, Some(Spares::Passed)) => format!(", {} more stopped or not judged: one had passed", count(n as u64)),
            (n, None) => format!(", {} more not finished", count(n as u64)),
        };
        self.line("items", format!("{}{cut}, {}{cancelled}", scores.items, counted(scores.samples as u64, "sample")))?;
        if scores.cancelled > 0 {
            let (spared, drawn) = (scores.tokens_spared, scores.samples_tokens);
            let share = 100.0 * spared as f64 / (spared + drawn + scores.cancelled_tokens).max(1) as f64;
            let vain = match scores.cancelled_tokens {
                0 => String::new(),
                n => format!("; {} drawn in vain", count(n as u64)),
            };
            self.line("spared", format!("about {} tokens, {share:.0} % of all{vain}", count(spared as u64)))?;
        }
        if !scores.verdicts.is_empty() {
            let verdicts: Vec<String> = scores.verdicts.iter().map(|(verdict, n)| format!("{verdict} {n}")).collect();
            self.line("verdicts", verdicts.join(", "))?;
        }
        if let Some(accuracy) = scores.accuracy {
            let how = if scores.chosen_by_grader { " (chosen by the grader: an upper bound)" } else { "" };
            self.line("accuracy", format!("{} of the chosen answers{how}", percent(accuracy)))?;
            if scores.cancelled > 0 {
                let why = "left out, as pass@k and maj@k: samples were spared, which makes the others biased";
                self.line("one sample", why)?;
            }
        }
        if let Some(single) = scores.single {
            self.line("one sample", percent(single))?;
        }
        self.at_k("pass@k", &scores.pass_at, scores.items)?;
        self.at_k("maj@k", &scores.maj_at, scores.items)?;
        self.at_k("best@k", &scores.best_at, scores.items)?;
        if let Some(LeftOut { k, why }) = &scores.k_left_out {
            let k: Vec<String> = k.iter().map(u32::to_string).collect();
            self.line("left out", format!("k = {}: {why}", k.join(", ")))?;
        }
        if let Some(vote) = scores.weighted_vote {
            self.line("weighted", format!("{} by a vote that weighs samples by their likelihood", percent(vote)))?;
        }
        if scores.without_answer > 0 {
            self.line("no answer", counted(scores.without_answer as u64, "sample"))?;
        }
        Ok(())
    }

    /// One row; a k that not all of `items` have samples for is said to cover fewer.
    fn at_k(&mut self, name: &str, estimates: &[AtK], items: usize) -> fmt::Result {
        if estimates.is_empty() {
            return Ok(());
        }
        let mut row = String::new();
        for AtK { k, items: covered, estimate } in estimates {
            write!(row, "{}{k}: {:.1} %", if row.is_empty() { "" } else { "   " }, 100.0 * estimate.value)?;
            if *covered < items {
                write!(row, " ({covered} items)")?;
            }
        }
        self.line(name, row)
    }
}

fn percent(estimate: Estimate) -> String {
    match estimate.interval {
        Some(Interval { low, high }) => {
            format!("{:.1} % (95 % interval {:.1} to {:.1})", 100.0 * estimate.value, 100.0 * low, 100.0 * high)
        }
        None => format!("{:.1} %", 100.0 * estimate.value),
    }
}

fn versus(ours: u64, theirs: u64, whose: &str) -> String {
    format!("{}; {} {whose}: {:.1} x", bytes(ours), bytes(theirs), theirs as f64 / ours.max(1) as f64)
}
