//! Whether C++ can be compiled on this machine.

use std::process::Command;

/// `false`, with a line that says so, where there is no g++.
pub fn has_compiler() -> bool {
    let found = Command::new("g++").arg("--version").output().is_ok_and(|said| said.status.success());
    if !found {
        crate::skip::skipped("no g++ here");
    }
    found
}
