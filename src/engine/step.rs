//! One step: submitted (scheduled, planned, loaded, enqueued) and collected (what it sampled is told). Between the two
//! lies the device's work; with `EngineConfig::run_ahead` the next step is submitted in that time, from tokens that
//! nobody has read.

use std::time::Instant;

use crate::backend::{Backend, MOST_COUNTED, StepBatch};
use crate::engine::branch::{BranchWork, KvHold};
use crate::engine::cache::Transfer;
use crate::engine::schedule::{LogitsRequest, Schedule, ScheduledRow};
use crate::engine::scheduler::StepBudget;
use crate::engine::{Engine, EngineConfig, UniformKey, batch, sampler};
use crate::error::{Error, Result};
use crate::ids::BranchId;
use crate::kv::{Forest, StepRow};
use crate::plan::{AttentionPlan, NewPage, PlanStats};

/// A step that was submitted and not collected: what its samples answer.
pub(super) struct SubmittedStep {
    requests: Vec<LogitsRequest>,
}

/// The step that the backend has loaded.
pub(super) struct LoadedStep {
    schedule: Schedule,
    /// One for each plan.
    stats: Vec<PlanStats>,
    /// `None` where the step after it is another one in any case.
    steady: Option<SteadySteps>,
    /// Kept only if plans are checked.
    copy: Option<StepBatch>,
}

/// A step whose every row samples a token of a branch of its own and goes on behind it: unless branches come or go, the
/// steps after it are the same, every row one token further. What they ask of the branches is kept here, so that they
/// need not be looked at.
struct SteadySteps {
    /// How many steps after it are such; then a branch is at its end, may end from then on, or has counted as many
    /// tokens for its penalties as a backend does by itself.
    steps: usize,
    /// Of each row.
    uniforms: Vec<UniformKey>,
}

impl<B: Backend> Engine<B> {
    /// Submits the next step, then collects the one before it; if steps do not run ahead, its own samples at once.
    pub(super) fn step(&mut self) -> Result<()> {
        let submitted = self.submit()?;
        let ahead = usize::from(submitted && self.config.run_ahead);
        while self.submitted.len() > ahead {
            self.collect()?;
        }
        Ok(())
    }

    /// Waits for whatever is in flight.
    pub(super) fn collect_all(&mut self) -> Result<()> {
        while !self.submitted.is_empty() {
            self.collect()?;
        }
        Ok(())
    }

    /// Enqueues the next step. False if there is nothing to compute before something is collected, or at all.
    fn submit(&mut self) -> Result<bool> {
        let advanced = match self.loaded.take() {
            Some(loaded) => self.advance(loaded)?,
            None => None,
        };
        match advanced {
            Some(loaded) => self.note_loaded(loaded),
            None => self.replan()?,
        }
        Ok(self.loaded.is_some())
    }

    /// The step is under way.
    fn note_loaded(&mut self, loaded: LoadedStep) {
        self.count_step(&loaded);
        self.submitted.push_back(SubmittedStep { requests: loaded.schedule.requests.clone() });
        self.loaded = Some(loaded);
    }

    /// Tells branches what the oldest step in flight sampled.
    fn collect(&mut self) -> Result<()> {
        let Some(flight) = self.submitted.pop_front() else { return Ok(()) };
        let mut began = Instant::now();
        let sampled = self.backend.collect(&mut self.step)?;
        lap(&mut began, &mut self.metrics.seconds_waiting);
        self.commit(&flight.requests, sampled);
        lap(&mut began, &mut self.metrics.seconds_committing);
        Ok(())
    }

    /// A step from nothing: scheduled, planned, loaded. No step where nothing is left but what waits for its last
    /// token, or could never fit and has failed.
    fn replan(&mut self) -> Result<()> {
        self.scheduler.free_behind(&self.branches, &mut self.cache);
        let schedule = self.schedule();
        self.transfer()?;
        if schedule.rows.is_empty() {
            return Ok(());
        }
        match self.submit_rows(schedule) {
            Err(error) if error.is_shortage() => self.replan_in_parts(&error),
            submitted => submitted,
        }
    }

    /// The step that the device has no memory for, again and in parts, each of which is a step of its own: halves of
    /// halves, down to one row. What is in flight is collected before, so that every part knows the tokens of its rows.
    fn replan_in_parts(&mut self, shortage: &Error) -> Result<()> {
        log::info!("a step is taken in parts: {shortage}");
        self.collect_all()?;
        let schedule = self.schedule();
        self.transfer()?;
        let mut parts = vec![schedule];
        while let Some(part) = parts.pop() {
            let halves = part.halves();
            let submitted = if part.rows.is_empty() { Ok(()) } else { self.submit_rows(part.clone()) };
            match (submitted, halves) {
                (Err(error), Some([first, second])) if error.is_shortage() => parts.extend([second, first]),
                // Others may need what this row was to compute: they are scheduled again, and so are all later rows.
                (Err(error), None) if error.is_shortage() => {
                    self.fail_row(&part, error);
                    return Ok(());
                }
                (submitted, _) => submitted?,
            }
        }
        Ok(())
    }

    /// Ends the work of those that ask for the only row of `part`, or brought it.
    fn fail_row(&mut self, part: &Schedule, error: Error) {
        let mut ended: Vec<BranchId> = part.rows.iter().map(|row| row.branch).collect();
        ended.extend(part.requests.iter().map(|request| request.branch));
        ended.sort_unstable();
        ended.dedup();
        let why = error.to_string();
        for id in &ended {
            let Some(branch) = self.branches.get_mut(id) else { continue };
            self.scheduler.note_end(branch, true);
            branch.fail(Error::value("memory for a step of one row", "enough for its attention", why.clone()));
        }
        self.retire(ended);
    }

    /// Plans and enqueues the rows of `schedule` as a step.
    fn submit_rows(&mut self, mut schedule: Schedule) -> Result<()> {
        let forest = self.forest(&schedule.rows);
        let (plans, stats) = self.plan(&forest)?;
        let mut began = Instant::now();
        let eos = &self.facts.eos;
        let sample_request =
            |request: &LogitsRequest| sampler::request(&self.branches[&request.branch], request.position, eos);
        let batch = batch::step_batch(&mut schedule, &self.branches, plans, sample_request);
        let steady = if batch.can_advance() { self.steady(&schedule) } else { None };
        let copy = (self.config.check_plans && steady.is_some()).then(|| batch.clone());
        lap(&mut began, &mut self.metrics.seconds_planning);
        self.model.forward(&mut self.backend, &mut self.kv, &mut self.step, batch)?;
        lap(&mut began, &mut self.metrics.seconds_forward);
        self.metrics.steps_replanned += 1;
        self.note_submitted(&schedule);
        self.note_loaded(LoadedStep { schedule, stats, steady, copy });
        Ok(())
    }

    fn schedule(&mut self) -> Schedule {
        let mut began = Instant::now();
        let EngineConfig { max_branches, step_rows: rows, .. } = self.config;
        let (prompt_rows, max_logit_rows) = (self.config.prompt_rows(), self.config.max_logit_rows());
        let budget = StepBudget { max_branches, rows, prompt_rows, max_logit_rows };
        let schedule = self.scheduler.next_rows(&mut self.branches, &mut self.cache, budget);
        self.metrics.preemptions = self.scheduler.preemptions;
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        schedule
    }

    fn forest(&mut self, rows: &[ScheduledRow]) -> Forest {
        let mut began = Instant::now();
        let rows: Vec<StepRow> = rows.iter().map(|row| row.at).collect();
        let forest = self.cache.prefix.forest(&rows);
        debug_assert_eq!(self.cache.prefix.check_ready(&forest), Ok(()));
        lap(&mut began, &mut self.metrics.seconds_planning);
        forest
    }

    /// One plan for each kind of attention of the model's layers, and what it costs.
    fn plan(&mut self, forest: &Forest) -> Result<(Vec<AttentionPlan>, Vec<PlanStats>)> {
        let mut began = Instant::now();
        let mut plans = Vec::new();
        let mut stats = Vec::new();
        for hints in self.model.plan_hints() {
            let plan = self.config.planner.plan(forest, hints);
            self.check_plan(&plan, forest)?;
            stats.push(plan.stats(hints));
            plans.push(plan);
        }
        lap(&mut began, &mut self.metrics.seconds_planning);
        Ok((plans, stats))
    }

    fn check_plan(&self, plan: &AttentionPlan, forest: &Forest) -> Result<()> {
        match self.config.check_plans {
            true => {
                plan.check(forest).map_err(|fault| Error::Internal(format!("{:?} plan: {fault}", self.config.planner)))
            }
            false => Ok(()),
        }
    }

    /// What the steps after `schedule`, which is about to be submitted, have in common with it; `None` where it is not
    /// steady.
    fn steady(&self, schedule: &Schedule) -> Option<SteadySteps> {
        let Schedule { rows, requests, .. } = schedule;
        let mut steady = SteadySteps { steps: usize::MAX, uniforms: Vec::with_capacity(rows.len()) };
        for (row, request) in rows.iter().zip(requests) {
            let branch = self.branches.get(&request.branch)?;
            let BranchWork::Sample(sampling) = &branch.work else { return None };
            let (segment, next) = (row.at.segment, request.position + 1);
            let prefix = &self.cache.prefix;
            let is_own = branch.lease().is_some_and(|lease| lease.own && lease.segment == segment)
                && prefix.first_position(segment) <= row.at.position
                && prefix.end(segment) as usize == next;
            if !is_own {
                return None;
            }
            let until = if sampler::bans_ends(sampling, next) { sampling.may_end_at() } else { sampling.limit };
            steady.steps = steady.steps.min(until.min(sampling.limit).saturating_sub(next + 1));
            steady.steps = steady.steps.min(self.cache.steps_until_freed(segment, row.at.position));
            if sampling.counts.is_some() {
                steady.steps = steady.steps.min(MOST_COUNTED);
            }
            steady.uniforms.push(sampling.uniforms);
        }
        (requests.len() == rows.len()).then_some(steady)
    }

    /// The rows of the loaded step that turn a page with the next token; `None` where the next step is not the loaded
    /// one, every row one token further, or pages are too few for that.
    fn full_rows(&self, loaded: &LoadedStep) -> Option<Vec<u32>> {
        let LoadedStep { schedule, steady, .. } = loaded;
        let goes_on = steady.as_ref().is_some_and(|steady| steady.steps > 0)
            && !self.scheduler.changed
            && schedule.requests.len() == self.scheduler.running();
        if !goes_on {
            return None;
        }
        let page_tokens = self.cache.prefix.page_tokens();
        let fills_page = |(_, row): &(u32, &ScheduledRow)| (row.at.position + 1).is_multiple_of(page_tokens);
        let full_rows: Vec<u32> = (0u32..).zip(&schedule.rows).filter(fills_page).map(|(row, _)| row).collect();
        (full_rows.len() <= self.cache.pages.free()).then_some(full_rows)
    }

    /// Submits the loaded step again, every row one token further. `None` where that is not the next, or memory is
    /// short for it: then pages may be reserved for it, which a plan made anew uses as well.
    fn advance(&mut self, mut loaded: LoadedStep) -> Result<Option<LoadedStep>> {
        let mut began = Instant::now();
        let Some(full_rows) = self.full_rows(&loaded) else { return Ok(None) };
        for request in &loaded.schedule.requests {
            let branch = self.branches.get_mut(&request.branch).expect("a branch that goes is noted as a change");
            let need = branch.need().expect("a branch at its limit ends the steady steps");
            self.cache.reserve(branch, need).expect("the token has room in its page, or one is free for it");
        }
        let new_page = |row: u32| {
            let StepRow { segment, position } = loaded.schedule.rows[row as usize].at;
            NewPage { row, page: self.cache.prefix.slot(segment, position + 1).page }
        };
        let new_pages: Vec<NewPage> = full_rows.into_iter().map(new_page).collect();
        loaded.schedule.advance(&new_pages);
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        self.check_advanced(&mut loaded, &new_pages)?;
        let mut began = Instant::now();
        for (stats, hints) in loaded.stats.iter_mut().zip(self.model.plan_hints()) {
            stats.advance(hints, loaded.schedule.rows.len());
        }
        let steady = loaded.steady.as_mut().expect("only a steady step is advanced");
        steady.steps -= 1;
        let uniforms = steady.uniforms.iter().zip(&loaded.schedule.rows);
        let uniforms: Vec<f64> = uniforms.map(|(uniforms, row)| uniforms.uniform(row.at.position + 1)).collect();
        match self.model.advance(&mut self.backend, &mut self.kv, &mut self.step, &uniforms, &new_pages) {
            // Nothing is noted yet: what is planned anew may be smaller.
            Err(error) if error.is_shortage() => return Ok(None),
            advanced => drop(advanced?),
        }
        lap(&mut began, &mut self.metrics.seconds_forward);
        for (number, (request, row)) in (0u32..).zip(loaded.schedule.requests.iter().zip(&loaded.schedule.rows)) {
            let branch = self.branches.get_mut(&request.branch).expect("it was there just now");
            branch.note_requested(request.position, number);
            self.cache.prefix.mark_computed(row.at.segment, row.at.position + 1);
        }
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        Ok(Some(loaded))
    }

    /// Proves that the plans serve the advanced step, if plans are to be proved.
    fn check_advanced(&mut self, loaded: &mut LoadedStep, new_pages: &[NewPage]) -> Result<()> {
        let Some(mut copy) = loaded.copy.take() else { return Ok(()) };
        copy.advance(&[], new_pages);
        let forest = self.forest(&loaded.schedule.rows);
        for plan in &copy.plans {
            self.check_plan(plan, &forest)?;
        }
        loaded.copy = Some(copy);
        Ok(())
    }

    /// Whatever is submitted from now on sees the keys and values of this step's rows.
    fn note_submitted(&mut self, schedule: &Schedule) {
        let mut began = Instant::now();
        let Schedule { rows, requests, .. } = schedule;
        self.count_rows(rows);
        for row in rows {
            self.cache.prefix.mark_computed(row.at.segment, row.at.position + 1);
        }
        for (number, request) in (0u32..).zip(requests) {
            self.branches
                .get_mut(&request.branch)
                .expect("it was scheduled just now")
                .note_requested(request.position, number);
        }
        lap(&mut began, &mut self.metrics.seconds_scheduling);
    }

    /// RunCounts a step that was submitted.
    fn count_step(&mut self, loaded: &LoadedStep) {
        let mut began = Instant::now();
        self.metrics.steps += 1;
        self.metrics.rows += loaded.schedule.rows.len() as u64;
        self.count_reads(&loaded.stats);
        self.count_memory();
        lap(&mut began, &mut self.metrics.seconds_scheduling);
    }

    /// Moves keys and values between device and host, as far as the cache has decided.
    pub(super) fn transfer(&mut self) -> Result<()> {
        for transfer in std::mem::take(&mut self.cache.transfers) {
            match transfer {
                Transfer::Save { branch, pages } => match self.backend.save_pages(&self.kv, &pages) {
                    Ok(saved) => {
                        self.swapped.insert(branch, saved);
                        self.metrics.swapped_out += 1;
                        self.metrics.swapped_out_bytes += (pages.len() * self.facts.page_bytes) as u64;
                    }
                    Err(error) => self.not_saved(branch, error)?,
                },
                Transfer::Restore { branch, pages } => {
                    let saved = self.swapped.remove(&branch).expect("only what was saved is restored");
                    self.backend.restore_pages(&mut self.kv, &saved, &pages)?;
                    self.metrics.swapped_in += 1;
                    self.metrics.swapped_in_bytes += (pages.len() * self.facts.page_bytes) as u64;
                }
                Transfer::Forget { branch } => drop(self.swapped.remove(&branch)),
            }
        }
        Ok(())
    }

    /// Host memory did not take a branch that yields: it is computed again. An error only where its keys and values
    /// have been given pages again since, which nothing can fill.
    fn not_saved(&mut self, id: BranchId, error: Error) -> Result<()> {
        match self.branches.get_mut(&id) {
            Some(branch) if matches!(branch.hold, KvHold::Swapped(_)) => {
                log::warn!("branch {id} is computed again, for it cannot be saved: {error}");
                self.cache.not_saved(branch);
                Ok(())
            }
            Some(branch) if branch.lease().is_some() => Err(error),
            Some(_) | None => Ok(()), // It has ended meanwhile, or must be computed again in any case.
        }
    }
}

/// Adds the time since `began` to `seconds`, and begins anew.
fn lap(began: &mut Instant, seconds: &mut f64) {
    let now = Instant::now();
    *seconds += (now - std::mem::replace(began, now)).as_secs_f64();
}
