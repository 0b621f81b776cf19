//! The laboratory, `offshoot-lab`: `check` compares a device with its definition, `bench` measures it, `forms` says
//! which texts have which forms. A program of its own, which the product does not need: nothing depends on it.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod bench;
pub mod check;
pub mod command;
pub mod forms;
