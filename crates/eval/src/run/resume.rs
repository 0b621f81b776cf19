//! `--resume`: finds the run to continue, and sorts its records into finished items, samples to keep, and items to
//! search again. `manifest` compares runs, `journal` reads their files. The samples are then those that a single
//! process would have generated, to the last bit where the engine is batch-invariant (`EngineFacts::batch_invariant`).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use crate::journal::folder::{self, fresh_folder, run_folders};
use crate::journal::{Journal, Recorded};
use crate::judged::lacks_grade;
use offshoot_core::error::Result;
use offshoot_core::out;
use offshoot_core::out::files::FolderClaim;
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::FinishReason;
use offshoot_search::{Outcome, Sample};

use super::judge::JudgeRecord;
use super::levels::LevelCounts;
use super::manifest::{self, Manifest, ScorerFiles};
use super::options::RunOptions;
use super::outcome::{Finished, lacks_scores};
use super::prepare::PreparedRun;

/// The results of earlier processes of this run.
#[derive(Default)]
pub struct Earlier {
    pub finished: Vec<Finished>,
    /// Samples of items that are not finished, by item.
    pub samples: HashMap<usize, Vec<Sample>>,
    /// Outcomes, with their samples, of items that were searched to their end and lack grades alone, by item.
    pub ungraded: HashMap<usize, Outcome>,
    /// The level counts of items that an earlier search in this process has finished.
    pub levels: LevelCounts,
}

/// The folder that a run writes to, claimed for this process, and its manifest.
pub struct RunFolder {
    claim: FolderClaim,
    pub manifest: Manifest,
    /// Whether an earlier process started the run.
    resumed: bool,
}

impl RunFolder {
    /// Whether an earlier process started the run.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Returns a new folder for a new run; with `--resume`, the folder given, or the task's latest run that matches; if
    /// there is none, a new one.
    pub fn find(
        prepared: &PreparedRun,
        options: &RunOptions,
        scorer: Option<ScorerFiles>,
        judge: Option<JudgeRecord>,
    ) -> Result<Self> {
        let now = Manifest { judge, ..Manifest::new(prepared, &options.engine.budget, scorer)? };
        let base = PathBuf::from("runs").join(&prepared.task.name);
        if !options.resume {
            return Self::fresh(&base, now, options);
        }
        let folders = options.out.clone().map_or_else(|| run_folders(&base), |folder| vec![folder]);
        let mut refused = None;
        for folder in &folders {
            // Claimed first: what another process still writes tells nothing.
            let claimed = FolderClaim::of(folder).and_then(|claim| Ok((fitting(folder, &now, prepared)?, claim)));
            match claimed {
                Ok((Some(manifest), claim)) => return Ok(Self { claim, manifest, resumed: true }),
                Ok((None, _)) => {}
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        match refused {
            Some(error) => Err(error),
            None => {
                let fresh = Self::fresh(&base, now, options)?;
                out::starting_afresh(fresh.path());
                Ok(fresh)
            }
        }
    }

    fn fresh(base: &Path, manifest: Manifest, options: &RunOptions) -> Result<Self> {
        let claim = match &options.out {
            Some(folder) => FolderClaim::of(folder)?,
            None => fresh_folder(base)?,
        };
        Journal::check_free(claim.path())?;
        let manifest = manifest.of_run_into(claim.path())?;
        Ok(Self { claim, manifest, resumed: false })
    }

    /// Opens the journal. The manifest of a new run is written first, so that the run can always be resumed.
    pub fn open(&self, prepared: &PreparedRun) -> Result<(Journal, Earlier)> {
        let describe = || {
            folder::write(self.path(), manifest::NAME, &self.manifest.text()?)?;
            folder::write(self.path(), "task.json", &format!("{:#}\n", self.manifest.task))
        };
        if !self.resumed {
            describe()?;
            return Ok((Journal::create(self.path())?, Earlier::default()));
        }
        // All of the task's items, because an earlier process may have had a higher --limit.
        let items = prepared.task.items(None)?;
        let (journal, recorded) = Journal::reopen(self.path(), &items)?;
        describe()?;
        let failed_samples = recorded.failed_samples.clone();
        let ItemsLeft { earlier, unfinished, anew } = ItemsLeft::new(recorded, prepared);
        let keeps = |(item, sample)| !anew.contains(&item) && !failed_samples.contains(&(item, sample));
        Ok((journal.retain(&|item| !unfinished.contains(&item), &keeps)?, earlier))
    }
}

/// The manifest of the run in `folder`, checked to be resumable; `None` if there is none.
fn fitting(folder: &Path, now: &Manifest, prepared: &PreparedRun) -> Result<Option<Manifest>> {
    let Some(before) = Manifest::read(folder)? else { return Ok(None) };
    before.check(folder, now, prepared.task.method.draws_alike())?;
    // The requested items may differ now.
    let prompt_files = before.prompt_files.into_iter().chain(now.prompt_files.clone()).collect();
    let (folder, processes) = (before.folder, before.processes);
    let mut task = now.task.clone();
    // Scores that samples have stay theirs, also where the method asks for none, and so does what they are about.
    if let (None, Some(_), Some(about)) = (&now.scorer, &before.scorer, before.task.get("scorer")) {
        task["scorer"] = about.clone();
    }
    let scorer = now.scorer.clone().or(before.scorer);
    Ok(Some(Manifest { folder, processes, prompt_files, scorer, task, ..now.clone() }))
}

/// The recorded items, by remaining work.
struct ItemsLeft {
    earlier: Earlier,
    /// Items recorded as finished that need more samples now.
    unfinished: HashSet<usize>,
    /// Items that are searched again from their first sample.
    anew: HashSet<usize>,
}

impl ItemsLeft {
    /// An interrupted item keeps its samples if they are independent; any other search starts over. One that was
    /// searched to its end and lacks grades alone keeps its choice, unless its search went by grades.
    fn new(mut recorded: Recorded, prepared: &PreparedRun) -> Self {
        let method = &prepared.task.method;
        let mut sorted = Self { earlier: Earlier::default(), unfinished: recorded.failed, anew: HashSet::new() };
        let asked: HashSet<usize> = prepared.items.iter().map(|item| item.index).collect();
        for index in asked {
            let mut samples = recorded.samples.remove(&index).unwrap_or_default();
            sort_by_number(&mut samples, |sample| sample.index);
            let ended = recorded.finished.remove(&index);
            // A power cut may lose a sample's line but keep its item's; more samples may be requested than before;
            // failed samples are tried again. So are samples that the scorer could not score, or compare with all
            // others, or the judge grade, and searches that went without scores.
            let are_scored = match prepared.scores_late() {
                true => samples.iter().all(Sample::is_scored),
                false => !ended.as_ref().is_some_and(|item| lacks_scores(method, &item.outcome)),
            };
            let are_graded = prepared.task.graded_by_judge().is_none() || !samples.iter().any(lacks_grade);
            let is_searched = ended.as_ref().is_some_and(|item| {
                let all = item.samples + item.outcome.cancelled;
                let none_failed = item.outcome.failed.is_none();
                none_failed
                    && are_scored
                    && item.samples == samples.len()
                    && (!method.draws_alike() || all == method.samples() as usize)
            });
            match ended {
                Some(item) if is_searched && are_graded => {
                    let outcome = Outcome { samples, ..item.outcome };
                    sorted.earlier.finished.push(Finished { index, outcome });
                    continue;
                }
                Some(item) if is_searched && method.chooses_without_grades() => {
                    let outcome = Outcome { samples, ..item.outcome };
                    sorted.unfinished.insert(index);
                    sorted.earlier.ungraded.insert(index, outcome);
                    continue;
                }
                Some(_) => drop(sorted.unfinished.insert(index)),
                None => {}
            }
            // A rescore leaves samples unjudged if it could not judge their item.
            let is_judged = |sample: &Sample| sample.detail.is_some() || sample.finish == FinishReason::LowConfidence;
            let are_judged = !prepared.task.is_judged() || samples.iter().all(is_judged);
            for sample in samples.iter_mut().filter(|sample| !sample.is_scored()) {
                sample.scored = None;
            }
            match method.draws_alike() && are_judged {
                true => drop(sorted.earlier.samples.insert(index, samples)),
                false => drop(sorted.anew.insert(index)),
            }
        }
        sorted
    }
}
