//! The user of a candidate: never root, without capabilities except to read what its program needs, and if possible a
//! separate user, so that files, signals and the process limit are not shared with other programs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, fchown, lchown};
use std::path::Path;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, getegid, geteuid, setfsgid, setfsuid, setgroups, setresgid, setresuid};

use super::Confined;
use super::calls::CandidateUser;
use super::setup_error::{SetupError, doing};
use super::wire::ProgramFds;

/// capabilities(7).
const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_DAC_READ_SEARCH: u32 = 2;
const CAP_FOWNER: u32 = 3;
const CAP_KILL: u32 = 5;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const LAST_CAP: u32 = 40;

/// The user under which the candidates of a sandbox server run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// A separate user number per candidate, counted from this one; needs root.
    Numbers(u32),
    /// The caller's user in a separate user namespace.
    Namespace,
    /// The caller's user.
    Caller,
}

/// Number of user numbers that a sandbox server assigns before it starts over.
const NUMBERS: u32 = 256;

impl Identity {
    /// The best identity that this process can assign; `namespaced`: whether a user namespace is available.
    pub fn at_hand(namespaced: bool) -> Identity {
        let needed = [CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_KILL, CAP_SETGID, CAP_SETUID];
        if geteuid().is_root() && needed.into_iter().all(has) {
            // High numbers that no account has, derived from the process id so that two servers differ. Containers may
            // have only low ones.
            let process = std::process::id();
            let wide = 0x4000_0000 + process % (1 << 22) * NUMBERS;
            let narrow = 61_184 + process % 16 * NUMBERS;
            let free = [wide, narrow].into_iter().find(|&first| mapped(first) && mapped(first + NUMBERS - 1));
            if let Some(first) = free {
                return Identity::Numbers(first);
            }
        }
        if namespaced { Identity::Namespace } else { Identity::Caller }
    }

    pub fn candidate_user(self) -> CandidateUser {
        match self {
            Identity::Caller => CandidateUser::Shared,
            Identity::Numbers(_) | Identity::Namespace => CandidateUser::Own,
        }
    }

    /// The identity of candidate number `candidate`.
    pub fn of(self, candidate: u32) -> Identity {
        match self {
            Identity::Numbers(first) => Identity::Numbers(first + candidate % NUMBERS),
            other => other,
        }
    }

    /// Makes the candidate the owner of the working folder and of those files in it that have no other hard link.
    pub fn own(self, folder: &Path) -> io::Result<()> {
        let Identity::Numbers(user) = self else { return Ok(()) };
        let mut folders = vec![folder.to_path_buf()];
        lchown(folder, Some(user), Some(user))?;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                let facts = entry.metadata()?;
                if facts.is_dir() {
                    folders.push(entry.path());
                }
                if facts.is_dir() || facts.nlink() == 1 {
                    lchown(entry.path(), Some(user), Some(user))?;
                }
            }
        }
        Ok(())
    }

    /// Makes the candidate the owner of the pipes, so that it can open them by their names under `/dev`.
    pub fn own_pipes(self, ends: &ProgramFds) -> io::Result<()> {
        let Identity::Numbers(user) = self else { return Ok(()) };
        for end in [&ends.stdin, &ends.stdout, &ends.stderr] {
            let file = File::from(end.try_clone()?);
            if file.metadata()?.file_type().is_fifo() {
                fchown(&file, Some(user), Some(user))?;
            }
        }
        Ok(())
    }

    /// Enters the candidate's own user namespace. Call it before files are confined, because the kernel's user map is a
    /// file.
    pub fn enter_namespace(self) -> Result<(), SetupError> {
        if self != Identity::Namespace {
            return Ok(());
        }
        prctl::set_dumpable(true).map_err(doing("open its own /proc"))?;
        map_own_user(CloneFlags::CLONE_NEWUSER).map_err(doing("enter a user namespace"))
    }

    /// Reads what the kernel tells of a process only to its own user and to who may trace it: its descriptors, mappings
    /// and shared pages. A supervisor that is root and may not trace, as in most containers, looks as the candidate's
    /// user.
    pub fn reading<T>(self, read: impl FnOnce() -> T) -> T {
        static MAY_TRACE: OnceLock<bool> = OnceLock::new();
        let Identity::Numbers(user) = self else { return read() };
        if *MAY_TRACE.get_or_init(|| has(CAP_SYS_PTRACE)) {
            return read();
        }
        let (own, own_group) = (geteuid(), getegid());
        setfsgid(Gid::from_raw(user));
        setfsuid(Uid::from_raw(user));
        // The kernel asks that the reader has all capabilities of the process, and takes some away with the user.
        // Without them less can be read.
        let _ = raise_permitted();
        let done = read();
        setfsuid(own);
        setfsgid(own_group);
        done
    }

    /// Becomes the candidate's user and gives up all capabilities. One is kept if the program or its libraries are in a
    /// folder that others cannot enter (a Python in root's home): the capability to enter such folders. Then only
    /// Landlock restricts reading, so it must be in force.
    pub fn take(self, order: &Confined, landlocked: bool, own_root: bool) -> Result<(), SetupError> {
        let pass = landlocked && matches!(self, Identity::Numbers(_)) && !open_to_all(order, own_root);
        for capability in (0..=LAST_CAP).filter(|&capability| !(pass && capability == CAP_DAC_READ_SEARCH)) {
            // SAFETY: drops a capability; fails without harm where this process has not the power to.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        if let Identity::Numbers(user) = self {
            setgroups(&[]).map_err(doing("leave its groups"))?;
            prctl::set_keepcaps(pass).map_err(doing("keep a capability"))?;
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(user));
            setresgid(group, group, group).map_err(doing("take a group of its own"))?;
            setresuid(user, user, user).map_err(doing("take a user of its own"))?;
        }
        keep(if pass { 1 << CAP_DAC_READ_SEARCH } else { 0 }).map_err(doing("give up capabilities"))?;
        if pass {
            let raise = libc::PR_CAP_AMBIENT_RAISE;
            // SAFETY: keeps a capability that this process has over the next execve.
            Errno::result(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, CAP_DAC_READ_SEARCH, 0, 0) })
                .map_err(doing("keep a capability"))?;
        }
        Ok(())
    }
}

/// Whether this process may mount and make namespaces without a user namespace.
pub(super) fn may_administer() -> bool {
    geteuid().is_root() && has(CAP_SYS_ADMIN)
}

/// Unshares namespaces including a user namespace that maps this user to itself.
pub(super) fn map_own_user(what: CloneFlags) -> io::Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(what)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn has(capability: u32) -> bool {
    let Ok(text) = fs::read_to_string("/proc/self/status") else { return false };
    let line = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> capability & 1 == 1)
}

/// Whether a user number exists in this user namespace.
fn mapped(user: u32) -> bool {
    let Ok(text) = fs::read_to_string("/proc/self/uid_map") else { return false };
    text.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first + count).contains(&u64::from(user)))
    })
}

/// Whether every user can reach and read all paths in `order`; with its own root, parent folders are always accessible.
fn open_to_all(order: &Confined, own_root: bool) -> bool {
    let bit = |path: &Path, bit: u32| fs::metadata(path).is_ok_and(|facts| facts.permissions().mode() & bit == bit);
    let way = |path: &Path| own_root || path.ancestors().skip(1).all(|folder| bit(folder, 0o1));
    let named = order.readable.iter().chain([&order.program]).filter(|path| path.exists());
    let mut real = named.filter_map(|path| path.canonicalize().ok());
    real.all(|path| bit(&path, 0o4) && way(&path)) && way(&order.folder)
}

/// `struct __user_cap_header_struct` of capset(2).
#[repr(C)]
struct CapHeader {
    version: u32,
    process: i32,
}

/// `struct __user_cap_data_struct`; the kernel takes two, low half first.
#[repr(C)]
#[derive(Clone, Copy)]
struct CapHalf {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Version 3, of the calling thread.
const CAP_HEADER: CapHeader = CapHeader { version: 0x2008_0522, process: 0 };

/// Makes all permitted capabilities effective.
fn raise_permitted() -> io::Result<()> {
    let mut header = CAP_HEADER;
    let mut halves = [CapHalf { effective: 0, permitted: 0, inheritable: 0 }; 2];
    // SAFETY: the kernel reads one header and writes two halves; both outlive the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) })?;
    for half in &mut halves {
        half.effective = half.permitted;
    }
    // SAFETY: as in `keep`.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) })?;
    Ok(())
}

/// Keeps only these capabilities.
fn keep(set: u64) -> io::Result<()> {
    let header = CAP_HEADER;
    let half = |bits: u64| CapHalf { effective: bits as u32, permitted: bits as u32, inheritable: bits as u32 };
    let halves = [half(set & 0xffff_ffff), half(set >> 32)];
    // SAFETY: the kernel reads one header and, of version 3, two halves; both outlive the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) })?;
    Ok(())
}
