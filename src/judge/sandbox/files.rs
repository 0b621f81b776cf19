//! Landlock: restricts the files that the candidate can read and write, and TCP, signals and abstract sockets if the
//! kernel's version supports that. It needs no privilege and also applies to child processes.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope, path_beneath_rules,
};

use super::base;
use super::root;
use super::wire::CandidateSpec;

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

/// Restricts this process to the files in `order`, and to shared memory if it has its own root.
pub(super) fn confine(order: &CandidateSpec, own_root: bool) -> Result<(), RulesetError> {
    let read = AccessFs::from_read(NEWEST);
    let device = AccessFs::ReadFile | AccessFs::WriteFile;
    let write = AccessFs::from_all(NEWEST) & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    let shared = own_root.then_some(root::SHARED);
    let extra: Vec<PathBuf> =
        order.readable.iter().chain([&order.program]).flat_map(|path| base::names(path)).collect();
    let readable = base::READABLE.iter().chain(base::FACTS).map(Path::new).chain(extra.iter().map(PathBuf::as_path));
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(base::DEVICES, device))?
        .add_rules(path_beneath_rules([&order.folder], write))?
        .add_rules(path_beneath_rules(shared, write & !AccessFs::Execute))?
        .log_same_exec(false)?
        .restrict_self()?;
    Ok(())
}
