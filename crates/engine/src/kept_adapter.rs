//! Adapters that stay in the engine for whoever has named one and begins with it later.

use crate::handle::EngineHandle;
use crate::place::RootOptions;
use offshoot_core::error::Result;
use offshoot_core::ids::{AdapterVersion, BranchId, TokenId};

/// A version of an adapter that stays in the engine until this is dropped, as it would for a branch: also where its
/// name is given another version, or none.
pub struct KeptAdapter {
    engine: EngineHandle,
    branch: BranchId,
}

impl EngineHandle {
    /// Keeps an adapter that is loaded.
    ///
    /// # Errors
    ///
    /// The engine takes no adapters, or has stopped.
    pub fn keep_adapter(&self, version: AdapterVersion) -> Result<KeptAdapter> {
        // A branch at rest, of which nothing is ever computed.
        let options = RootOptions { adapter: Some(version), ..RootOptions::default() };
        let branch = self.root_with(vec![TokenId(0)], options)?;
        Ok(KeptAdapter { engine: self.clone(), branch })
    }
}

impl Drop for KeptAdapter {
    fn drop(&mut self) {
        self.engine.prune(&[self.branch]);
    }
}
