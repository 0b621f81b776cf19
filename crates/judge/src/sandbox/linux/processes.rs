//! All processes of one candidate, seen from its supervisor: measures their resources and kills them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::identity::Identity;
use crate::fair_clock::ThreadCounts;

/// The processes that a supervisor counts as the candidate's, and their user.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessScope {
    pub among: Among,
    pub identity: Identity,
}

/// Where the candidate's processes are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Among {
    /// All processes in `/proc` except the supervisor, which is the first process of their pid namespace.
    Namespace,
    /// The supervisor's descendants; orphans become its children.
    Descendants,
}

/// What the processes of a candidate use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProcessUsage {
    /// Memory of all living processes together.
    pub memory_bytes: u64,
    /// CPU time of all processes, ended ones included.
    pub cpu: Duration,
    pub threads: u32,
}

/// The kernel's flag of a task that is about to end: it has given up its memory, and then its files.
const EXITING: u64 = 0x4;

/// One line of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug)]
struct Stat {
    parent: i32,
    own_ticks: u64,
    /// Ticks of the children that it has waited for.
    children_ticks: u64,
    pages: u64,
    /// How often a page was not there or had to be copied.
    faults: u64,
    threads: u32,
    /// Bytes of its addresses.
    addresses: u64,
    /// Whether it is ending or has ended.
    ends: bool,
    /// Ticks after the machine's start: tells processes apart that have the same number one after the other.
    started: u64,
}

/// Measures the processes of a candidate again and again. Where the kernel does not count for us, this is the only
/// count of their memory and CPU time.
#[derive(Debug)]
pub(super) struct ProcessMeter {
    scope: ProcessScope,
    looked: Instant,
    /// CPU time of those that lived at the last look, with that of their children that they had waited for.
    known: HashMap<i32, KnownProcess>,
    /// CPU time, by parent if that is known, of children that have gone and that it has not waited for.
    owed: HashMap<Option<i32>, Owed>,
    /// CPU time of all processes that the supervisor has waited for.
    ended: Duration,
    /// The start of each process, and its memory when that was last divided.
    divided: HashMap<i32, (u64, DividedMemory)>,
    /// The part of each shared anonymous memory, by its inode, that was ever seen mapped.
    shared: HashMap<u64, (u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct KnownProcess {
    parent: i32,
    started: u64,
    cpu: Duration,
    children: Duration,
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug)]
struct DividedMemory {
    resident: u64,
    /// With each page divided among the processes that share it.
    share: u64,
    /// Pages that were not there or had to be copied by then, in bytes.
    faulted: u64,
}

impl DividedMemory {
    /// What the process can hold at most by now: all that it has not shared since then it has got by a fault.
    fn most(self, resident: u64, faulted: u64) -> u64 {
        let grown = resident.saturating_sub(self.resident).max(faulted.saturating_sub(self.faulted));
        resident.min(self.share + grown)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Owed {
    seen: Duration,
    /// From the last sight of each child to the look that missed it.
    unseen: Duration,
}

impl Owed {
    fn add(&mut self, seen: Duration, unseen: Duration) {
        self.seen += seen;
        self.unseen += unseen;
    }

    fn pay(&mut self, paid: Duration) {
        self.seen = self.seen.saturating_sub(paid);
    }
}

impl ProcessMeter {
    pub fn new(scope: ProcessScope) -> ProcessMeter {
        ProcessMeter {
            scope,
            looked: Instant::now(),
            known: HashMap::new(),
            owed: HashMap::new(),
            divided: HashMap::new(),
            ended: ended_children().0,
            shared: HashMap::new(),
        }
    }

    pub fn scope(&self) -> ProcessScope {
        self.scope
    }

    /// `most_bytes`: the memory limit. If processes seem to exceed it together, they are stopped for the time that it
    /// takes to divide shared pages among them.
    pub fn used(&mut self, most_bytes: u64) -> ProcessUsage {
        self.scope.identity.reading(|| self.read_used(most_bytes))
    }

    fn read_used(&mut self, most_bytes: u64) -> ProcessUsage {
        let living = self.scope.living();
        let page = sysconf_or(SysconfVar::PAGE_SIZE, 4096);
        let mut used = ProcessUsage { cpu: self.cpu(&living), ..ProcessUsage::default() };
        used.threads = living.iter().map(|(_, stat)| stat.threads).sum();
        let resident: Vec<(i32, Stat, u64)> =
            living.iter().map(|&(pid, stat)| (pid, stat, resident_pages(pid, &stat) * page)).collect();
        let estimate = |&(pid, stat, resident): &(i32, Stat, u64)| match self.divided.get(&pid) {
            Some((of, last)) if *of == stat.started => last.most(resident, stat.faults * page),
            _ => resident,
        };
        used.memory_bytes = resident.iter().map(estimate).sum();
        if used.memory_bytes > most_bytes && living.len() > 1 {
            self.scope.signal(Signal::SIGSTOP);
            let divided = |&(pid, stat, resident): &(i32, Stat, u64)| {
                let share = told_bytes(pid, "smaps_rollup", "Pss:").unwrap_or(resident);
                (pid, (stat.started, DividedMemory { resident, share, faulted: stat.faults * page }))
            };
            self.divided = resident.iter().map(divided).collect();
            used.memory_bytes = self.divided.values().map(|(_, memory)| memory.share).sum();
            if used.memory_bytes <= most_bytes {
                self.scope.signal(Signal::SIGCONT);
            }
        }
        used.memory_bytes +=
            self.hidden_bytes(&living) + buffered_bytes(self.scope.among, &living) + table_bytes(&living);
        used
    }

    /// CPU time of all processes. What a process used counts with its parent when that has waited for it. If it was
    /// reaped without being waited for (a parent may ignore SIGCHLD), it counts with what it had used when it was last
    /// seen and with the time since then, which for processes shorter than that is right on average.
    fn cpu(&mut self, living: &[(i32, Stat)]) -> Duration {
        let since = self.looked.elapsed();
        self.looked = Instant::now();
        let ended = ended_children().0;
        let supervisor = std::process::id() as i32;
        let now: HashMap<i32, KnownProcess> = living
            .iter()
            .map(|&(pid, stat)| {
                let cpu = cpu_clock(pid).unwrap_or(ticks(stat.own_ticks));
                (
                    pid,
                    KnownProcess {
                        parent: stat.parent,
                        started: stat.started,
                        cpu,
                        children: ticks(stat.children_ticks),
                    },
                )
            })
            .collect();
        let alive = |pid: i32| {
            matches!(
                (self.known.get(&pid), now.get(&pid)),
                (Some(before), Some(now)) if before.started == now.started
            )
        };
        // If its parent has gone too, nobody can say who has waited for it.
        let waits = |parent: i32| if parent == supervisor || alive(parent) { Some(parent) } else { None };
        let mut owed: HashMap<Option<i32>, Owed> = HashMap::new();
        for (&parent, debt) in &self.owed {
            owed.entry(parent.and_then(waits)).or_default().add(debt.seen, debt.unseen);
        }
        for (_, gone) in self.known.iter().filter(|(pid, _)| !alive(**pid)) {
            owed.entry(waits(gone.parent)).or_default().add(gone.cpu + gone.children, since);
        }
        let paid = |parent: i32| match (self.known.get(&parent), now.get(&parent)) {
            (Some(before), Some(now)) => now.children.saturating_sub(before.children),
            _ => Duration::ZERO,
        };
        let mut rest = Duration::ZERO;
        for parent in now.keys().copied().filter(|&pid| alive(pid)).chain([supervisor]) {
            let paid = if parent == supervisor { ended.saturating_sub(self.ended) } else { paid(parent) };
            let debt = owed.get(&Some(parent)).map_or(Duration::ZERO, |debt| debt.seen);
            rest += paid.saturating_sub(debt);
            owed.entry(Some(parent)).and_modify(|debt| debt.pay(paid));
        }
        owed.entry(None).and_modify(|debt| debt.pay(rest));
        owed.retain(|_, debt| debt.seen > Duration::ZERO);
        self.owed = owed;
        self.ended = ended;
        self.known = now;
        // The kernel tells the time of children in ticks: less than two of them may be a rounding error.
        let lost: Duration =
            self.owed.values().filter(|debt| debt.seen > ticks(2)).map(|debt| debt.seen + debt.unseen).sum();
        ended + lost + self.known.values().map(|process| process.cpu + process.children).sum::<Duration>()
    }

    /// Shared anonymous memory that no process has resident: it keeps pages that a process has given up.
    fn hidden_bytes(&mut self, living: &[(i32, Stat)]) -> u64 {
        let mut exact: HashMap<u64, u64> = HashMap::new();
        let mut resident = 0;
        for (pid, _) in living {
            let before = exact.len();
            for mapping in mappings(*pid).filter(|mapping| mapping.is_shared_memory()) {
                let part = self.shared.entry(mapping.inode).or_insert((mapping.begin, mapping.end));
                *part = (part.0.min(mapping.begin), part.1.max(mapping.end));
                let kept = mapping.file(*pid).map_or(part.1 - part.0, |facts| facts.blocks() * 512);
                exact.insert(mapping.inode, kept);
            }
            if exact.len() > before {
                resident += told_bytes(*pid, "status", "RssShmem:").unwrap_or(0);
            }
        }
        exact.values().sum::<u64>().saturating_sub(resident)
    }
}

impl ProcessScope {
    /// Bytes of deleted files that a process still has open or mapped. `known`: sizes of files by inode, as last
    /// measured; a mapped file of unknown size counts as `most`, as large as a file can be.
    pub fn unlinked_bytes(self, known: &mut HashMap<u64, u64>, most: u64) -> u64 {
        self.identity.reading(|| self.read_unlinked_bytes(known, most))
    }

    fn read_unlinked_bytes(self, known: &mut HashMap<u64, u64>, most: u64) -> u64 {
        let mut held: HashMap<u64, u64> = HashMap::new();
        let mut hold = |path: PathBuf| {
            if let Ok(facts) = fs::metadata(path)
                && facts.is_file()
                && facts.nlink() == 0
            {
                held.insert(facts.ino(), facts.blocks() * 512);
            }
        };
        let living = self.living();
        for (pid, _) in &living {
            // A thread may have descriptors of its own, and the first thread may have ended.
            for thread in numbers_in(&format!("/proc/{pid}/task")) {
                for open in fs::read_dir(format!("/proc/{pid}/task/{thread}/fd")).into_iter().flatten().flatten() {
                    hold(open.path());
                }
            }
            hold(format!("/proc/{pid}/exe").into());
        }
        known.extend(&held);
        for (pid, _) in &living {
            for mapping in mappings(*pid).filter(|mapping| mapping.is_deleted_file()) {
                let bytes = || mapping.file(*pid).map(|facts| facts.blocks() * 512);
                held.entry(mapping.inode)
                    .or_insert_with(|| bytes().or_else(|| known.get(&mapping.inode).copied()).unwrap_or(most));
            }
        }
        held.values().sum()
    }

    /// Whether a process keeps to itself what it has open: it executes a program that its own user cannot read, so
    /// nobody who may not trace it knows what it holds.
    pub fn hides(self) -> bool {
        let hidden = |pid: i32, thread: &i32| {
            let task = format!("/proc/{pid}/task/{thread}");
            // Whoever may read this link may read what it has open.
            let refuses =
                || fs::read_link(format!("{task}/exe")).is_err_and(|why| why.kind() == io::ErrorKind::PermissionDenied);
            // A thread that is about to end is the kernel's.
            let lives = || stat_of(&format!("{task}/stat")).is_some_and(|stat| !stat.ends);
            refuses() && lives() && refuses() && lives()
        };
        let any_hidden =
            |(pid, _): &(i32, Stat)| numbers_in(&format!("/proc/{pid}/task")).any(|thread| hidden(*pid, &thread));
        self.identity.reading(|| self.living().iter().any(any_hidden))
    }

    fn living(self) -> Vec<(i32, Stat)> {
        match self.among {
            Among::Namespace => numbers_in("/proc").filter(|&pid| pid != 1).filter_map(with_stat).collect(),
            Among::Descendants => descendants(),
        }
    }

    /// The counts of all threads, by number, and the states of those of which they are `wanted`.
    pub fn threads(self, wanted: impl Fn(i32, &ThreadCounts) -> bool) -> Vec<(i32, ThreadCounts, Option<ThreadState>)> {
        let of = |pid: i32| numbers_in(&format!("/proc/{pid}/task")).map(move |thread| (pid, thread));
        let seen = |(pid, thread): (i32, i32)| {
            let task = format!("/proc/{pid}/task/{thread}");
            let counts = ThreadCounts::of(&fs::File::open(format!("{task}/schedstat")).ok()?)?;
            let state = if wanted(thread, &counts) { state_of(&format!("{task}/stat")) } else { None };
            Some((thread, counts, state))
        };
        self.identity.reading(|| match self.among {
            Among::Namespace => numbers_in("/proc").filter(|&pid| pid != 1).flat_map(of).filter_map(seen).collect(),
            Among::Descendants => descendants().into_iter().flat_map(|(pid, _)| of(pid)).filter_map(seen).collect(),
        })
    }

    fn signal(self, signal: Signal) {
        match self.among {
            Among::Namespace => {
                let _ = kill(Pid::from_raw(-1), signal);
            }
            Among::Descendants => {
                for (pid, _) in self.living() {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
            }
        }
    }

    /// Kills and reaps all processes; returns when none is left.
    pub fn end(self, mut reaped: impl FnMut(WaitStatus)) {
        while reap(&mut reaped) == ChildrenLeft::Some {
            // Stopped first, so that none forks while the others are killed.
            if self.among == Among::Descendants {
                self.signal(Signal::SIGSTOP);
            }
            self.signal(Signal::SIGKILL);
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// Whether a thread has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadState {
    /// It runs, or waits for a core.
    Runnable,
    Other,
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

/// All descendants of this process, computed from the parent of every process.
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

/// Total CPU time, and the largest memory of one process, of those that have been waited for.
pub(super) fn ended_children() -> (Duration, u64) {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return (Duration::ZERO, 0) };
    let time = |value: nix::sys::time::TimeVal| Duration::new(value.tv_sec() as u64, value.tv_usec() as u32 * 1000);
    (time(usage.user_time()) + time(usage.system_time()), (usage.max_rss() as u64) << 10)
}

fn numbers_in(folder: &str) -> impl Iterator<Item = i32> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn with_stat(pid: i32) -> Option<(i32, Stat)> {
    Some((pid, stat_of(&format!("/proc/{pid}/stat"))?))
}

/// The fields of a file `stat` behind the name.
fn stat_fields(path: &str) -> Option<String> {
    let mut text = [0; 1024];
    let read = fs::File::open(path).and_then(|mut file| file.read(&mut text)).ok()?;
    // The process chooses its name, which is in parentheses, so the fields are read after the last parenthesis.
    let text = String::from_utf8_lossy(&text[..read]);
    Some(text[text.rfind(')')? + 1..].to_string())
}

fn state_of(path: &str) -> Option<ThreadState> {
    let fields = stat_fields(path)?;
    let state = fields.split_ascii_whitespace().next()?;
    Some(if state == "R" { ThreadState::Runnable } else { ThreadState::Other })
}

fn stat_of(path: &str) -> Option<Stat> {
    let text = stat_fields(path)?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field)?.parse::<u64>().ok();
    let both = |field: usize| Some(number(field)? + number(field + 1)?);
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        own_ticks: both(11)?,
        children_ticks: both(13)?,
        threads: number(17)? as u32,
        addresses: number(20)?,
        ends: number(6)? & EXITING != 0,
        started: number(19)?,
        pages: number(21)?,
        faults: number(7)? + number(9)?,
    })
}

/// What the tables of pages take in processes with many addresses: a page for each 2 MiB that was ever read, which no
/// count of pages in use shows.
fn table_bytes(living: &[(i32, Stat)]) -> u64 {
    /// Less than this takes two MiB at most.
    const MANY: u64 = 1 << 30;
    let many = living.iter().filter(|(_, stat)| stat.addresses > MANY);
    many.filter_map(|&(pid, _)| told_bytes(pid, "status", "VmPTE:")).sum()
}

/// The pages of a process. If its first thread has ended, only the others show the memory that they share.
fn resident_pages(pid: i32, stat: &Stat) -> u64 {
    if stat.pages > 0 || stat.threads < 2 {
        return stat.pages;
    }
    let tasks = format!("/proc/{pid}/task");
    let pages = |thread: i32| Some(stat_of(&format!("{tasks}/{thread}/stat"))?.pages);
    numbers_in(&tasks).filter_map(pages).max().unwrap_or(0)
}

/// CPU time of a process and all its threads, more exact than its ticks.
fn cpu_clock(pid: i32) -> Option<Duration> {
    // The kernel's numbers of such clocks; 2 is the scheduler's count, of a whole process.
    let clock = !pid << 3 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec, which outlives the call.
    Errno::result(unsafe { libc::clock_gettime(clock, &raw mut time) }).ok()?;
    Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

fn ticks(count: u64) -> Duration {
    Duration::from_nanos(count.saturating_mul(1_000_000_000 / sysconf_or(SysconfVar::CLK_TCK, 100)))
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug)]
struct Mapping {
    /// The addresses.
    range: (u64, u64),
    shared: bool,
    /// The part of the file, in bytes.
    begin: u64,
    end: u64,
    inode: u64,
    path: String,
}

impl Mapping {
    fn parsed(line: &str) -> Option<Mapping> {
        let mut parts = line.split_ascii_whitespace();
        let (range, rights, offset) = (parts.next()?, parts.next()?, parts.next()?);
        let inode = parts.nth(1)?.parse().ok()?;
        let (from, to) = range.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (range, begin) = ((hex(from)?, hex(to)?), hex(offset)?);
        let path = parts.collect::<Vec<_>>().join(" ");
        Some(Mapping { range, shared: rights.ends_with('s'), begin, end: begin + (range.1 - range.0), inode, path })
    }

    fn is_shared_memory(&self) -> bool {
        self.shared && self.inode != 0 && self.path.starts_with("/dev/zero")
    }

    fn is_deleted_file(&self) -> bool {
        self.inode != 0 && self.path.ends_with(" (deleted)") && !self.path.starts_with("/dev/zero")
    }

    /// The file behind it, which only a privileged supervisor may look at.
    fn file(&self, pid: i32) -> Option<fs::Metadata> {
        fs::metadata(format!("/proc/{pid}/map_files/{:x}-{:x}", self.range.0, self.range.1)).ok()
    }
}

/// The mappings of a process that have a file. If its first thread has ended, the others show them.
fn mappings(pid: i32) -> impl Iterator<Item = Mapping> {
    let of = |thread: i32| {
        fs::read_to_string(format!("/proc/{pid}/task/{thread}/maps")).ok().filter(|text| !text.is_empty())
    };
    let text = of(pid).or_else(|| numbers_in(&format!("/proc/{pid}/task")).find_map(of)).unwrap_or_default();
    text.lines().filter_map(Mapping::parsed).filter(|mapping| mapping.inode != 0).collect::<Vec<_>>().into_iter()
}

/// What the kernel may hold for the processes in sockets and pipes: their number times the usual bounds, as it tells no
/// more. A few of each process are free, so that honest programs do not pay for what they do not fill.
fn buffered_bytes(among: Among, living: &[(i32, Stat)]) -> u64 {
    const FREE: u64 = 8;
    const SOCKET: u64 = 208 << 10;
    const PIPE: u64 = 64 << 10;
    let mut known = HashSet::new();
    let in_network = match among {
        Among::Namespace => living.iter().find_map(|&(pid, _)| sockets_in_network(pid)),
        Among::Descendants => None,
    };
    let mut bytes = in_network.unwrap_or(0) * SOCKET;
    for (pid, _) in living {
        let folder = format!("/proc/{pid}/fd");
        // The number of open descriptors, which kernels before 6.2 do not tell.
        if fs::metadata(&folder).is_ok_and(|facts| (1..=FREE).contains(&facts.size())) {
            continue;
        }
        for open in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(facts) = fs::metadata(open.path()) else { continue };
            let kind = facts.file_type();
            let most = if kind.is_socket() && in_network.is_none() {
                SOCKET
            } else if kind.is_fifo() {
                PIPE
            } else {
                continue;
            };
            if known.insert((facts.dev(), facts.ino())) {
                bytes += most;
            }
        }
    }
    bytes.saturating_sub(FREE * SOCKET * living.len() as u64)
}

/// The sockets in the network of a process, which is its candidate's own, also those that no process has open:
/// connections that nobody has accepted, and those in messages. `None` if the process has ended.
fn sockets_in_network(pid: i32) -> Option<u64> {
    let list = fs::read_to_string(format!("/proc/{pid}/net/unix")).ok()?;
    Some(list.lines().skip(1).count() as u64)
}

/// The bytes that a file of `/proc/PID` tells by this name, in KiB; `None` where it does not.
fn told_bytes(pid: i32, file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let told = text.lines().find_map(|line| line.strip_prefix(name))?;
    told.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
}

fn sysconf_or(name: SysconfVar, usual: u64) -> u64 {
    sysconf(name).ok().flatten().and_then(|value| u64::try_from(value).ok()).unwrap_or(usual)
}
