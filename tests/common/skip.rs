//! Skipped tests, counted: a test that needs what this machine lacks says so here.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Prints why the running test, or a part of it, is skipped. Where OFFSHOOT_SKIPPED names a file, a line is added to
/// it: the test's name and why. `.ci/run` counts these lines.
pub fn skipped(why: impl Display) {
    println!("skipped: {why}");
    let Some(path) = std::env::var_os("OFFSHOOT_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}: {why}", thread.name().unwrap_or("a thread of a test")).replace('\n', " ") + "\n";
    // One write a line, as other tests append at the same time.
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("OFFSHOOT_SKIPPED: {}: {error}", path.display()));
}
