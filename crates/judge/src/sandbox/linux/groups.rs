//! Control groups: the kernel's own count of a candidate's memory and CPU time, and its bound on the memory, whichever
//! process, mapping, pipe or file in memory holds it. The sandbox server makes one group for each supervisor and uses
//! it again; version 1 and version 2 of the kernel's interface are known.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::folder::{PREFIX, random, remove_unused};

/// Where the kernel's control groups and this process's places among them are listed.
const MOUNTS: &str = "/proc/self/mountinfo";
const PLACES: &str = "/proc/self/cgroup";

/// A group of version 2 that has groups with limits may hold no process itself: its own processes move here.
const REST: &str = "offshoot-judge-rest";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Our groups in one hierarchy, each under `top`.
#[derive(Debug)]
struct Hierarchy {
    version: Version,
    top: PathBuf,
    _lock: File,
}

/// The groups of a sandbox server, removed on drop. If the server is killed, its caller removes them
/// ([`remove_behind`]); if the caller is killed too, the next server does.
#[derive(Debug)]
pub(super) struct Groups {
    memory: Option<Hierarchy>,
    /// `None` if the memory's groups count the time too.
    cpu: Option<Hierarchy>,
    free: Vec<u32>,
    made: u32,
}

/// Whether the kernel counts memory and CPU time, and why not.
#[derive(Clone, Debug)]
pub(super) struct GroupFacts {
    pub memory: Result<String, String>,
    pub cpu: Result<String, String>,
    /// Whether the kernel counts how long processes wait for a core.
    pub pressure: bool,
    /// The folders that hold all groups of the server.
    pub tops: Vec<PathBuf>,
}

impl Groups {
    /// Call it before this process enters namespaces. `caller` is the number of the server's caller.
    pub fn prepare(wanted: bool, caller: u32) -> (Groups, GroupFacts) {
        let mut groups = Groups { memory: None, cpu: None, free: Vec::new(), made: 0 };
        if !wanted {
            let unwanted = || Err("not wanted".into());
            return (groups, GroupFacts { memory: unwanted(), cpu: unwanted(), pressure: false, tops: Vec::new() });
        }
        let named = |found: &Hierarchy| {
            let version = if found.version == Version::One { 1 } else { 2 };
            format!("a control group (version {version}) for each candidate")
        };
        let memory =
            version_two(caller).or_else(|two| version_one("memory", caller).map_err(|one| format!("{two}; {one}")));
        let said = memory.as_ref().map(named).map_err(String::clone);
        groups.memory = memory.ok();
        let counts_time = groups.memory.as_ref().is_some_and(|memory| memory.version == Version::Two);
        let time = match counts_time {
            true => said.clone(),
            false => {
                let cpu = version_one("cpuacct", caller);
                let said = cpu.as_ref().map(named).map_err(String::clone);
                groups.cpu = cpu.ok();
                said
            }
        };
        let tops = groups.memory.iter().chain(&groups.cpu).map(|hierarchy| hierarchy.top.clone()).collect();
        let pressure = groups.take().is_ok_and(|taken| {
            taken.is_some_and(|(number, group)| {
                groups.give_back(number);
                group.pressure().is_some()
            })
        });
        (groups, GroupFacts { memory: said, cpu: time, pressure, tops })
    }

    /// A group without processes, and its number; `None` if there are no hierarchies.
    pub fn take(&mut self) -> io::Result<Option<(u32, Group)>> {
        if self.memory.is_none() && self.cpu.is_none() {
            return Ok(None);
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.made - 1
        });
        let opened = |hierarchy: &Option<Hierarchy>| {
            let Some(Hierarchy { version, top, .. }) = hierarchy else { return Ok(None) };
            let folder = top.join(number.to_string());
            match fs::create_dir(&folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(named("create", &folder)(error)),
                _ => Ok(Some((*version, folder))),
            }
        };
        Group::open(opened(&self.memory)?, opened(&self.cpu)?).map(|group| Some((number, group)))
    }

    /// The group has no more processes.
    pub fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }
}

impl Drop for Groups {
    /// Groups that still have processes stay.
    fn drop(&mut self) {
        for hierarchy in self.memory.iter().chain(&self.cpu) {
            let _ = remove_tree(&hierarchy.top);
        }
    }
}

/// Removes the groups of a server that has ended, after its supervisors have, which notice it by themselves.
pub(super) fn remove_behind(tops: &[PathBuf]) {
    const LIMIT: Duration = Duration::from_secs(2);
    let begun = Instant::now();
    for top in tops {
        while remove_tree(top).is_err_and(|why| why.kind() != io::ErrorKind::NotFound) && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn version_one(controller: &str, caller: u32) -> Result<Hierarchy, String> {
    let (_, own) = place(Version::One, controller).ok_or(format!("no {controller} groups of version 1 are mounted"))?;
    remove_unused(&own, PREFIX, remove_tree);
    Hierarchy::make(Version::One, &own, caller).map_err(|why| why.to_string())
}

fn version_two(caller: u32) -> Result<Hierarchy, String> {
    let (mount, own) = place(Version::Two, "").ok_or("no groups of version 2 are mounted")?;
    let lists_memory = |folder: &Path, file: &str| {
        fs::read_to_string(folder.join(file)).is_ok_and(|list| list.split_whitespace().any(|name| name == "memory"))
    };
    if !lists_memory(&own, "cgroup.controllers") {
        return Err("groups of version 2 have no memory controller here".into());
    }
    let mut why = None;
    for parent in own.ancestors().take_while(|parent| parent.starts_with(&mount)) {
        if lists_memory(parent, "cgroup.subtree_control") {
            remove_unused(parent, PREFIX, remove_tree);
            match Hierarchy::make(Version::Two, parent, caller) {
                Ok(made) => return Ok(made),
                Err(error) => why = Some(error),
            }
        }
    }
    let cleared = clear(&own).and_then(|()| Hierarchy::make(Version::Two, &own, caller));
    cleared.map_err(|error| why.unwrap_or(error).to_string())
}

/// Lets the groups below `own` have limits, for which its processes may have to move into one below.
fn clear(own: &Path) -> io::Result<()> {
    let (control, rest) = (own.join("cgroup.subtree_control"), own.join(REST));
    match fs::write(&control, "+memory") {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        done => return done.map_err(named("write", &control)),
    }
    match fs::create_dir(&rest) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(named("create", &rest)(error)),
        _ => {}
    }
    for process in fs::read_to_string(own.join("cgroup.procs"))?.lines() {
        // A process may have ended, or be a thread of the kernel; if one is left, the next step fails.
        let _ = fs::write(rest.join("cgroup.procs"), process);
    }
    let done = fs::write(&control, "+memory").map_err(named("write", &control));
    if done.is_err() {
        for process in fs::read_to_string(rest.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(own.join("cgroup.procs"), process);
        }
        let _ = fs::remove_dir(&rest);
    }
    done
}

impl Hierarchy {
    /// Makes our top group under `parent`, and sees whether a process can enter a group under it.
    fn make(version: Version, parent: &Path, caller: u32) -> io::Result<Hierarchy> {
        let (top, lock) = locked_group(parent, caller)?;
        let made = Hierarchy { version, top, _lock: lock };
        let tried = made.try_out();
        if tried.is_err() {
            let _ = remove_tree(&made.top);
        }
        tried.map(|()| made)
    }

    fn try_out(&self) -> io::Result<()> {
        if self.version == Version::Two {
            let control = self.top.join("cgroup.subtree_control");
            fs::write(&control, "+memory").map_err(named("write", &control))?;
        }
        let inner = self.top.join("0");
        fs::create_dir(&inner).map_err(named("create", &inner))?;
        let door = inner.join("cgroup.procs");
        // SAFETY: this process has one thread, so the child may do whatever the parent may.
        match unsafe { fork() }? {
            ForkResult::Child => {
                let code = fs::write(&door, "0").map_or_else(|error| error.raw_os_error().unwrap_or(1), |()| 0);
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(code) }
            }
            ForkResult::Parent { child } => match waitpid(child, None)? {
                WaitStatus::Exited(_, 0) => Ok(()),
                WaitStatus::Exited(_, code) => Err(named("enter", &inner)(io::Error::from_raw_os_error(code))),
                _ => Err(named("enter", &inner)(io::ErrorKind::Interrupted.into())),
            },
        }
    }
}

/// A new group, locked. No other group ever has its name: a caller that clears up behind one of its servers
/// ([`remove_behind`]) would else remove the group of the next.
fn locked_group(parent: &Path, caller: u32) -> io::Result<(PathBuf, File)> {
    for _ in 0..100 {
        let top = parent.join(format!("{PREFIX}{caller}-{:016x}", random().map_err(io::Error::other)?));
        match fs::create_dir(&top) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(named("create", &top)(error)),
        }
        // Another server may have removed it before it was locked, and a third one made a group of the same
        // name since, whose lock it keeps: never wait for it.
        if let Ok(lock) = File::open(&top)
            && lock.try_lock().is_ok()
            && fs::metadata(&top).is_ok_and(|there| lock.metadata().is_ok_and(|ours| ours.ino() == there.ino()))
        {
            return Ok((top, lock));
        }
    }
    Err(io::Error::other(format!("{} has no free name for a group", parent.display())))
}

/// Removes a group and those directly below; one that has processes stays, with an error.
fn remove_tree(top: &Path) -> io::Result<()> {
    for entry in fs::read_dir(top)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let _ = fs::remove_dir(entry.path());
    }
    fs::remove_dir(top)
}

fn named(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |why| io::Error::new(why.kind(), format!("cannot {doing} {path}: {why}"))
}

/// Where a hierarchy is mounted, and this process's group in it.
fn place(version: Version, controller: &str) -> Option<(PathBuf, PathBuf)> {
    place_in(&fs::read_to_string(MOUNTS).ok()?, &fs::read_to_string(PLACES).ok()?, version, controller)
}

fn place_in(mounts: &str, places: &str, version: Version, controller: &str) -> Option<(PathBuf, PathBuf)> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    // NUMBER:CONTROLLERS:GROUP; version 2 has the number 0 and no controllers.
    let group = places.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        match version {
            Version::One => has(controllers),
            Version::Two => number == "0" && controllers.is_empty(),
        }
        .then_some(group)
    })?;
    // NUMBER PARENT DEVICE ROOT MOUNT OPTIONS [FIELDS] - TYPE SOURCE OPTIONS
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1)?);
        let is_it = match version {
            Version::One => kind == "cgroup" && has(options),
            Version::Two => kind == "cgroup2",
        };
        let mut before = before.split(' ').skip(3);
        let (root, mount) = (before.next()?, PathBuf::from(before.next()?));
        let below = Path::new(group).strip_prefix(root).ok().filter(|_| is_it)?;
        let own = if below.as_os_str().is_empty() { mount.clone() } else { mount.join(below) };
        Some((mount, own))
    })
}

/// One candidate's groups, their files open.
#[derive(Debug)]
pub(super) struct Group {
    memory: Option<MemoryGroup>,
    cpu: Option<CpuGroup>,
    /// Whoever writes "0" into these files enters the groups.
    doors: Vec<File>,
}

#[derive(Debug)]
struct MemoryGroup {
    version: Version,
    /// The files that take the limit in bytes: on memory, and on memory and swap together or on swap.
    limit: File,
    swap: Option<File>,
    /// How much is held, by kind.
    held: File,
    /// How often the kernel has killed for memory.
    kills: File,
}

#[derive(Debug)]
struct CpuGroup {
    version: Version,
    used: File,
    /// How long its processes waited for a core; version 2 only, and not every kernel counts it.
    pressure: Option<File>,
}

impl Group {
    fn open(memory: Option<(Version, PathBuf)>, cpu: Option<(Version, PathBuf)>) -> io::Result<Group> {
        let read = |folder: &Path, file: &str| File::open(folder.join(file));
        let write = |folder: &Path, file: &str| File::options().write(true).open(folder.join(file));
        let mut doors = Vec::new();
        let mut group = Group { memory: None, cpu: None, doors: Vec::new() };
        if let Some((version, folder)) = memory {
            doors.push(write(&folder, "cgroup.procs")?);
            let (limit, swap, kills) = match version {
                Version::One => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control"),
                Version::Two => ("memory.max", "memory.swap.max", "memory.events"),
            };
            if version == Version::Two {
                let pressure = read(&folder, "cpu.pressure").ok();
                group.cpu = Some(CpuGroup { version, used: read(&folder, "cpu.stat")?, pressure });
                // All its processes together, as a candidate that lost one is at its end anyhow.
                let _ = fs::write(folder.join("memory.oom.group"), "1");
            }
            group.memory = Some(MemoryGroup {
                version,
                limit: write(&folder, limit)?,
                swap: write(&folder, swap).ok(),
                held: read(&folder, "memory.stat")?,
                kills: read(&folder, kills)?,
            });
        }
        if let Some((version, folder)) = cpu {
            doors.push(write(&folder, "cgroup.procs")?);
            group.cpu = Some(CpuGroup { version, used: read(&folder, "cpuacct.usage")?, pressure: None });
        }
        Ok(Group { doors, ..group })
    }

    /// Moves this process into the groups.
    pub fn enter(&self) -> io::Result<()> {
        self.doors.iter().try_for_each(|mut door| door.write_all(b"0"))
    }

    /// What the kernel bounds the memory to, if it does. It is a sixteenth above the limit, so that the supervisor sees
    /// a candidate exceed its limit before the kernel has to kill one of its processes.
    pub fn most(&self, memory_bytes: u64) -> Option<u64> {
        self.memory.as_ref().map(|_| memory_bytes.saturating_add(memory_bytes / 16).min(i64::MAX as u64))
    }

    /// Sets the kernel's bound, if it bounds memory.
    pub fn bound(&self, memory_bytes: u64) -> io::Result<()> {
        let (Some(MemoryGroup { version, limit, swap, .. }), Some(most)) = (&self.memory, self.most(memory_bytes))
        else {
            return Ok(());
        };
        let bytes = most.to_string();
        let set = |mut file: &File, text: &str| file.write_all(text.as_bytes());
        match version {
            Version::One => {
                // The limit on both together is never below the one on memory.
                let together = |text: &str| swap.as_ref().map_or(Ok(()), |swap| set(swap, text));
                let _ = together("-1");
                set(limit, &bytes)?;
                let _ = together(&bytes);
                Ok(())
            }
            Version::Two => {
                set(limit, &bytes)?;
                swap.as_ref().map_or(Ok(()), |swap| set(swap, "0"))
            }
        }
    }

    /// Bytes that only the end of processes, or the removal of files in memory, gives back.
    pub fn held(&self) -> Option<u64> {
        let MemoryGroup { version, held, .. } = self.memory.as_ref()?;
        let names = match version {
            Version::One => ["total_rss", "total_shmem", "total_swap"],
            Version::Two => ["anon", "shmem", "swap"],
        };
        let text = content(held)?;
        Some(names.into_iter().filter_map(|name| field(&text, name)).sum())
    }

    /// How often the kernel has killed a process of the group for memory.
    pub fn kills(&self) -> u64 {
        let count = || field(&content(&self.memory.as_ref()?.kills)?, "oom_kill");
        count().unwrap_or(0)
    }

    /// CPU time of all processes that were ever in the group.
    pub fn cpu(&self) -> Option<Duration> {
        let CpuGroup { version, used, .. } = self.cpu.as_ref()?;
        let text = content(used)?;
        match version {
            Version::One => text.trim().parse().ok().map(Duration::from_nanos),
            Version::Two => field(&text, "usage_usec").map(Duration::from_micros),
        }
    }

    /// Time in which one of the processes that were ever in the group waited for a core.
    pub fn pressure(&self) -> Option<Duration> {
        some_pressure(&content(self.cpu.as_ref()?.pressure.as_ref()?)?)
    }
}

/// Time in a text of `cpu.pressure` in which some process waited for a core.
fn some_pressure(text: &str) -> Option<Duration> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = some.split(' ').find_map(|word| word.strip_prefix("total="))?;
    total.trim().parse().ok().map(Duration::from_micros)
}

/// A file of the kernel, made anew at each reading from its beginning.
fn content(file: &File) -> Option<String> {
    let mut text = vec![0; 8 << 10];
    let mut length = 0;
    while length < text.len() {
        match file.read_at(&mut text[length..], length as u64).ok()? {
            0 => break,
            read => length += read,
        }
    }
    text.truncate(length);
    String::from_utf8(text).ok()
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let mounts = "30 25 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                      31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 25 0:28 /box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let places = "9:cpu,cpuacct:/\n4:memory:/jobs/7\n0::/box/inner\n";
        let found = |version, controller| place_in(mounts, places, version, controller).map(|(_, own)| own);
        assert_eq!(found(Version::One, "memory"), Some("/sys/fs/cgroup/memory/jobs/7".into()));
        assert_eq!(found(Version::One, "cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(found(Version::One, "pids"), None);
        assert_eq!(found(Version::Two, ""), Some("/sys/fs/cgroup/unified/inner".into()));
    }

    #[test]
    fn pressure_is_the_time_in_which_some_process_waited() {
        let text =
            "some avg10=18.56 avg60=6.59 avg300=33.58 total=35454\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(some_pressure(text), Some(Duration::from_micros(35_454)));
        assert_eq!(some_pressure(""), None);
    }

    #[test]
    fn numbers_are_read_by_their_whole_names() {
        let text = "rss_huge 5\ntotal_rss 7\noom_kill_disable 0\noom_kill 3\n";
        assert_eq!((field(text, "total_rss"), field(text, "rss"), field(text, "oom_kill")), (Some(7), None, Some(3)));
    }
}
