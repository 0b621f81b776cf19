//! The engine on a tiny random model: whatever the batch, the plan, the pool and the order of commands, the same draws.
//! Twice: on engines that collect each step before the next is submitted, and on engines that run ahead. What does not
//! look inside an engine a third time: on three of them behind one handle.

#![expect(
    clippy::duplicate_mod,
    reason = "the suite is compiled for engines in turn, for engines that run ahead and for replicas"
)]

use offshoot::dice;

/// Each step is collected before the next one is submitted.
#[path = "."]
mod in_turn {
    mod ahead;
    mod bench;
    mod bursts;
    mod generate;
    mod jobs;
    mod levels;
    mod pages;
    mod pins;
    mod plain;
    mod priorities;
    mod ranks;
    mod requests;
    mod samples;
    mod scheduling;
    mod scores;
    mod scripts;
    mod shortage;
    mod states;
    mod steps;
    mod stops;
    mod store;
    mod swap;
    mod waves;
    mod windows;

    /// Whether every engine of these tests submits a step before the one before is collected.
    const RUN_AHEAD: bool = false;
    const REPLICAS: usize = 1;
}

/// Each step is submitted before the one before is collected.
#[path = "."]
mod run_ahead {
    mod bench;
    mod jobs;
    mod levels;
    mod pages;
    mod pins;
    mod plain;
    mod priorities;
    mod ranks;
    mod requests;
    mod samples;
    mod scheduling;
    mod scores;
    mod scripts;
    mod states;
    mod steps;
    mod stops;
    mod store;
    mod swap;
    mod windows;

    /// Whether every engine of these tests submits a step before the one before is collected.
    const RUN_AHEAD: bool = true;
    const REPLICAS: usize = 1;
}

/// Three engines behind one handle.
#[path = "."]
mod replicas {
    mod bench;
    mod generate;
    mod plain;
    mod requests;
    mod samples;
    mod scripts;
    mod stops;

    const RUN_AHEAD: bool = true;
    const REPLICAS: usize = 3;
}
