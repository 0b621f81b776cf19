//! Finds the request rate that a machine sustains.

use std::ops::RangeInclusive;

use serde::Serialize;

use offshoot_core::error::{Error, Result};

/// The highest sustained rate found, and the rates tried.
#[derive(Clone, Debug, Serialize)]
pub struct Sustained {
    /// Requests a second.
    pub rate: f64,
    /// Each rate tried (requests per second) with its mean normalised latency (seconds per token).
    pub tried: Vec<(f64, f64)>,
}

/// Range of the rates that are tried.
const RATES: RangeInclusive<f64> = 1.0 / 64.0..=4096.0;

/// Settings of the search for a rate.
#[derive(Clone, Copy, Debug)]
pub struct RateSearch {
    /// Limit of the mean normalised latency, in seconds per token.
    pub limit: f64,
    /// First rate tried, in requests per second.
    pub first: f64,
    /// The search stops when the lowest failing rate is at most this factor above the highest sustained one.
    pub precision: f64,
}

impl Default for RateSearch {
    /// RelayAttention's limit, to a precision of 4 %.
    fn default() -> Self {
        Self { limit: 0.5, first: 8.0, precision: 1.04 }
    }
}

/// The highest rate (requests per second) at which the mean normalised latency, as returned by `latency`, is at most
/// the limit: RelayAttention's measure (arXiv 2402.14808, section 4), with a limit of 0.5. A growing queue raises the
/// latency only after a while, so jobs must be long; compare only rates found for the same span of arrivals.
///
/// # Errors
///
/// The latency is above the limit at the lowest rate tried or below it at the highest; an error of `latency`.
pub fn sustainable_rate(search: RateSearch, mut latency: impl FnMut(f64) -> Result<f64>) -> Result<Sustained> {
    let mut tried = Vec::new();
    let mut holds = |rate: f64, tried: &mut Vec<(f64, f64)>| -> Result<bool> {
        let latency = latency(rate)?;
        tried.push((rate, latency));
        Ok(latency <= search.limit)
    };
    let beyond = |what: &str, found: String| {
        Error::value(what, format!("one from {} to {} requests a second", RATES.start(), RATES.end()), found)
    };
    if !RATES.contains(&search.first) {
        return Err(beyond("the rate tried first", search.first.to_string()));
    }
    let mut rate = search.first;
    let step = if holds(rate, &mut tried)? { 2.0 } else { 0.5 };
    // Double or halve the rate until the result changes.
    loop {
        rate *= step;
        if !RATES.contains(&rate) {
            return Err(beyond("sustainable rate", "none".to_owned()));
        }
        if holds(rate, &mut tried)? != (step > 1.0) {
            break;
        }
    }
    let (mut sustained, mut too_much) = if step > 1.0 { (rate / step, rate) } else { (rate, rate / step) };
    while too_much > search.precision * sustained {
        let middle = (sustained * too_much).sqrt();
        match holds(middle, &mut tried)? {
            true => sustained = middle,
            false => too_much = middle,
        }
    }
    Ok(Sustained { rate: sustained, tried })
}
