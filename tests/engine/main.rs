//! The engine on a tiny random model: whatever the batch, the plan, the pool and the order of commands, the same draws.

use offshoot::check::dice;

mod bench;
mod pages;
mod plain;
mod requests;
mod samples;
mod scripts;
mod stops;
