//! The error type. Each variant says in one sentence what was expected, what was found and where; `exit_code` says
//! whose mistake it is. How an error is shown is left to the command line.
#![warn(missing_docs)]

use std::path::{Path, PathBuf};

use crate::figures::shortened;
use crate::setting::{CONTEXT, KV_MEMORY, MEMORY};

/// The most characters of each part of a message; no sentence of ours is longer, a value may be.
const MOST: usize = 600;

/// What can fail with an [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something failed, in one sentence: what was expected, what was found and where.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read, written or created.
    #[error("{}: cannot {doing}: {source}", shown(path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried: a verb.
        doing: &'static str,
        /// Why the operating system refused.
        source: std::io::Error,
    },

    /// A file was read but is not what its kind must be (truncated, not JSON, ...).
    #[error("{}: {what}", shown(path))]
    Format {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },

    /// A named field of a named file has a wrong value.
    #[error("{}: `{field}`: expected {expected}, found {found}", shown(path))]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, with its place in the file.
        field: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// A tensor of a checkpoint is missing or of the wrong shape or dtype.
    #[error("{}: tensor `{tensor}`: expected {expected}, found {found}", shown(path))]
    Tensor {
        /// The checkpoint's file or folder.
        path: PathBuf,
        /// Its name.
        tensor: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// A value that the user gave (option, request, parameter) is not allowed.
    #[error("{what}: expected {expected}, found {found}")]
    Value {
        /// The value's name.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },

    /// What was checked does not hold.
    #[error("the check fails: the results above say where")]
    CheckFailed,

    /// A prompt does not fit the model's context.
    #[error("{what} has {tokens} tokens; the model's context is {context}")]
    ContextTooLong {
        /// Which prompt.
        what: String,
        /// Its length.
        tokens: usize,
        /// The longest that the model has.
        context: usize,
    },

    /// A prompt does not fit the context that the user chose, which is less than the model's.
    #[error("{what} has {tokens} tokens; {} is {context}", CONTEXT)]
    BeyondChosenContext {
        /// Which prompt.
        what: String,
        /// Its length.
        tokens: usize,
        /// The longest that was chosen.
        context: usize,
    },

    /// A text does not fit the context of the model that is to score it.
    #[error("{what} has {tokens} tokens; the scorer's context is {context}")]
    BeyondScorersContext {
        /// Which text.
        what: String,
        /// Its length.
        tokens: usize,
        /// The longest that the scorer has.
        context: usize,
    },

    /// The job needs more KV pages at once than the pool has.
    #[error("{needed} pages of keys and values are needed at once; the pool has {capacity} ({hint})")]
    OutOfPages {
        /// Pages that are needed at once.
        needed: usize,
        /// Pages of the pool.
        capacity: usize,
        /// What to change.
        hint: &'static str,
    },

    /// A GPU cannot be used: no driver, no such device, too old, or a library of CUDA is missing. `why` is one
    /// sentence.
    #[error("{device} cannot be used: {why}")]
    NoDevice {
        /// The device's name.
        device: String,
        /// One sentence.
        why: String,
    },

    /// An allocation does not fit the GPU's memory. In bytes; the driver does not always say how many it needs.
    #[error(
        "{device}: {}, {} of {} MiB are free", asked_memory(*asked), free >> 20, total >> 20
    )]
    DeviceMemory {
        /// The GPU's name.
        device: String,
        /// Bytes that are needed, if the driver says it.
        asked: Option<usize>,
        /// Bytes that are free.
        free: usize,
        /// Bytes that it has.
        total: usize,
    },

    /// The host has no page-locked memory for a device's copies.
    #[error("{device}: {} MiB of page-locked host memory are asked for and refused", asked.div_ceil(1 << 20))]
    LockedMemory {
        /// The device's name.
        device: String,
        /// Bytes that are needed.
        asked: usize,
    },

    /// The driver refused a call: `doing` says which, `why` is CUDA's own name and text for it.
    #[error("{device}: cannot {doing}: {why}")]
    Cuda {
        /// The GPU's name.
        device: String,
        /// What was tried.
        doing: String,
        /// CUDA's name and text of the error.
        why: String,
    },

    /// A kernel does not compile.
    #[error("kernel {unit} for {arch}: {why}")]
    Kernel {
        /// The source and its defines.
        unit: String,
        /// The architecture, as the compiler names it.
        arch: String,
        /// What the compiler says.
        why: String,
    },

    /// A problem's own tests or reference fail, so that no candidate of it can be judged; those of other problems can.
    #[error("it cannot be judged: {why}")]
    Unjudgeable {
        /// What fails.
        why: String,
    },

    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,

    /// The engine's thread has ended, so its channel is closed.
    #[error("the engine has stopped: {why}")]
    EngineStopped {
        /// What it ended with.
        why: String,
    },

    /// No weights are loaded to sample or score with: those that were are dropped, or an update failed midway. The same
    /// may be asked for again once an update of all weights has succeeded.
    #[error("no weights are loaded: {why}")]
    NoWeights {
        /// Why there are none, and what to do.
        why: String,
    },

    /// There is no room for what is asked for now; the same may be asked for again.
    #[error("{what}: {why}")]
    Busy {
        /// What is asked for.
        what: String,
        /// What is in its way.
        why: String,
    },

    /// A bug in this program.
    #[error("internal error, please report it: {0}")]
    Internal(String),
}

/// A path as a message shows it.
fn shown(path: &Path) -> String {
    shortened(path.display().to_string(), MOST)
}

fn asked_memory(asked: Option<usize>) -> String {
    match asked {
        Some(bytes) => format!("{} MiB of memory are asked for", bytes.div_ceil(1 << 20)),
        None => "memory is short".to_string(),
    }
}

impl Error {
    /// 2 for errors that the user can fix, 1 for bugs, 130 for an interrupt by Ctrl-C.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Internal(_) | Error::EngineStopped { .. } | Error::Cuda { .. } | Error::Kernel { .. } => 1,
            Error::Interrupted => 130,
            _ => 2,
        }
    }

    /// Whether it is not of one text or branch alone: what computes cannot go on, or shall not.
    pub fn ends_all(&self) -> bool {
        matches!(self, Error::EngineStopped { .. } | Error::Interrupted | Error::Cuda { .. } | Error::Internal(_))
    }

    /// Whether a prompt does not fit the context: the model's, or the one that the user chose.
    pub fn is_too_long(&self) -> bool {
        matches!(self, Error::ContextTooLong { .. } | Error::BeyondChosenContext { .. })
    }

    /// Whether memory was short: the request may succeed in smaller parts.
    pub fn is_shortage(&self) -> bool {
        matches!(self, Error::DeviceMemory { .. } | Error::LockedMemory { .. })
    }

    /// A copy of this shortage, for another branch that it ends.
    pub fn same_shortage(&self) -> Error {
        match self {
            Error::DeviceMemory { device, asked, free, total } => {
                Error::DeviceMemory { device: device.clone(), asked: *asked, free: *free, total: *total }
            }
            Error::LockedMemory { device, asked } => Error::LockedMemory { device: device.clone(), asked: *asked },
            other => Error::Internal(other.to_string()),
        }
    }

    /// For `map_err` on I/O: `fs::read(p).map_err(Error::io(p, "read"))`.
    pub fn io(path: impl AsRef<Path>, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { path, doing, source }
    }

    /// `what` is wrong with a file.
    pub fn format(path: impl AsRef<Path>, what: impl Into<String>) -> Error {
        Error::Format { path: path.as_ref().to_path_buf(), what: shortened(what.into(), 2 * MOST) }
    }

    /// A named field of a file has a wrong value.
    pub fn field(
        path: impl AsRef<Path>,
        field: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::Field {
            path: path.as_ref().to_path_buf(),
            field: shortened(field.into(), MOST),
            expected: shortened(expected.into(), MOST),
            found: shortened(found.into(), MOST),
        }
    }

    /// A tensor of a checkpoint is missing or of the wrong shape or dtype.
    pub fn tensor(
        path: &Path,
        tensor: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        let [tensor, expected, found] = [tensor.into(), expected.into(), found.into()];
        Error::Tensor { path: path.to_path_buf(), tensor, expected, found }
    }

    /// A value that the user gave is not allowed.
    pub fn value(what: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let [what, expected, found] = [what.into(), expected.into(), found.into()].map(|text| shortened(text, MOST));
        Error::Value { what, expected, found }
    }

    /// No weights are loaded.
    pub fn no_weights(why: impl Into<String>) -> Error {
        Error::NoWeights { why: shortened(why.into(), MOST) }
    }

    /// There is no room for it now.
    pub fn busy(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Busy { what: shortened(what.into(), MOST), why: shortened(why.into(), MOST) }
    }

    /// The memory that the user gave keys and values does not suffice.
    pub fn kv_memory(expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::value(format!("memory for keys and values ({KV_MEMORY}, {MEMORY})"), expected, found)
    }
}
