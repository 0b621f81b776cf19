//! The resource limits of a candidate's process, and what the limits under which the judge itself runs (`ulimit`) leave
//! of them: a process can lower its hard limits and not raise them.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::geteuid;

use super::calls::CandidateUser;
use super::processes;
use super::setup_error::{SetupError, doing};
use crate::problem::Limits;
use offshoot_core::figures;

/// Files that a process may have open.
const OPEN_FILES: u64 = 256;
/// Honest programs recurse deeply and may raise this limit, but each thread's stack counts towards `RLIMIT_DATA`.
const STACK: u64 = 128 << 20;

/// What is bounded, and to how much. `others`: threads of the same user that are not the candidate's, as the kernel
/// counts all of them.
fn bounds(limits: &Limits, others: u32) -> [(Resource, u64); 8] {
    // For a process that the supervisor does not get to see in time.
    let most_cpu = limits.most_cpu();
    let seconds = most_cpu.as_secs() + 1 + u64::from(most_cpu.subsec_nanos() > 0);
    [
        // The supervisor watches the memory in use; these limits bound the growth between two of its checks.
        (Resource::RLIMIT_DATA, limits.memory_bytes.saturating_mul(2).saturating_add(1 << 30)),
        (Resource::RLIMIT_AS, limits.memory_bytes.saturating_mul(2).saturating_add(16 << 30)),
        (Resource::RLIMIT_CPU, seconds),
        (Resource::RLIMIT_NPROC, u64::from(limits.processes.saturating_add(others))),
        (Resource::RLIMIT_NOFILE, OPEN_FILES),
        (Resource::RLIMIT_FSIZE, limits.output_bytes),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_MEMLOCK, 0),
    ]
}

/// Sets the limits of this process, none above its own hard limit.
pub(super) fn set(limits: &Limits, others: u32) -> Result<(), SetupError> {
    for (resource, most) in bounds(limits, others) {
        let (_, hard) = getrlimit(resource).map_err(doing(format!("read {resource:?}")))?;
        let most = most.min(hard);
        setrlimit(resource, most, most).map_err(doing(format!("set {resource:?}")))?;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_STACK).map_err(doing("read RLIMIT_STACK"))?;
    setrlimit(Resource::RLIMIT_STACK, STACK.min(hard), hard).map_err(doing("set RLIMIT_STACK"))
}

/// Threads that are not the candidate's and that the kernel counts with its own, as they have the same user: all of
/// this moment, and some that may begin meanwhile.
pub(super) fn others(user: CandidateUser) -> u32 {
    match user {
        CandidateUser::Own => 0,
        CandidateUser::Shared => processes::threads_of(geteuid().as_raw()).saturating_add(32),
    }
}

/// The hard limits of this process that leave a candidate of this user less than its own `limits` give it, each in
/// words.
pub(super) fn lower_than(limits: &Limits, user: CandidateUser) -> Vec<String> {
    lower(limits, others(user), |resource| getrlimit(resource).map_or(u64::MAX, |(_, hard)| hard))
}

/// The words are the same for any number of `others` but zero, so that a warning can be known again.
fn lower(limits: &Limits, others: u32, hard: impl Fn(Resource) -> u64) -> Vec<String> {
    let (memory, cpu) = (limits.memory_bytes, limits.most_cpu().as_secs_f64().ceil() as u64);
    let beside = if others > 0 { ", beside the threads that this user has already" } else { "" };
    let all = [
        (Resource::RLIMIT_AS, "-v", "memory", memory),
        (Resource::RLIMIT_DATA, "-d", "memory", memory),
        (Resource::RLIMIT_CPU, "-t", "CPU time", cpu),
        (Resource::RLIMIT_NPROC, "-u", "processes", u64::from(limits.processes) + u64::from(others)),
        (Resource::RLIMIT_STACK, "-s", "stack", STACK),
        (Resource::RLIMIT_NOFILE, "-n", "open files", OPEN_FILES),
        (Resource::RLIMIT_FSIZE, "-f", "output", limits.output_bytes),
    ];
    let words = |resource: Resource, number: u64| match resource {
        Resource::RLIMIT_CPU => format!("{number} s"),
        Resource::RLIMIT_NPROC | Resource::RLIMIT_NOFILE => number.to_string(),
        _ => figures::bytes(number),
    };
    all.into_iter()
        .filter_map(|(resource, letter, what, most)| {
            let hard = hard(resource);
            let wanted = match resource {
                Resource::RLIMIT_NPROC => format!("{}{beside}", limits.processes),
                _ => words(resource, most),
            };
            (hard < most).then(|| format!("`ulimit {letter}` is {}; {what}: {wanted}", words(resource, hard)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::FileForm;

    #[test]
    fn limits_of_the_judge_itself_are_named_where_they_are_lower() {
        let limits = Limits::of(FileForm::Programs);
        let under = |others: u32, bounded: Resource, hard: u64| {
            lower(&limits, others, |resource| if resource == bounded { hard } else { u64::MAX })
        };
        assert!(lower(&limits, 80, |_| u64::MAX).is_empty());
        assert!(under(0, Resource::RLIMIT_AS, 2 << 30).is_empty());
        let said = under(0, Resource::RLIMIT_AS, 1 << 30);
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("`ulimit -v` is ") && said[0].contains("; memory: "), "{said:?}");
        assert!(under(0, Resource::RLIMIT_STACK, 128 << 20).is_empty());
        let said = under(0, Resource::RLIMIT_STACK, 8 << 20);
        assert_eq!(said, ["`ulimit -s` is 8.00 MiB; stack: 128 MiB"]);
        assert_eq!(lower(&limits, 0, |_| 1).len(), 7);
    }

    #[test]
    fn threads_of_the_same_user_leave_a_candidate_fewer_processes() {
        let limits = Limits { processes: 64, ..Limits::of(FileForm::Programs) };
        let under = |others: u32, hard: u64| {
            lower(&limits, others, |resource| if resource == Resource::RLIMIT_NPROC { hard } else { u64::MAX })
        };
        assert!(under(0, 64).is_empty() && under(80, 144).is_empty());
        let said = under(80, 100);
        assert_eq!(said, ["`ulimit -u` is 100; processes: 64, beside the threads that this user has already"]);
        assert_eq!(under(81, 100), said);
        assert_eq!(under(0, 63), ["`ulimit -u` is 63; processes: 64"]);
    }
}
