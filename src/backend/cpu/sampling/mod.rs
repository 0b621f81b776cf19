//! The next token of each row: bias, penalties, temperature, top-k, top-p, min-p, then the inverse of the cumulative
//! distribution at the row's coin. The coin is an argument; nothing here is random.

mod clear;

use rayon::prelude::*;

use super::Buffer;
use crate::backend::{SampleRequest, Sampled};

/// One token a row of `logits` `[requests.len(), vocab]`.
pub fn sample(logits: &Buffer, requests: &[SampleRequest]) -> Vec<Sampled> {
    assert_eq!(logits.rows, requests.len(), "sample: one request a row");
    requests.par_iter().enumerate().map(|(r, request)| clear::sample_row(logits.row(r), request)).collect()
}
