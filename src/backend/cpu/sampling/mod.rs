//! Samples the next token of each row: bias, penalties, temperature, top-k, top-p, min-p, then the inverse of the
//! cumulative distribution in vocabulary order at the request's uniform. The uniform is an argument; nothing here is
//! random. `clear` is the definition, by a full sort in f64. `fast` samples the same token unless the uniform lies
//! within rounding (1e-6) of the boundary between two tokens.
//!
//! Equal scores rank by rising token id. A NaN logit counts as -inf, +inf as the largest f32. A token less likely than
//! the best one by more than a factor of e^87 (at the request's temperature) is never sampled. The best token is never
//! filtered out. If every token is at -inf, token 0 is sampled.

mod clear;
mod fast;
mod nucleus;
mod scores;

use rayon::prelude::*;

use super::{CpuBuffer, Isa};
use crate::backend::{SampleRequest, Sampled};

/// Samples one token for each row of `logits`, `[requests.len(), vocab]`.
pub fn sample(isa: Isa, logits: &CpuBuffer, requests: &[SampleRequest]) -> Vec<Sampled> {
    assert_eq!(logits.rows, requests.len(), "sample: one request per row");
    assert!(logits.width > 0, "sample: a vocabulary of at least one token");
    let rows = requests.par_iter().enumerate();
    match isa {
        Isa::Portable => rows.map(|(r, request)| clear::sample_row(logits.row(r), request)).collect(),
        _ => {
            let scratch = fast::RowScratch::default;
            rows.map_init(scratch, |scratch, (r, request)| fast::sample_row(isa, scratch, logits.row(r), request))
                .collect()
        }
    }
}
