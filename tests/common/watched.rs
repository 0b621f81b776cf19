//! Runs a command under a watch of its time and memory.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// CPU time within which a command must have ended, or still be stoppable.
const CPU_LIMIT: Duration = Duration::from_secs(10);
/// How long a command may wait for others on a busy machine.
const WALL_LIMIT: Duration = Duration::from_secs(60);

/// How a command ended.
pub struct CommandEnd {
    pub status: ExitStatus,
    pub peak_bytes: u64,
    /// Whether it was stopped after `CPU_LIMIT`.
    pub stopped: bool,
    pub errors: String,
}

pub fn watched(command: Command) -> CommandEnd {
    watched_through(command, 1)
}

/// Of a command that does the work of so many.
#[expect(clippy::zombie_processes, reason = "`reaped` waits for it, by wait4(2)")]
pub fn watched_through(mut command: Command, works: u32) -> CommandEnd {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // What is behind the limit ends in an abort, not in a machine without memory.
    let most = libc::rlimit { rlim_cur: 4 << 30, rlim_max: 4 << 30 };
    // SAFETY: setrlimit may be called between fork and exec; `most` is a copy in the closure.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_DATA, &raw const most) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    let mut child = command.spawn().expect("the binary starts");
    let mut pipe = child.stderr.take().expect("it is piped");
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        pipe.read_to_end(&mut said).map(|_| String::from_utf8_lossy(&said).into_owned())
    });
    let (begun, mut stopped) = (Instant::now(), None);
    let (status, usage) = loop {
        if let Some(ended) = reaped(&child) {
            break ended;
        }
        std::thread::sleep(Duration::from_millis(5));
        let over = cpu_time(&child) > works * CPU_LIMIT || begun.elapsed() > works * WALL_LIMIT;
        match stopped {
            None if over => {
                signal(&child, libc::SIGTERM);
                stopped = Some(Instant::now());
            }
            Some(since) if Instant::elapsed(&since) > WALL_LIMIT => signal(&child, libc::SIGKILL),
            _ => {}
        }
    };
    let errors = reader.join().expect("it does not panic").expect("a pipe can be read");
    CommandEnd { status, peak_bytes: (usage.ru_maxrss as u64) << 10, stopped: stopped.is_some(), errors }
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: takes no pointers; the child is not waited for yet, so that its number is its own.
    unsafe { libc::kill(child.id() as i32, signal) };
}

fn reaped(child: &Child) -> Option<(ExitStatus, libc::rusage)> {
    let mut status = 0;
    // SAFETY: all zeros is a value of this plain struct.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers outlive the call; the child is waited for here alone.
    let ended = unsafe { libc::wait4(child.id() as i32, &raw mut status, libc::WNOHANG, &raw mut usage) };
    (ended != 0).then(|| (ExitStatus::from_raw(status), usage))
}

fn cpu_time(child: &Child) -> Duration {
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|&field| fields.get(field)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
