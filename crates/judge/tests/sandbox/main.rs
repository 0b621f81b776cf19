//! The sandbox against programs that mean harm.

#[path = "../../../../tests/common/busy.rs"]
mod busy;
#[path = "../../../../tests/common/compiler.rs"]
mod compiler;
#[path = "../../../../tests/common/sandbox.rs"]
mod sandbox_setup;
#[path = "../../../../tests/common/skip.rs"]
mod skip;

mod sandbox;
mod siege;

/// The program that the sandbox starts as its helper.
const HELPER: &str = env!("CARGO_BIN_EXE_offshoot-sandbox");
