//! Signals as a program meets them that a terminal starts.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Has the programs that are started from now on hear `signal`, also where these tests run in the background of a
/// shell, which has them ignore it: a signal with a handler goes back to its default in a new program.
pub fn hear(signal: i32) {
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_default(signal, always).expect("it can be handled");
}
