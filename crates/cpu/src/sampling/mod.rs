//! Samples the next token of each row: bias, penalties, temperature, top-k, top-p, min-p, then the inverse of the
//! cumulative distribution in vocabulary order at the request's uniform. The uniform is an argument; nothing here is
//! random. `clear` is the definition, by a full sort in f64. `fast` samples the same token unless the uniform lies
//! within rounding (1e-6) of the boundary between two tokens.
//!
//! Equal scores rank by rising token id. A NaN logit counts as -inf, +inf as the largest f32. A token less likely than
//! the best one by more than a factor of e^87 (at the request's temperature) is never sampled. The best token is never
//! filtered out. If every score is -inf, no token is sampled; a given token always is.
//!
//! Records (`Records`) cost nothing where they are not asked for; where they are, `fast` records the distribution that
//! it samples from, so that a token and its re-score under the same filters have the same log-probability to the bit.

pub mod chunks;
mod clear;
mod fast;
mod filtered;
mod nucleus;
mod scores;

use super::{Cores, CpuBuffer, Isa};
use offshoot_backend::{SampleRequest, SampledToken};

/// Memory reused between calls, for each share of the rows.
#[derive(Default)]
pub struct SampleScratch {
    shares: Vec<Share>,
}

#[derive(Default)]
struct Share {
    scratch: fast::RowScratch,
    sampled: Vec<Option<SampledToken>>,
}

/// Shares of the rows per thread, so that threads end together.
const SHARES: usize = 4;

/// Samples one token for each row of `logits`, `[requests.len(), vocab]`, and adds them to `sampled`; `None` where
/// every score is -inf.
pub fn sample(
    cores: &Cores,
    scratch: &mut SampleScratch,
    logits: &CpuBuffer,
    requests: &[SampleRequest],
    sampled: &mut Vec<Option<SampledToken>>,
) {
    assert_eq!(logits.rows, requests.len(), "sample: one request per row");
    assert!(logits.width > 0, "sample: a vocabulary of at least one token");
    let rows = requests.len();
    sampled.reserve(rows);
    let shares = rows.min(SHARES * cores.team.threads());
    scratch.shares.resize_with(shares.max(scratch.shares.len()), Share::default);
    let shares = &mut scratch.shares[..shares];
    let count = shares.len();
    cores.team.for_each(shares, |share, Share { scratch, sampled }| {
        let rows = share * rows / count..(share + 1) * rows / count;
        sampled.extend(rows.map(|r| match cores.isa {
            Isa::Portable => clear::sample_row(logits.row(r), &requests[r]),
            isa => fast::sample_row(isa, scratch, logits.row(r), &requests[r]),
        }));
    });
    shares.iter_mut().for_each(|share| sampled.append(&mut share.sampled));
}
