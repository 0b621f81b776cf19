//! What several suites share.

pub mod dice;
pub mod forests;
