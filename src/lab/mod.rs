//! The laboratory: `check` holds a device to its definition, `bench` measures it, `replay` drives the scheduler through recorded jobs
//! on a simulated device, and `estimate` says what a job will come to. Nothing outside the laboratory depends on it.

pub mod bench;
pub mod check;
pub mod estimate;
pub mod replay;
