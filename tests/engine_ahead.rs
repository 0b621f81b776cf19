//! The suite of tests/engine once more, on engines that submit each step before the one before is collected.

use offshoot::lab::check::dice;

#[path = "engine/bench.rs"]
mod bench;
#[path = "engine/jobs.rs"]
mod jobs;
#[path = "engine/levels.rs"]
mod levels;
#[path = "engine/pages.rs"]
mod pages;
#[path = "engine/plain.rs"]
mod plain;
#[path = "engine/requests.rs"]
mod requests;
#[path = "engine/samples.rs"]
mod samples;
#[path = "engine/scheduling.rs"]
mod scheduling;
#[path = "engine/scripts.rs"]
mod scripts;
#[path = "engine/steps.rs"]
mod steps;
#[path = "engine/stops.rs"]
mod stops;
#[path = "engine/swap.rs"]
mod swap;

const RUN_AHEAD: bool = true;
