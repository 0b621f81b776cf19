//! The process that engines belong to. A forked child has none of its parent's threads: an engine used or dropped there
//! would wait for them for ever, so [`OfProcess`] refuses its use and forgets it instead. Also starts the log.

use std::io::Write;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use pyo3::PyResult;
use pyo3::exceptions::PyRuntimeError;

/// The process in which the first engine was started.
static STARTED: OnceLock<u32> = OnceLock::new();

/// Fails in a process that was forked from one with an engine.
pub fn check() -> PyResult<()> {
    let this = std::process::id();
    match *STARTED.get_or_init(|| this) == this {
        true => Ok(()),
        false => Err(PyRuntimeError::new_err(
            "this process was forked from one that uses offshoot, whose threads it does not have: start workers by \
             `spawn` (multiprocessing.get_context(\"spawn\")), or fork before the first LLM",
        )),
    }
}

/// A value with threads of this process behind it.
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub fn new(value: T) -> Self {
        OfProcess { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    /// The value, in the process that made it.
    pub fn get(&self) -> PyResult<&T> {
        check().map(|()| &*self.value)
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: the value is dropped here only, and `self` is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

/// Warnings go to stderr; OFFSHOOT_LOG or RUST_LOG chooses more.
pub fn start_log() {
    let mut builder = env_logger::Builder::new();
    builder.filter_module("offshoot", log::LevelFilter::Warn).parse_default_env();
    builder.format(|to, record| {
        let style = to.default_level_style(record.level());
        let (time, _) = offshoot_core::figures::now();
        writeln!(to, "[{time}Z {style}{:<5}{style:#} {}] {}", record.level(), record.target(), record.args())
    });
    // A log of the embedding program stays.
    drop(builder.try_init());
}
