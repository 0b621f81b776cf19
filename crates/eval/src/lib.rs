//! Evaluation: a task from its file to results. `task` reads the task file, `run` executes it, `journal` stores the
//! results, `report` and `view` show them; `scoring` judges samples made elsewhere. `search` defines the searches,
//! `judge` runs candidate programs.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod answer;
pub mod benchmark;
#[cfg(test)]
#[path = "../../../tests/common/full.rs"]
mod full;
pub mod journal;
mod judged;
pub(crate) mod program;
pub mod records;
pub mod report;
pub mod run;
pub mod scoring;
pub(crate) mod source;
pub mod statistics;
pub mod task;
pub mod view;
