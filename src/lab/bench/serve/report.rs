//! The figures of a load, as text and as one JSON object.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::client::AnswerTiming;
use super::load::LoadRecord;
use super::{LoadOptions, Pace};
use crate::figures::{count, saved, seconds};

/// Times in seconds; rates per second of `wall_s`.
#[derive(Debug, Serialize)]
pub struct LoadReport {
    concurrency: Option<usize>,
    rate: Option<f64>,
    stream: bool,
    requests: usize,
    pub answered: usize,
    wall_s: f64,
    requests_per_s: f64,
    completion_tokens: u64,
    tokens_per_s: f64,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// From when a request was to be sent to its answer's end.
    latency_s: Option<Percentiles>,
    first_token_s: Option<Percentiles>,
    /// Between events of one choice.
    next_token_s: Option<Percentiles>,
    most_running: usize,
    /// The longest that a request was sent after its time.
    late_s: f64,
    /// CPU time of this program, which the server may lack on the same machine.
    client_cpu_s: f64,
    /// How often each was seen.
    errors: BTreeMap<String, usize>,
}

/// Of times in seconds, by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
}

impl Percentiles {
    /// `None`: there are no times.
    pub fn of(times: impl Iterator<Item = Duration>) -> Option<Percentiles> {
        let mut times: Vec<Duration> = times.collect();
        times.sort_unstable();
        let at = |percent: usize| {
            let rank = (times.len() * percent).div_ceil(100);
            times.get(rank.saturating_sub(1)).map(Duration::as_secs_f64)
        };
        Some(Percentiles { p50: at(50)?, p90: at(90)?, p99: at(99)? })
    }
}

impl LoadReport {
    pub fn of(record: &LoadRecord, options: &LoadOptions) -> LoadReport {
        let answers: Vec<&AnswerTiming> = record.outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()).collect();
        let mut errors = BTreeMap::new();
        for error in record.outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
            *errors.entry(error.clone()).or_default() += 1;
        }
        let wall_s = record.wall.as_secs_f64();
        let sum = |of: fn(&AnswerTiming) -> u64| answers.iter().map(|answer| of(answer)).sum::<u64>();
        let completion_tokens = sum(|answer| answer.usage.completion);
        LoadReport {
            concurrency: if let Pace::Concurrency(streams) = options.pace { Some(streams) } else { None },
            rate: if let Pace::Rate(rate) = options.pace { Some(rate) } else { None },
            stream: options.stream,
            requests: record.outcomes.len(),
            answered: answers.len(),
            wall_s,
            requests_per_s: answers.len() as f64 / wall_s,
            completion_tokens,
            tokens_per_s: completion_tokens as f64 / wall_s,
            prompt_tokens: sum(|answer| answer.usage.prompt),
            cached_tokens: sum(|answer| answer.usage.cached),
            latency_s: Percentiles::of(answers.iter().map(|answer| answer.whole)),
            first_token_s: Percentiles::of(answers.iter().filter_map(|answer| answer.first)),
            next_token_s: Percentiles::of(answers.iter().flat_map(|answer| answer.gaps.iter().copied())),
            most_running: record.most_running,
            late_s: record.late.as_secs_f64(),
            client_cpu_s: record.cpu.as_secs_f64(),
            errors,
        }
    }

    /// What most of the requests that were not answered met.
    pub fn first_error(&self) -> String {
        let most = self.errors.iter().max_by_key(|(_, count)| **count);
        most.map_or_else(|| "no request".to_owned(), |(error, _)| error.clone())
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (answered, requests) = (count(self.answered as u64), count(self.requests as u64));
        let (wall, rate) = (seconds(self.wall_s), self.requests_per_s);
        writeln!(f, "requests     {answered} of {requests} answered in {wall}: {rate:.1} requests/s")?;
        let (tokens, rate) = (count(self.completion_tokens), self.tokens_per_s);
        let (prompts, cached) = (self.prompt_tokens, self.cached_tokens.min(self.prompt_tokens));
        writeln!(f, "generated    {tokens} tokens: {rate:.0} tokens/s")?;
        writeln!(f, "prompts      {} tokens, {} cached", count(prompts), saved(prompts - cached, prompts))?;
        let times =
            [("latency", self.latency_s), ("first token", self.first_token_s), ("next token", self.next_token_s)];
        for (what, times) in times {
            let Some(Percentiles { p50, p90, p99 }) = times else { continue };
            writeln!(f, "{what:<12} p50 {}   p90 {}   p99 {}", seconds(p50), seconds(p90), seconds(p99))?;
        }
        let (late, cpu) = (seconds(self.late_s), seconds(self.client_cpu_s));
        write!(f, "load         at most {} at once, sent at most {late} late, {cpu} of CPU", self.most_running)?;
        for (error, times) in &self.errors {
            write!(f, "\nerror        {} x {error}", count(*times as u64))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let ms = |times: std::ops::RangeInclusive<u64>| Percentiles::of(times.rev().map(Duration::from_millis));
        assert_eq!(ms(1..=100), Some(Percentiles { p50: 0.05, p90: 0.09, p99: 0.099 }));
        assert_eq!(ms(1..=3), Some(Percentiles { p50: 0.002, p90: 0.003, p99: 0.003 }));
        assert_eq!(Percentiles::of(std::iter::empty()), None);
    }
}
