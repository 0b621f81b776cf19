//! What the server counts, and its text in Prometheus' format. Reading never waits for the engine.

use std::collections::VecDeque;
use std::fmt::{Display, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

/// A sum that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper bounds of a histogram's buckets, in seconds.
const BOUNDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// A histogram of durations: counts by upper bound, in seconds.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Counter; BOUNDS.len() + 1],
    microseconds: Counter,
}

impl Histogram {
    pub fn note(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.buckets[BOUNDS.partition_point(|&bound| bound < seconds)].add(1);
        self.microseconds.add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        head(name, help, "histogram", out);
        let mut sum = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            sum += bucket.get();
            line(out, format_args!("{name}_bucket{{le=\"{bound}\"}} {sum}"));
        }
        sum += self.buckets[BOUNDS.len()].get();
        line(out, format_args!("{name}_bucket{{le=\"+Inf\"}} {sum}"));
        line(out, format_args!("{name}_sum {}", self.microseconds.get() as f64 / 1e6));
        line(out, format_args!("{name}_count {sum}"));
    }
}

/// The last durations of two minutes.
#[derive(Debug, Default)]
pub struct RecentDurations(Mutex<VecDeque<(Instant, Duration)>>);

/// Durations that half and 95 of 100 do not exceed, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    pub p50: f64,
    pub p95: f64,
}

impl RecentDurations {
    const WINDOW: Duration = Duration::from_secs(120);
    const MOST: usize = 4096;

    fn note(&self, time: Duration) {
        let mut recent = self.0.lock().expect("nothing panics while it holds the durations");
        if recent.len() == Self::MOST {
            recent.pop_front();
        }
        recent.push_back((Instant::now(), time));
    }

    /// `None`: there was nothing.
    pub fn quantiles(&self) -> Option<Quantiles> {
        let mut recent = self.0.lock().expect("nothing panics while it holds the durations");
        while recent.front().is_some_and(|(at, _)| at.elapsed() > Self::WINDOW) {
            recent.pop_front();
        }
        let mut times: Vec<Duration> = recent.iter().map(|&(_, time)| time).collect();
        drop(recent);
        times.sort_unstable();
        // The smallest that so large a share does not exceed.
        let quantile = |percent: usize| times.get((times.len() * percent).div_ceil(100).saturating_sub(1));
        let (p50, p95) = quantile(50).zip(quantile(95))?;
        Some(Quantiles { p50: p50.as_secs_f64(), p95: p95.as_secs_f64() })
    }
}

/// The moment at which it was made.
#[derive(Debug)]
struct Beginning(Instant);

impl Default for Beginning {
    fn default() -> Self {
        Beginning(Instant::now())
    }
}

/// Sums since the server started.
#[derive(Debug, Default)]
pub struct ServeMetrics {
    started: Beginning,
    /// Requests for samples or scores that came, and by how they ended: answered whole, left by their client before,
    /// refused for any reason. Those that have not ended are the rest.
    pub requests: Counter,
    pub answered: Counter,
    pub cancelled: Counter,
    pub refused: Counter,
    /// Jobs that the dispatcher has ended with an answer, for the rate.
    pub jobs: Counter,
    /// HTTP responses, by the first digit of their status.
    pub responses: [Counter; 6],
    pub samples: Counter,
    pub tokens_sampled: Counter,
    /// Tokens of the prompts of answered requests, and those of them that began an earlier prompt.
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    /// From the arrival of a request to the first token of its stream, to its end, and between two chunks.
    first_token: Histogram,
    job_seconds: Histogram,
    pub between_chunks: Histogram,
    /// As `first_token` and `job_seconds`, of the last two minutes.
    pub recent_first_tokens: RecentDurations,
    pub recent_jobs: RecentDurations,
    /// When jobs ended lately, for the rate.
    rate: Mutex<(Beginning, u64, f64)>,
}

impl ServeMetrics {
    pub fn note_first_token(&self, after: Duration) {
        self.first_token.note(after);
        self.recent_first_tokens.note(after);
    }

    pub fn note_job(&self, after: Duration) {
        self.job_seconds.note(after);
        self.recent_jobs.note(after);
    }

    /// In how many seconds a queue of `waiting` jobs should be half empty, by the rate of the last seconds: from 1
    /// to 60.
    pub fn seconds_per_job(&self, waiting: usize) -> u64 {
        let rate = self.jobs_per_second();
        let seconds = if rate > 0.0 { waiting as f64 / 2.0 / rate } else { 60.0 };
        seconds.ceil().clamp(1.0, 60.0) as u64
    }

    /// Answered requests per second over the last ten seconds or so.
    pub fn jobs_per_second(&self) -> f64 {
        const WINDOW: Duration = Duration::from_secs(10);
        let mut last = self.rate.lock().expect("nothing panics while it holds the rate");
        let (Beginning(since), before, rate) = *last;
        let (passed, jobs) = (since.elapsed(), self.jobs.get());
        if passed < WINDOW && rate > 0.0 {
            return rate;
        }
        let now = (jobs - before) as f64 / passed.as_secs_f64().max(1e-3);
        if passed >= WINDOW {
            *last = (Beginning::default(), jobs, now);
        }
        now
    }

    pub fn uptime(&self) -> Duration {
        self.started.0.elapsed()
    }

    /// The counters in Prometheus' text format.
    pub fn write(&self, out: &mut String) {
        let counters = |out: &mut String, rows: &[(&str, &str, &Counter)]| {
            rows.iter().for_each(|(name, help, value)| counter(out, name, help, value.get()));
        };
        let requests = [
            ("offshoot_requests_total", "Requests for samples or scores that came", &self.requests),
            ("offshoot_requests_answered_total", "Those of them that were answered", &self.answered),
            ("offshoot_requests_cancelled_total", "Those of them whose client left before", &self.cancelled),
            ("offshoot_requests_refused_total", "Those of them that were refused, for any reason", &self.refused),
        ];
        counters(out, &requests);
        head("offshoot_responses_total", "HTTP responses by the class of their status", "counter", out);
        for (class, count) in self.responses.iter().enumerate().skip(1) {
            line(out, format_args!("offshoot_responses_total{{class=\"{class}xx\"}} {}", count.get()));
        }
        let samples = [
            ("offshoot_samples_total", "Samples that ended", &self.samples),
            ("offshoot_sampled_tokens_total", "Tokens of answered samples", &self.tokens_sampled),
            ("offshoot_prompt_tokens_total", "Prompt tokens of answered requests", &self.prompt_tokens),
            ("offshoot_prompt_tokens_cached_total", "Those of them that began an earlier prompt", &self.cached_tokens),
        ];
        counters(out, &samples);
        let first_token = "Of streams, from arrival to the first token";
        self.first_token.write("offshoot_time_to_first_token_seconds", first_token, out);
        self.between_chunks.write("offshoot_time_between_chunks_seconds", "Between two chunks of a stream", out);
        self.job_seconds.write("offshoot_request_seconds", "From arrival to the end", out);
    }
}

/// Appends a counter.
pub fn counter(out: &mut String, name: &str, help: &str, value: impl Display) {
    head(name, help, "counter", out);
    line(out, format_args!("{name} {value}"));
}

/// Appends a value that goes up and down.
pub fn gauge(out: &mut String, name: &str, help: &str, value: f64) {
    head(name, help, "gauge", out);
    line(out, format_args!("{name} {value}"));
}

fn head(name: &str, help: &str, kind: &str, out: &mut String) {
    line(out, format_args!("# HELP {name} {help}"));
    line(out, format_args!("# TYPE {name} {kind}"));
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a string takes what is written to it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_durations_that_were_noted() {
        let recent = RecentDurations::default();
        assert_eq!(recent.quantiles(), None);
        recent.note(Duration::from_secs(7));
        assert_eq!(recent.quantiles(), Some(Quantiles { p50: 7.0, p95: 7.0 }));
        (1..=99).for_each(|seconds| recent.note(Duration::from_secs(seconds)));
        // 7 is there twice.
        assert_eq!(recent.quantiles(), Some(Quantiles { p50: 49.0, p95: 94.0 }));
    }
}
