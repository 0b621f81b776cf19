//! Landlock: restricts the files that the candidate can read and write, and TCP, signals and abstract sockets if the
//! kernel's version supports that. It needs no privilege and also applies to child processes.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, Scope, path_beneath_rules,
};

use super::{Confined, base, root};

/// The version requested; a kernel enforces the part that it supports.
const NEWEST: ABI = ABI::V7;

/// The version of Landlock in this kernel; `None` if it is missing or switched off.
pub(super) fn version() -> Option<u32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the call takes no ruleset and only answers a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, CREATE_RULESET_VERSION)
    };
    u32::try_from(version).ok().filter(|&version| version > 0)
}

/// What every program may read, with the devices, each opened once; a candidate has its own root, in which hidden files
/// are covered.
#[derive(Debug)]
pub(super) struct CommonRules(Vec<(PathFd, BitFlags<AccessFs>)>);

impl CommonRules {
    pub fn open() -> CommonRules {
        let files = |paths: &'static [&'static str], access: BitFlags<AccessFs>| {
            paths.iter().filter_map(move |path| {
                let is_file = std::fs::metadata(path).is_ok_and(|facts| !facts.is_dir());
                let access = if is_file { access & AccessFs::from_file(NEWEST) } else { access };
                Some((PathFd::new(path).ok()?, access))
            })
        };
        let read = AccessFs::from_read(NEWEST);
        let readable = files(base::READABLE, read).chain(files(base::FACTS, read));
        CommonRules(readable.chain(files(base::DEVICES, device_access())).collect())
    }
}

fn device_access() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile
}

/// The readable paths. A rule of Landlock holds for all that a folder contains, so a folder with something hidden is
/// given as its other entries.
#[derive(Default)]
struct VisibleFiles {
    whole: Vec<PathBuf>,
    /// Folders of which only the names of the entries can be read.
    listed: Vec<PathBuf>,
}

impl VisibleFiles {
    fn add(&mut self, path: &Path, hidden: &[PathBuf]) {
        let real = match hidden {
            [] => None,
            _ => path.canonicalize().ok(),
        };
        let real = real.as_deref().unwrap_or(path);
        if !hidden.iter().any(|hidden| hidden != real && hidden.starts_with(real)) {
            return self.whole.push(path.to_path_buf());
        }
        self.listed.push(path.to_path_buf());
        for entry in std::fs::read_dir(real).into_iter().flatten().flatten() {
            // The target of a link has a rule of its own, or none.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !is_link && !hidden.contains(&entry.path()) {
                self.add(&entry.path(), hidden);
            }
        }
    }
}

/// Restricts this process to the files in `order`, without the hidden ones, and to shared memory if it has its own
/// root, in which hidden files are covered already.
pub(super) fn confine(
    order: &Confined,
    own_root: bool,
    hidden: &[PathBuf],
    common: Option<&CommonRules>,
) -> Result<(), RulesetError> {
    let read = AccessFs::from_read(NEWEST);
    let write = AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    let shared = own_root.then_some(root::SHARED);
    let extra: Vec<PathBuf> =
        order.readable.iter().chain([&order.program]).flat_map(|path| base::names(path)).collect();
    let hidden = if own_root { &[] } else { hidden };
    let mut visible = VisibleFiles::default();
    for path in &extra {
        visible.add(path, hidden);
    }
    let mut devices: &[&str] = &[];
    let common = common.map_or(&[][..], |common| &common.0);
    if common.is_empty() {
        for path in base::READABLE.iter().chain(base::FACTS) {
            visible.add(Path::new(path), hidden);
        }
        devices = base::DEVICES;
    }
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(common.iter().map(|(file, access)| Ok::<_, RulesetError>(PathBeneath::new(file, *access))))?
        .add_rules(path_beneath_rules(&visible.whole, read))?
        .add_rules(path_beneath_rules(&visible.listed, BitFlags::from(AccessFs::ReadDir)))?
        .add_rules(path_beneath_rules(devices, device_access()))?
        .add_rules(path_beneath_rules([&order.folder], write))?
        .add_rules(path_beneath_rules(shared, write & !AccessFs::Execute))?
        .log_same_exec(false)?
        .restrict_self()?;
    Ok(())
}
