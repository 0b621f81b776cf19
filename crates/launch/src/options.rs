//! How an engine is built, as its user chooses: the same for a run, a batch, a server and a program.

use std::path::PathBuf;

use super::{Devices, EngineBudget};
use offshoot_engine::StoredPrefixes;
use offshoot_kv::plan::Planner;

/// Devices, budgets, and what changes the speed alone.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    pub devices: Devices,
    /// The memory of each device; host memory is divided among the replicas.
    pub budget: EngineBudget,
    /// `None`: the default planner.
    pub plan: Option<Planner>,
    /// Where computed prefixes are kept on disk; `None`: nowhere.
    pub prefix_store: Option<PrefixFolder>,
}

/// The folder of a prefix store, the most bytes of all its files, and whose prefixes are written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixFolder {
    pub path: PathBuf,
    pub most_bytes: u64,
    pub keeps: StoredPrefixes,
}

impl PrefixFolder {
    /// A folder to which the prefixes of all prompts are written.
    pub fn new(path: PathBuf, most_bytes: u64) -> PrefixFolder {
        PrefixFolder { path, most_bytes, keeps: StoredPrefixes::Prompts }
    }
}
