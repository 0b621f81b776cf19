//! Jobs through the scheduler on a simulated device.

#[allow(dead_code, unused_macros, reason = "the engine's suite uses more of it")]
#[path = "../../../engine/tests/engine/bench.rs"]
mod bench;
#[allow(dead_code, reason = "the engine's suite uses more of it")]
#[path = "../../../engine/tests/engine/jobs.rs"]
mod jobs;
#[path = "../../../../tests/common/shared.rs"]
mod shared;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod latents;
mod simulate;
mod waves;
