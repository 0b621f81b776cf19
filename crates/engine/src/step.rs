//! One step: submitted (scheduled, planned, loaded, enqueued on the device), then collected (its samples are committed
//! to their branches). With `EngineConfig::run_ahead` the next step is submitted while the device computes, from tokens
//! that the host has not read yet. Where what may be sampled depends on these, as it does in a form, the step is *late*
//! (`late`).

use std::time::Instant;

use crate::batch;
use crate::branch::{BranchWork, KvHold};
use crate::cache::{KvCache, Transfer};
use crate::config::EngineConfig;
use crate::copies::StepPlans;
use crate::engine::{Engine, LoadedStep, SteadySteps, SwappedBytes};
use crate::schedule::{Schedule, ScheduledRow};
use crate::scheduler::StepBudget;
use crate::states::NoState;
use offshoot_backend::{MOST_COUNTED, StepBatch, StepRequests};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{AdapterVersion, BranchId, GroupIx, PageId, StateId};
use offshoot_kv::plan::{AttentionPlan, FormPlans, NewPage};
use offshoot_kv::{Forest, StatePlace, StepRow};
use offshoot_model::StepFailure;

/// What became of the rows of a schedule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Submitted {
    Rows,
    /// None was submitted: the state before one of them is gone.
    LacksState,
}

impl Engine {
    /// Submits the next step, collects the one before it, and gives the submitted one its requests if it is late;
    /// collects it, too, if steps do not run ahead.
    pub(super) fn step(&mut self) -> Result<()> {
        let submitted = self.submit()?;
        // Counters are updated before the sample's event is sent.
        self.publish();
        while self.submitted.len() > usize::from(submitted) {
            self.collect()?;
        }
        self.sample_late()?;
        if !self.config.run_ahead {
            self.collect_all()?;
        }
        Ok(())
    }

    /// Collects all submitted steps.
    pub(super) fn collect_all(&mut self) -> Result<()> {
        while !self.submitted.is_empty() {
            self.collect()?;
        }
        Ok(())
    }

    /// Submits the next step. False if there is nothing to compute, or nothing before a step is collected.
    fn submit(&mut self) -> Result<bool> {
        self.read_stored()?;
        self.save_stored()?;
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

    /// Records a submitted step.
    fn note_loaded(&mut self, loaded: LoadedStep) {
        self.count_step(&loaded);
        self.submitted.push_back(loaded.schedule.requests.clone());
        self.late = loaded.is_late.then(|| loaded.schedule.requests.clone());
        self.loaded = Some(loaded);
    }

    /// Waits for the oldest submitted step and commits its samples.
    fn collect(&mut self) -> Result<()> {
        let Some(requests) = self.submitted.pop_front() else { return Ok(()) };
        let mut began = Instant::now();
        // A step of a scorer without requests keeps no values.
        if self.facts.values.is_some() && !requests.is_empty() {
            let values = self.model.collect_values()?;
            lap(&mut began, &mut self.metrics.seconds_waiting);
            self.commit_values(&requests, &values);
        } else {
            let sampled = self.model.collect()?;
            lap(&mut began, &mut self.metrics.seconds_waiting);
            self.commit(&requests, sampled);
        }
        lap(&mut began, &mut self.metrics.seconds_committing);
        Ok(())
    }

    /// Schedules, plans and loads a step. No step is submitted if all branches wait for their last token, or have
    /// failed because they can never fit.
    fn replan(&mut self) -> Result<()> {
        self.scheduler.free_behind(&self.branches, &mut self.cache);
        let schedule = self.schedule();
        self.transfer()?;
        if schedule.rows.is_empty() {
            self.await_stored();
            return Ok(());
        }
        if schedule.rows.len() > self.most_run_rows {
            return self.replan_in_parts();
        }
        match self.submit_rows(schedule) {
            Err(error) if error.is_shortage() => {
                log::info!("a step is taken in parts: {error}");
                self.replan_in_parts()
            }
            Ok(Submitted::LacksState) => {
                Err(Error::Internal("a row is scheduled without the state before it".to_owned()))
            }
            submitted => submitted.map(drop),
        }
    }

    /// Submits, in parts, a step for which the device lacks memory: each part is halved until it fits, down to one row.
    /// First collects all submitted steps, so that the tokens of every part are known.
    fn replan_in_parts(&mut self) -> Result<()> {
        self.collect_all()?;
        let schedule = self.schedule();
        self.transfer()?;
        let mut parts = vec![schedule];
        while let Some(part) = parts.pop() {
            let halves = part.halves();
            if part.rows.len() > self.most_run_rows
                && let Some([first, second]) = halves
            {
                parts.extend([second, first]);
                continue;
            }
            let submitted = if part.rows.is_empty() { Ok(Submitted::Rows) } else { self.submit_rows(part.clone()) };
            let running = self.scheduler.running();
            self.sample_late()?;
            if self.scheduler.running() < running {
                return Ok(()); // Later rows may be of a branch that has failed: they are scheduled again.
            }
            match (submitted, halves) {
                (Err(error), Some([first, second])) if error.is_shortage() => parts.extend([second, first]),
                // Later rows may need what this row was to compute: they are scheduled again.
                (Err(error), None) if error.is_shortage() => {
                    self.fail_row(&part, &error);
                    return Ok(());
                }
                // An earlier part took its slot, or failed while it ran: it is scheduled again.
                (Ok(Submitted::LacksState), _) => return Ok(()),
                (submitted, _) => drop(submitted?),
            }
        }
        Ok(())
    }

    /// Fails the branches that need the only row of `part`.
    fn fail_row(&mut self, part: &Schedule, error: &Error) {
        let mut ended: Vec<BranchId> = part.rows.iter().map(|row| row.branch).collect();
        ended.extend(part.requests.iter().map(|request| request.branch));
        ended.sort_unstable();
        ended.dedup();
        self.fail_some(ended.into_iter().map(|id| (id, error.same_shortage())).collect());
    }

    /// Plans the rows of `schedule` and submits them as a step.
    fn submit_rows(&mut self, mut schedule: Schedule) -> Result<Submitted> {
        self.note_lent_states();
        let states = match self.cache.choose_states(&schedule) {
            Ok(states) => states,
            Err(NoState::Missing) => return Ok(Submitted::LacksState),
            Err(NoState::OutOfSlots) => {
                let (device, total) = (self.facts.device.clone(), self.facts.states * self.facts.state_bytes);
                return Err(Error::DeviceMemory { device, asked: None, free: 0, total });
            }
        };
        let forest = self.forest(&schedule.rows);
        let StepPlans { plans, stats, expansions, forms } = self.plan(forest)?;
        let mut began = Instant::now();
        let is_late = schedule.requests.iter().any(|request| self.branches[&request.branch].samples_late());
        // In the order in which the batch has them.
        let logit_rows = schedule.logit_rows();
        let requests = match is_late {
            true => StepRequests::Late,
            false if self.facts.values.is_some() && !logit_rows.is_empty() => StepRequests::Values,
            false => {
                let made = schedule.requests.iter().map(|request| self.sample_request(request));
                made.collect::<Vec<_>>().into()
            }
        };
        let (prefix, runs) = (&self.cache.prefix, states.runs.clone());
        let slot =
            |version: AdapterVersion| self.adapters.slot(version).expect("branches that run have adapters in slots");
        let batch = batch::step_batch(&schedule, logit_rows, requests, &self.branches, prefix, plans, runs, slot);
        let batch = StepBatch { expansions, ..batch };
        let steady = if batch.can_advance() { self.steady(&schedule, is_late) } else { None };
        let copy = (self.config.check_plans && steady.is_some()).then(|| batch.clone());
        lap(&mut began, &mut self.metrics.seconds_planning);
        let turn = self.config.enter_gate();
        lap(&mut began, &mut self.metrics.seconds_waiting);
        let submitted = self.model.submit(batch);
        drop(turn);
        if let Err(failure) = submitted {
            self.note_failure(&failure, schedule.rows.len());
            self.cache.copies.undo();
            match failure.has_begun {
                true => self.cache.lose_states(&states),
                false => self.cache.undo_states(&states),
            }
            return Err(failure.error);
        }
        lap(&mut began, &mut self.metrics.seconds_forward);
        self.metrics.seconds_idle = self.model.idle().map(|idle| idle.as_secs_f64());
        self.metrics.steps_replanned += 1;
        self.note_submitted(&schedule);
        self.note_loaded(LoadedStep { schedule, stats, steady, is_late, copy, forms });
        Ok(Submitted::Rows)
    }

    /// Notes that a step of so many rows was not submitted. Where a shortage costs states, steps have at most half as
    /// many until the engine has nothing to do: what is computed from the states before these is not lost in the same
    /// way.
    fn note_failure(&mut self, failure: &StepFailure, rows: usize) {
        let StepFailure { error, has_begun } = failure;
        if *has_begun && error.is_shortage() && self.cache.prefix.has_states() {
            self.most_run_rows = (rows / 2).max(1);
            log::warn!("steps have at most {} rows while there is work: {error}", self.most_run_rows);
        }
    }

    fn schedule(&mut self) -> Schedule {
        self.end_known_values();
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

    /// One plan, with its statistics, for each kind of attention among the model's layers.
    fn plan(&mut self, mut forest: Forest) -> Result<StepPlans> {
        let mut began = Instant::now();
        let mut plans = Vec::new();
        let mut stats = Vec::new();
        // A model's latent attention is of one kind.
        let (mut copied, mut forms) = (None, None);
        let mut listed = GroupIx(0);
        for hints in &self.model_facts.plan_hints {
            if hints.group != listed {
                self.cache.prefix.list_pages(&mut forest, hints.group);
                listed = hints.group;
            }
            if hints.latents.is_some() {
                let KvCache { copies, pages, .. } = &mut self.cache;
                let EngineConfig { planner, latent_forms, .. } = self.config;
                let stamp = |page: PageId| pages.stamp(page);
                let formed = copies.with_room(stamp, |room| planner.plan_forms(&forest, hints, latent_forms, room));
                stats.push(formed.stats(hints));
                if self.config.check_plans {
                    // Before the copies count as made.
                    self.check_forms(&formed, &forest)?;
                    forms = Some(formed.clone());
                }
                plans.push(formed.absorbed);
                let KvCache { copies, pages, .. } = &mut self.cache;
                copied = Some(copies.assign(formed.copied, |page| pages.stamp(page)));
            } else {
                let plan = self.config.planner.plan(&forest, hints);
                self.check_plan(&plan, &forest)?;
                stats.push(plan.stats(hints));
                plans.push(plan);
            }
        }
        let expansions = copied.map(|copied| {
            plans.extend(copied.plans);
            copied.expansions
        });
        lap(&mut began, &mut self.metrics.seconds_planning);
        Ok(StepPlans { plans, stats, expansions, forms })
    }

    fn check_forms(&self, forms: &FormPlans, forest: &Forest) -> Result<()> {
        let planner = self.config.planner;
        forms.check(forest).map_err(|fault| Error::Internal(format!("{planner:?} plans of latents: {fault}")))
    }

    fn check_plan(&self, plan: &AttentionPlan, forest: &Forest) -> Result<()> {
        match self.config.check_plans {
            true => {
                plan.check(forest).map_err(|fault| Error::Internal(format!("{:?} plan: {fault}", self.config.planner)))
            }
            false => Ok(()),
        }
    }

    /// The steps that may repeat `schedule`, which is about to be submitted; `None` if none may.
    fn steady(&self, schedule: &Schedule, is_late: bool) -> Option<SteadySteps> {
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
            let rules = &sampling.rules;
            // Late requests are made anew for each step.
            let until = if rules.bans_ends(next) && !is_late { rules.may_end_at() } else { sampling.limit };
            steady.steps = steady.steps.min(until.min(sampling.limit).saturating_sub(next + 1));
            steady.steps = steady.steps.min(self.cache.steps_until_freed(segment, row.at.position));
            if rules.counts.is_some() && !is_late {
                steady.steps = steady.steps.min(MOST_COUNTED);
            }
            steady.uniforms.push(sampling.uniforms);
        }
        (requests.len() == rows.len()).then_some(steady)
    }

    /// The rows of the loaded step whose next token needs a new page; `None` if the next step does not repeat the
    /// loaded one, or free pages are too few.
    fn full_rows(&self, loaded: &LoadedStep) -> Option<Vec<u32>> {
        let LoadedStep { schedule, steady, .. } = loaded;
        let goes_on = steady.as_ref().is_some_and(|steady| steady.steps > 0)
            && !self.scheduler.changed
            && schedule.requests.len() == self.scheduler.running();
        if !goes_on {
            return None;
        }
        let prefix = &self.cache.prefix;
        let has_state = |row: &ScheduledRow| prefix.has_own_state(row.at.segment, row.at.position + 1);
        if prefix.has_states() && !schedule.rows.iter().all(has_state) {
            return None; // Others continue where it was, and it needs another slot.
        }
        let page_tokens = self.cache.prefix.page_tokens();
        let fills_page = |(_, row): &(u32, &ScheduledRow)| (row.at.position + 1).is_multiple_of(page_tokens);
        let full_rows: Vec<u32> = (0u32..).zip(&schedule.rows).filter(fills_page).map(|(row, _)| row).collect();
        let needed = self.cache.prefix.groups().count() * full_rows.len();
        (needed <= self.cache.pages.free()).then_some(full_rows)
    }

    /// Submits the loaded step again, every row one token further. `None` if the next step differs or the device lacks
    /// memory; pages reserved by then are used by the step that is planned instead.
    fn advance(&mut self, mut loaded: LoadedStep) -> Result<Option<LoadedStep>> {
        let mut began = Instant::now();
        let Some(full_rows) = self.full_rows(&loaded) else { return Ok(None) };
        for request in &loaded.schedule.requests {
            let branch = self.branches.get_mut(&request.branch).expect("a branch that ends is noted as a change");
            let need = branch.need().expect("a branch at its limit ends the steady steps");
            self.cache.reserve(branch, need).expect("the token has room in its page, or one is free for it");
        }
        let new_page = |group: GroupIx, row: u32| {
            let StepRow { segment, position } = loaded.schedule.rows[row as usize].at;
            NewPage { group, row, page: self.cache.prefix.slot_in(group, segment, position + 1).page }
        };
        let of_group = |group: GroupIx| full_rows.iter().map(move |&row| new_page(group, row));
        let new_pages: Vec<NewPage> = self.cache.prefix.groups().iter().flat_map(of_group).collect();
        loaded.schedule.advance(&new_pages);
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        self.check_advanced(&mut loaded, &new_pages)?;
        let mut began = Instant::now();
        for (stats, hints) in loaded.stats.iter_mut().zip(&self.model_facts.plan_hints) {
            stats.advance(hints, loaded.schedule.rows.len());
        }
        let steady = loaded.steady.as_mut().expect("only a steady step is advanced");
        steady.steps -= 1;
        let uniforms = steady.uniforms.iter().zip(&loaded.schedule.rows);
        let uniforms: Vec<f64> = uniforms.map(|(uniforms, row)| uniforms.uniform(row.at.position + 1)).collect();
        let turn = self.config.enter_gate();
        lap(&mut began, &mut self.metrics.seconds_waiting);
        let submitted = self.model.submit_advanced(&uniforms, &new_pages);
        drop(turn);
        if let Err(failure) = submitted {
            self.note_failure(&failure, loaded.schedule.rows.len());
            let StepFailure { error, has_begun } = failure;
            if !error.is_shortage() {
                return Err(error);
            }
            // Nothing is recorded yet: a step that is planned anew may be smaller. If ops have begun, the states may
            // have been changed, and what the step before sampled overwritten on the device.
            if has_begun {
                for row in &loaded.schedule.rows {
                    let StepRow { segment, position } = row.at;
                    self.cache.prefix.drop_state(StatePlace { segment, position });
                }
                self.collect_all()?;
            }
            return Ok(None);
        }
        lap(&mut began, &mut self.metrics.seconds_forward);
        self.metrics.seconds_idle = self.model.idle().map(|idle| idle.as_secs_f64());
        for (number, (request, row)) in (0u32..).zip(loaded.schedule.requests.iter().zip(&loaded.schedule.rows)) {
            let branch = self.branches.get_mut(&request.branch).expect("it was there just now");
            branch.note_requested(request.position, number);
            self.cache.prefix.mark_computed(row.at.segment, row.at.position + 1);
            if self.cache.prefix.has_states() {
                let StepRow { segment, position } = row.at;
                let place = |position| StatePlace { segment, position };
                self.cache.prefix.move_state(place(position), place(position + 1));
            }
        }
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        Ok(Some(loaded))
    }

    /// Checks that the plans serve the advanced step, if plans are checked.
    fn check_advanced(&mut self, loaded: &mut LoadedStep, new_pages: &[NewPage]) -> Result<()> {
        let Some(mut copy) = loaded.copy.take() else { return Ok(()) };
        copy.advance(&[], new_pages);
        let mut forest = self.forest(&loaded.schedule.rows);
        match &mut loaded.forms {
            Some(forms) => {
                forms.advance(new_pages);
                self.check_forms(forms, &forest)?;
            }
            None => {
                for plan in &copy.plans {
                    self.cache.prefix.list_pages(&mut forest, plan.group);
                    self.check_plan(plan, &forest)?;
                }
            }
        }
        loaded.copy = Some(copy);
        Ok(())
    }

    /// Marks the rows' keys and values as computed: every step submitted later sees them.
    fn note_submitted(&mut self, schedule: &Schedule) {
        let mut began = Instant::now();
        let Schedule { rows, requests, .. } = schedule;
        self.count_rows(rows);
        let completed = self.completed_chunks(rows);
        for row in rows {
            self.cache.prefix.mark_computed(row.at.segment, row.at.position + 1);
        }
        self.note_chunks(completed);
        for (number, request) in (0u32..).zip(requests) {
            self.branches
                .get_mut(&request.branch)
                .expect("it was scheduled just now")
                .note_requested(request.position, number);
        }
        lap(&mut began, &mut self.metrics.seconds_scheduling);
    }

    /// Counts a submitted step in the metrics.
    fn count_step(&mut self, loaded: &LoadedStep) {
        let mut began = Instant::now();
        self.metrics.steps += 1;
        self.metrics.rows += loaded.schedule.rows.len() as u64;
        self.count_reads(&loaded.stats);
        self.count_memory();
        lap(&mut began, &mut self.metrics.seconds_scheduling);
    }

    /// Moves keys and values between device and host as the cache has decided.
    pub(super) fn transfer(&mut self) -> Result<()> {
        for transfer in std::mem::take(&mut self.cache.transfers) {
            match transfer {
                Transfer::Save { branch, pages, state } => match self.save(&pages, state) {
                    Ok(saved) => {
                        self.swapped.insert(branch, saved);
                        self.metrics.swapped_out += 1;
                        self.metrics.swapped_out_bytes += self.swapped_bytes(&pages, state);
                    }
                    Err(error) => self.not_saved(branch, error)?,
                },
                Transfer::Restore { branch, pages, state } => {
                    let saved = self.swapped.remove(&branch).expect("only what was saved is restored");
                    self.model.restore_pages(&saved.pages, &pages)?;
                    if let (Some(slot), Some(saved)) = (state, &saved.state) {
                        self.model.restore_state(saved, slot)?;
                    }
                    self.metrics.swapped_in += 1;
                    self.metrics.swapped_in_bytes += self.swapped_bytes(&pages, state);
                }
                Transfer::Forget { branch } => drop(self.swapped.remove(&branch)),
            }
        }
        Ok(())
    }

    /// Copies pages and a state to host memory.
    fn save(&mut self, pages: &[PageId], state: Option<StateId>) -> Result<SwappedBytes> {
        let pages = self.model.save_pages(pages)?;
        let state = state.map(|slot| self.model.save_state(slot)).transpose()?;
        Ok(SwappedBytes { pages, state })
    }

    fn swapped_bytes(&self, pages: &[PageId], state: Option<StateId>) -> u64 {
        (pages.len() * self.facts.page_bytes + state.map_or(0, |_| self.facts.state_bytes)) as u64
    }

    /// The keys and values of a preempted branch could not be saved: they are computed again. An error only if the
    /// branch already has pages again, which then cannot be filled.
    fn not_saved(&mut self, id: BranchId, error: Error) -> Result<()> {
        match self.branches.get_mut(&id) {
            Some(branch) if matches!(branch.hold, KvHold::Swapped(_)) => {
                log::warn!("branch {id} is computed again, for it cannot be saved: {error}");
                self.cache.not_saved(branch);
                Ok(())
            }
            Some(branch) if branch.lease().is_some() => Err(error),
            Some(_) | None => Ok(()), // It has ended, or is computed again in any case.
        }
    }
}

/// Adds the time since `began` to `seconds` and restarts `began`.
pub(super) fn lap(began: &mut Instant, seconds: &mut f64) {
    let now = Instant::now();
    *seconds += (now - std::mem::replace(began, now)).as_secs_f64();
}
