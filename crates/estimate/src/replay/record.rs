//! Records of a run, per step and per request, and their totals.

use std::time::Duration;

use serde::Serialize;

use offshoot_engine::Metrics;

/// One step; times in seconds since the start. Memory is measured when the step was submitted and the previous one
/// collected.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    pub begin: f64,
    pub end: f64,
    /// Rows of prompts and decodes together.
    pub rows: u64,
    pub prompt_rows: u64,
    pub running: usize,
    pub waiting: usize,
    /// Pages that branches hold, and distinct tokens in them.
    pub pages: usize,
    pub live_tokens: usize,
}

/// One request; times in seconds since the start.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ServedRequest {
    pub arrival: f64,
    pub first_token: f64,
    /// When the last of its samples got its first token.
    pub all_begun: f64,
    pub end: f64,
    pub prompt_tokens: u64,
    /// Tokens of all its samples.
    pub drawn: u64,
    pub samples: usize,
}

impl ServedRequest {
    /// Seconds from arrival to end, divided by the tokens of one sample (vLLM's normalised latency).
    pub fn normalised_latency(&self) -> f64 {
        (self.end - self.arrival) * self.samples as f64 / self.drawn as f64
    }
}

/// The record of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct JobRecord {
    pub steps: Vec<StepRecord>,
    /// In the order of the job.
    pub requests: Vec<ServedRequest>,
    /// The engine's counters; its times are measured on this machine, even if the device is simulated.
    pub metrics: Metrics,
    /// Time that this machine took to order the requests, before the first was submitted.
    pub ordered_in: Duration,
    pub pool_pages: usize,
    /// Pages in which a token has slots: one for each page group.
    pub pages_of_token: usize,
    pub page_tokens: usize,
    pub page_bytes: usize,
}

/// Sums over a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Totals {
    pub steps: usize,
    /// Steps with prompt rows, and steps that only decode.
    pub prompt_steps: usize,
    pub decode_steps: usize,
    /// Until the end of the last step and of the last request, which is noted after it.
    pub seconds: f64,
    pub drawn: u64,
    /// Drawn tokens a second.
    pub tokens_per_s: f64,
    pub prompt_tokens_logical: u64,
    pub prompt_tokens_computed: u64,
    pub tokens_recomputed: u64,
    pub preemptions: u64,
    /// Time without the cool-down, that is, until every sample has its first token. After that, no prompts can fill the
    /// steps, and rows decrease whatever the order (BatchLLM's TECD).
    pub seconds_before_cool_down: f64,
    /// Rows a second until then.
    pub rows_per_s_before_cool_down: f64,
    /// For steps that begin in the second or third quarter of the time before the cool-down: mean fullness, and the
    /// share of steps that are at least nine tenths full; see [`JobRecord::fullness`]. `None` if there are no such
    /// steps.
    pub middle_fullness: Option<f64>,
    pub middle_full_steps: Option<f64>,
    pub most_running: usize,
    /// Peak memory, and the memory that the same branches would have needed without sharing, and with none freed behind
    /// windows.
    pub kv_bytes_peak: u64,
    pub kv_bytes_peak_unshared: u64,
    /// At that peak: KV slots held, and distinct live tokens.
    pub kv_slots_peak: usize,
    pub live_tokens_peak: usize,
    /// Slots held over distinct live tokens: at the peak, on average over time, and at worst.
    pub kv_over_live_at_peak: f64,
    pub kv_over_live_mean: f64,
    pub kv_over_live_worst: f64,
    /// Means over requests, in seconds.
    pub normalised_latency: f64,
    pub first_token: f64,
}

impl JobRecord {
    /// Rows of a step divided by its capacity; 1 if no branch waited, because all branches took part.
    pub fn fullness(step: &StepRecord, step_rows: usize) -> f64 {
        match step.waiting {
            0 => 1.0,
            _ => (step.rows as f64 / step_rows as f64).min(1.0),
        }
    }

    /// The totals of the run, for steps of at most `step_rows` rows.
    pub fn totals(&self, step_rows: usize) -> Totals {
        let ends = self.requests.iter().map(|request| request.end).chain(self.steps.last().map(|step| step.end));
        let seconds = ends.fold(0.0, f64::max);
        let cool_down = self.requests.iter().map(|request| request.all_begun).fold(0.0, f64::max);
        let warm = self.steps.iter().filter(|step| step.end <= cool_down);
        let warm_rows: u64 = warm.map(|step| step.rows).sum();
        let is_middle = |step: &&StepRecord| (0.25 * cool_down..0.75 * cool_down).contains(&step.begin);
        let middle = self.steps.iter().filter(is_middle).map(|step| Self::fullness(step, step_rows));
        let middle: Vec<f64> = middle.collect();
        let prompt_steps = self.steps.iter().filter(|step| step.prompt_rows > 0).count();
        let drawn = self.requests.iter().map(|request| request.drawn).sum::<u64>();
        let over_live = |step: &StepRecord| self.slots(step.pages) as f64 / step.live_tokens as f64;
        let held = || self.steps.iter().filter(|step| step.live_tokens > 0);
        let peak = held().max_by_key(|step| step.pages);
        let weighted: f64 = held().map(|step| over_live(step) * (step.end - step.begin)).sum();
        let over_requests = |value: fn(&ServedRequest) -> f64| mean(self.requests.iter().map(value));
        Totals {
            steps: self.steps.len(),
            prompt_steps,
            decode_steps: self.steps.len() - prompt_steps,
            seconds,
            drawn,
            tokens_per_s: drawn as f64 / seconds,
            prompt_tokens_logical: self.metrics.prompt_tokens_logical,
            prompt_tokens_computed: self.metrics.prompt_tokens_computed,
            tokens_recomputed: self.metrics.tokens_recomputed,
            preemptions: self.metrics.preemptions,
            seconds_before_cool_down: cool_down,
            rows_per_s_before_cool_down: warm_rows as f64 / cool_down,
            middle_fullness: mean(middle.iter().copied()),
            middle_full_steps: mean(middle.iter().map(|&full| f64::from(u8::from(full >= 0.9)))),
            most_running: self.steps.iter().map(|step| step.running).max().unwrap_or(0),
            kv_bytes_peak: self.metrics.kv_bytes_peak,
            kv_bytes_peak_unshared: self.metrics.kv_bytes_peak_unshared,
            kv_slots_peak: peak.map_or(0, |step| self.slots(step.pages)),
            live_tokens_peak: peak.map_or(0, |step| step.live_tokens),
            kv_over_live_at_peak: peak.map_or(1.0, over_live),
            kv_over_live_mean: weighted / held().map(|step| step.end - step.begin).sum::<f64>(),
            kv_over_live_worst: held().map(over_live).fold(1.0, f64::max),
            normalised_latency: over_requests(ServedRequest::normalised_latency).unwrap_or(0.0),
            first_token: over_requests(|request| request.first_token - request.arrival).unwrap_or(0.0),
        }
    }

    /// Tokens that have all of their slots in so many pages.
    pub fn slots(&self, pages: usize) -> usize {
        pages * self.page_tokens / self.pages_of_token
    }
}

/// The mean; `None` without values.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}
