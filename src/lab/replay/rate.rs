//! How many requests a second a machine sustains.

use std::ops::RangeInclusive;

use serde::Serialize;

use crate::error::{Error, Result};

/// A rate that was sustained, and what was tried on the way.
#[derive(Clone, Debug, Serialize)]
pub struct Sustained {
    /// Requests a second.
    pub rate: f64,
    /// Each rate tried with its mean normalised latency, seconds a token.
    pub tried: Vec<(f64, f64)>,
}

/// What is tried.
const RATES: RangeInclusive<f64> = 1.0 / 64.0..=4096.0;

/// How a rate is looked for.
#[derive(Clone, Copy, Debug)]
pub struct RateSearch {
    /// Seconds a token that the mean normalised latency may reach.
    pub limit: f64,
    /// Requests a second that are tried first.
    pub first: f64,
    /// Rates are told apart where one is so many times the other.
    pub precision: f64,
}

impl Default for RateSearch {
    /// By RelayAttention's limit, to 4 %.
    fn default() -> Self {
        Self { limit: 0.5, first: 8.0, precision: 1.04 }
    }
}

/// The largest rate (requests a second) at which `latency`, which is asked for the mean normalised latency at a rate, stays at
/// most at the limit: RelayAttention's measure (arXiv 2402.14808, section 4), with a limit of 0.5. A queue that grows is seen by
/// its latency only after a while, so that jobs must last; compare rates found for the same span of arrivals.
///
/// # Errors
/// Latency is above the limit at a request a minute, or below it at thousands a second; and those of `latency`.
pub fn sustainable_rate(search: RateSearch, mut latency: impl FnMut(f64) -> Result<f64>) -> Result<Sustained> {
    let mut tried = Vec::new();
    let mut holds = |rate: f64, tried: &mut Vec<(f64, f64)>| -> Result<bool> {
        let latency = latency(rate)?;
        tried.push((rate, latency));
        Ok(latency <= search.limit)
    };
    if !RATES.contains(&search.first) {
        let expected = format!("one from {} to {} requests a second", RATES.start(), RATES.end());
        return Err(Error::value("the rate tried first", expected, search.first.to_string()));
    }
    let mut rate = search.first;
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
    while too_much > search.precision * sustained {
        let middle = (sustained * too_much).sqrt();
        match holds(middle, &mut tried)? {
            true => sustained = middle,
            false => too_much = middle,
        }
    }
    Ok(Sustained { rate: sustained, tried })
}
