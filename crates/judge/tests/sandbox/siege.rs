//! A siege: the programs of tests/hostile/siege.py, each with an honest neighbour. None may be accepted that passes a
//! limit, none may do what is forbidden, and no neighbour may notice. Each program runs in one mode of the sandbox, by
//! turns; with `OFFSHOOT_SIEGE=all` in all of them, with a table of what each used on standard output.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use offshoot_judge::problem::Limits;
use offshoot_judge::sandbox::{Ended, How};

use crate::sandbox::{Mode, all_modes, confined, python, sandbox};

/// Those that siege.py names.
const LIMITS: Limits = Limits {
    cpu: Duration::from_millis(500),
    wall: Duration::from_secs(2),
    memory_bytes: 128 << 20,
    output_bytes: 1 << 20,
    processes: 16,
};

/// The programs of the siege, by their names.
const SIEGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/hostile/siege.py");

const HONEST: &str = "open('own', 'w').write('x' * 1000)\nx = bytearray(20 << 20)\n\
    print(sum(range(1000)), len(open('own').read()))";

fn run(mode: Mode, arguments: &[&str], limits: Limits) -> Ended {
    let (interpreter, prefix) = python().expect("the siege begins with one");
    let folder = sandbox(mode).folder().unwrap();
    std::fs::copy(SIEGE, folder.path().join("siege.py")).unwrap();
    let all: Vec<&str> = ["-I", "-S", "-B"].iter().chain(arguments).copied().collect();
    let mut what = confined(interpreter, &all, folder.path());
    what.readable = vec![prefix.clone()];
    what.limits = limits;
    sandbox(mode).start(what).unwrap().wait().unwrap()
}

/// What a program has done that it may not, in words.
fn violation(name: &str, mode: Mode, ended: &Ended) -> Option<String> {
    let done = ended.stdout.windows(4).any(|words| words == b"DONE");
    let counted = sandbox(mode).in_force().to_string().contains("memory       in force: a control group");
    let most = LIMITS.memory_bytes + LIMITS.memory_bytes / 10;
    match ended.how {
        _ if done && name.starts_with("forbidden.") => Some("did what is forbidden".into()),
        How::Exit(0) if done => Some("was accepted past a limit".into()),
        How::Exit(0) if ended.peak_bytes > LIMITS.memory_bytes => Some("was accepted with more memory".into()),
        _ if counted && ended.peak_bytes > most => Some(format!("had {} MiB", ended.peak_bytes >> 20)),
        _ => None,
    }
}

#[test]
fn no_siege_succeeds() {
    let modes = all_modes();
    let Some((interpreter, _)) = python().filter(|_| !modes.is_empty()) else {
        return crate::skip::skipped("there is no sandbox or no python3");
    };
    let listed = Command::new(interpreter).args(["-I", "-S", SIEGE]).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let names: Vec<&str> = names.lines().collect();
    assert!(names.len() >= 200, "{} programs", names.len());
    let all = std::env::var_os("OFFSHOOT_SIEGE").is_some_and(|which| which == "all");
    let in_turn = |ix: usize| if all { modes } else { &modes[ix % modes.len()..][..1] };
    let jobs: Vec<(&str, Mode)> =
        names.iter().enumerate().flat_map(|(ix, name)| in_turn(ix).iter().map(|&mode| (*name, mode))).collect();
    let (next, complaints) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&(name, mode)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let complain = |what: String| complaints.lock().unwrap().push(format!("{name}, {mode:?}: {what}"));
                    let (ended, honest) = std::thread::scope(|scope| {
                        let neighbour = || run(mode, &["-c", HONEST], LIMITS.within(Duration::from_secs(5)));
                        let neighbour = scope.spawn(neighbour);
                        (run(mode, &["siege.py", name], LIMITS), neighbour.join().unwrap())
                    });
                    if honest.how != How::Exit(0) || honest.stdout != b"499500 1000\n" {
                        complain(format!("its neighbour ends as {honest:?}"));
                    }
                    if let Some(what) = violation(name, mode, &ended) {
                        complain(format!("{what}: {ended:?}"));
                    }
                    if all {
                        let Ended { how, wall, cpu, peak_bytes, .. } = &ended;
                        println!("{name}\t{mode:?}\t{how:?}\t{wall:?}\t{cpu:?}\t{} KiB", peak_bytes >> 10);
                    }
                }
            });
        }
    });
    let complaints = complaints.into_inner().unwrap();
    assert!(complaints.is_empty(), "{} of {}:\n{}", complaints.len(), jobs.len(), complaints.join("\n"));
}
