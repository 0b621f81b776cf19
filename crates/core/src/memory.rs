//! Host memory: what is still free for this process, and which limit leaves so little of it: the machine, the control
//! group (container), or the limits of the process itself (`ulimit -v`, `ulimit -d`). What to do with it is left to
//! the budgets.

use std::fmt;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Result};
use crate::figures;

/// Host memory that this process may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeMemory {
    pub bytes: usize,
    pub limit: MemoryLimit,
}

/// What leaves a process no more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    Machine,
    ControlGroup,
    /// RLIMIT_AS: of all that is mapped, touched or not. Half of it counts as free.
    AddressSpace,
    /// RLIMIT_DATA.
    DataSegment,
}

/// Bytes still available to this process: of the machine, of its control group, or of its own limits, whichever has
/// least. Systems other than Linux tell only the last: there it is at most all of the machine's memory.
pub fn free_bytes() -> usize {
    free().bytes
}

/// As [`free_bytes`], with what limits them.
pub fn free() -> FreeMemory {
    let machine = text(Path::new("/proc/meminfo")).and_then(|facts| available(&facts)).unwrap_or_else(physical_bytes);
    let group = text(Path::new("/proc/self/cgroup")).and_then(|groups| left_in_groups(&groups));
    let [address_space, data] = left_of_process();
    // Stacks of threads and what allocators reserve count, too.
    let address_space = address_space.map(|bytes| bytes / 2);
    let limits = [
        (group, MemoryLimit::ControlGroup),
        (address_space, MemoryLimit::AddressSpace),
        (data, MemoryLimit::DataSegment),
    ];
    let mut free = FreeMemory { bytes: machine, limit: MemoryLimit::Machine };
    for (bytes, limit) in limits {
        if let Some(bytes) = bytes.filter(|&bytes| bytes < free.bytes) {
            free = FreeMemory { bytes, limit };
        }
    }
    free
}

impl FreeMemory {
    /// Whether a limit of the process itself leaves less than the machine and its groups have.
    pub fn is_limited_by_process(self) -> bool {
        matches!(self.limit, MemoryLimit::AddressSpace | MemoryLimit::DataSegment)
    }
}

impl fmt::Display for FreeMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = figures::bytes(self.bytes as u64);
        match self.limit {
            MemoryLimit::Machine => f.write_str(&bytes),
            MemoryLimit::ControlGroup => write!(f, "{bytes} (the limit of the control group leaves so much)"),
            MemoryLimit::AddressSpace => write!(f, "{bytes} (half of what `ulimit -v` leaves)"),
            MemoryLimit::DataSegment => write!(f, "{bytes} (`ulimit -d` leaves so much)"),
        }
    }
}

/// A fault of the system for want of memory or of a thread, with the limit of the process if there is one that may be
/// the reason.
pub struct MemoryFault<'a>(pub &'a std::io::Error);

impl fmt::Display for MemoryFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = free();
        match free.is_limited_by_process() {
            true => write!(f, "{}; free are {free}", self.0),
            false => write!(f, "{}", self.0),
        }
    }
}

/// An error with which a command ends, with the limit of the process if there is one that may be the reason: of a
/// thread that does not start, or of a refused allocation.
pub struct Ended<'a>(pub &'a Error);

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let may_be = match self.0 {
            Error::Io { source, .. } => matches!(source.kind(), ErrorKind::OutOfMemory | ErrorKind::WouldBlock),
            other => other.exit_code() == 1,
        };
        write!(f, "{}", self.0)?;
        match free() {
            free if may_be && free.is_limited_by_process() => write!(f, "; free are {free}"),
            _ => Ok(()),
        }
    }
}

/// What a command needs to begin, beside the program itself, of what it may map: threads and settings.
const TO_BEGIN: usize = 8 << 20;

/// Fails if this process may not map enough (`ulimit -v`) for a command to begin.
pub fn enough_to_begin() -> Result<()> {
    process_limits()[0].map_or(Ok(()), ProcessLimit::enough_to_begin)
}

/// Has the process name its own limits of memory where it ends by a panic or by an abort, as it does if an allocation
/// fails. Does nothing where it has no such limit.
pub fn name_limits_at_end() {
    let [address_space, data] = process_limits().map(|limit| limit.map(|limit| figures::bytes(limit.most as u64)));
    let named = [
        address_space.map(|most| format!("map at most {most} (`ulimit -v`)")),
        data.map(|most| format!("have at most {most} of data (`ulimit -d`)")),
    ];
    let named: Vec<String> = named.into_iter().flatten().collect();
    if named.is_empty() || LINE.set(line_at_end(&named)).is_err() {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        write_line();
    }));
    #[cfg(unix)]
    // SAFETY: the handler calls only what a signal's handler may: it reads a cell that is set already, and writes.
    unsafe {
        libc::signal(libc::SIGABRT, on_abort as *const () as libc::sighandler_t);
    }
}

static LINE: OnceLock<String> = OnceLock::new();

fn line_at_end(named: &[String]) -> String {
    format!("offshoot: this process may {}: that may be why it ends\n", named.join(" and "))
}

fn write_line() {
    if let Some(line) = LINE.get() {
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}

#[cfg(unix)]
extern "C" fn on_abort(_: libc::c_int) {
    if let Some(line) = LINE.get() {
        // SAFETY: the kernel reads the line's bytes, which are never freed.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The bytes that `/proc/meminfo` says are available; it counts in KiB.
fn available(facts: &str) -> Option<usize> {
    let number = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    number.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// The files of a control group that tell its memory, by version.
struct GroupFiles {
    root: &'static str,
    used: &'static str,
    /// The limits above which memory is reclaimed or refused.
    limits: &'static [&'static str],
    /// In `memory.stat`: pages of files that the system drops before it refuses memory.
    inactive_file: &'static str,
}

const SECOND_VERSION: GroupFiles = GroupFiles {
    root: "/sys/fs/cgroup",
    used: "memory.current",
    limits: &["memory.max", "memory.high"],
    inactive_file: "inactive_file ",
};

const FIRST_VERSION: GroupFiles = GroupFiles {
    root: "/sys/fs/cgroup/memory",
    used: "memory.usage_in_bytes",
    limits: &["memory.limit_in_bytes"],
    inactive_file: "total_inactive_file ",
};

/// What the memory control groups named by `/proc/self/cgroup` leave this process; `None` where none of them has a
/// limit.
fn left_in_groups(groups: &str) -> Option<usize> {
    // `number:controllers:path`; the second version has one line, without controllers.
    let lines = groups.lines().filter_map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>().try_into().ok());
    let left = lines.filter_map(|[controllers, path]: [&str; 2]| {
        let files = match controllers {
            "" => &SECOND_VERSION,
            _ if controllers.split(',').any(|one| one == "memory") => &FIRST_VERSION,
            _ => return None,
        };
        folders(Path::new(files.root), path).into_iter().filter_map(|folder| left_in(&folder, files)).min()
    });
    left.min()
}

/// The folders of a group and of those around it. In a container the path may be that of the machine, of which only
/// the root is seen: folders that are not there say nothing.
fn folders(root: &Path, path: &str) -> Vec<PathBuf> {
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|folder| folder.starts_with(root)).map(Path::to_path_buf).collect()
}

/// What one group leaves: its limit without what it uses. The page cache of files is not in use: the system drops it
/// where memory is asked for.
fn left_in(folder: &Path, files: &GroupFiles) -> Option<usize> {
    // A group without a limit has the word `max`, or a number as large as there is.
    let number = |name: &str| text(&folder.join(name))?.trim().parse::<usize>().ok();
    let most = files.limits.iter().filter_map(|name| number(name)).min().filter(|&most| most < physical_bytes())?;
    let facts = text(&folder.join("memory.stat")).unwrap_or_default();
    let cached = facts.lines().find_map(|line| line.strip_prefix(files.inactive_file)?.trim().parse::<usize>().ok());
    Some(most.saturating_sub(number(files.used)?.saturating_sub(cached.unwrap_or(0))))
}

/// A limit of this process, and what it uses of it; in bytes.
#[derive(Clone, Copy, Debug)]
struct ProcessLimit {
    most: usize,
    used: usize,
}

impl ProcessLimit {
    fn enough_to_begin(self) -> Result<()> {
        let needed = self.used.saturating_add(TO_BEGIN);
        let bytes = |bytes: usize| figures::bytes(bytes as u64);
        match self.most >= needed {
            true => Ok(()),
            false => {
                let (needed, own, begin) = (bytes(needed), bytes(self.used), bytes(TO_BEGIN));
                let expected = format!("at least {needed} ({own} for the program itself and {begin} to begin)");
                Err(Error::value("what this process may map (`ulimit -v`)", expected, bytes(self.most)))
            }
        }
    }
}

/// What the process's own limits leave of its address space and of its data segment; `None` where there is no limit.
fn left_of_process() -> [Option<usize>; 2] {
    process_limits().map(|limit| limit.map(|limit| limit.most.saturating_sub(limit.used)))
}

/// The process's own limits of its address space and of its data segment; `None` where there is none.
#[cfg(target_os = "linux")]
fn process_limits() -> [Option<ProcessLimit>; 2] {
    let facts = text(Path::new("/proc/self/status")).unwrap_or_default();
    [("VmSize:", libc::RLIMIT_AS as i32), ("VmData:", libc::RLIMIT_DATA as i32)].map(|(name, which)| {
        let mut limit = std::mem::MaybeUninit::<libc::rlimit>::zeroed();
        // SAFETY: `limit` has room for the value, any bytes of which are one; `which` is a limit of this system.
        let limit = unsafe {
            libc::getrlimit(which as _, limit.as_mut_ptr());
            limit.assume_init()
        };
        // What has no limit has the largest number there is, above all memory.
        let most = usize::try_from(limit.rlim_cur).ok().filter(|&most| most < usize::MAX / 2 && most > 0)?;
        Some(ProcessLimit { most, used: kibibytes(&facts, name).unwrap_or(0) })
    })
}

#[cfg(not(target_os = "linux"))]
fn process_limits() -> [Option<ProcessLimit>; 2] {
    [None; 2]
}

/// A number of `/proc/self/status`, in bytes; it counts in KiB.
#[cfg(target_os = "linux")]
fn kibibytes(facts: &str, name: &str) -> Option<usize> {
    let number = facts.lines().find_map(|line| line.strip_prefix(name))?;
    number.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Bytes of the machine's memory.
#[cfg(unix)]
fn physical_bytes() -> usize {
    // SAFETY: each call takes one number, touches no memory of this process and returns one number.
    let [pages, page] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(usize::try_from(page).unwrap_or(1))
}

/// The least that a machine with a model in memory is taken to have.
#[cfg(not(unix))]
fn physical_bytes() -> usize {
    4 << 30
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kib() {
        assert_eq!(available("MemTotal:  16 kB\nMemFree:  1 kB\nMemAvailable:    8 kB\n"), Some(8 << 10));
        assert_eq!(available("MemTotal:  16 kB\nMemFree:  1 kB\n"), None);
    }

    #[test]
    fn a_process_that_may_map_too_little_says_what_it_may_and_needs() {
        let limit = |most: usize| ProcessLimit { most, used: 57 << 20 }.enough_to_begin();
        assert!(limit(65 << 20).is_ok() && limit(usize::MAX).is_ok());
        let error = limit(64 << 20).unwrap_err().to_string();
        for part in ["`ulimit -v`", "at least 65.0 MiB (57.0 MiB for the program", "8.00 MiB to begin", "64.0 MiB"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let line = line_at_end(&["map at most 65.0 MiB (`ulimit -v`)".to_string()]);
        assert_eq!(line, "offshoot: this process may map at most 65.0 MiB (`ulimit -v`): that may be why it ends\n");
    }

    #[test]
    fn some_of_the_machines_memory_is_free() {
        let free = free();
        assert!((1..physical_bytes()).contains(&free.bytes), "{free:?} of {}", physical_bytes());
    }

    /// A group's folder with these files.
    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    #[test]
    fn the_page_cache_is_free() {
        let second = group(&[
            ("memory.max", "1000\n"),
            ("memory.high", "max\n"),
            ("memory.current", "900\n"),
            ("memory.stat", "anon 200\ninactive_file 500\nactive_file 200\n"),
        ]);
        assert_eq!(left_in(second.path(), &SECOND_VERSION), Some(600));
        let first = group(&[
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "900\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 500\n"),
        ]);
        assert_eq!(left_in(first.path(), &FIRST_VERSION), Some(600));
    }

    #[test]
    fn groups_without_a_limit_say_nothing() {
        let used = ("memory.current", "900\n");
        assert_eq!(left_in(group(&[("memory.max", "max\n"), used]).path(), &SECOND_VERSION), None);
        // The first version writes a number above all memory.
        let files = [("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "900\n")];
        assert_eq!(left_in(group(&files).path(), &FIRST_VERSION), None);
        assert_eq!(left_in(group(&[]).path(), &SECOND_VERSION), None);
    }

    #[test]
    fn the_lower_limit_of_a_group_counts() {
        let files = [("memory.max", "1000\n"), ("memory.high", "800\n"), ("memory.current", "100\n")];
        assert_eq!(left_in(group(&files).path(), &SECOND_VERSION), Some(700));
    }

    #[test]
    fn groups_around_a_group_are_asked_too() {
        let root = Path::new("/sys/fs/cgroup");
        let expected = ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"].map(PathBuf::from);
        assert_eq!(folders(root, "/a/b"), expected);
        assert_eq!(folders(root, "/"), [root]);
    }

    #[test]
    fn a_limit_of_the_process_is_named() {
        let free = FreeMemory { bytes: 1 << 20, limit: MemoryLimit::AddressSpace };
        assert_eq!(free.to_string(), "1.00 MiB (half of what `ulimit -v` leaves)");
    }
}
