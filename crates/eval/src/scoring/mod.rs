//! Scores samples that were made elsewhere: reads a benchmark's problems and a file of samples, has the judge run each,
//! and writes the result file of the samples' own harness. `judge` runs the candidates, `statistics` computes the
//! estimates.

mod doctor;
mod export;
mod options;
mod pool;
mod problems;
mod results;
mod samples;
mod settings;
mod summary;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

pub use doctor::{DoctorOptions, doctor};
pub use options::{CandidateSource, ScoreOptions};

use crate::benchmark::{BenchmarkFormat, Malformed};
pub use crate::program::ExtractMode;
use crate::program::candidate;
pub use crate::task::candidate::LimitChanges;
use export::Scored;
use offshoot_core::error::{Error, Result};
use offshoot_core::interrupt::Interrupt;
use offshoot_core::out;
use offshoot_core::out::files::{check_output, with_ending};
use offshoot_core::setting::{OUT, RESUME, SAMPLES};
use offshoot_judge::problem::Problem;
use offshoot_judge::{Judge, Language};
use pool::PoolItem;
use problems::Problems;
use results::{CandidateOutcome, JudgeResult, Results};
use samples::{Form, ImportedSample, ImportedSamples};
use summary::{ScoringSummary, VerdictTally};

/// Default values of k, up to the number of samples: those of the benchmarks' own scorers. The printed summary has the
/// number of samples, too.
const USUAL_KS: [u32; 3] = [1, 10, 100];

impl ScoreOptions {
    /// The file or folder next to which results are written.
    fn judged(&self) -> &Path {
        match &self.candidates {
            CandidateSource::Samples(path) => path,
            CandidateSource::References => &self.problems,
        }
    }

    /// Samples from a pipe need --out, because a pipe has no folder for results.
    fn check_place(&self) -> Result<()> {
        let judged = self.judged();
        let is_stream = ["/dev/stdin", "/dev/fd", "/proc"].iter().any(|stream| judged.starts_with(stream))
            || judged.exists() && !judged.is_file() && !judged.is_dir();
        match self.out.is_none() && is_stream {
            true => Err(Error::value(
                OUT,
                format!("a file, because {} has no folder for results", judged.display()),
                "none",
            )),
            false => Ok(()),
        }
    }

    /// The paths of the lines of results and of the harness's own file.
    fn outputs(&self, form: Form) -> (PathBuf, Option<PathBuf>) {
        let samples = match &self.candidates {
            CandidateSource::Samples(path) => path.clone(),
            CandidateSource::References => with_ending(&self.problems, "_references"),
        };
        match (&self.out, form.own_path(&samples)) {
            (None, own) => (with_ending(&samples, "_results.jsonl"), own),
            (Some(out), None) => (out.clone(), None),
            (Some(out), Some(_)) if out.extension().is_some_and(|e| e == "jsonl") => {
                (out.clone(), Some(out.with_extension("json")))
            }
            (Some(out), Some(_)) => (with_ending(out, "_results.jsonl"), Some(out.clone())),
        }
    }
}

/// Judges all samples, writes each result when it is ready, and prints the summary.
pub fn score(options: &ScoreOptions, interrupt: &Interrupt) -> Result<()> {
    let started = Instant::now();
    options.check_place()?;
    let references = matches!(options.candidates, CandidateSource::References);
    let problems = Problems::read(&options.problems, options.format, options.limits, references)?;
    let samples = match &options.candidates {
        CandidateSource::Samples(path) => samples::read(path, &problems)?,
        CandidateSource::References => samples::references(&problems),
    };
    let form = match (samples.form, problems.format) {
        (Form::Lines, BenchmarkFormat::EvalPlus) => Form::EvalPlus,
        (form, _) => form,
    };
    let (lines, own) = options.outputs(form);
    [Some(&lines), own.as_ref()].into_iter().flatten().try_for_each(|path| check_output(path))?;
    if options.resume && !lines.exists() {
        out::starting_afresh(&lines);
    }
    settings::check(&lines, options, &problems)?;
    let withheld = [Some(&options.problems), Some(&options.judged().to_path_buf()), Some(&lines), own.as_ref()];
    let judge = Judge::open(&options.judge, &withheld.into_iter().flatten().cloned().collect::<Vec<_>>())?;
    if options.language == Language::Python {
        for module in judge.lacking(&mut problems.tests())? {
            out::aside(format_args!("warning: {module}"));
        }
    }
    let judge = if options.all_tests { judge.with_all_tests() } else { judge };
    let mut scoring = ScoringRun {
        options,
        problems: &problems,
        tally: VerdictTally::new(&problems),
        results: if options.resume { Results::resume(&lines)? } else { Results::create(&lines)? },
        places: vec![Vec::new(); problems.list.len()],
    };
    let judged = scoring.judge(&judge, samples, interrupt.listen());
    if matches!(judged, Err(Error::Interrupted)) {
        out::aside(format_args!("{} verdicts are in {}; {RESUME} goes on", scoring.tally.total(), lines.display()));
    }
    judged?;
    let ScoringRun { tally, mut results, places, .. } = scoring;
    if tally.total() == 0 {
        let found = match &options.candidates {
            CandidateSource::Samples(path) => format!("none in {}", path.display()),
            CandidateSource::References => format!("none in {}", options.problems.display()),
        };
        return Err(Error::value(SAMPLES, "samples of problems that have tests", found));
    }
    let ks = options.ks.as_deref().unwrap_or(&USUAL_KS);
    let with_all: Vec<u32> = USUAL_KS.into_iter().filter(|&k| k < tally.fewest()).chain([tally.fewest()]).collect();
    let mut summary = ScoringSummary {
        problems: &problems,
        tally: &tally,
        ks: options.ks.as_deref().unwrap_or(&with_all),
        ks_asked: options.ks.is_some(),
        seconds: started.elapsed(),
        written: vec![&lines],
    };
    if options.all_attempted {
        summary.check_all_attempted()?;
    }
    if let Some(own) = &own {
        let scored =
            Scored { problems: &problems, problems_path: &options.problems, tally: &tally, ks, places: &places };
        scored.write(form, &mut results, own)?;
        summary.written.push(own);
    }
    if options.json {
        out::line(summary.json())?
    } else {
        out::text(summary.text())?
    }
    summary.check_all_judged(&lines)
}

/// The state of a running scoring.
struct ScoringRun<'a> {
    options: &'a ScoreOptions,
    problems: &'a Problems,
    tally: VerdictTally,
    results: Results,
    /// For each problem, the byte offsets of its lines in the file of results.
    places: Vec<Vec<u64>>,
}

/// One candidate for the judge, or the reason why it cannot be judged.
struct CandidateJob<'a> {
    problem: Result<&'a Problem, &'a Malformed>,
    program: String,
}

impl<'a> CandidateJob<'a> {
    /// For a malformed problem, the sample's text is used as the program.
    fn of(sample: &ImportedSample, problems: &'a Problems, options: &ScoreOptions) -> Self {
        match &problems.list[sample.problem].problem {
            Ok(problem) => {
                let problem = problem.as_ref().expect("samples of problems without tests are left out");
                let candidate = candidate(problem, &options.language, &sample.text, options.extract);
                Self { problem: Ok(problem), program: candidate.program(problem, &options.language) }
            }
            Err(malformed) => Self { problem: Err(malformed), program: sample.text.as_str().to_string() },
        }
    }
}

/// Numbers the distinct programs; equal programs of a problem have the same number.
#[derive(Default)]
struct SeenPrograms(HashMap<(usize, blake3::Hash), u64>);

impl SeenPrograms {
    /// The program's number, and whether the program is new.
    fn number(&mut self, problem: usize, program: &str) -> (u64, bool) {
        let next = self.0.len() as u64;
        match self.0.entry((problem, blake3::hash(program.as_bytes()))) {
            Entry::Occupied(seen) => (*seen.get(), false),
            Entry::Vacant(place) => (*place.insert(next), true),
        }
    }
}

impl ScoringRun<'_> {
    fn judge(&mut self, judge: &Judge, samples: ImportedSamples, interrupted: &AtomicBool) -> Result<()> {
        let (problems, options) = (self.problems, self.options);
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let workers = options.workers.unwrap_or_else(cores);
        let mut untested = 0;
        let mut samples = samples.iter.filter(|sample| {
            let tested = sample.as_ref().map_or(true, |sample| !problems.list[sample.problem].is_untested());
            untested += u64::from(!tested);
            tested
        });
        let mut seen = SeenPrograms::default();
        let earlier = if options.resume { self.earlier(&mut samples, &mut seen)? } else { HashMap::new() };
        let source = || -> Result<Option<PoolItem<(ImportedSample, bool), CandidateJob>>> {
            let Some(sample) = samples.next().transpose()? else { return Ok(None) };
            let job = CandidateJob::of(&sample, problems, options);
            let (number, fresh) = seen.number(sample.problem, &job.program);
            let bytes = 2 * sample.text.as_str().len() + job.program.len();
            Ok(Some(PoolItem { item: (sample, fresh), number, job: fresh.then_some(job), bytes }))
        };
        let work = |CandidateJob { problem, program }: CandidateJob| match problem {
            Err(malformed) => Ok(Err(malformed.clone())),
            Ok(problem) => match judge.judge_program(problem, &options.language, &program) {
                Ok(judgement) => Ok(Ok(CandidateOutcome::from(judgement))),
                Err(Error::Unjudgeable { why }) => Ok(Err(Malformed { why })),
                Err(error) => Err(error),
            },
        };
        let sink = |(sample, fresh): (ImportedSample, bool), result: &JudgeResult| {
            let kind = if fresh { &mut self.tally.judged } else { &mut self.tally.equal };
            *kind += u64::from(result.is_ok());
            self.keep(&sample, result)
        };
        let ended = pool::in_order(workers, interrupted, earlier, source, work, sink);
        drop(samples);
        self.tally.untested = untested;
        ended
    }

    fn keep(&mut self, sample: &ImportedSample, result: &JudgeResult) -> Result<()> {
        let place = self.results.append(sample, result)?;
        self.places[sample.problem].push(place);
        self.tally.add(sample.problem, &self.problems.list[sample.problem], result);
        Ok(())
    }

    /// Reads the verdicts of an earlier scoring of the same samples. Returns them by the number of the program.
    fn earlier(
        &mut self,
        samples: &mut impl Iterator<Item = Result<ImportedSample>>,
        seen: &mut SeenPrograms,
    ) -> Result<HashMap<u64, JudgeResult>> {
        let mut earlier = HashMap::new();
        let (options, problems) = (self.options, self.problems);
        let (tally, places) = (&mut self.tally, &mut self.places);
        let path = self.results.path().to_path_buf();
        self.results.previous(|place, line| {
            let number = tally.resumed + 1;
            let other = |what: &str| Error::format(&path, format!("line {number}: {what}"));
            let sample = samples.next().ok_or_else(|| other("there are more results than samples"))??;
            if !results::is_of(&line, &sample) {
                return Err(other("the result of a different sample than in the samples' file"));
            }
            let result = results::of_line(&line).ok_or_else(|| other("not a result that offshoot wrote"))?;
            tally.add(sample.problem, &problems.list[sample.problem], &result);
            tally.resumed += 1;
            places[sample.problem].push(place);
            let job = CandidateJob::of(&sample, problems, options);
            earlier.insert(seen.number(sample.problem, &job.program).0, result);
            Ok(())
        })?;
        Ok(earlier)
    }
}
