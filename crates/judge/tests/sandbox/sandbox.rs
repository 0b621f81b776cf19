//! Confined programs, honest and hostile: what the sandbox gives them, what it says of them, and what is left of them.
//! Each hostile program of tests/hostile runs with namespaces and without, as in most containers. Those in Python are
//! skipped where there is none.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use offshoot_core::error::Error;
use offshoot_judge::problem::Limits;
use offshoot_judge::sandbox::{Confined, Ended, How, Isolation, Limit, Sandbox, SandboxSetup, StdinMode};

use crate::busy::Busy;
use crate::compiler;
use crate::sandbox_setup as common;
use common::setup;
use compiler::has_compiler;

const LIMITS: Limits = Limits {
    cpu: Duration::from_secs(2),
    wall: Duration::from_secs(5),
    memory_bytes: 256 << 20,
    output_bytes: 1 << 20,
    processes: 16,
};
/// For what must end by the clock.
const SHORT: Limits = Limits { cpu: Duration::from_millis(200), wall: Duration::from_millis(800), ..LIMITS };

/// What a sandbox may use of the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    namespaces: bool,
    groups: bool,
    /// Whether the supervisors may trace other users' processes, if they are root.
    traces: bool,
}

const FULL: Mode = Mode { namespaces: true, groups: true, traces: true };
const BARE: Mode = Mode { namespaces: false, groups: false, traces: true };
const MODES: [Mode; 5] = [
    FULL,
    BARE,
    Mode { groups: false, ..FULL },
    Mode { groups: true, ..BARE },
    // As root has it in a container.
    Mode { traces: false, ..BARE },
];

pub(crate) fn sandbox(mode: Mode) -> &'static Sandbox {
    static SANDBOXES: [OnceLock<Sandbox>; 8] = [const { OnceLock::new() }; 8];
    let cell = &SANDBOXES[usize::from(mode.namespaces) + 2 * usize::from(mode.groups) + 4 * usize::from(mode.traces)];
    let set_up = move || {
        if !mode.traces {
            give_up_tracing();
        }
        Sandbox::set_up(&SandboxSetup { groups: mode.groups, ..setup(mode.namespaces) }).unwrap()
    };
    // On a thread of its own, whose rights the sandbox has.
    cell.get_or_init(|| std::thread::spawn(set_up).join().unwrap())
}

/// Takes from this thread, and from the programs that it starts, the right to trace processes of other users.
fn give_up_tracing() {
    const CAP_SYS_PTRACE: libc::c_ulong = 19;
    // SAFETY: changes the rights of this thread alone; fails without harm where it has none to give up.
    unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_PTRACE, 0, 0, 0) };
}

/// With namespaces and control groups, and with neither; none on a machine that has no sandbox.
fn modes() -> &'static [Mode] {
    &all_modes()[..all_modes().len().min(2)]
}

/// Also with only one of the two, for what they bound together.
pub(crate) fn all_modes() -> &'static [Mode] {
    static LACKS: OnceLock<Option<String>> = OnceLock::new();
    let lacks = LACKS.get_or_init(|| match Sandbox::set_up(&setup(false)) {
        Err(error @ Error::Value { .. }) => Some(error.to_string()),
        _ => None,
    });
    match lacks {
        Some(why) => {
            crate::skip::skipped(why);
            &[]
        }
        None => &MODES,
    }
}

pub(crate) fn confined(program: impl Into<PathBuf>, arguments: &[&str], folder: &Path) -> Confined {
    Confined::new(program, arguments.iter().map(|argument| argument.to_string()).collect(), folder, LIMITS)
}

fn shell(mode: Mode, script: &str) -> Ended {
    let folder = sandbox(mode).folder().unwrap();
    sandbox(mode).start(confined("/bin/sh", &["-c", script], folder.path())).unwrap().wait().unwrap()
}

/// Hidden files and folders in a readable one, in both modes.
#[test]
fn what_is_hidden_cannot_be_read() {
    if modes().is_empty() {
        return;
    }
    let readable = tempfile::tempdir().unwrap();
    let top = readable.path().canonicalize().unwrap();
    for (path, text) in [("open/text", "to read"), ("open/deep/text", "too"), ("open/answers/text", "an answer")] {
        fs::create_dir_all(top.join(path).parent().unwrap()).unwrap();
        fs::write(top.join(path), text).unwrap();
    }
    fs::write(top.join("open/answers.txt"), "an answer").unwrap();
    std::os::unix::fs::symlink("answers/text", top.join("open/link")).unwrap();
    let hidden = vec![top.join("open/answers"), top.join("open/answers.txt"), top.join("missing")];
    for namespaces in [true, false] {
        let sandbox = Sandbox::set_up(&SandboxSetup { hidden: hidden.clone(), ..setup(namespaces) }).unwrap();
        let folder = sandbox.folder().unwrap();
        let script = "cd $0; cat text deep/text; cat answers/text answers.txt link deep/../answers/text";
        let ended = sandbox
            .start(Confined {
                readable: vec![top.clone()],
                ..confined("/bin/sh", &["-c", script, &top.join("open").display().to_string()], folder.path())
            })
            .unwrap()
            .wait()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "to readtoo", "namespaces {namespaces}: {ended:?}");
    }
}

/// The interpreter and the folder that it lives in.
pub(crate) fn python() -> Option<&'static (PathBuf, PathBuf)> {
    static PYTHON: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let ask = "import os, sys; print(os.path.realpath(sys.executable)); print(sys.base_prefix)";
            let said = Command::new("python3").args(["-I", "-c", ask]).output().ok()?;
            let said = String::from_utf8(said.stdout).ok()?;
            let mut lines = said.lines().map(PathBuf::from);
            Some((lines.next()?, lines.next()?))
        })
        .as_ref()
}

/// What became of a hostile program, after it was made sure that nothing else became of it.
struct Aftermath {
    ended: Ended,
    text: String,
}

/// Runs a program of tests/hostile; None without Python. Its first arguments are its own, then a file outside and our
/// process.
fn hostile(mode: Mode, name: &str, limits: Limits, arguments: &[&str]) -> Option<Aftermath> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Some((interpreter, prefix)) = python() else {
        crate::skip::skipped("there is no python3");
        return None;
    };
    let nonce = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/hostile").join(name);
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "the secret").unwrap();
    let folder = sandbox(mode).folder().unwrap();
    let here = folder.path().to_path_buf();
    fs::copy(source, here.join("hostile.py")).unwrap();
    let (outside_name, caller) = (secret.display().to_string(), std::process::id().to_string());
    let mut all = vec!["-I", "hostile.py"];
    all.extend(arguments);
    all.extend([outside_name.as_str(), caller.as_str()]);
    let what = Confined {
        environment: vec![("OFFSHOOT_NONCE".into(), nonce.clone())],
        readable: vec![prefix.clone()],
        limits,
        ..confined(interpreter, &all, &here)
    };
    let ended = sandbox(mode).start(what).unwrap().wait().unwrap();
    let left = carrying(&nonce);
    assert!(left.is_empty(), "{name}: processes {left:?} are left");
    let grown = tree_of(&here);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(tree_of(&here), grown, "{name}: something still writes");
    drop(folder);
    assert!(!here.exists(), "{name}: its folder is left");
    assert_eq!(fs::read(&secret).unwrap(), b"the secret", "{name}");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "{name}");
    for place in ["/tmp", "/dev/shm", "/usr/lib", "/var/tmp"] {
        assert!(!Path::new(place).join("offshoot-escaped").exists(), "{name}: wrote into {place}");
    }
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(!text.contains("ESCAPED"), "{name}: {text}");
    Some(Aftermath { ended, text })
}

/// The processes whose environment has our mark.
fn carrying(nonce: &str) -> Vec<String> {
    let mark = format!("OFFSHOOT_NONCE={nonce}\0");
    let has = |path: &PathBuf| {
        fs::read(path.join("environ")).is_ok_and(|text| String::from_utf8_lossy(&text).contains(&mark))
    };
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    all.filter(has).map(|path| path.display().to_string()).collect()
}

/// The control groups of a caller's sandbox server.
fn groups_of(caller: u32) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry.file_name().to_string_lossy().starts_with(&format!("offshoot-judge-{caller}-")) {
                true => found.push(entry.path()),
                false => folders.push(entry.path()),
            }
        }
    }
    found
}

fn tree_of(folder: &Path) -> Vec<(PathBuf, u64)> {
    fs::read_dir(folder)
        .unwrap()
        .flatten()
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?.len())))
        .collect()
}

/// In each mode, all of them at once.
fn in_each_mode(test: impl Fn(Mode) + Sync) {
    let (test, name) = (&test, std::thread::current().name().unwrap_or_default().to_string());
    std::thread::scope(|scope| {
        for &mode in modes() {
            let thread = std::thread::Builder::new().name(name.clone());
            thread.spawn_scoped(scope, move || test(mode)).expect("a thread starts");
        }
    });
}

fn ends(name: &str, limits: Limits, arguments: &[&str], by: Limit) {
    in_each_mode(|mode| {
        let Some(after) = hostile(mode, name, limits, arguments) else { return };
        assert_eq!(after.ended.how, How::Limit(by), "{name}, {mode:?}: {:?}", after.ended);
    });
}

/// It comes to its own end, having been refused everything.
fn is_refused(name: &str) {
    in_each_mode(|mode| {
        let Some(after) = hostile(mode, name, LIMITS, &[]) else { return };
        let why = String::from_utf8_lossy(&after.ended.stderr);
        assert_eq!(after.ended.how, How::Exit(0), "{name}, {mode:?}: {why}");
        assert_eq!(after.text, "done\n", "{name}");
    });
}

#[test]
fn an_honest_program_is_reported_as_it_ends() {
    for &mode in modes() {
        let ended = shell(mode, "echo out; echo err >&2; echo kept > file; cat file; exit 3");
        assert_eq!((ended.how, ended.stdout, ended.stderr), (How::Exit(3), b"out\nkept\n".to_vec(), b"err\n".to_vec()));
        assert_eq!(shell(mode, "kill -SEGV $$").how, How::Signal(11));
        assert_eq!(shell(mode, "kill -ABRT $$").how, How::Signal(6));
    }
}

#[test]
fn input_output_and_channel_flow_without_deadlock() {
    for &mode in modes() {
        let folder = sandbox(mode).folder().unwrap();
        let limits = Limits { output_bytes: 4 << 20, ..LIMITS };
        let cat =
            Confined { stdin: StdinMode::Pipe, limits, ..confined("/bin/cat", &["-", "/dev/stdin"], folder.path()) };
        let mut running = sandbox(mode).start(cat).unwrap();
        let input = vec![b'x'; 3 << 20];
        running.write_stdin(&input).unwrap();
        running.close_stdin();
        let ended = running.wait().unwrap();
        assert_eq!((ended.how, ended.stdout.len()), (How::Exit(0), input.len()));

        let closes =
            Confined { stdin: StdinMode::Pipe, ..confined("/bin/sh", &["-c", "exec <&-; sleep 0.2"], folder.path()) };
        let mut running = sandbox(mode).start(closes).unwrap();
        running.write_stdin(&input).unwrap();
        assert_eq!(running.wait().unwrap().how, How::Exit(0));

        let echo = Confined {
            channel: true,
            ..confined("/bin/sh", &["-c", "read line <&3; echo got $line >&3"], folder.path())
        };
        let running = sandbox(mode).start(echo).unwrap();
        let mut channel = running.channel().unwrap();
        channel.write_all(b"word\n").unwrap();
        let mut answer = String::new();
        channel.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "got word\n");
        assert_eq!(running.wait().unwrap().how, How::Exit(0));
    }
}

#[test]
fn a_program_that_cannot_start_is_an_error_that_names_it() {
    if modes().is_empty() {
        return;
    }
    let folder = sandbox(FULL).folder().unwrap();
    let error = sandbox(FULL).start(confined("/no/such/program", &[], folder.path())).unwrap().wait().unwrap_err();
    assert!(error.to_string().starts_with("/no/such/program: cannot be run: "), "{error}");
}

#[test]
fn killed_or_dropped_nothing_is_left() {
    for &mode in modes() {
        let folder = sandbox(mode).folder().unwrap();
        let sleeper = |nonce: &str| Confined {
            environment: vec![("OFFSHOOT_NONCE".into(), nonce.into())],
            ..confined("/bin/sh", &["-c", "sleep 100 & sleep 100"], folder.path())
        };
        let mut running = sandbox(mode).start(sleeper("killed")).unwrap();
        running.kill();
        assert_eq!(running.wait().unwrap().how, How::Killed);
        drop(sandbox(mode).start(sleeper("dropped")).unwrap());
        assert!(carrying("killed").is_empty() && carrying("dropped").is_empty());
    }
}

/// A process of its own that runs a sleeping candidate; killed by the tests.
struct Caller {
    process: Child,
    nonce: String,
    folder: PathBuf,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Caller {
    const NUMBER: &str = "OFFSHOOT_TEST_CALLER";
    /// Whether the caller also forks a process that outlives it.
    const FORKS: &str = "OFFSHOOT_TEST_CALLER_FORKS";

    /// `test` calls [`Caller::live`] first.
    fn start(test: &str, number: usize) -> Caller {
        Caller::start_with(test, number, None)
    }

    fn start_with(test: &str, number: usize, setting: Option<&str>) -> Caller {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .envs(setting.map(|name| (name, "1")))
            .args(["--exact", &format!("sandbox::{test}"), "--nocapture"])
            .env(Caller::NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let folder =
            lines.find_map(|line| line.unwrap().split("started ").nth(1).map(PathBuf::from)).expect("it starts one");
        let caller = Caller { nonce: format!("orphan-{number}-{}", process.id()), process, folder, lines };
        assert!(!carrying(&caller.nonce).is_empty() && caller.folder.exists());
        let counted = sandbox(MODES[number]).in_force().to_string().contains("a control group");
        assert_eq!(groups_of(caller.process.id()).is_empty(), !counted);
        caller
    }

    /// Does what a caller does, in the process that is one; elsewhere nothing.
    fn live() {
        let Ok(number) = std::env::var(Caller::NUMBER) else { return };
        let mode = MODES[number.parse::<usize>().unwrap()];
        let sandbox = Sandbox::set_up(&SandboxSetup { groups: mode.groups, ..setup(mode.namespaces) }).unwrap();
        let folder = sandbox.folder().unwrap();
        let sleeper = || Confined {
            environment: vec![("OFFSHOOT_NONCE".into(), format!("orphan-{number}-{}", std::process::id()))],
            ..confined("/bin/sh", &["-c", "(sleep 100 &); echo here; sleep 100"], folder.path())
        };
        let running = sandbox.start(sleeper()).unwrap();
        while running.take_stdout().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("started {}", folder.path().display());
        if std::env::var_os(Caller::FORKS).is_some() {
            std::thread::spawn(Caller::fork_one_that_lives).join().unwrap();
        }
        let _ = std::io::stdin().read(&mut [0]);
        // Its server is no longer there; the supervisor of the candidate that runs is.
        let error = sandbox.start(sleeper()).and_then(|running| running.wait()).unwrap_err();
        println!("refused {error}");
        drop(running);
        drop((folder, sandbox));
        std::process::exit(0);
    }

    /// Forks a process that executes nothing, so that it holds all descriptors of this one, and says its number.
    fn fork_one_that_lives() {
        // SAFETY: the child calls only functions that may be called in a fork of a process with several threads.
        unsafe {
            match libc::fork() {
                0 => {
                    libc::sleep(300);
                    libc::_exit(0)
                }
                child => println!("forked {child}"),
            }
        }
    }

    fn servers(&self) -> Vec<u32> {
        let own = format!("PPid:\t{}\n", self.process.id());
        let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        all.filter(|id| fs::read_to_string(format!("/proc/{id}/status")).is_ok_and(|facts| facts.contains(&own)))
            .collect()
    }

    /// Soon there are no processes, files or groups of it.
    fn leaves_nothing(&self) {
        let begun = Instant::now();
        loop {
            let left = (carrying(&self.nonce), self.folder.exists(), groups_of(self.process.id()));
            if left == (Vec::new(), false, Vec::new()) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "left: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn kill_at_once(processes: &[u32]) {
    let numbers = processes.iter().map(u32::to_string);
    assert!(Command::new("kill").arg("-KILL").args(numbers).status().unwrap().success());
}

#[test]
fn when_the_caller_is_killed_its_candidates_die() {
    Caller::live();
    for number in 0..modes().len() {
        let mut caller = Caller::start("when_the_caller_is_killed_its_candidates_die", number);
        caller.process.kill().unwrap();
        caller.process.wait().unwrap();
        caller.leaves_nothing();
    }
}

/// A fork of the caller holds the caller's ends of all sockets, and lives on.
#[test]
fn when_a_caller_is_killed_that_has_forked_its_candidates_and_helpers_die() {
    let name = "when_a_caller_is_killed_that_has_forked_its_candidates_and_helpers_die";
    Caller::live();
    for (number, _) in modes().iter().enumerate() {
        let mut caller = Caller::start_with(name, number, Some(Caller::FORKS));
        let forked = caller.lines.find_map(|line| line.unwrap().split("forked ").nth(1).map(str::to_string));
        let forked: u32 = forked.expect("it forks").parse().unwrap();
        let fork = Killed(forked);
        let servers: Vec<u32> = caller.servers().into_iter().filter(|&id| id != forked).collect();
        assert_eq!(servers.len(), 1);
        caller.process.kill().unwrap();
        caller.process.wait().unwrap();
        let is_there = |process: u32| Path::new(&format!("/proc/{process}")).exists();
        let begun = Instant::now();
        while is_there(servers[0]) || !carrying(&caller.nonce).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the helper {} or a candidate lives on", servers[0]);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(is_there(forked), "the fork has lived all the time");
        drop(fork);
        // Until now it has held the locks of the caller's folders.
        drop(Sandbox::set_up(&setup(false)).unwrap());
        caller.leaves_nothing();
    }
}

/// A process that is killed when this is dropped; it has let go of its descriptors then.
struct Killed(u32);

impl Drop for Killed {
    fn drop(&mut self) {
        kill_at_once(&[self.0]);
        wait_for_end(self.0);
    }
}

/// Waits until a process that was killed holds nothing: it is gone, or is there for its parent to collect.
fn wait_for_end(process: u32) {
    let facts = || fs::read_to_string(format!("/proc/{process}/stat"));
    while facts().is_ok_and(|facts| !facts.contains(") Z ") && !facts.contains(") X ")) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn when_its_server_is_killed_the_caller_says_so_and_clears_up() {
    Caller::live();
    for number in 0..modes().len() {
        let mut caller = Caller::start("when_its_server_is_killed_the_caller_says_so_and_clears_up", number);
        let servers = caller.servers();
        assert_eq!(servers.len(), 1);
        kill_at_once(&servers);
        wait_for_end(servers[0]);
        drop(caller.process.stdin.take());
        let refused = caller.lines.find_map(|line| line.unwrap().split("refused ").nth(1).map(str::to_string));
        let refused = refused.expect("it says so");
        assert!(refused.contains("helper has gone)"), "{refused}");
        assert!(caller.process.wait().unwrap().success());
        caller.leaves_nothing();
    }
}

/// A caller clears up behind one of its servers while it starts the next, and another judges.
#[test]
fn sandboxes_that_come_and_go_leave_one_another_their_groups() {
    let Some(&mode) = modes().first() else { return };
    let set_up = || Sandbox::set_up(&SandboxSetup { groups: mode.groups, ..setup(mode.namespaces) }).unwrap();
    let alone = set_up();
    let in_force = alone.in_force().to_string();
    let known = groups_of(std::process::id());
    drop(alone);
    let next = set_up();
    let new = groups_of(std::process::id()).into_iter().filter(|group| !known.contains(group)).count();
    // Those of other tests' sandboxes may be among them.
    assert!(known.is_empty() || new > 0, "the next server's groups have the names of the last one's");
    drop(next);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..4 {
                    let sandbox = set_up();
                    // One that cannot start a supervisor is set up anew without namespaces.
                    assert_eq!(sandbox.in_force().to_string(), in_force);
                    let folder = sandbox.folder().unwrap();
                    for _ in 0..4 {
                        let ended = sandbox.start(confined("/bin/true", &[], folder.path())).unwrap().wait().unwrap();
                        assert_eq!(ended.how, How::Exit(0));
                    }
                }
            });
        }
    });
}

#[test]
fn when_all_are_killed_the_next_sandbox_clears_up() {
    Caller::live();
    for (number, &mode) in modes().iter().enumerate() {
        let mut caller = Caller::start("when_all_are_killed_the_next_sandbox_clears_up", number);
        let mut all = caller.servers();
        all.push(caller.process.id());
        kill_at_once(&all);
        caller.process.wait().unwrap();
        while !carrying(&caller.nonce).is_empty() {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(Sandbox::set_up(&SandboxSetup { groups: mode.groups, ..setup(mode.namespaces) }).unwrap());
        caller.leaves_nothing();
    }
}

#[test]
fn what_is_in_force_is_said_and_a_wrong_helper_noticed() {
    if modes().is_empty() {
        return;
    }
    let said = sandbox(BARE).in_force().to_string();
    assert!(said.contains("namespaces   not in force: not wanted"), "{said}");
    assert!(said.contains("probes       in force: "), "{said}");
    let setup = SandboxSetup { helper: Some("/bin/true".into()), ..SandboxSetup::new(Isolation::Required) };
    assert!(
        Sandbox::set_up(&setup).unwrap_err().to_string().starts_with("/bin/true: cannot use as the sandbox's helper")
    );
}

#[test]
fn fork_bombs_end() {
    for &mode in modes() {
        let Some(after) = hostile(mode, "fork_bomb.py", SHORT, &[]) else { return };
        assert!(matches!(after.ended.how, How::Limit(Limit::Time) | How::Sandbox(_)), "{:?}", after.ended.how);
    }
}

#[test]
fn memory_hogs_end() {
    for name in ["memory_heap.py", "memory_map.py", "memory_children.py"] {
        ends(name, LIMITS, &[], Limit::Memory);
    }
}

/// Memory that no process's own count shows. Where the kernel bounds it, a candidate never holds a tenth more than its
/// limit.
#[test]
fn hidden_memory_counts() {
    for how in
        ["zombie_leader", "given_up", "unmapped", "copied", "moved", "orphans", "sockets", "tables", "fills_its_file"]
    {
        for &mode in all_modes() {
            let limits = LIMITS.within(Duration::from_secs(20));
            let Some(after) = hostile(mode, "memory_hidden.py", limits, &[how]) else { return };
            let by = if how == "fills_its_file" { Limit::Output } else { Limit::Memory };
            assert_eq!(after.ended.how, How::Limit(by), "{how}, {mode:?}: {:?}", after.ended);
            let counted = sandbox(mode).in_force().to_string().contains("memory       in force: a control group");
            let most = LIMITS.memory_bytes + LIMITS.memory_bytes / 10;
            assert!(!counted || after.ended.peak_bytes <= most, "{how}, {mode:?}: {:?}", after.ended);
        }
    }
}

/// Only where a candidate may have sockets.
#[test]
fn what_unaccepted_connections_hold_counts() {
    for &mode in all_modes().iter().filter(|mode| mode.namespaces) {
        let limits = LIMITS.within(Duration::from_secs(20));
        let Some(after) = hostile(mode, "memory_hidden.py", limits, &["backlog"]) else { return };
        let said = String::from_utf8_lossy(&after.ended.stderr);
        let has_namespaces = !said.contains("PermissionError");
        assert!(!has_namespaces || after.ended.how == How::Limit(Limit::Memory), "{mode:?}: {:?}", after.ended);
    }
}

/// CPU time that is in no process's count of itself or its children.
#[test]
fn hidden_time_counts() {
    for how in ["reaped", "short", "waited", "orphaned", "behind_a_zombie", "slept_and_stolen"] {
        for &mode in all_modes() {
            let limits = Limits { cpu: Duration::from_millis(400), ..LIMITS };
            let Some(after) = hostile(mode, "time_hidden.py", limits, &[how]) else { return };
            let Ended { how: end, cpu, .. } = &after.ended;
            // On a busy machine the clock may end it, but never before much of its time has been counted.
            assert!(*end == How::Limit(Limit::Time) && *cpu >= limits.cpu / 2, "{how}, {mode:?}: {:?}", after.ended);
        }
    }
}

#[test]
fn hidden_files_count() {
    for how in [
        "beyond_the_longest_path",
        "mapped",
        "in_flight",
        "of_a_thread",
        "at_once",
        "links",
        "attributes",
        "undumpable",
        "behind_a_closed_program",
    ] {
        for &mode in all_modes() {
            let Some(after) = hostile(mode, "files_hidden.py", LIMITS, &[how]) else { return };
            // The kernel refuses it the space, or descriptors are refused where files are measured.
            let said = String::from_utf8_lossy(&after.ended.stderr);
            // An error in a thread does not change the exit code.
            let ended = matches!(after.ended.how, How::Exit(code) if code == i32::from(how != "of_a_thread"));
            let refused = ended
                && if mode.namespaces {
                    said.contains("Errno 28")
                } else {
                    how == "in_flight" && said.contains("Errno 1]")
                };
            let found = match &after.ended.how {
                How::Sandbox(what) => how == "behind_a_closed_program" && what.contains("nobody may read"),
                How::Limit(Limit::Files) => ["beyond_the_longest_path", "links", "attributes"].contains(&how),
                other => *other == How::Limit(Limit::Output),
            };
            assert!(refused || found, "{how}, {mode:?}: {:?}", after.ended);
        }
    }
}

/// It writes nothing.
#[test]
fn a_farm_of_links_is_told_its_own_limit() {
    let limits = Limits { output_bytes: 64 << 20, ..LIMITS };
    ends("files_hidden.py", limits, &["links_of_nothing"], Limit::Files);
}

#[test]
fn file_hogs_end() {
    for name in ["files_many.py", "files_unlinked.py"] {
        ends(name, LIMITS, &[], Limit::Output);
    }
    for &mode in modes() {
        hostile(mode, "files_deep.py", LIMITS, &[]);
    }
}

#[test]
fn endless_output_ends_and_is_not_kept() {
    for (stream, kept) in [("stdout", 1 << 20), ("stderr", 0)] {
        for &mode in modes() {
            let Some(after) = hostile(mode, "output.py", LIMITS, &[stream]) else { return };
            assert_eq!(after.ended.how, How::Limit(Limit::Output));
            assert!(after.ended.stdout.len() == kept && after.ended.stderr.len() <= 64 << 10);
        }
    }
    for &mode in modes() {
        let ended = shell(mode, "head -c 1100000 /dev/zero");
        assert_eq!((ended.how, ended.stdout.len()), (How::Limit(Limit::Output), 1 << 20));
    }
}

#[test]
fn time_is_up_for_sleepers_spinners_and_zombies() {
    for name in ["sleeps.py", "spins.py", "zombies.py"] {
        ends(name, SHORT, &[], Limit::Time);
    }
}

/// A candidate that waits for a core, or for the judge at its pipes, is not charged for it; one that sleeps is.
#[test]
fn how_a_program_ends_does_not_depend_on_the_machines_load() {
    const TIGHT: Limits = Limits { cpu: Duration::from_millis(600), wall: Duration::from_millis(600), ..LIMITS };
    let Some((interpreter, prefix)) = python() else { return crate::skip::skipped("there is no python3") };
    let works = "import time\nwhile time.process_time() < 0.5: pass";
    let both = "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(0.01,)).start()\n\
                while time.process_time() < 0.5: pass";
    let copies = "import sys\nsys.stdout.write(str(len(sys.stdin.read())))";
    // It keeps its own input from ending, so that a pipe shows an empty input for which it could wait.
    let holds_its_input = "import os, time\nown, left = os.open('/dev/stdin', os.O_WRONLY), 8 << 20\n\
                           while left: left -= len(os.read(0, left))\ntime.sleep(3)";
    let many_programs = "import os\nfor _ in range(60): os.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)";
    let cases = [
        (works, How::Exit(0)),
        (both, How::Exit(0)),
        (copies, How::Exit(0)),
        ("import time\ntime.sleep(0.3)", How::Exit(0)),
        ("import time\ntime.sleep(3)", How::Limit(Limit::Time)),
        ("import time\nwhile True: time.sleep(0.001)", How::Limit(Limit::Time)),
        ("while True: pass", How::Limit(Limit::Time)),
        (holds_its_input, How::Limit(Limit::Time)),
        (many_programs, How::Exit(0)),
    ];
    let input = vec![b'x'; 8 << 20];
    let ended = |mode: Mode, script: &str| {
        let folder = sandbox(mode).folder().unwrap();
        let what = Confined {
            readable: vec![prefix.clone()],
            stdin: StdinMode::Pipe,
            limits: TIGHT,
            ..confined(interpreter, &["-I", "-S", "-c", script], folder.path())
        };
        let mut running = sandbox(mode).start(what).unwrap();
        running.write_stdin(&input).unwrap();
        running.wait().unwrap()
    };
    for &mode in modes().iter().filter(|mode| mode.traces) {
        let _busy = Busy::start();
        for (script, how) in &cases {
            let ended = ended(mode, script);
            assert_eq!(ended.how, *how, "{mode:?}, {script}: {ended:?}");
        }
    }
}

/// Of two that wait for a core, the one with the lower priority waits longer, and is not charged for it.
#[test]
fn a_program_cannot_give_up_its_turns() {
    let Some((interpreter, prefix)) = python() else { return crate::skip::skipped("there is no python3") };
    let script = "import os\nbefore = os.nice(0)\nos.nice(7)\nos.setpriority(os.PRIO_PROCESS, 0, 19)\n\
                  for policy in (os.SCHED_IDLE, os.SCHED_BATCH):\n    \
                  os.sched_setscheduler(0, policy, os.sched_param(0))\n\
                  print(os.getpriority(os.PRIO_PROCESS, 0) - before, os.sched_getscheduler(0) == os.SCHED_OTHER)";
    for &mode in modes() {
        let folder = sandbox(mode).folder().unwrap();
        let what =
            Confined { readable: vec![prefix.clone()], ..confined(interpreter, &["-I", "-c", script], folder.path()) };
        let ended = sandbox(mode).start(what).unwrap().wait().unwrap();
        assert_eq!((ended.how.clone(), String::from_utf8_lossy(&ended.stdout).as_ref()), (How::Exit(0), "0 True\n"));
    }
}

/// A program whose clock stands still, here because its input never comes, is ended all the same.
#[test]
fn real_time_ends_a_program_whose_clock_stands_still() {
    for &mode in modes() {
        let folder = sandbox(mode).folder().unwrap();
        let nonce = format!("waits-{}-{}", mode.namespaces, std::process::id());
        let waits = Confined {
            stdin: StdinMode::Pipe,
            environment: vec![("OFFSHOOT_NONCE".into(), nonce.clone())],
            limits: Limits { wall: Duration::from_millis(30), ..LIMITS },
            ..confined("/bin/cat", &[], folder.path())
        };
        let mut running = sandbox(mode).start(waits).unwrap();
        running.write_stdin(b"not all").unwrap();
        while running.take_stdout().is_empty() && carrying(&nonce).is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        while !carrying(&nonce).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(running.wait().unwrap().how, How::Limit(Limit::RealTime), "{mode:?}");
    }
}

#[test]
fn daemons_end_with_their_program() {
    for &mode in modes() {
        let Some(after) = hostile(mode, "daemon.py", LIMITS, &[]) else { return };
        assert_eq!((after.ended.how, after.text.as_str()), (How::Exit(0), "left a daemon\n"));
    }
}

/// Where it has a /dev/shm of its own; without namespaces it has none to fill.
#[test]
fn shared_memory_is_its_own_and_bounded() {
    for how in ["named", "unlinked", "mapped"] {
        for &mode in modes() {
            let Some(after) = hostile(mode, "files_shared.py", LIMITS, &[how]) else { return };
            let bounded = matches!(
                after.ended.how,
                How::Exit(1) | How::Limit(Limit::Output | Limit::Memory) | How::Signal(libc::SIGBUS)
            );
            assert!(bounded, "{how}, {mode:?}: {:?}", after.ended);
            assert!(after.ended.peak_bytes < LIMITS.memory_bytes, "{how}: {:?}", after.ended);
        }
    }
}

#[test]
fn python_can_share_memory_locks_and_pools_where_there_are_namespaces() {
    let Some((interpreter, prefix)) = python() else { return crate::skip::skipped("there is no python3") };
    for &mode in modes() {
        let has_own = mode.namespaces && sandbox(FULL).in_force().to_string().contains("a /dev/shm of its own");
        let folder = sandbox(mode).folder().unwrap();
        let script = "from multiprocessing import Lock, Manager, Pool, Process, Queue, shared_memory\n\
                      with Lock(), Pool(2) as pool: print(sum(pool.map(abs, range(-9, 0))))\n\
                      memory = shared_memory.SharedMemory(create=True, size=4096)\n\
                      memory.buf[0] = 7\n\
                      again = shared_memory.SharedMemory(memory.name)\n\
                      print(again.buf[0])\n\
                      memory.unlink()\n\
                      queue = Queue()\n\
                      with Manager() as manager:\n    \
                          shared = manager.dict(a=1)\n    \
                          both = lambda: (shared.update(b=2), queue.put(3))\n    \
                          child = Process(target=both); child.start()\n    \
                          print(queue.get(), child.join(), dict(shared))\n\
                      import asyncio, socket\n\
                      from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n\
                      for Executor in ProcessPoolExecutor, ThreadPoolExecutor:\n    \
                          with Executor(2) as pool: print(list(pool.map(abs, [-1, -2])))\n\
                      async def served():\n    \
                          async def echo(reader, writer): writer.write(await reader.read(4)); writer.close()\n    \
                          async with await asyncio.start_unix_server(echo, 'own'):\n        \
                              reader, writer = await asyncio.open_unix_connection('own')\n        \
                              writer.write(b'echo'); print((await reader.read()).decode()); writer.close()\n\
                      asyncio.run(served())\n";
        let what =
            Confined { readable: vec![prefix.clone()], ..confined(interpreter, &["-I", "-c", script], folder.path()) };
        let ended = sandbox(mode).start(what).unwrap().wait().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        match has_own {
            true => {
                let expected = "45\n7\n3 None {'a': 1, 'b': 2}\n[1, 2]\n[1, 2]\necho\n";
                assert_eq!((ended.how.clone(), said.as_str()), (How::Exit(0), expected), "{ended:?}");
            }
            false => assert_eq!((ended.how, said.as_str()), (How::Exit(1), ""), "a lock needs a /dev/shm"),
        }
    }
}

#[test]
fn nothing_outside_is_read_or_written() {
    // Something of somebody else's to be seen.
    let _held = tempfile::NamedTempFile::new_in("/dev/shm");
    is_refused("outside.py");
}

#[test]
fn there_is_no_network() {
    is_refused("sockets.py");
}

/// Neither the machine's sockets nor those of another candidate of the same server, by path or by abstract name; and no
/// sockets at all without a network of one's own.
#[test]
fn sockets_of_others_are_out_of_reach() {
    let Some((interpreter, prefix)) = python() else { return crate::skip::skipped("there is no python3") };
    let outside = tempfile::tempdir().unwrap();
    fs::set_permissions(outside.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let path = outside.path().join("socket");
    let name = format!("offshoot-outside-{}", std::process::id());
    let _listeners = [
        UnixListener::bind(&path).unwrap(),
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap(),
    ];
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let listens = "import socket, sys, time\nopened = []\n\
                   for name in ('own', '\\0offshoot-candidate'):\n    \
                   opened.append(socket.socket(socket.AF_UNIX))\n    opened[-1].bind(name)\n    \
                   opened[-1].listen()\nprint(flush=True)\ntime.sleep(100)";
    let connects = "import socket, sys\nfor name in sys.argv[1:]:\n    try:\n        \
                    socket.socket(socket.AF_UNIX).connect(name.replace('@', '\\0'))\n        print('ESCAPED')\n    \
                    except OSError: print('refused')";
    for &mode in modes() {
        let (folder, others) = (sandbox(mode).folder().unwrap(), sandbox(mode).folder().unwrap());
        let python = |script: &str, arguments: &[&str], folder: &Path| {
            let all = [&["-I", "-c", script], arguments].concat();
            let what = Confined { readable: vec![prefix.clone()], ..confined(interpreter, &all, folder) };
            sandbox(mode).start(what).unwrap()
        };
        let mut listening = python(listens, &[], others.path());
        if sandbox(mode).in_force().to_string().contains("but among its own processes") {
            while listening.take_stdout().is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let names = [
            path.display().to_string(),
            format!("@{name}"),
            others.path().join("own").display().to_string(),
            "@offshoot-candidate".into(),
        ];
        let ended = python(connects, &names.each_ref().map(String::as_str), folder.path()).wait().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "refused\n".repeat(names.len()), "{mode:?}: {ended:?}");
        listening.kill();
        listening.wait().unwrap();
    }
}

/// Not even one that anybody may use, in a folder that the candidate may read: a server's beside the interpreter.
#[test]
fn a_socket_in_a_readable_folder_is_out_of_reach() {
    let Some((interpreter, prefix)) = python() else { return crate::skip::skipped("there is no python3") };
    let script = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/hostile/sockets_of_others.py");
    for &mode in modes() {
        let readable = tempfile::tempdir().unwrap();
        let path = readable.path().canonicalize().unwrap().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(readable.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        let folder = sandbox(mode).folder().unwrap();
        fs::copy(&script, folder.path().join("hostile.py")).unwrap();
        let arguments = ["-I", "hostile.py", &path.display().to_string()];
        let what = Confined {
            readable: vec![prefix.clone(), path.parent().unwrap().to_path_buf()],
            ..confined(interpreter, &arguments, folder.path())
        };
        let ended = sandbox(mode).start(what).unwrap().wait().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stdout), "done\n", "{mode:?}: {ended:?}");
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "{mode:?}: somebody has connected");
    }
}

/// Connections that wait for room at their listener, from threads and processes: they come about, one whose
/// socket has a time limit gives up; and one for which there never is any ends with the candidate.
#[test]
fn connections_wait_for_their_listener() {
    let Some((interpreter, prefix)) = python() else { return crate::skip::skipped("there is no python3") };
    let sandbox = sandbox(FULL);
    if modes().is_empty() || !sandbox.in_force().to_string().contains("but among its own processes") {
        return crate::skip::skipped("no network of a candidate's own here");
    }
    let listens = "import os, socket, sys, threading, time\nfrom socket import AF_UNIX\n\
                   listener = socket.socket(AF_UNIX)\nlistener.bind('full')\nlistener.listen(0)\n\
                   def connect():\n    with socket.socket(AF_UNIX) as own: own.connect('full'); own.send(b'x')\n\
                   threads = [threading.Thread(target=connect, daemon=True) for _ in range(5)]\n\
                   for thread in threads: thread.start()\n\
                   child = os.fork()\nif not child: connect(); os._exit(0)\n";
    let accepts = "for _ in range(6): print(listener.accept()[0].recv(1).decode())\nprint(os.waitpid(child, 0)[1])\n\
                   late = socket.socket(AF_UNIX)\nlate.setblocking(False)\nerrors = set()\n\
                   for name in ['none', 'full', 'full', 'full', '.', '\\0none', '']:\n    \
                       try: late.connect(name); late = socket.socket(AF_UNIX); late.setblocking(False)\n    \
                       except OSError as error: errors.add(type(error).__name__)\n\
                   print(sorted(errors))\n";
    let ended = |script: &str, limits: Limits| {
        let folder = sandbox.folder().unwrap();
        let what = Confined {
            readable: vec![prefix.clone()],
            limits,
            ..confined(interpreter, &["-I", "-c", script], folder.path())
        };
        sandbox.start(what).unwrap().wait().unwrap()
    };
    let done = ended(&format!("{listens}{accepts}"), LIMITS);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    let refusals = "['BlockingIOError', 'ConnectionRefusedError', 'FileNotFoundError', 'OSError']\n";
    assert_eq!((done.how.clone(), said), (How::Exit(0), format!("{}0\n{refusals}", "x\n".repeat(6))), "{done:?}");
    let limited = "import socket, struct, threading\nlistener = socket.socket(socket.AF_UNIX)\n\
                   listener.bind('full')\nlistener.listen(0)\nerrors = []\n\
                   def connect():\n    own = socket.socket(socket.AF_UNIX)\n    \
                       own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 0, 50000))\n    \
                       try: own.connect('full'); connect()\n    \
                       except OSError as error: errors.append(type(error).__name__)\n\
                   threads = [threading.Thread(target=connect) for _ in range(5)]\n\
                   for thread in threads: thread.start()\nfor thread in threads: thread.join()\nprint(errors)\n";
    let done = ended(limited, LIMITS);
    let refusals = format!("[{}]\n", ["'BlockingIOError'"; 5].join(", "));
    assert_eq!((done.how.clone(), &*String::from_utf8_lossy(&done.stdout)), (How::Exit(0), &*refusals), "{done:?}");
    let never = ended(&format!("{listens}for thread in threads: thread.join()"), SHORT);
    assert_eq!(never.how, How::Limit(Limit::Time), "{never:?}");
}

#[test]
fn other_processes_are_out_of_reach() {
    for &mode in modes() {
        let Some(after) = hostile(mode, "signals.py", LIMITS, &[]) else { return };
        assert_eq!((after.ended.how, after.text.as_str()), (How::Exit(0), "done\n"), "{mode:?}");
    }
}

#[test]
fn limits_descriptors_and_environment_hold() {
    is_refused("limits.py");
}

#[test]
fn hostile_system_calls_end_the_whole_tree_by_name() {
    let new_user = (libc::CLONE_NEWUSER | libc::SIGCHLD).to_string();
    let calls = [
        ("ptrace", libc::SYS_ptrace, "0"),
        ("unshare", libc::SYS_unshare, new_user.as_str()),
        ("mount", libc::SYS_mount, "0"),
        ("keyctl", libc::SYS_keyctl, "0"),
        ("add_key", libc::SYS_add_key, "0"),
        ("bpf", libc::SYS_bpf, "0"),
        ("perf_event_open", libc::SYS_perf_event_open, "0"),
        ("userfaultfd", libc::SYS_userfaultfd, "0"),
        ("process_vm_readv", libc::SYS_process_vm_readv, "1"),
        ("setns", libc::SYS_setns, "0"),
        ("chroot", libc::SYS_chroot, "0"),
        ("pivot_root", libc::SYS_pivot_root, "0"),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, "0"),
        ("init_module", libc::SYS_init_module, "0"),
        ("kexec_load", libc::SYS_kexec_load, "0"),
        ("reboot", libc::SYS_reboot, "0"),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, "0"),
        ("clone into new namespaces", libc::SYS_clone, new_user.as_str()),
    ];
    if modes().is_empty() {
        return;
    }
    for (index, (name, number, argument)) in calls.into_iter().enumerate() {
        let (mode, where_made) =
            (if index % 2 == 0 { FULL } else { BARE }, if index % 3 == 0 { "child" } else { "here" });
        let arguments = [&number.to_string(), where_made, argument, "0", "0", "0", "0"];
        let Some(after) = hostile(mode, "call.py", LIMITS, &arguments) else { return };
        assert_eq!(after.ended.how, How::Sandbox(name.into()), "{}", after.text);
    }
}

#[test]
fn calls_that_libraries_try_are_refused_with_an_error() {
    let absent = format!("refused {}\n", libc::ENOSYS);
    let refused = format!("refused {}\n", libc::EPERM);
    let calls = [
        (libc::SYS_io_uring_setup, &absent),
        (libc::SYS_memfd_create, &absent),
        (libc::SYS_clone3, &absent),
        (libc::SYS_shmget, &refused),
        (libc::SYS_mq_open, &refused),
        (libc::SYS_personality, &refused),
    ];
    if modes().is_empty() {
        return;
    }
    for (index, (number, expected)) in calls.into_iter().enumerate() {
        let Some(after) = hostile(
            if index % 2 == 0 { FULL } else { BARE },
            "call.py",
            LIMITS,
            &[&number.to_string(), "here", "4", "0"],
        ) else {
            return;
        };
        assert_eq!((after.ended.how, &after.text), (How::Exit(0), expected));
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn calls_of_other_architectures_end_the_program() {
    if modes().is_empty() {
        return;
    }
    const X32: libc::c_long = 0x4000_0000;
    if let Some(after) = hostile(FULL, "call.py", LIMITS, &[&(X32 + libc::SYS_getpid).to_string(), "here"]) {
        assert!(matches!(after.ended.how, How::Sandbox(_)), "{:?}", after.ended.how);
    }
    let folder = sandbox(FULL).folder().unwrap();
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/hostile/other_calls.c");
    let built = Command::new("cc").arg(source).arg("-o").arg(folder.path().join("other_calls")).status();
    if !built.is_ok_and(|status| status.success()) {
        crate::skip::skipped("there is no C compiler");
        return;
    }
    let ended =
        sandbox(FULL).start(confined(folder.path().join("other_calls"), &[], folder.path())).unwrap().wait().unwrap();
    assert!(matches!(ended.how, How::Sandbox(_)), "{ended:?}");
}

#[test]
fn a_compiler_runs_confined_and_what_it_builds_runs_elsewhere() {
    if !has_compiler() {
        return;
    }
    for &mode in modes() {
        let (built, folder) = (sandbox(mode).folder().unwrap(), sandbox(mode).folder().unwrap());
        fs::write(built.path().join("a.cpp"), "#include <iostream>\nint main() { std::cout << \"built\\n\"; }\n")
            .unwrap();
        let limits = Limits { memory_bytes: 1 << 30, output_bytes: 64 << 20, ..LIMITS.within(Duration::from_secs(30)) };
        let compile = Confined {
            limits,
            keep_files: true,
            ..confined("/usr/bin/g++", &["-O1", "a.cpp", "-o", "a.out"], built.path())
        };
        let ended = sandbox(mode).start(compile).unwrap().wait().unwrap();
        assert_eq!(ended.how, How::Exit(0), "{}", String::from_utf8_lossy(&ended.stderr));
        let program = built.path().join("a.out");
        // Where candidates are the caller's own user they cannot change modes, so that a linker cannot do this.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let ended = sandbox(mode).start(confined(program, &[], folder.path())).unwrap().wait().unwrap();
        assert_eq!((ended.how, ended.stdout), (How::Exit(0), b"built\n".to_vec()), "{mode:?}");
    }
}
