//! How long a candidate waits for what is not its own doing: for a core of the machine, as the kernel counts it, and
//! for the judge at the other end of its pipes. Its supervisor adds this up; `fair_clock` charges for the rest.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::groups::Group;
use super::processes::{ProcessScope, ThreadState};
use super::wire::ProgramFds;
use super::{Confined, StdinMode, StdoutMode};
use crate::fair_clock::{self, ClockFile, ClockReading, OWN_COUNTS, ThreadCounts};
use crate::limits::margin_of;

/// A supervisor that sleeps longer between two looks, and has not waited for a core itself, was stopped: the rest is
/// not charged. Only its sleep counts so, as a candidate can make its looks slow, by what there is to see.
const LONGEST_SLEEP: Duration = Duration::from_millis(200);
/// The part of a supervisor's time that it may spend on measuring: an eighth.
const LOOKING: u32 = 8;

/// Where the kernel tells how long a candidate waits for a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DelaySource {
    /// In the file `schedstat` of each thread.
    Threads,
    /// In the file `cpu.pressure` of its control group.
    Group,
}

impl DelaySource {
    /// `None`: real time counts in full. `pressure`: whether control groups tell.
    pub fn at_hand(pressure: bool) -> Option<DelaySource> {
        let counted = File::open(OWN_COUNTS).ok().and_then(|file| ThreadCounts::of(&file));
        // This thread has had a core.
        match counted {
            Some(counts) if counts.slices > 0 => Some(DelaySource::Threads),
            _ => pressure.then_some(DelaySource::Group),
        }
    }

    /// By which means a clock is fair, or why it is not.
    pub fn in_words(source: Option<DelaySource>) -> Result<String, String> {
        let means = match source {
            Some(DelaySource::Threads) => "schedstat of each of its threads",
            Some(DelaySource::Group) => "cpu.pressure of its control group",
            None => {
                return Err(
                    "neither schedstat nor cpu.pressure tells how long a candidate waits for a core; real time \
                            counts in full, so judge on a machine that is not busy"
                        .into(),
                );
            }
        };
        Ok(format!("what a candidate waits for a core is not charged, by {means}"))
    }
}

/// A thread, as a meter knows it.
#[derive(Clone, Copy, Debug, Default)]
struct KnownThread {
    counts: ThreadCounts,
    runnable: bool,
    /// How long it has been seen to wait since its last start; the kernel counts it with the next one.
    queued: Duration,
    /// The part of its waiting that has been given.
    given: Duration,
}

impl KnownThread {
    /// Waiting that has not been given, with a look `interval` after the last one.
    fn claim(&mut self, counts: ThreadCounts, runnable: bool, interval: Duration) -> Duration {
        let waits = runnable && self.runnable && counts == self.counts;
        self.queued = if waits { self.queued + interval } else { Duration::ZERO };
        (self.counts, self.runnable) = (counts, runnable);
        (counts.waited + self.queued).saturating_sub(self.given)
    }
}

/// Measures how long a candidate waits for a core.
#[derive(Debug)]
struct DelayMeter {
    scope: ProcessScope,
    source: Option<DelaySource>,
    threads: HashMap<i32, KnownThread>,
    /// The group's pressure so far, and what of it has not been given.
    pressure: Duration,
    owed: Duration,
}

impl DelayMeter {
    fn new(scope: ProcessScope, source: Option<DelaySource>, group: Option<&Group>) -> DelayMeter {
        let pressure = group.and_then(Group::pressure).unwrap_or_default();
        let mut meter = DelayMeter { scope, source, threads: HashMap::new(), pressure, owed: Duration::ZERO };
        if source == Some(DelaySource::Threads) {
            // What a process waited before it became the program is given already.
            for (thread, counts, _) in scope.threads(|_, _| true) {
                let given = counts.waited;
                meter.threads.insert(thread, KnownThread { counts, given, ..KnownThread::default() });
            }
        }
        meter
    }

    /// The part of the `interval` since the last call in which a thread of the candidate waited for a core.
    fn waited(&mut self, group: Option<&Group>, interval: Duration) -> Duration {
        match self.source {
            Some(DelaySource::Threads) => {
                let known = &self.threads;
                // A state costs as much as the counts and matters only where those stand still.
                let seen = self
                    .scope
                    .threads(|thread, counts| known.get(&thread).is_some_and(|known| known.counts == *counts));
                let seen = seen.into_iter().map(|(thread, counts, state)| {
                    // Without a state it has had a core since the last look.
                    (thread, counts, state.is_none_or(|state| state == ThreadState::Runnable))
                });
                self.given(seen.collect(), interval)
            }
            Some(DelaySource::Group) => {
                let pressure = group.and_then(Group::pressure).unwrap_or(self.pressure);
                self.owed += pressure.saturating_sub(self.pressure);
                self.pressure = pressure;
                let given = self.owed.min(interval);
                self.owed -= given;
                given
            }
            None => Duration::ZERO,
        }
    }

    /// Gives the longest wait of one of the threads. What a thread cannot be given now, it may be given later.
    fn given(&mut self, seen: Vec<(i32, ThreadCounts, bool)>, interval: Duration) -> Duration {
        let mut now = HashMap::with_capacity(seen.len());
        let mut claims = Vec::with_capacity(seen.len());
        for (thread, counts, runnable) in seen {
            // A number may have passed to another thread, whose counts begin anew.
            let known = self.threads.get(&thread).filter(|known| known.counts.slices <= counts.slices);
            // One that has not had a core yet waits for its first, since the last look or later. One that is only seen
            // so, as short programs are, waits on average as long as if it had waited all the time between two looks.
            let waits = KnownThread { counts, runnable, ..KnownThread::default() };
            let mut known = known.copied().unwrap_or(if counts.slices == 0 { waits } else { KnownThread::default() });
            claims.push((thread, known.claim(counts, runnable, interval)));
            now.insert(thread, known);
        }
        let given = claims.iter().map(|(_, claim)| *claim).max().unwrap_or_default().min(interval);
        for (thread, claim) in claims {
            if let Some(known) = now.get_mut(&thread) {
                known.given += claim.min(given);
            }
        }
        self.threads = now;
        given
    }
}

/// The candidate's ends of its pipes: whether it waits for the judge, which may itself wait for a core.
#[derive(Debug)]
pub(super) struct JudgePipes {
    /// `None` when the judge has ended it.
    input: Option<OwnedFd>,
    outputs: Vec<OwnedFd>,
}

impl JudgePipes {
    pub fn of(order: &Confined, fds: ProgramFds) -> JudgePipes {
        let ProgramFds { stdin, stdout, stderr, channel: _ } = fds;
        let captured = (order.stdout == StdoutMode::Capture).then_some(stdout);
        JudgePipes {
            input: (order.stdin == StdinMode::Pipe).then_some(stdin),
            outputs: captured.into_iter().chain([stderr]).collect(),
        }
    }

    /// Whether its input is empty and the judge has not ended it, or an output is full.
    fn keep_it_waiting(&mut self, clock: &ClockFile) -> bool {
        if self.input.is_some() && clock.input_has_ended() {
            self.input = None;
        }
        let state = |fd: &OwnedFd, wanted: PollFlags| {
            let mut polled = [PollFd::new(fd.as_fd(), wanted)];
            let asked = poll(&mut polled, PollTimeout::ZERO).is_ok();
            asked && polled[0].revents().is_some_and(|events| events.is_empty())
        };
        self.input.iter().any(|input| state(input, PollFlags::POLLIN))
            || self.outputs.iter().any(|output| state(output, PollFlags::POLLOUT))
    }
}

/// The clock of a candidate, kept by its supervisor.
#[derive(Debug)]
pub(super) struct CandidateClock {
    file: ClockFile,
    delays: DelayMeter,
    pipes: JudgePipes,
    kept_waiting: bool,
    started: Duration,
    looked: Duration,
    /// CPU time of the last look.
    cost: Duration,
    /// Time that the candidate was kept waiting, by the machine or the judge.
    waited: Duration,
    free: Duration,
    own: Option<File>,
    own_wait: Duration,
    /// Time since the last look in which this process can only have been stopped, with the machine or by somebody.
    stopped: Duration,
}

impl CandidateClock {
    pub fn start(
        file: ClockFile,
        scope: ProcessScope,
        source: Option<DelaySource>,
        mut pipes: JudgePipes,
        group: Option<&Group>,
    ) -> CandidateClock {
        let delays = DelayMeter::new(scope, source, group);
        let own = File::open(OWN_COUNTS).ok();
        let own_wait = own.as_ref().and_then(ThreadCounts::of).unwrap_or_default().waited;
        let started = fair_clock::now();
        let clock = CandidateClock {
            kept_waiting: pipes.keep_it_waiting(&file),
            file,
            delays,
            pipes,
            started,
            looked: started,
            cost: Duration::ZERO,
            waited: Duration::ZERO,
            free: Duration::ZERO,
            own,
            own_wait,
            stopped: Duration::ZERO,
        };
        clock.publish();
        clock
    }

    /// Measures, unless measuring would take too much of the time. `cpu`: CPU time of the candidate from its start.
    pub fn look(&mut self, cpu: Duration, group: Option<&Group>) {
        let now = fair_clock::now();
        let interval = now.saturating_sub(self.looked);
        if interval < self.cost * LOOKING {
            return;
        }
        let begun = fair_clock::own_cpu();
        let keeps = self.pipes.keep_it_waiting(&self.file);
        // Half of an interval at one end of which the candidate waits for the judge.
        let for_judge = interval / 2 * (u32::from(keeps) + u32::from(self.kept_waiting));
        self.kept_waiting = keeps;
        let for_core = self.delays.waited(group, interval);
        let stopped = std::mem::take(&mut self.stopped).min(interval);
        self.waited += for_core.max(for_judge).max(stopped);
        self.looked = now;
        let elapsed = now - self.started;
        self.free = (self.waited + margin_of(cpu.min(elapsed))).min(elapsed);
        self.publish();
        self.cost = fair_clock::own_cpu().saturating_sub(begun);
    }

    /// Notes that this process has slept since `begun`, until its next look.
    pub fn slept(&mut self, begun: Duration) {
        let own_wait = self.own.as_ref().and_then(ThreadCounts::of).unwrap_or_default().waited;
        let waited = own_wait.saturating_sub(self.own_wait);
        self.own_wait = own_wait;
        self.stopped += fair_clock::now().saturating_sub(begun + LONGEST_SLEEP + waited);
    }

    /// What is charged for the time from the start to the last look.
    pub fn charged(&self) -> Duration {
        (self.looked - self.started).saturating_sub(self.free)
    }

    fn publish(&self) {
        // A reading that cannot be written, as memory is short, comes with the next look.
        let _ = self.file.write(ClockReading { at: self.looked, free: self.free });
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::Identity;
    use super::super::processes::Among;
    use super::*;

    const LOOK: Duration = Duration::from_millis(5);

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn counts(ran: u64, waited: u64, slices: u64) -> ThreadCounts {
        ThreadCounts { ran: ms(ran), waited: ms(waited), slices }
    }

    fn meter() -> DelayMeter {
        let scope = ProcessScope { among: Among::Descendants, identity: Identity::Caller };
        DelayMeter::new(scope, Some(DelaySource::Threads), None)
    }

    /// What a meter gives for looks at one thread, all together.
    fn given(sights: &[(ThreadCounts, bool)]) -> Duration {
        let mut meter = meter();
        sights.iter().map(|&(counts, runnable)| meter.given(vec![(7, counts, runnable)], LOOK)).sum()
    }

    #[test]
    fn a_sleeper_is_given_nothing() {
        assert_eq!(given(&[(counts(1, 0, 3), false); 50]), ms(0));
        let naps: Vec<_> = (0..50).map(|ix| (counts(ix, 0, ix + 1), false)).collect();
        assert_eq!(given(&naps), ms(0), "on an idle machine it never waits");
    }

    #[test]
    fn waiting_is_given_while_it_lasts_and_not_again_when_the_kernel_counts_it() {
        let waits = [(counts(4, 0, 1), true); 11];
        assert_eq!(given(&waits), ms(50));
        let runs = [(counts(6, 52, 2), true), (counts(11, 52, 2), true), (counts(16, 52, 2), false)];
        assert_eq!(given(&[&waits[..], &runs[..]].concat()), ms(52));
    }

    #[test]
    fn a_thread_whose_running_is_counted_late_is_given_one_look_at_most() {
        // A kernel whose clock ticks every 10 ms.
        let runs: Vec<_> = (0..200).map(|look| (counts(10 * (look / 2), 0, 1), true)).collect();
        assert_eq!(given(&runs), LOOK);
    }

    #[test]
    fn threads_that_wait_at_once_are_given_the_time_once() {
        let mut meter = meter();
        let all = |look: u64| (0..8).map(|thread| (thread, counts(5, 5 * look, 1 + look), true)).collect();
        let given: Duration = (0..=100).map(|look| meter.given(all(look), LOOK)).sum();
        assert_eq!(given, ms(500));
    }

    #[test]
    fn a_thread_that_is_only_seen_waiting_for_its_first_core_is_given_that_time() {
        let mut meter = meter();
        let programs: Duration = (0..10).map(|number| meter.given(vec![(number, counts(0, 0, 0), true)], LOOK)).sum();
        assert_eq!(programs, ms(50));
        assert_eq!(given(&[(counts(0, 0, 0), true), (counts(1, 4, 1), true), (counts(2, 9, 2), true)]), ms(9));
        assert_eq!(given(&[(counts(0, 0, 0), false)]), ms(0));
    }

    #[test]
    fn a_number_that_passes_to_another_thread_is_known_anew() {
        let mut meter = meter();
        assert_eq!(meter.given(vec![(7, counts(9, 4, 30), false)], LOOK), ms(4));
        assert_eq!(meter.given(vec![(7, counts(0, 3, 1), true)], LOOK), ms(3));
    }

    #[test]
    fn where_neither_counts_real_time_counts_in_full() {
        let mut meter = DelayMeter { source: None, ..meter() };
        assert_eq!(meter.waited(None, LOOK), ms(0));
        assert!(DelaySource::in_words(None).unwrap_err().contains("counts in full"));
    }

    #[test]
    fn a_supervisor_that_is_long_about_its_looks_was_not_stopped() {
        let scope = ProcessScope { among: Among::Descendants, identity: Identity::Caller };
        let file = || ClockFile::new(tempfile::tempfile().expect("a temporary file"));
        let pipes = || JudgePipes { input: None, outputs: Vec::new() };
        let mut clock = CandidateClock::start(file(), scope, None, pipes(), None);
        std::thread::sleep(LONGEST_SLEEP + ms(50));
        clock.look(ms(0), None);
        assert_eq!(clock.charged(), clock.looked - clock.started);
        let mut clock = CandidateClock::start(file(), scope, None, pipes(), None);
        clock.slept(clock.started.saturating_sub(LONGEST_SLEEP + ms(3_600_000)));
        clock.look(ms(0), None);
        assert_eq!(clock.charged(), ms(0));
    }
}
