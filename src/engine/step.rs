//! One step: submitted (scheduled, planned, loaded, enqueued) and collected (what it drew is told). Between the two lies the
//! device's work; with `EngineConfig::run_ahead` the next step is submitted in that time, from tokens that nobody has read.

use std::time::Instant;

use crate::backend::{Backend, StepBatch};
use crate::engine::branch::{Hold, Work};
use crate::engine::cache::Transfer;
use crate::engine::schedule::{Ask, Row, Schedule};
use crate::engine::scheduler::Budget;
use crate::engine::{Engine, EngineConfig, batch, sampler};
use crate::error::{Error, Result};
use crate::ids::BranchId;
use crate::kv::{Forest, StepRow};
use crate::plan::{AttentionPlan, PageTurn, PlanStats};

/// A step that was submitted and not collected: what its draws answer.
pub(super) struct Flight {
    asks: Vec<Ask>,
}

/// The step that the backend has loaded.
pub(super) struct Loaded {
    schedule: Schedule,
    /// One for each plan.
    stats: Vec<PlanStats>,
    /// Whether the backend can advance it, as far as the batch tells.
    advances: bool,
    /// Kept only if plans are checked.
    copy: Option<StepBatch>,
}

impl<B: Backend> Engine<B> {
    /// Submits the next step, then collects the one before it; if steps do not run ahead, its own draws at once.
    pub(super) fn step(&mut self) -> Result<()> {
        let submitted = self.submit()?;
        let ahead = usize::from(submitted && self.config.run_ahead);
        while self.flights.len() > ahead {
            self.collect()?;
        }
        Ok(())
    }

    /// Waits for whatever is in flight.
    pub(super) fn collect_all(&mut self) -> Result<()> {
        while !self.flights.is_empty() {
            self.collect()?;
        }
        Ok(())
    }

    /// Enqueues the next step. False if there is nothing to compute before something is collected, or at all.
    fn submit(&mut self) -> Result<bool> {
        let loaded = match self.loaded.take().filter(|loaded| self.can_advance(loaded)) {
            Some(loaded) => Some(self.advance(loaded)?),
            None => self.replan()?,
        };
        let Some(loaded) = loaded else { return Ok(false) };
        self.note_submitted(&loaded);
        self.flights.push_back(Flight { asks: loaded.schedule.asks.clone() });
        self.loaded = Some(loaded);
        Ok(true)
    }

    /// Tells branches what the oldest step in flight drew.
    fn collect(&mut self) -> Result<()> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let mut began = Instant::now();
        let drawn = self.backend.collect(&mut self.step)?;
        lap(&mut began, &mut self.metrics.seconds_waiting);
        self.commit(&flight.asks, drawn);
        lap(&mut began, &mut self.metrics.seconds_committing);
        Ok(())
    }

    /// A step from nothing: scheduled, planned, loaded.
    fn replan(&mut self) -> Result<Option<Loaded>> {
        let mut schedule = self.schedule();
        self.transfer()?;
        if schedule.rows.is_empty() {
            return Ok(None); // All that is left waits for its last token, or could never fit and has failed.
        }
        let forest = self.forest(&schedule.rows);
        let (plans, stats) = self.plan(&forest)?;
        let mut began = Instant::now();
        let eos = &self.facts.eos;
        let request = |ask: &Ask| sampler::request(&self.branches[&ask.branch], ask.position, eos);
        let batch = batch::step_batch(&mut schedule, &self.branches, plans, request);
        let advances = batch.can_advance();
        let copy = (self.config.check_plans && advances).then(|| batch.clone());
        lap(&mut began, &mut self.metrics.seconds_planning);
        self.model.forward(&mut self.backend, &mut self.kv, &mut self.step, batch)?;
        lap(&mut began, &mut self.metrics.seconds_forward);
        self.metrics.steps_replanned += 1;
        Ok(Some(Loaded { schedule, stats, advances, copy }))
    }

    fn schedule(&mut self) -> Schedule {
        let mut began = Instant::now();
        let EngineConfig { max_branches, step_rows: rows, .. } = self.config;
        let (prompt_rows, max_asks) = (self.config.prompt_rows(), self.config.max_asks());
        let budget = Budget { max_branches, rows, prompt_rows, max_asks };
        let schedule = self.scheduler.next_rows(&mut self.branches, &mut self.cache, budget);
        self.metrics.preemptions = self.scheduler.preemptions;
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        schedule
    }

    fn forest(&mut self, rows: &[Row]) -> Forest {
        let mut began = Instant::now();
        let rows: Vec<StepRow> = rows.iter().map(|row| row.at).collect();
        let forest = self.cache.prefix.forest(&rows);
        lap(&mut began, &mut self.metrics.seconds_planning);
        forest
    }

    /// One plan for each window kind of the model's layers, and what it costs.
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

    /// Whether a new schedule would be the one that is loaded, every row one token further, and ask for the same; and whether
    /// pages are free for the rows whose own are full.
    fn can_advance(&self, loaded: &Loaded) -> bool {
        let Schedule { rows, asks, .. } = &loaded.schedule;
        let turns = || rows.iter().filter(|row| self.turns_page(row)).count();
        loaded.advances
            && !self.scheduler.changed
            && asks.len() == self.scheduler.running()
            && rows.iter().zip(asks).all(|(row, ask)| self.goes_on(row, ask))
            && turns() <= self.cache.pages.free()
    }

    /// Whether the token behind `row` begins a page.
    fn turns_page(&self, row: &Row) -> bool {
        (row.at.position + 1).is_multiple_of(self.cache.prefix.page_tokens())
    }

    /// Whether the branch of `ask`, which asked for `row`, goes on right behind it and in the same way.
    fn goes_on(&self, row: &Row, ask: &Ask) -> bool {
        let next = row.at.position + 1;
        let Some(branch) = self.branches.get(&ask.branch).filter(|branch| branch.turn == ask.turn) else {
            return false;
        };
        let Work::Draw(drawing) = &branch.work else { return false };
        let bans_alike = sampler::bans_ends(drawing, ask.position + 1) == sampler::bans_ends(drawing, ask.position + 2);
        let prefix = &self.cache.prefix;
        let on_its_own = branch.lease().is_some_and(|lease| {
            let own = prefix.first_position(lease.segment)..prefix.end(lease.segment);
            lease.own && lease.segment == row.at.segment && own.contains(&row.at.position) && own.end == next
        });
        on_its_own && bans_alike && branch.need().is_some()
    }

    /// The step that is loaded, every row one token further; see `can_advance`.
    fn advance(&mut self, mut loaded: Loaded) -> Result<Loaded> {
        let mut began = Instant::now();
        let turning = |(_, row): &(u32, &Row)| self.turns_page(row);
        let turning: Vec<u32> = (0u32..).zip(&loaded.schedule.rows).filter(turning).map(|(row, _)| row).collect();
        for ask in &loaded.schedule.asks {
            let branch = self.branches.get_mut(&ask.branch).expect("can_advance found it");
            let need = branch.need().expect("can_advance asked for it");
            self.cache.reserve(branch, need).expect("the token has room in a page, or can_advance found one free");
        }
        let turn = |row: u32| {
            let StepRow { segment, position } = loaded.schedule.rows[row as usize].at;
            PageTurn { row, page: self.cache.prefix.slot(segment, position + 1).page }
        };
        let turns: Vec<PageTurn> = turning.into_iter().map(turn).collect();
        loaded.schedule.advance(&turns);
        lap(&mut began, &mut self.metrics.seconds_scheduling);
        self.check_advanced(&mut loaded, &turns)?;
        let mut began = Instant::now();
        for (stats, hints) in loaded.stats.iter_mut().zip(self.model.plan_hints()) {
            stats.advance(hints, loaded.schedule.rows.len());
        }
        let coin = |ask: &Ask| match &self.branches[&ask.branch].work {
            Work::Draw(drawing) => sampler::coin(drawing, ask.position + 1),
            Work::Rest | Work::Score(_) => unreachable!("can_advance saw it draw"),
        };
        let coins: Vec<f64> = loaded.schedule.asks.iter().map(coin).collect();
        self.model.advance(&mut self.backend, &mut self.kv, &mut self.step, &coins, &turns)?;
        lap(&mut began, &mut self.metrics.seconds_forward);
        Ok(loaded)
    }

    /// Proves that the plans serve the advanced step, if plans are to be proved.
    fn check_advanced(&mut self, loaded: &mut Loaded, turns: &[PageTurn]) -> Result<()> {
        let Some(mut copy) = loaded.copy.take() else { return Ok(()) };
        copy.advance(&[], turns);
        let forest = self.forest(&loaded.schedule.rows);
        for plan in &copy.plans {
            self.check_plan(plan, &forest)?;
        }
        loaded.copy = Some(copy);
        Ok(())
    }

    /// Whatever is submitted from now on sees the keys and values of this step's rows.
    fn note_submitted(&mut self, loaded: &Loaded) {
        let mut began = Instant::now();
        let Schedule { rows, asks, .. } = &loaded.schedule;
        self.count_rows(rows);
        self.count_reads(&loaded.stats);
        self.count_memory();
        for row in rows {
            self.cache.prefix.mark_computed(row.at.segment, row.at.position + 1);
        }
        for (request, ask) in (0u32..).zip(asks) {
            self.branches.get_mut(&ask.branch).expect("it asked just now").asked(request);
        }
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

    /// Host memory did not take a branch that yields: it is computed again. An error only where its keys and values have been
    /// given pages again since, which nothing can fill.
    fn not_saved(&mut self, id: BranchId, error: Error) -> Result<()> {
        match self.branches.get_mut(&id) {
            Some(branch) if matches!(branch.hold, Hold::Swapped(_)) => {
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
