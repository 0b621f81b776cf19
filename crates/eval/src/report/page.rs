//! Prints the summary of a run as text: first the results, then the costs. The parent module defines each number.

use std::fmt::{self, Display, Write};

use super::{
    AtK, ConfidenceStops, CutShort, Estimate, Interval, JudgeTotals, LevelUse, OmittedKs, PromptTokens, RunScores,
    ScorerTotals, Summary,
};
use crate::task::EarlyStop;
use offshoot_backend::KvDtype;
use offshoot_core::figures::{bytes, count, counted, percent, percentage, saved, shortened, times};
use offshoot_core::setting::{RESUME, SET};
use offshoot_engine::Metrics;
use offshoot_score::ScorerIdentity;
use offshoot_verdict::JudgeCounts;

/// The keys of a task file that stop samples early.
const DECIDED: &str = "method.self_consistency.stop_when_decided";
const PASSED: &str = "method.best_of_n.stop_when_passed";

impl Summary {
    /// Why fewer items were finished than requested.
    fn missing(&self) -> String {
        let stopped = self.is_stopped();
        let failed = (self.failed > 0).then(|| format!("{} failed", self.failed));
        let early = stopped.then(|| "stopped early".to_string());
        let on_disk = (self.unfinished_samples > 0)
            .then(|| format!("{} samples of the others are on disk", self.unfinished_samples));
        let skipped = (self.skipped > 0).then(|| format!("{} skipped, too long", self.skipped));
        [early, failed, self.failed_branches(), skipped, on_disk].into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Whether requested items were not reached.
    fn is_stopped(&self) -> bool {
        self.scores.items + self.failed + self.skipped < self.items_asked
    }

    fn failed_branches(&self) -> Option<String> {
        let failed = self.failed_branches;
        (failed > 0).then(|| format!("{} failed", counted(failed as u64, "continuation")))
    }

    /// The cost of the prompts of all samples.
    fn prompts(&self) -> String {
        let PromptTokens { asked, computed, stored, copied } = self.prompts;
        let saved = match asked {
            0 => String::new(),
            _ => format!(": {} saved", saved(computed, asked)),
        };
        let without = match self.uncounted_processes {
            0 => String::new(),
            1 => " (without a process that left no count)".to_string(),
            n => format!(" (without {n} processes that left no count)"),
        };
        let read = match stored {
            0 => String::new(),
            _ => format!(", {} read from the prefix store", count(stored)),
        };
        let brought = match copied {
            0 => String::new(),
            _ => format!(", {} copied between devices", count(copied)),
        };
        format!("{} tokens asked for, {} computed{read}{brought}{saved}{without}", count(asked), count(computed))
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut page = ReportLines(f);
        page.line("task", format!("{}, {}", self.task, self.method))?;
        let weights = if self.weights.is_as_stored() { String::new() } else { format!(", {}", self.weights) };
        page.line("model", format!("{}{weights}", self.model))?;
        if let Some(ScorerIdentity { name, form, .. }) = &self.scorer_model {
            page.line("scorer", format!("{name}, form {form}"))?;
        }
        if let Some(JudgeTotals { identity, counts }) = &self.judge {
            let JudgeCounts { questions, tokens, written, retried } = *counts;
            let [questions, tokens, written] = [(questions, "question"), (tokens, "token"), (written, "token")]
                .map(|(n, what)| counted(n as u64, what));
            let retried = match retried {
                0 => String::new(),
                some => format!(", {} sent again", counted(some as u64, "request")),
            };
            page.line("judge", format!("{}, {questions} of {tokens}, {written} written{retried}", identity.name))?;
        }
        let not_cuda = self.not_cuda.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
        let kv = match self.kv_dtype {
            KvDtype::Model => "",
            KvDtype::Fp8 => ", fp8 keys and values",
        };
        page.line("device", format!("{}{kv}{not_cuda}", self.device))?;
        let cut = match self.scores.items < self.items_asked {
            true => {
                // What is too long is so another time.
                let goes_on = self.is_stopped() || self.failed > 0 || self.failed_branches > 0;
                let how = if goes_on { format!("; {RESUME} goes on") } else { String::new() };
                format!(" of {} ({}{how})", self.items_asked, self.missing())
            }
            false => {
                self.failed_branches().map_or_else(String::new, |failed| format!(" ({failed}; {RESUME} tries again)"))
            }
        };
        page.scores(&self.scores, &cut)?;
        let engine = &self.engine;
        let rate = self.tokens_per_second();
        page.line(
            "sampled",
            format!("{} tokens in {:.1} s: {rate:.0} tokens/s", count(engine.tokens_sampled), self.seconds),
        )?;
        if self.prompts != PromptTokens::default() {
            page.line("prompts", self.prompts())?;
        }
        for level in &self.levels {
            page.line("", level)?;
        }
        if let Some(PromptTokens { asked: asked @ 1.., computed, .. }) = self.scorer_prompts {
            let [all, own] = [asked, computed].map(count);
            page.line("scoring", format!("{all} tokens to score, {own} computed: {} saved", saved(computed, asked)))?;
        }
        if engine.rows == 0 {
            return Ok(()); // Nothing was computed: there is nothing to compare.
        }
        page.line("kv held", versus(engine.kv_bytes_peak, engine.kv_bytes_peak_unshared, "without sharing"))?;
        page.line("kv read", versus(engine.kv_bytes_read, engine.kv_bytes_read_flat, "by a flat plan"))?;
        if let Some(copies) = expanded(engine) {
            page.line("copies", copies)?;
        }
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

/// What copies of latents took to be made: `4,096 tokens expanded and kept (2 pages given up for others); 512 expanded
/// for one step, counted in each`. `None`: no copy was made.
fn expanded(engine: &Metrics) -> Option<String> {
    let Metrics { latent_tokens_expanded: kept, latent_tokens_expanded_again: again, .. } = *engine;
    let given_up = match engine.latent_copies_evicted {
        0 => String::new(),
        pages => format!(" ({} given up for others)", counted(pages, "page")),
    };
    let kept = (kept > 0).then(|| format!("{} expanded and kept{given_up}", counted(kept, "token")));
    let again = (again > 0).then(|| format!("{} expanded for one step, counted in each", counted(again, "token")));
    let parts: Vec<String> = [kept, again].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

impl Display for LevelUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tokens_unshared == 0 {
            return write!(f, "{}: no tokens", self.level);
        }
        let (tokens, unshared) = (self.tokens, self.tokens_unshared);
        let saved = saved(tokens, unshared);
        write!(f, "{}: {} of {} tokens ({saved} saved)", self.level, count(tokens), count(unshared))?;
        write!(f, ", {} of {}", bytes(self.kv_bytes), bytes(self.kv_bytes_unshared))
    }
}

impl Display for RunScores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ReportLines(f).scores(self, "")
    }
}

struct ReportLines<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl ReportLines<'_, '_> {
    fn line(&mut self, name: &str, value: impl Display) -> fmt::Result {
        writeln!(self.0, "{name:<11} {value}")
    }

    /// `cut`: the note about missing items.
    fn scores(&mut self, scores: &RunScores, cut: &str) -> fmt::Result {
        let cancelled = match (scores.cancelled, scores.spares) {
            (0, _) => String::new(),
            (n, Some(EarlyStop::Decided)) => format!(", {} more not sampled: the vote was decided", count(n as u64)),
            (n, Some(EarlyStop::Passed)) => format!(", {} more stopped or not judged: one had passed", count(n as u64)),
            (n, Some(EarlyStop::Finished)) => {
                format!(", {} more cancelled: enough had finished", count(n as u64))
            }
            (n, None) => format!(", {} more not finished", count(n as u64)),
        };
        self.line("items", format!("{}{cut}, {}{cancelled}", scores.items, counted(scores.samples as u64, "sample")))?;
        if let (1.., Some(drawn)) = (scores.cancelled, scores.samples_tokens) {
            let spared = scores.tokens_spared;
            let share = 100.0 * spared as f64 / (spared + drawn + scores.cancelled_tokens).max(1) as f64;
            let vain = match scores.cancelled_tokens {
                0 => String::new(),
                n => format!("; {} discarded", count(n as u64)),
            };
            self.line("spared", format!("about {} tokens, {share:.0} % of all{vain}", count(spared as u64)))?;
        }
        if let Some(stops) = scores.low_confidence {
            self.low_confidence(stops, scores)?;
        }
        if !scores.verdicts.is_empty() {
            let verdicts: Vec<String> = scores.verdicts.iter().map(|(verdict, n)| format!("{verdict} {n}")).collect();
            self.line("verdicts", verdicts.join(", "))?;
        }
        if let (some @ 1.., Some(why)) = (scores.ungraded, &scores.first_ungraded) {
            let samples = counted(some as u64, "sample");
            self.line("ungraded", format!("{samples}, in no number below, first: {}", in_short(why)))?;
        }
        if let Some(accuracy) = scores.accuracy {
            let how = if scores.chosen_by_grader { " (chosen by the grader: an upper bound)" } else { "" };
            let lacking = match scores.without_choice {
                0 => String::new(),
                some => {
                    format!("; {} of {} without a choice", count(some as u64), counted(scores.items as u64, "item"))
                }
            };
            self.line("accuracy", format!("{} of the chosen answers{how}{lacking}", in_percent(accuracy)))?;
            if scores.tied > 0 {
                let tied = counted(scores.tied as u64, "item");
                let how = "of the answers that tie the first is shown, and accuracy counts the share of right ones";
                self.line("tied", format!("{tied}: {how}"))?;
            }
            if scores.cancelled > 0 && scores.single.is_none() {
                let why = "left out, like pass@k and maj@k: samples were cancelled, which biases the others";
                let all = match scores.spares {
                    Some(EarlyStop::Decided) => format!(" ({SET} {DECIDED}=false samples all)"),
                    Some(EarlyStop::Passed) => format!(" ({SET} {PASSED}=false samples all)"),
                    Some(EarlyStop::Finished) | None => String::new(),
                };
                self.line("one sample", format!("{why}{all}"))?;
            }
        }
        if let Some(single) = scores.single {
            self.line("one sample", in_percent(single))?;
        }
        self.at_k("pass@k", &scores.pass_at, scores.items, "")?;
        self.at_k("maj@k", &scores.maj_at, scores.items, "")?;
        let by = if scores.ranked_by_score { "   by the score" } else { "" };
        self.at_k("best@k", &scores.best_at, scores.items, by)?;
        if let Some(OmittedKs { k, why }) = &scores.k_left_out {
            let k: Vec<String> = k.iter().map(u32::to_string).collect();
            self.line("left out", format!("k = {}: {why}", k.join(", ")))?;
        }
        if let Some(vote) = scores.weighted_vote {
            self.line("weighted", format!("{} by a vote weighted by the samples' likelihood", in_percent(vote)))?;
        }
        if let Some(vote) = scores.reward_vote {
            self.line("reward vote", format!("{} by a vote weighted by the samples' scores", in_percent(vote)))?;
        }
        if let Some(ScorerTotals { texts, tokens, unscored, first_error }) = &scores.scorer {
            let lacking = match (unscored, first_error) {
                (_, None) => String::new(),
                (0, Some(why)) => format!("; some comparisons have no answer, first: {}", in_short(why)),
                (some, Some(why)) => {
                    format!("; {} not scored, first: {}", counted(*some as u64, "text"), in_short(why))
                }
            };
            let [texts, tokens] = [(texts, "text"), (tokens, "token")].map(|(n, what)| counted(*n as u64, what));
            self.line("scored", format!("{texts} of {tokens}{lacking}"))?;
        }
        if scores.cut_short != CutShort::default() {
            let CutShort { length, context_full, dead_end, form_limit } = scores.cut_short;
            let causes = [
                (length, "by `max_tokens`"),
                (context_full, "as the model's context was full"),
                (dead_end, "in a dead end of their form"),
                (form_limit, "as their form takes too much work"),
            ];
            let causes = causes.iter().filter(|(n, _)| *n > 0).map(|(n, by)| format!("{} {by}", count(*n as u64)));
            self.line("cut short", format!("{} samples", causes.collect::<Vec<_>>().join(", ")))?;
        }
        match scores.without_answer as u64 {
            0 => Ok(()),
            all if scores.without_answer == scores.samples => {
                self.line("no answer", format!("{}: does `answer` fit their texts?", counted(all, "sample")))
            }
            some => self.line("no answer", counted(some, "sample")),
        }
    }

    /// What ending samples by low confidence did.
    fn low_confidence(&mut self, stops: ConfidenceStops, scores: &RunScores) -> fmt::Result {
        let ConfidenceStops { stopped, stopped_tokens, warm_up, warm_up_tokens, without_window, tokens_spared } = stops;
        let (of, tokens) = (counted(warm_up as u64, "sample"), count(warm_up_tokens as u64));
        self.line("warm-up", format!("{of}, {tokens} tokens, drawn whole: one sample, pass@k and maj@k are of these"))?;
        if without_window == scores.samples && without_window > 0 {
            return self.line("stopped", "nothing: no sample has as many tokens as `confidence.window`");
        }
        let all = tokens_spared + scores.samples_tokens.unwrap_or(stopped_tokens) + scores.cancelled_tokens;
        let share = 100.0 * tokens_spared as f64 / all.max(1) as f64;
        let (of, tokens, spared) =
            (counted(stopped as u64, "sample"), count(stopped_tokens as u64), count(tokens_spared as u64));
        self.line(
            "stopped",
            format!("{of} by low confidence, after {tokens} tokens: about {spared} tokens spared, {share:.0} % of all"),
        )
    }

    /// One row, with `more` at its end; notes how many items an estimate covers if not all of `items` have k samples.
    fn at_k(&mut self, name: &str, estimates: &[AtK], items: usize, more: &str) -> fmt::Result {
        if estimates.is_empty() {
            return Ok(());
        }
        let mut row = String::new();
        for AtK { k, items: covered, estimate } in estimates {
            write!(row, "{}{k}: {}", if row.is_empty() { "" } else { "   " }, percent(estimate.value))?;
            if *covered < items {
                write!(row, " ({covered} items)")?;
            }
        }
        self.line(name, row + more)
    }
}

/// An error that may have a whole answer of a judge in it; the lines of samples have it whole.
pub(crate) fn in_short(why: &str) -> String {
    shortened(why.to_owned(), 300)
}

fn in_percent(Estimate { value, interval }: Estimate) -> String {
    match interval {
        Some(Interval { low, high }) => {
            format!("{} (95 % interval {} to {})", percent(value), percentage(low), percentage(high))
        }
        None => percent(value),
    }
}

fn versus(ours: u64, theirs: u64, whose: &str) -> String {
    format!("{}; {} {whose}: {} x", bytes(ours), bytes(theirs), times(ours, theirs))
}
