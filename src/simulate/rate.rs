//! How many requests a second a machine sustains.

use std::ops::RangeInclusive;

use serde::Serialize;

use super::drive::{Machine, Settings, simulate};
use super::job::Job;
use crate::error::{Error, Result};

/// A rate that was sustained, and what was tried on the way.
#[derive(Clone, Debug, Serialize)]
pub struct Sustained {
    /// Requests a second.
    pub rate: f64,
    /// Each rate tried with its mean normalised latency, seconds a token.
    pub tried: Vec<(f64, f64)>,
}

/// Rates are told apart to so much.
const PRECISION: f64 = 1.04;
const FIRST: f64 = 8.0;
/// What is tried.
const RATES: RangeInclusive<f64> = 1.0 / 64.0..=4096.0;

/// The largest rate (requests a second, to 4 %) of which `job` makes a job whose mean normalised latency is at most `limit`
/// seconds a token: RelayAttention's measure (arXiv 2402.14808, section 4), with a limit of 0.5. A queue that grows is seen by
/// its latency only after a while, so that jobs must last; compare rates found for the same span of arrivals.
///
/// # Errors
/// Latency is above the limit at a request a minute, or below it at thousands a second.
pub fn sustainable_rate(
    machine: &Machine,
    settings: &Settings,
    limit: f64,
    mut job: impl FnMut(f64) -> Job,
) -> Result<Sustained> {
    let mut tried = Vec::new();
    let mut holds = |rate: f64, tried: &mut Vec<(f64, f64)>| -> Result<bool> {
        let latency = simulate(machine, settings, &job(rate))?.totals(settings.step_rows).normalised_latency;
        tried.push((rate, latency));
        Ok(latency <= limit)
    };
    let mut rate = FIRST;
    let step = if holds(rate, &mut tried)? { 2.0 } else { 0.5 };
    // The first rate on the other side.
    loop {
        rate *= step;
        if !RATES.contains(&rate) {
            let expected = format!("one from {} to {} requests a second", RATES.start(), RATES.end());
            return Err(Error::value("sustainable rate", expected, "none"));
        }
        if holds(rate, &mut tried)? != (step > 1.0) {
            break;
        }
    }
    let (mut sustained, mut too_much) = if step > 1.0 { (rate / step, rate) } else { (rate, rate / step) };
    while too_much > PRECISION * sustained {
        let middle = (sustained * too_much).sqrt();
        match holds(middle, &mut tried)? {
            true => sustained = middle,
            false => too_much = middle,
        }
    }
    Ok(Sustained { rate: sustained, tried })
}
