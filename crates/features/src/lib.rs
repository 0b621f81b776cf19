//! No code: `Cargo.toml` lists the features that third crates have in the whole workspace.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.
