//! Development tools: `check` checks a device against its definition, `bench` measures it, `replay` runs recorded jobs
//! through the scheduler on a simulated device, and `estimate` estimates a job without running it. Nothing outside
//! depends on it.

pub mod bench;
pub mod check;
pub mod estimate;
pub mod replay;
