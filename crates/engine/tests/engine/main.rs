//! The engine on a tiny random model: whatever the batch, the plan, the pool and the order of commands, the same draws.
//! Also whether engines collect each step before the next is submitted or run ahead, and, for what does not look inside
//! an engine, with three of them behind one handle: `bench::Mode`. `generate` and the trees that stand on an engine are
//! tested in crates/launch, jobs of real sizes in crates/estimate.

#[macro_use]
mod bench;
#[path = "../../../../tests/common/full.rs"]
mod full;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod adapters;
mod ahead;
mod allowed;
mod any;
mod bursts;
mod forms;
mod jobs;
mod latents;
mod levels;
mod pages;
mod pauses;
mod pins;
mod plain;
mod priorities;
mod ranks;
mod records;
mod requests;
mod routes;
mod runner;
mod samples;
mod scheduling;
mod scores;
mod scripts;
mod shortage;
mod sleeps;
mod states;
mod steps;
mod stops;
mod store;
mod swap;
mod update_scripts;
mod updates;
mod values;
mod versions;
mod windows;
mod world;
