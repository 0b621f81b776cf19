//! Integers only: the prefix tree, attention plans, and jobs through the scheduler on a simulated device.

#[path = "../common/shared.rs"]
mod shared;
#[path = "../common/skip.rs"]
mod skip;

mod modelled_times;
mod simulate;
