//! The laboratory: `check` compares a device with its definition, `bench` measures it. Each has
//! the options of its command; nothing outside depends on it but `cli`.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

pub mod bench;
pub mod check;
