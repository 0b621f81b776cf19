//! The requests of a replay and their arrival times.

use std::time::Duration;

use super::prompt::TracePrompt;
use offshoot_core::mix::{GOLDEN, mix};

/// One prompt, continued `samples` times by exactly `output` tokens each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRequest {
    pub prompt: TracePrompt,
    pub arrival: Duration,
    pub samples: usize,
    pub output: usize,
}

/// Requests in order of arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayJob {
    pub requests: Vec<ReplayRequest>,
}

impl ReplayJob {
    /// Sorts the requests by arrival; requests that arrive together keep their order.
    pub fn new(mut requests: Vec<ReplayRequest>) -> Self {
        requests.sort_by_key(|request| request.arrival);
        Self { requests }
    }

    /// This job's requests with the times of `arrivals`.
    #[must_use]
    pub fn arriving(mut self, arrivals: impl Iterator<Item = Duration>) -> Self {
        for (request, arrival) in self.requests.iter_mut().zip(arrivals) {
            request.arrival = arrival;
        }
        Self::new(self.requests)
    }

    /// Length in tokens of the longest prompt with its output.
    pub fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.prompt.len() + request.output).max().unwrap_or(0)
    }

    /// Number of samples over all requests.
    pub fn samples(&self) -> usize {
        self.requests.iter().map(|request| request.samples).sum()
    }

    pub fn output_tokens(&self) -> u64 {
        self.requests.iter().map(|request| (request.samples * request.output) as u64).sum()
    }
}

/// An endless Poisson process of arrival times, `rate` per second on average; deterministic in `seed`.
pub fn poisson(rate: f64, seed: u64) -> impl Iterator<Item = Duration> {
    let mut at = 0.0;
    (0u64..).map(move |number| {
        at -= (1.0 - unit(seed, number)).ln() / rate;
        Duration::from_secs_f64(at)
    })
}

/// A uniform number in [0, 1) for this seed and place.
pub(super) fn unit(seed: u64, place: u64) -> f64 {
    let bits = mix(mix(seed.wrapping_add(GOLDEN)) ^ place.wrapping_mul(GOLDEN)) >> 11;
    bits as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_come_at_their_rate_and_independently() {
        let times: Vec<f64> = poisson(5.0, 1).take(20_000).map(|time| time.as_secs_f64()).collect();
        assert!(times.is_sorted());
        assert!((times[19_999] / 4000.0 - 1.0).abs() < 0.03, "the last of 20,000 comes at {} s", times[19_999]);
        // Gaps of a Poisson process are longer than their mean with probability 1/e.
        let long = times.windows(2).filter(|pair| pair[1] - pair[0] > 0.2).count() as f64 / 19_999.0;
        assert!((long - (-1.0f64).exp()).abs() < 0.02, "{long}");
        assert_ne!(poisson(5.0, 2).next(), poisson(5.0, 1).next());
    }
}
