//! Loads, replaces and unloads adapters: commands that act between two steps. Which versions and slots there are is
//! defined in `adapters`.

use std::collections::BTreeSet;

use crate::adapters::{LoadedAdapter, NewAdapter};
use crate::branch::Branch;
use crate::engine::Engine;
use offshoot_backend::AdapterSlot;
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId};

/// The error of an adapter that is to be put in use before one is staged.
pub(crate) fn nothing_staged() -> Error {
    Error::Internal("an adapter is put in use that was not staged".to_owned())
}

impl Engine {
    pub(super) fn set_adapter(&mut self, branches: &[BranchId], adapter: Option<AdapterVersion>) {
        let adapter = adapter.map(|version| self.adapters.resolved(version).unwrap_or(version));
        for id in branches {
            if let Some(branch) = self.branches.get_mut(id).filter(|branch| branch.rests()) {
                self.cache.set_adapter(branch, adapter);
                self.scheduler.note_rest(branch);
                // Segments were split that the loaded step's plan reads as one.
                self.scheduler.changed = true;
            }
        }
    }

    /// Loads an adapter in a free slot.
    pub(super) fn stage_adapter(&mut self, new: &NewAdapter) -> Result<()> {
        self.drop_staged_adapter();
        self.free_unused_adapters();
        let slot = self.adapters.staging_slot(new, &self.left_adapters())?;
        self.model.load_adapter(slot, &new.adapter)?;
        self.adapters.stage(new.loaded(slot));
        Ok(())
    }

    pub(super) fn drop_staged_adapter(&mut self) {
        if let Some(slot) = self.adapters.drop_staged() {
            self.empty_slot(slot);
        }
    }

    /// Lets its name stand for the staged adapter. All steps are collected.
    pub(super) fn put_adapter(&mut self) -> Result<LoadedAdapter> {
        let put = self.adapters.put().ok_or_else(nothing_staged)?;
        if let Some(store) = &mut self.cache.store {
            store.note_adapter(put.version, put.identity.as_deref());
        }
        self.free_unused_adapters();
        if let Some((displaced, version)) = self.adapters.displaced(&put.name, &self.left_adapters()) {
            self.displace(&displaced, version);
        }
        self.status.lock().adapters = self.adapters.named();
        log::info!("adapter {} is version {}, of rank {}", put.name, put.version, put.rank);
        Ok(put)
    }

    pub(super) fn unload_adapter(&mut self, name: &str) -> Result<()> {
        self.adapters.retire(name)?;
        self.free_unused_adapters();
        self.status.lock().adapters = self.adapters.named();
        Ok(())
    }

    /// Keeps these adapters, or those that they made way for, in their slots, and no others that no branch has.
    pub(super) fn keep_adapters(&mut self, versions: BTreeSet<AdapterVersion>) {
        self.kept_adapters = versions;
        self.free_unused_adapters();
    }

    /// Empties the slots of retired adapters that no branch has and that are not kept.
    pub(super) fn free_unused_adapters(&mut self) {
        if !self.adapters.has_retired() {
            return;
        }
        let of_branches = self.branches.values().flat_map(|branch| branch.tokens.adapters().versions());
        let kept = self.kept_adapters.iter().filter_map(|&version| self.adapters.resolved(version));
        let used: BTreeSet<AdapterVersion> = of_branches.chain(kept).collect();
        for adapter in self.adapters.unused(&used) {
            self.give_up(&adapter, None);
        }
    }

    /// The adapters from which branches have gone on with others.
    fn left_adapters(&self) -> BTreeSet<AdapterVersion> {
        self.branches.values().flat_map(|branch| branch.tokens.adapters().before_last()).collect()
    }

    /// Has the branches of a retired adapter go on with this version, and empties its slot.
    fn displace(&mut self, adapter: &LoadedAdapter, version: AdapterVersion) {
        let has_it = |branch: &&Branch| branch.tokens.adapters().versions().contains(&adapter.version);
        let ids: BTreeSet<BranchId> = self.branches.values().filter(has_it).map(|branch| branch.id).collect();
        self.loaded = None;
        self.scheduler.forget_holds_of(&ids, &mut self.branches);
        let mut branches: Vec<_> = self.branches.values_mut().filter(|branch| ids.contains(&branch.id)).collect();
        self.cache.forget_some(branches.iter_mut().map(|branch| &mut **branch));
        for branch in branches {
            branch.tokens.replace_adapter(adapter.version, version);
            if branch.in_flight() > 0 {
                branch.request_again();
            }
            branch.restart_values();
        }
        log::info!("{} branches go on with version {version} of adapter {}", ids.len(), adapter.name);
        self.give_up(adapter, Some(version));
    }

    fn give_up(&mut self, adapter: &LoadedAdapter, made_way_for: Option<AdapterVersion>) {
        self.adapters.note_gone(adapter.version, made_way_for, &self.kept_adapters);
        if let Some(store) = &mut self.cache.store {
            store.forget_adapter(adapter.version);
        }
        self.empty_slot(adapter.slot);
    }

    fn empty_slot(&mut self, slot: AdapterSlot) {
        // The next step is planned anew.
        self.loaded = None;
        if let Err(error) = self.model.unload_adapter(slot) {
            log::warn!("an adapter's memory is not given back: {error}");
        }
    }
}
