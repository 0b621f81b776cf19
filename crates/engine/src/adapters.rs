//! Adapters as an engine keeps them: names, versions and slots of those that are loaded ([`Adapters`]), and how clients
//! see them. Which adapter a token is computed with belongs to its branch ([`TokenPath`]) and to the key by which the
//! prefix tree finds it; files of adapters, and what they compute, are left to `offshoot_model`.
//!
//! # Versions
//! Each load makes a new version. A name stands for its newest one: branches keep the version that they began with,
//! also after their name was given another one or none. A version that no name stands for any more is *retired*; its
//! slot is free once no branch has it. If a slot is needed before, the branches of a retired version whose name has a
//! newer one go on with that, and what they have is computed again, as after an update of the weights; their records
//! name both. A version from which a branch has gone on with another adapter stays: records name what tokens are
//! sampled under, not what is before them.
//!
//! # Slots
//! There is one slot more than adapters may be loaded: a version is staged there, which may fail, before it replaces
//! another one, which can't. So several engines load an adapter all or none.
//!
//! [`TokenPath`]: crate::token_path::TokenPath

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use crate::token_path::TokenPath;
use offshoot_backend::{AdapterSlot, MOST_ADAPTERS, MOST_RANK};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::AdapterVersion;
use offshoot_core::setting::{MAX_LORA_RANK, MAX_LORAS};
use offshoot_model::{Adapter, ModelConfig, TensorSource};

/// How many adapters an engine can have loaded at once, and of which size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Most versions that are loaded at once; 0: the engine takes none, and reserves no memory for them.
    pub most: usize,
    /// The largest rank.
    pub rank: usize,
}

impl AdapterLimits {
    /// No adapters.
    pub const NONE: AdapterLimits = AdapterLimits { most: 0, rank: 0 };

    /// The largest number of adapters that any engine can have loaded.
    pub const MOST: usize = MOST_ADAPTERS - 1;

    /// Slots of an engine: one for each version, and one in which the next is staged.
    pub fn slots(self) -> usize {
        if self.most == 0 { 0 } else { self.most + 1 }
    }

    /// Bytes that are kept free for adapters on a device that stores each of their numbers in so many bytes.
    pub fn bytes(self, config: &ModelConfig, element_bytes: usize) -> usize {
        match self.slots() {
            0 => 0,
            slots => slots * self.rank * Adapter::bytes_of_rank(config, element_bytes),
        }
    }

    /// Checks the limits.
    ///
    /// # Errors
    ///
    /// One is more than a device has room for, or adapters may be loaded but have no rank.
    pub fn check(self) -> Result<()> {
        if self.most > Self::MOST {
            return Err(Error::value(MAX_LORAS, format!("at most {}", Self::MOST), self.most.to_string()));
        }
        if self.most > 0 && !(1..=MOST_RANK).contains(&self.rank) {
            return Err(Error::value(MAX_LORA_RANK, format!("a rank of 1 to {MOST_RANK}"), self.rank.to_string()));
        }
        Ok(())
    }
}

/// Where an adapter's weights come from.
#[derive(Clone)]
pub enum AdapterSource {
    /// A folder with adapter_config.json and adapter_model.safetensors, as PEFT writes it.
    Folder(PathBuf),
    /// Tensors by the names that PEFT gives them.
    Tensors {
        /// The fields of adapter_config.json.
        config: Value,
        tensors: Arc<dyn TensorSource>,
    },
    /// One that was read before.
    Read(Arc<Adapter>),
}

impl AdapterSource {
    pub(crate) fn read(self) -> Result<Arc<Adapter>> {
        match self {
            AdapterSource::Folder(folder) => Adapter::open(&folder).map(Arc::new),
            AdapterSource::Tensors { config, tensors } => Adapter::from_source(&config, &*tensors).map(Arc::new),
            AdapterSource::Read(adapter) => Ok(adapter),
        }
    }
}

/// An adapter that requests can name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedAdapter {
    pub name: String,
    /// Higher than the versions of all adapters that were loaded before.
    pub version: AdapterVersion,
    /// The largest rank of its modules.
    pub rank: usize,
    /// Its place on the device; of several engines, on the first one.
    pub slot: AdapterSlot,
    /// The folder that it was read from; `None`: it came from memory.
    pub folder: Option<PathBuf>,
    /// Identifies it among all adapters that there are; `None`: nothing does, and what is computed with it is kept in
    /// no prefix store.
    pub identity: Option<String>,
}

/// An adapter on its way to an engine.
#[derive(Clone)]
pub(crate) struct NewAdapter {
    pub name: String,
    pub version: AdapterVersion,
    pub adapter: Arc<Adapter>,
}

impl NewAdapter {
    /// What clients see of it, once it is in this slot.
    pub fn loaded(&self, slot: AdapterSlot) -> LoadedAdapter {
        LoadedAdapter {
            name: self.name.clone(),
            version: self.version,
            rank: self.adapter.rank(),
            slot,
            folder: self.adapter.folder().map(PathBuf::from),
            identity: self.adapter.identity().map(str::to_owned),
        }
    }
}

/// The error of a name that no loaded adapter has.
pub(crate) fn unknown_adapter(name: &str, known: &[LoadedAdapter]) -> Error {
    let names: Vec<&str> = known.iter().map(|adapter| &*adapter.name).collect();
    let expected = match names.is_empty() {
        true => "one that is loaded; none is".to_owned(),
        false => format!("one that is loaded ({})", names.join(", ")),
    };
    Error::value("adapter", expected, name)
}

/// How many versions that are in no slot any more are remembered, beside those that branches have. Whoever has named
/// one, and begins with it after so many others, is told that it is not there.
const MOST_GONE: usize = 4096;

/// The adapters of one engine, in numbers; their weights are the model's.
pub(crate) struct Adapters {
    limits: AdapterLimits,
    /// All that are in slots, the staged one aside.
    loaded: BTreeMap<AdapterVersion, LoadedAdapter>,
    staged: Option<LoadedAdapter>,
    /// The version that each name stands for.
    current: BTreeMap<String, AdapterVersion>,
    /// Versions that are in no slot any more; the older ones are forgotten.
    gone: BTreeMap<AdapterVersion, GoneAdapter>,
}

/// A version of an adapter that is in no slot any more.
struct GoneAdapter {
    name: String,
    /// The version that its branches went on with; `None`: it had none.
    made_way_for: Option<AdapterVersion>,
}

impl Adapters {
    pub fn new(limits: AdapterLimits) -> Self {
        let (loaded, current, gone) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Adapters { limits, loaded, staged: None, current, gone }
    }

    /// The slot of a version that a branch has.
    pub fn slot(&self, version: AdapterVersion) -> Option<AdapterSlot> {
        self.loaded.get(&version).map(|adapter| adapter.slot)
    }

    /// The adapters that names stand for, by their names.
    pub fn named(&self) -> Vec<LoadedAdapter> {
        self.current.values().map(|version| self.loaded[version].clone()).collect()
    }

    fn is_current(&self, adapter: &LoadedAdapter) -> bool {
        self.current.get(&adapter.name) == Some(&adapter.version)
    }

    /// Whether some are in slots that no name stands for.
    pub fn has_retired(&self) -> bool {
        self.loaded.len() > self.current.len()
    }

    /// The retired ones that are not among `used`.
    pub fn unused(&self, used: &BTreeSet<AdapterVersion>) -> Vec<LoadedAdapter> {
        let is_unused = |adapter: &&LoadedAdapter| !self.is_current(adapter) && !used.contains(&adapter.version);
        self.loaded.values().filter(is_unused).cloned().collect()
    }

    /// Notes that a retired version is in no slot any more, and which one its branches go on with, if it had some.
    /// `kept`: versions that branches of other engines have. Of others the oldest are forgotten, so that each update of
    /// an adapter costs as much as the last one.
    pub fn note_gone(
        &mut self,
        version: AdapterVersion,
        made_way_for: Option<AdapterVersion>,
        kept: &BTreeSet<AdapterVersion>,
    ) {
        let Some(adapter) = self.loaded.remove(&version) else { return };
        // What made way for this one goes where it goes.
        let earlier = self.gone.values_mut().filter(|gone| gone.made_way_for == Some(version));
        earlier.for_each(|gone| gone.made_way_for = made_way_for);
        self.gone.insert(version, GoneAdapter { name: adapter.name, made_way_for });
        if self.gone.len() > MOST_GONE {
            let newest = self.gone.keys().rev().nth(MOST_GONE / 2).copied();
            self.gone.retain(|version, _| Some(*version) > newest || kept.contains(version));
        }
    }

    /// The slot in which `new` can be staged. `stays`: versions that do not make way.
    ///
    /// # Errors
    ///
    /// As many are loaded as may be, and none of them can make way for it.
    pub fn staging_slot(&self, new: &NewAdapter, stays: &BTreeSet<AdapterVersion>) -> Result<AdapterSlot> {
        if self.loaded.len() >= self.limits.most && !self.makes_way(&new.name, stays) {
            let loaded: Vec<String> = self.loaded.values().map(|adapter| adapter.name.clone()).collect();
            let expected = format!("at most {} that are loaded or still in use ({MAX_LORAS})", self.limits.most);
            return Err(Error::value("adapters", expected, format!("{} beside {}", new.name, loaded.join(", "))));
        }
        let taken: BTreeSet<AdapterSlot> = self.loaded.values().map(|adapter| adapter.slot).collect();
        let mut slots = (0..).map_while(AdapterSlot::new).take(self.limits.slots());
        Ok(slots.find(|slot| !taken.contains(slot)).expect("fewer are loaded than there are slots"))
    }

    /// Whether there is a version whose branches can go on with a newer one of the same name, once `name` is given
    /// another version.
    fn makes_way(&self, name: &str, stays: &BTreeSet<AdapterVersion>) -> bool {
        let has_newer = |adapter: &LoadedAdapter| {
            adapter.name == name || !self.is_current(adapter) && self.current.contains_key(&adapter.name)
        };
        self.loaded.values().any(|adapter| has_newer(adapter) && !stays.contains(&adapter.version))
    }

    pub fn stage(&mut self, adapter: LoadedAdapter) {
        self.staged = Some(adapter);
    }

    /// The slot of the staged one, which is given up.
    pub fn drop_staged(&mut self) -> Option<AdapterSlot> {
        self.staged.take().map(|adapter| adapter.slot)
    }

    /// Lets its name stand for the staged version. `None`: nothing is staged.
    pub fn put(&mut self) -> Option<LoadedAdapter> {
        let adapter = self.staged.take()?;
        self.current.insert(adapter.name.clone(), adapter.version);
        self.loaded.insert(adapter.version, adapter.clone());
        Some(adapter)
    }

    /// If more are loaded than may be, after `name` was given a new version: one that makes way, and the version that
    /// its branches go on with. Those of `name` are the first, then the oldest; those of `stays` come last.
    pub fn displaced(&self, name: &str, stays: &BTreeSet<AdapterVersion>) -> Option<(LoadedAdapter, AdapterVersion)> {
        if self.loaded.len() <= self.limits.most {
            return None;
        }
        let retired = self.loaded.values().filter(|adapter| !self.is_current(adapter));
        let ways = retired.filter_map(|adapter| Some((adapter.clone(), *self.current.get(&adapter.name)?)));
        ways.min_by_key(|(adapter, _)| (stays.contains(&adapter.version), adapter.name != name, adapter.version))
    }

    /// Lets a name stand for nothing.
    pub fn retire(&mut self, name: &str) -> Result<()> {
        match self.current.remove(name) {
            Some(_) => Ok(()),
            None => Err(unknown_adapter(name, &self.named())),
        }
    }

    /// The version that a branch with this one is computed with: itself while it is in a slot, then the one that it
    /// made way for, or that its name stands for. `None`: none.
    pub fn resolved(&self, mut version: AdapterVersion) -> Option<AdapterVersion> {
        while !self.loaded.contains_key(&version) {
            let GoneAdapter { name, made_way_for } = self.gone.get(&version)?;
            // Later ones have higher numbers.
            version = made_way_for.or_else(|| self.current.get(name).copied())?;
        }
        Some(version)
    }

    /// Replaces versions of a path that are in no slot any more by those that their names stand for.
    pub fn resolve(&self, path: &mut TokenPath) {
        for version in path.adapters().versions() {
            if let Some(other) = self.resolved(version).filter(|&other| other != version) {
                path.replace_adapter(version, other);
            }
        }
    }

    /// Refuses a path with a version that is in no slot.
    pub fn check(&self, path: &TokenPath) -> Result<()> {
        match path.adapters().versions().into_iter().find(|version| !self.loaded.contains_key(version)) {
            None => Ok(()),
            Some(version) => {
                let found = match self.gone.get(&version) {
                    Some(GoneAdapter { name, .. }) => format!("{name} (version {version}), which was unloaded"),
                    None => format!("version {version}, which was unloaded long ago or never loaded"),
                };
                Err(Error::value("a branch's adapter", "one that is loaded", found))
            }
        }
    }
}

impl fmt::Debug for AdapterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterSource::Folder(folder) => write!(f, "{}", folder.display()),
            AdapterSource::Tensors { tensors, .. } => write!(f, "{}", tensors.place(None).display()),
            AdapterSource::Read(adapter) => adapter.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loads version `number` of an adapter of this name, in a slot of that number.
    fn put(adapters: &mut Adapters, name: &str, number: u16) -> AdapterVersion {
        stage(adapters, name, number, AdapterSlot::new(number).unwrap())
    }

    fn stage(adapters: &mut Adapters, name: &str, number: u16, slot: AdapterSlot) -> AdapterVersion {
        let version = AdapterVersion(number.into());
        let (folder, identity) = (None, None);
        adapters.stage(LoadedAdapter { name: name.to_owned(), version, rank: 1, slot, folder, identity });
        adapters.put().unwrap();
        version
    }

    #[test]
    fn a_version_that_made_way_is_followed_while_the_other_one_is_there() {
        let mut adapters = Adapters::new(AdapterLimits { most: 2, rank: 1 });
        let first = put(&mut adapters, "a", 0);
        let other = put(&mut adapters, "b", 1);
        let second = put(&mut adapters, "a", 2);
        let (displaced, by) = adapters.displaced("a", &BTreeSet::new()).expect("three are loaded");
        assert_eq!((displaced.version, by), (first, second));
        adapters.note_gone(first, Some(second), &BTreeSet::new());
        assert_eq!([first, second, other].map(|version| adapters.resolved(version)), [second, second, other].map(Some));
        adapters.retire("a").unwrap();
        assert_eq!(adapters.resolved(first), Some(second), "its name stands for nothing");
        assert_eq!(adapters.unused(&BTreeSet::from([second])), []);
        assert_eq!(adapters.unused(&BTreeSet::new()).len(), 1);
        adapters.note_gone(second, None, &BTreeSet::new());
        assert_eq!(adapters.resolved(first), None);
        let third = put(&mut adapters, "a", 3);
        assert_eq!([first, second].map(|version| adapters.resolved(version)), [Some(third); 2]);
    }

    #[test]
    fn nothing_grows_with_new_versions_and_what_is_kept_is_followed() {
        let mut adapters = Adapters::new(AdapterLimits { most: 2, rank: 1 });
        let first = put(&mut adapters, "a", 0);
        let (kept, mut before) = (BTreeSet::from([first]), first);
        for number in 1..=3 * MOST_GONE as u16 {
            // Slots are used again.
            let slot = AdapterSlot::new(number % 2).unwrap();
            let version = stage(&mut adapters, "a", number, slot);
            adapters.note_gone(before, Some(version), &kept);
            assert!(adapters.gone.len() <= MOST_GONE + 1);
            assert_eq!([first, before].map(|version| adapters.resolved(version)), [Some(version); 2]);
            before = version;
        }
        assert_eq!(adapters.resolved(AdapterVersion(1)), None, "it is forgotten");
    }

    #[test]
    fn what_branches_have_left_makes_way_last() {
        let mut adapters = Adapters::new(AdapterLimits { most: 3, rank: 1 });
        let old = [("a", 0), ("b", 1)].map(|(name, number)| put(&mut adapters, name, number));
        let _new = [("b", 2), ("a", 3)].map(|(name, number)| put(&mut adapters, name, number));
        let displaced = |stays: &[AdapterVersion]| {
            let stays: BTreeSet<AdapterVersion> = stays.iter().copied().collect();
            adapters.displaced("a", &stays).map(|(adapter, _)| adapter.version)
        };
        assert_eq!(displaced(&[]), Some(old[0]), "that of the name comes first");
        assert_eq!(displaced(&[old[0]]), Some(old[1]));
    }
}
