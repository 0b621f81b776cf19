//! All processes of one candidate, seen from its supervisor: measures their resources and kills them.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// Which processes a supervisor counts as the candidate's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessScope {
    /// All processes in `/proc` except the supervisor, which is the first process of their pid namespace.
    Namespace,
    /// The supervisor's descendants; orphans become its children.
    Descendants,
}

/// Resources used by all living processes together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessUsage {
    pub resident_bytes: u64,
    /// Includes the children that they have waited for.
    pub cpu: Duration,
    pub threads: u32,
    pub processes: u32,
}

/// One line of `/proc/PID/stat`.
struct Stat {
    parent: i32,
    ticks: u64,
    pages: u64,
    threads: u32,
}

impl ProcessScope {
    pub fn used(self) -> ProcessUsage {
        let tick = Duration::from_nanos(1_000_000_000 / sysconf_or(SysconfVar::CLK_TCK, 100));
        let page = sysconf_or(SysconfVar::PAGE_SIZE, 4096);
        let mut used = ProcessUsage::default();
        for (_, stat) in self.living() {
            used.resident_bytes += stat.pages * page;
            used.cpu += tick * u32::try_from(stat.ticks).unwrap_or(u32::MAX);
            used.threads += stat.threads;
            used.processes += 1;
        }
        used
    }

    /// Memory in bytes, with each shared page divided among its processes; slow.
    pub fn proportional_bytes(self) -> u64 {
        self.living().iter().map(|(pid, stat)| proportional_bytes(*pid).unwrap_or(stat.pages * 4096)).sum()
    }

    /// Bytes of deleted files that are still open.
    pub fn unlinked_bytes(self) -> u64 {
        let mut known = HashSet::new();
        let mut bytes = 0;
        for (pid, _) in self.living() {
            for open in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
                let Ok(facts) = fs::metadata(open.path()) else { continue };
                if facts.is_file() && facts.nlink() == 0 && known.insert((facts.dev(), facts.ino())) {
                    bytes += facts.blocks() * 512;
                }
            }
        }
        bytes
    }

    fn living(self) -> Vec<(i32, Stat)> {
        match self {
            ProcessScope::Namespace => numbers_in("/proc").filter(|&pid| pid != 1).filter_map(with_stat).collect(),
            ProcessScope::Descendants => descendants(),
        }
    }

    /// Kills and reaps all processes; returns when none is left.
    pub fn end(self, mut reaped: impl FnMut(WaitStatus)) {
        while reap(&mut reaped) == ChildrenLeft::Some {
            match self {
                ProcessScope::Namespace => {
                    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
                }
                // Stopped first, so that none forks while the others are killed.
                ProcessScope::Descendants => {
                    for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
                        for (pid, _) in self.living() {
                            let _ = kill(Pid::from_raw(pid), signal);
                        }
                    }
                }
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Whether a supervisor still has children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChildrenLeft {
    None,
    Some,
}

/// Reaps all children that have ended.
pub(super) fn reap(mut reaped: impl FnMut(WaitStatus)) -> ChildrenLeft {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
            Ok(WaitStatus::StillAlive) => return ChildrenLeft::Some,
            Ok(status) => reaped(status),
            Err(Errno::EINTR) => {}
            Err(_) => return ChildrenLeft::None,
        }
    }
}

/// The number of all threads of a user: what RLIMIT_NPROC counts.
pub(super) fn threads_of(user: u32) -> u32 {
    let of_user = |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|facts| facts.uid() == user);
    numbers_in("/proc").filter(of_user).filter_map(with_stat).map(|(_, stat)| stat.threads).sum()
}

/// All descendants of this process, from the kernel's lists of children if it provides them.
fn descendants() -> Vec<(i32, Stat)> {
    let own = std::process::id() as i32;
    let children = |pid: i32, thread: i32| fs::read_to_string(format!("/proc/{pid}/task/{thread}/children"));
    if children(own, own).is_err() {
        return scanned_descendants(own);
    }
    let (mut found, mut parents) = (Vec::new(), vec![own]);
    while let Some(parent) = parents.pop() {
        for thread in numbers_in(&format!("/proc/{parent}/task")) {
            let list = children(parent, thread).unwrap_or_default();
            for child in list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
                parents.push(child);
                found.extend(with_stat(child));
            }
        }
    }
    found
}

/// The same, computed from the parent of every process.
fn scanned_descendants(own: i32) -> Vec<(i32, Stat)> {
    let mut rest: Vec<_> = numbers_in("/proc").filter_map(with_stat).collect();
    let (mut found, mut parents) = (Vec::new(), vec![own]);
    while let Some(parent) = parents.pop() {
        for (pid, stat) in rest.extract_if(.., |(_, stat)| stat.parent == parent) {
            parents.push(pid);
            found.push((pid, stat));
        }
    }
    found
}

fn numbers_in(folder: &str) -> impl Iterator<Item = i32> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn with_stat(pid: i32) -> Option<(i32, Stat)> {
    let mut text = [0; 1024];
    let read = fs::File::open(format!("/proc/{pid}/stat")).and_then(|mut file| file.read(&mut text)).ok()?;
    // The process chooses its name, which is in parentheses, so the fields are read after the last parenthesis.
    let text = String::from_utf8_lossy(&text[..read]);
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let ticks = [11, 12, 13, 14].into_iter().filter_map(number).sum();
    Some((pid, Stat { parent: fields.get(1)?.parse().ok()?, ticks, pages: number(21)?, threads: number(17)? as u32 }))
}

fn proportional_bytes(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn sysconf_or(name: SysconfVar, usual: u64) -> u64 {
    sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok()).unwrap_or(usual)
}
