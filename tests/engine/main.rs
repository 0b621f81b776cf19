//! The engine on a tiny random model: whatever the batch, the plan, the pool and the order of commands, the same draws.

use offshoot::lab::check::dice;

mod ahead;
mod bench;
mod bursts;
mod jobs;
mod levels;
mod pages;
mod plain;
mod requests;
mod samples;
mod scheduling;
mod scripts;
mod shortage;
mod steps;
mod stops;
mod swap;
mod waves;

/// Whether every engine of this suite submits steps before the one before is collected; see tests/engine_ahead.rs.
const RUN_AHEAD: bool = false;
