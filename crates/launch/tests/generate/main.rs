//! What stands on an engine: `generate`, its `Generator`, and sampling trees, on the tiny random model of the engine's
//! own suite.

#[macro_use]
#[allow(dead_code, reason = "the engine's suite uses more of it")]
#[path = "../../../engine/tests/engine/bench.rs"]
mod bench;

mod generate;
mod groups;
mod rollouts;
mod scores;
mod trees;
#[allow(dead_code, reason = "the engine's suite uses more of it")]
#[path = "../../../engine/tests/engine/versions.rs"]
mod versions;
#[allow(dead_code, reason = "the engine's suite uses more of it")]
#[path = "../../../engine/tests/engine/world.rs"]
mod world;
