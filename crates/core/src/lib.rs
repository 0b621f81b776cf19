//! What every room uses: ids, errors, figures as people read them, JSON, input, output. Nothing here knows a
//! model, a device or a task.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod bounded;
pub mod bundled;
pub mod dice;
pub mod error;
pub mod figures;
pub mod file_kind;
pub mod hub;
pub mod ids;
pub mod input;
pub mod interrupt;
pub mod json;
pub mod lfs;
pub mod mapped;
pub mod memory;
pub mod mix;
mod named;
pub mod out;
pub mod setting;
#[cfg(test)]
#[path = "../../../tests/common/skip.rs"]
mod skip;
pub mod sorting;

pub use error::{Error, Result};
