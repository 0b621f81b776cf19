//! The step that the GPU's ops read: a batch as words at fixed device addresses, the scratch memory of attention and
//! sampler, and the graphs. `staging_slots` decides when host copies may be written and brings results to the host.
//!
//! Row counts are padded to buckets, so that few shapes occur and each is captured as a graph once. A padded row holds
//! token 0 at position 0 and has no slot; a padded request is greedy. Their results are never read.

mod graphs;
mod order;
mod staging_slots;
mod token_word;

use self::graphs::Graphs;
pub use self::graphs::LaunchMode;
pub use self::order::StepOrder;
use self::staging_slots::{StagingSlots, StepLayout};
use self::token_word::token_word;
use crate::attention::device_plan::DevicePlan;
use crate::attention::layout::Tiling;
use crate::attention::{AttentionKernels, AttentionOperands};
use crate::compile::units::{self, MemberStates};
use crate::delta_rule::LoadedRuns;
use crate::delta_rule::runs::RunPlan;
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::memory::Memory;
use crate::lora::{AdapterWords, NO_ADAPTER};
use crate::memory::buffer::Buffer;
use crate::memory::kv::{ElementOf, Kv, NO_SLOT, SlotWords, slot_word};
use crate::memory::staged::Staged;
use crate::memory::weights::Vector;
use crate::sampling::{self, AllowedMemory, ResultLayout, SampleBuffers, SamplerKernels};
use offshoot_backend::{
    AdapterSlot, CopiesShape, CopyStore, Dtype, Expansion, HeadLayout, MOST_COUNTED, RowToken, SampleRequest, Scoring,
    StepBatch, StepRequests, StepResults, StepRows, StepShape, advance_slots,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{GroupIx, LayerIx};
use offshoot_core::setting::MAX_BRANCHES;
use offshoot_kv::plan::{AttentionPlan, Member, NewPage, of_group};
use offshoot_kv::{KvSlot, StateRun};

/// Initial bytes of every list; copied lists grow by doubling.
const SMALLEST: usize = 4096;

/// Reserved at the start: `USUAL_STATES` partial states per row, in all at most 1/`MOST_USUAL_SHARE` of the free
/// memory; `USUAL_REQUEST_BYTES` per request.
const USUAL_STATES: usize = 2;
const MOST_USUAL_SHARE: usize = 64;
const USUAL_REQUEST_BYTES: usize = 256;

pub struct Step {
    /// The numbers that a row of the step's output has: as many as the vocabulary has tokens, or a scorer's values.
    outputs: usize,
    /// Whose rows and positions it has of a batch.
    member: Member,
    advance: Function,
    /// One for each layout of heads.
    attention: Vec<AttentionKernels>,
    /// For each plan the index of its kernels.
    kernels_of: Vec<usize>,
    sampler: SamplerKernels,

    pub(crate) tokens: Staged,
    pub(crate) positions: Staged,
    slots: Staged,
    pub(crate) logit_rows: Staged,
    /// The adapter of each row, in steps that have some.
    pub(crate) adapters: Staged,
    requests: Staged,
    allowed: AllowedMemory,
    uniforms: Staged,
    plans: Vec<Staged>,
    /// By [`CopyStore`]: what is expanded, as kernels/ops/expansion.cuh reads it.
    expansions: [Staged; CopyStore::COUNT],
    /// Words of `LoadedBatch::run_plan`.
    state_runs: Staged,
    /// The token sampled for each request; read by the next step's `embed`.
    pub(crate) sampled: Memory,
    partials: Memory,
    sampler_scratch: Memory,
    /// Tokens that requests with penalties have sampled since they were loaded.
    counted: Memory,

    loaded: Option<LoadedBatch>,
    pub(super) graphs: Graphs,
    /// How often one of its addresses has changed: graphs of before are void.
    pub(super) moves: u64,
    staging_slots: StagingSlots,
}

/// The host's record of the loaded step.
struct LoadedBatch {
    /// For each page group the slots of the batch's own rows, in this step.
    slots: Vec<Vec<KvSlot>>,
    /// Those of copies are the last [`CopyStore::COUNT`], in steps of models with latent attention.
    plans: Vec<UploadedPlan>,
    reads_copies: bool,
    state_runs: Vec<StateRun>,
    run_plan: RunPlan,
    /// Padded.
    shape: StepShape,
    /// Whether requests have penalties, and so count what they sample.
    has_penalties: bool,
    /// Steps since the load.
    advanced: usize,
    sampling: Sampling,
}

/// What is sampled or kept in the loaded step, and where its results lie.
enum Sampling {
    None,
    Given(ResultLayout),
    /// Late requests; `None`: they are not loaded yet, or those of the step before were.
    Late(Option<ResultLayout>),
    /// Nothing is sampled: so many values are kept.
    Values(usize),
}

impl Sampling {
    fn results(&self) -> StepLayout {
        match self {
            Sampling::None | Sampling::Late(None) => StepLayout::None,
            Sampling::Given(results) | Sampling::Late(Some(results)) => StepLayout::Samples(results.clone()),
            Sampling::Values(count) => StepLayout::Values(*count),
        }
    }
}

impl LoadedBatch {
    /// The plans whose contexts grow with their rows: all but those of copies.
    fn plans_of_rows(&self) -> usize {
        self.plans.len() - if self.reads_copies { CopyStore::COUNT } else { 0 }
    }
}

/// A plan, and its words on the device.
struct UploadedPlan {
    plan: AttentionPlan,
    words: DevicePlan,
}

impl Step {
    /// `heads`: for each plan, those of its layers. If `deterministic`, attention gives a row the same bits whatever
    /// the other rows are. It stores rows and sees positions as `member` alone.
    pub fn new(
        device: &Device,
        heads: &[HeadLayout],
        dtype: Dtype,
        element_of: ElementOf<'_>,
        outputs: usize,
        deterministic: bool,
        member: Member,
    ) -> Result<Self> {
        let staged = || Staged::new(device, SMALLEST);
        let mut distinct: Vec<HeadLayout> = Vec::new();
        heads.iter().for_each(|heads| {
            if !distinct.contains(heads) {
                distinct.push(*heads);
            }
        });
        let load = |&heads: &HeadLayout| AttentionKernels::load(device, dtype, element_of(heads), heads, deterministic);
        let index = |heads: &HeadLayout| distinct.iter().position(|known| known == heads).expect("all are among them");
        Ok(Self {
            outputs,
            member,
            advance: device.function(&units::advance(), "advance")?,
            attention: distinct.iter().map(load).collect::<Result<_>>()?,
            kernels_of: heads.iter().map(index).collect(),
            sampler: SamplerKernels::load(device, outputs)?,
            tokens: staged()?,
            positions: staged()?,
            slots: staged()?,
            logit_rows: staged()?,
            adapters: staged()?,
            requests: staged()?,
            allowed: AllowedMemory::new(device, outputs)?,
            uniforms: staged()?,
            plans: Vec::new(),
            expansions: [staged()?, staged()?],
            state_runs: staged()?,
            sampled: device.alloc(SMALLEST)?,
            partials: device.alloc(SMALLEST)?,
            sampler_scratch: device.alloc(SMALLEST)?,
            counted: device.alloc(SMALLEST)?,
            loaded: None,
            graphs: Graphs::default(),
            moves: 0,
            staging_slots: StagingSlots::new(device, SMALLEST)?,
        })
    }

    pub fn member(&self) -> Member {
        self.member
    }

    /// The kernels of plan number `plan`.
    fn kernels(&self, plan: usize) -> &AttentionKernels {
        &self.attention[self.kernels_of[plan]]
    }

    /// The most bytes of partial states that any of the plans fills.
    fn partial_bytes(&self, loaded: &LoadedBatch) -> usize {
        let bytes = |(number, planned): (usize, &UploadedPlan)| {
            self.kernels(number).scratch_bytes(planned.words.partial_slots())
        };
        loaded.plans.iter().enumerate().map(bytes).max().unwrap_or(0)
    }

    /// Reserves memory for the lists and samples of a step of this shape, with a set of allowed tokens for each
    /// request, and for the usual size of plans and requests. A plan's size is not bounded: a step for which memory is
    /// short is refused, and the engine takes it in parts (`Backend::load`).
    pub fn reserve(&mut self, device: &Device, shape: StepShape) -> Result<StepShape> {
        let shape = padded(shape);
        let (rows, padded) = (shape.rows.saturating_mul(4), shape.logit_rows.saturating_mul(4));
        let most_rows = self.attention.iter().map(AttentionKernels::most_rows).min().unwrap_or(usize::MAX);
        if shape.rows > most_rows {
            let what = format!("rows of a step, which has those of a prompt beside {MAX_BRANCHES}");
            let expected = format!("at most {most_rows}, of which attention of so many heads is computed");
            return Err(Error::value(what, expected, shape.rows.to_string()));
        }
        // The largest first, so that an impossible size is refused at once.
        self.reserve_draws(device, shape.logit_rows)?;
        self.tokens.reserve(device, rows)?;
        self.positions.reserve(device, rows)?;
        // Each page group has a plan of its own, or several.
        self.slots.reserve(device, rows.saturating_mul(self.kernels_of.len()))?;
        self.logit_rows.reserve(device, padded)?;
        self.adapters.reserve(device, rows)?;
        self.state_runs.reserve(device, RunPlan::most_bytes(shape.rows))?;
        self.uniforms.reserve(device, shape.logit_rows.saturating_mul(8))?;
        self.requests.reserve(device, shape.logit_rows.saturating_mul(USUAL_REQUEST_BYTES))?;
        // One bit beside 32 of a logit.
        self.allowed.reserve(device, shape.logit_rows)?;
        let slots = shape.rows.saturating_mul(USUAL_STATES);
        let most = self.attention.iter().map(|kernels| kernels.scratch_bytes(1)).max().unwrap_or(0);
        let usual = slots.saturating_mul(most).min(device.free_bytes()? / MOST_USUAL_SHARE);
        reserve(device, &mut self.partials, usual)?;
        self.moves += 1;
        Ok(shape)
    }

    /// Also after an error no graph keeps an address that has changed.
    pub fn load(&mut self, device: &Device, batch: StepBatch) -> Result<StepShape> {
        self.staging_slots.begin()?;
        // Plans reuse the memory of the previous ones.
        let mut before = self.loaded.take().map_or_else(Vec::new, |loaded| loaded.plans).into_iter();
        let shape = padded(batch.shape());
        let sampling = match &batch.requests {
            StepRequests::None => Sampling::None,
            StepRequests::Given(requests) => Sampling::Given(self.results_of(requests, shape)),
            StepRequests::Late => Sampling::Late(None),
            StepRequests::Values => Sampling::Values(batch.logit_rows.len() * self.outputs),
        };
        let plan = |(number, plan): (usize, AttentionPlan)| {
            let kernels = self.kernels(number);
            assert_eq!(plan.tile, kernels.tile(plan.window), "the tile of a plan and that of the step's kernels");
            let mut words = before.next().map_or_else(|| DevicePlan::of_member(self.member), |planned| planned.words);
            words.rebuild(&plan, kernels.heads(), shape.rows, kernels.tiling());
            UploadedPlan { plan, words }
        };
        let StepBatch { tokens, positions, slots, logit_rows, plans, requests, state_runs, adapters, expansions } =
            batch;
        let run_plan = RunPlan::new(&state_runs, shape.rows);
        let plans = plans.into_iter().enumerate().map(plan).collect();
        let has_penalties = requests.given().iter().any(SampleRequest::has_penalties);
        let advanced = 0;
        let reads_copies = expansions.is_some();
        let mut loaded =
            LoadedBatch { slots, plans, reads_copies, state_runs, run_plan, shape, has_penalties, advanced, sampling };
        let moves = self.fit_partials(device, &mut loaded);
        self.note_moves(moves)?;
        let moves = self.fill(device, (&tokens, &positions, &logit_rows), &loaded);
        self.note_moves(moves)?;
        let moves = match &loaded.sampling {
            Sampling::None => Ok(false),
            Sampling::Given(results) => self.fill_requests(device, requests.given(), shape, results),
            // The step that reads the samples is captured with their address.
            Sampling::Late(_) => self.reserve_draws(device, shape.logit_rows),
            // The values of padded rows are copied, too.
            Sampling::Values(_) => {
                self.staging_slots.reserve(device, shape.logit_rows * self.outputs * Dtype::F32.bytes())
            }
        };
        self.note_moves(moves)?;
        let moves = self.fill_adapters(device, &adapters, shape);
        self.note_moves(moves)?;
        for store in CopyStore::ALL {
            let expansions = expansions.as_ref().map_or(&[][..], |expansions| &expansions[store as usize]);
            let words = expansion_words(expansions, shape.copies[store as usize].expansions);
            let moves = self.expansions[store as usize].fill(device, self.staging_slots.now(), &words);
            self.note_moves(moves)?;
        }
        self.loaded = Some(loaded);
        Ok(shape)
    }

    /// Uploads the late requests of the step that was run last, for `sample`. Also after an error no graph keeps an
    /// address that has changed, and other requests can be loaded.
    pub fn load_requests(&mut self, device: &Device, requests: &[SampleRequest]) -> Result<()> {
        let shape = self.loaded.as_ref().expect("late requests are those of a step that was run").shape;
        let results = self.results_of(requests, shape);
        let moves = self.fill_requests(device, requests, shape, &results);
        if moves.is_err() {
            // Copies from this step's slot may be under way, and the next requests are written there.
            device.synchronise()?;
        }
        self.note_moves(moves)?;
        let loaded = self.loaded.as_mut().expect("it was there just now");
        assert!(matches!(loaded.sampling, Sampling::Late(None)), "late requests of a step that has its requests");
        loaded.sampling = Sampling::Late(Some(results));
        Ok(())
    }

    /// Where the results of `requests` lie in a step of this shape.
    fn results_of(&self, requests: &[SampleRequest], shape: StepShape) -> ResultLayout {
        ResultLayout::new(requests, shape.logit_rows, self.outputs)
    }

    /// Counts that an address has changed, or may have.
    fn note_moves(&mut self, moves: Result<bool>) -> Result<()> {
        self.moves += u64::from(!matches!(moves, Ok(false)));
        moves.map(drop)
    }

    /// `rows`: tokens, positions, logit rows. Returns whether an address changed.
    fn fill(&mut self, device: &Device, rows: (&[RowToken], &[u32], &[u32]), loaded: &LoadedBatch) -> Result<bool> {
        let now = self.staging_slots.now();
        let (tokens, positions, logit_rows) = rows;
        let shape = loaded.shape;
        let mut moves = false;
        let tokens = tokens.iter().map(|&token| token_word(token));
        moves |= self.tokens.fill(device, now, &words(tokens, shape.rows, 0))?;
        moves |= self.positions.fill(device, now, &words(positions.iter().copied(), shape.rows, 0))?;
        moves |= self.fill_slots(device, loaded)?;
        moves |= self.logit_rows.fill(device, now, &words(logit_rows.iter().copied(), shape.logit_rows, 0))?;
        for (number, planned) in loaded.plans.iter().enumerate() {
            if number == self.plans.len() {
                self.plans.push(Staged::new(device, SMALLEST)?);
            }
            moves |= self.plans[number].fill(device, now, bytemuck::cast_slice(planned.words.words()))?;
        }
        moves |= self.state_runs.fill(device, now, bytemuck::cast_slice(loaded.run_plan.words()))?;
        Ok(moves)
    }

    /// Uploads what the sampler reads, and makes room for what it writes. Returns whether an address changed.
    fn fill_requests(
        &mut self,
        device: &Device,
        requests: &[SampleRequest],
        shape: StepShape,
        results: &ResultLayout,
    ) -> Result<bool> {
        let now = self.staging_slots.now();
        let (places, mut moves) = self.allowed.fill(device, now, requests)?;
        let mut block = Vec::new();
        sampling::pack(requests, &places, shape.logit_rows, self.outputs, &mut block);
        moves |= self.requests.fill(device, now, &block)?;
        moves |= self.fill_uniforms(device, requests.iter().map(SampleRequest::uniform), shape.logit_rows)?;
        moves |= self.reserve_draws(device, shape.logit_rows)?;
        moves |= self.staging_slots.reserve(device, results.bytes())?;
        Ok(moves)
    }

    /// Returns whether an address changed.
    fn fill_adapters(&mut self, device: &Device, rows: &[Option<AdapterSlot>], shape: StepShape) -> Result<bool> {
        if !shape.adapters {
            return Ok(false);
        }
        let word = |slot: &Option<AdapterSlot>| slot.map_or(NO_ADAPTER, |slot| u32::from(slot.number()));
        let words = words(rows.iter().map(word), shape.rows, NO_ADAPTER);
        self.adapters.fill(device, self.staging_slots.now(), &words)
    }

    fn fill_slots(&mut self, device: &Device, loaded: &LoadedBatch) -> Result<bool> {
        let slot_word = |&slot: &KvSlot| slot_word(slot, self.member.of);
        let of_group = |slots: &Vec<KvSlot>| words(slots.iter().map(slot_word), loaded.shape.rows, NO_SLOT);
        let slots: Vec<u8> = loaded.slots.iter().flat_map(of_group).collect();
        self.slots.fill(device, self.staging_slots.now(), &slots)
    }

    /// Reserves memory for the partial states of all plans, before their words are uploaded; if the device lacks it,
    /// long items are split less. An error if not even the states of unsplit items fit. Returns whether an address
    /// changed.
    fn fit_partials(&mut self, device: &Device, loaded: &mut LoadedBatch) -> Result<bool> {
        let bytes = self.partial_bytes(loaded);
        let refused = match reserve(device, &mut self.partials, bytes) {
            Err(error) if error.is_shortage() => error,
            made => return made,
        };
        for (number, UploadedPlan { plan, words }) in loaded.plans.iter_mut().enumerate() {
            let kernels = self.kernels(number);
            let most_slots = self.partials.bytes() / kernels.scratch_bytes(1);
            let tiling = Tiling { most_slots, ..*kernels.tiling() };
            words.rebuild(plan, kernels.heads(), loaded.shape.rows, &tiling);
        }
        if self.partial_bytes(loaded) > self.partials.bytes() {
            return Err(refused);
        }
        log::debug!("long items are divided less: {refused}");
        Ok(true)
    }

    /// Advances the loaded step: tokens, positions and slots are updated on the device; only uniforms and new pages
    /// come from the host, and later its requests where they are late.
    pub fn advance(&mut self, device: &Device, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        self.staging_slots.begin()?;
        let mut loaded = self.loaded.take().expect("a step is loaded before it is advanced");
        let small = |count: usize| u32::try_from(count).expect("a step has fewer than 2^32 rows");
        let rows = small(loaded.slots.first().map_or(0, Vec::len));
        let args = Args::new()
            .memory(self.tokens.memory())
            .memory(self.positions.memory())
            .memory(self.slots.memory())
            .u32(rows)
            .u32(small(loaded.slots.len()))
            .u32(small(loaded.shape.rows));
        device.launch(&self.advance, [rows.div_ceil(256), 1, 1], 256, 0, &args);
        if loaded.has_penalties {
            assert!(loaded.advanced < MOST_COUNTED, "a step with penalties is loaded again after {MOST_COUNTED} steps");
            let (padded, requests) = (loaded.shape.logit_rows, self.requests.memory());
            self.sampler.count(device, padded, requests, &self.sampler_scratch, &self.counted);
        }
        loaded.advanced += 1;
        if let Sampling::Late(results) = &mut loaded.sampling {
            *results = None;
        }
        advance_slots(&mut loaded.slots, new_pages);
        let of_rows = loaded.plans_of_rows();
        let (of_rows, of_copies) = loaded.plans.split_at_mut(of_rows);
        of_rows.iter_mut().for_each(|planned| planned.plan.advance(new_pages));
        of_copies.iter_mut().for_each(|planned| planned.plan.advance_rows());
        // Copies that are kept are made once.
        loaded.shape.copies[CopyStore::Kept as usize].expansions = 0;
        let moves = self.fill_advanced(device, uniforms, new_pages, &mut loaded);
        self.note_moves(moves)?;
        let moves = self.advance_runs(device, &mut loaded);
        self.note_moves(moves)?;
        let shape = loaded.shape;
        self.loaded = Some(loaded);
        Ok(shape)
    }

    /// Each run goes on from the state that it has written; after the first time they stay as they are. Returns whether
    /// an address changed.
    fn advance_runs(&mut self, device: &Device, loaded: &mut LoadedBatch) -> Result<bool> {
        if loaded.advanced > 1 || loaded.state_runs.is_empty() {
            return Ok(false);
        }
        StateRun::advance(&mut loaded.state_runs);
        loaded.run_plan = RunPlan::new(&loaded.state_runs, loaded.shape.rows);
        self.state_runs.fill(device, self.staging_slots.now(), bytemuck::cast_slice(loaded.run_plan.words()))
    }

    /// Returns whether an address changed. The words filled here take effect after the kernel that advances all rows.
    fn fill_advanced(
        &mut self,
        device: &Device,
        uniforms: &[f64],
        new_pages: &[NewPage],
        loaded: &mut LoadedBatch,
    ) -> Result<bool> {
        let mut moves = match loaded.sampling {
            Sampling::Late(_) | Sampling::Values(_) => false,
            Sampling::None | Sampling::Given(_) => {
                self.fill_uniforms(device, uniforms.iter().copied(), loaded.shape.logit_rows)?
            }
        };
        // Positions of rows rise beyond those of copies: the plans of these, and their words, stay as they are.
        let of_rows = loaded.plans_of_rows();
        let stays = |planned: &UploadedPlan| !planned.words.leaves_tiles(&planned.plan);
        if new_pages.is_empty() && loaded.plans[..of_rows].iter().all(stays) {
            return Ok(moves);
        }
        moves |= self.fill_slots(device, loaded)?;
        let now = self.staging_slots.now();
        let mut all_changed = Vec::with_capacity(loaded.plans.len());
        for (number, UploadedPlan { plan, words }) in loaded.plans.iter_mut().enumerate() {
            if number >= of_rows {
                all_changed.push(Some(0..0));
                continue;
            }
            let new_pages: Vec<NewPage> = of_group(new_pages, plan.group).copied().collect();
            let changed = if words.leaves_tiles(plan) { None } else { words.advance(&new_pages) };
            if changed.is_none() {
                let kernels = self.kernels(number);
                words.rebuild(plan, kernels.heads(), loaded.shape.rows, kernels.tiling());
            }
            all_changed.push(changed);
        }
        if all_changed.iter().any(Option::is_none) && self.fit_partials(device, loaded)? {
            // All words may have been rebuilt, with fewer tiles.
            (moves, all_changed) = (true, vec![None; loaded.plans.len()]);
        }
        for ((staged, UploadedPlan { words, .. }), changed) in self.plans.iter_mut().zip(&loaded.plans).zip(all_changed)
        {
            match changed {
                Some(changed) if changed.is_empty() => {}
                Some(changed) => staged.patch(device, now, words.words(), changed)?,
                None => moves |= staged.fill(device, now, bytemuck::cast_slice(words.words()))?,
            }
        }
        Ok(moves)
    }

    /// Reserves memory for the tokens that this step samples, keeping those of the last one, and for the sampler's
    /// scratch.
    fn reserve_draws(&mut self, device: &Device, padded: usize) -> Result<bool> {
        let bytes = padded.saturating_mul(4);
        let mut moves = bytes > self.sampled.bytes();
        if moves {
            let larger = device.alloc(bytes.checked_next_power_of_two().unwrap_or(bytes))?;
            device.copy(&larger, 0, &self.sampled, 0..self.sampled.bytes())?;
            self.sampled = larger;
        }
        moves |= reserve(device, &mut self.counted, SamplerKernels::counted_bytes(padded))?;
        Ok(moves | reserve(device, &mut self.sampler_scratch, SamplerKernels::scratch_bytes(padded, self.outputs))?)
    }

    fn fill_uniforms(&mut self, device: &Device, uniforms: impl Iterator<Item = f64>, padded: usize) -> Result<bool> {
        let mut uniforms: Vec<f64> = uniforms.collect();
        uniforms.resize(padded, 0.0);
        self.uniforms.fill(device, self.staging_slots.now(), bytemuck::cast_slice(&uniforms))
    }

    /// Tree attention by plan number `plan` over the pages of `layer`. `out`: `None` if the step is a member's, whose
    /// states `partial_states` gives. `lse`: f32 `[R, q_heads]`, the log-sum-exps. Rows are those of `qkv`.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    pub fn attend(
        &self,
        device: &Device,
        out: Option<&Buffer>,
        lse: Option<&Buffer>,
        qkv: &Buffer,
        (kv, layer): (&Kv, LayerIx),
        plan: usize,
        scoring: Scoring<'_, Vector>,
    ) {
        let (kernels, heads) = (self.kernels(plan), kv.heads(layer));
        assert_eq!(kernels.reads(), (heads, kv.kv_element(layer)), "pages and plans are of one kind");
        let fits = |out: &Buffer| (out.rows, out.width) == (qkv.rows, heads.out_width());
        let fits_lse = |lse: &Buffer| (lse.rows, lse.width, lse.element) == (qkv.rows, heads.q_heads, Dtype::F32);
        assert!(qkv.width >= heads.q_width() && out.is_none_or(fits), "tree_attention: shapes");
        assert!(lse.is_none_or(fits_lse), "tree_attention: shape of the log-sum-exps");
        assert_eq!(out.is_none(), self.member.of > 1, "tree_attention: members merge their results");
        let Scoring { scale, softcap, sinks } = scoring;
        assert!(sinks.is_none_or(|sinks| sinks.len == heads.q_heads), "tree_attention: a sink for each head");
        let scoring = Scoring { scale, softcap, sinks: sinks.map(|sinks| &sinks.memory) };
        let operands = AttentionOperands {
            out: out.map(Buffer::memory),
            lse: lse.map(Buffer::memory),
            qkv: qkv.memory(),
            qkv_width: qkv.width,
            kv: (kv.memory(), kv.layer_at(layer)),
            plan: (self.plans[plan].memory(), 0),
            positions: (self.positions.memory(), 0),
            partials: &self.partials,
        };
        kernels.tree_attention(device, &operands, scoring, qkv.rows);
    }

    /// What `attend` leaves of a member by plan number `plan`: the plan's words, and the partial states.
    pub fn partial_states(&self, plan: usize) -> (&Memory, &Memory) {
        (self.plans[plan].memory(), &self.partials)
    }

    /// The kind of the partial states of plan number `plan`, for a merge of `ranks` ranks.
    pub fn states_of(&self, plan: usize, ranks: usize) -> MemberStates {
        self.kernels(plan).states_of(ranks, self.member.of as usize)
    }

    /// All kinds.
    pub fn member_states(&self, ranks: usize) -> impl Iterator<Item = MemberStates> {
        (0..self.kernels_of.len()).map(move |plan| self.states_of(plan, ranks))
    }

    /// How many expansions the loaded step has for a store, padded.
    pub fn expansions(&self, store: CopyStore) -> usize {
        let loaded = self.loaded.as_ref().expect("a step is loaded before it is run");
        loaded.shape.copies[store as usize].expansions
    }

    /// Their words, from expansion `first` on.
    pub fn expansion_words(&self, store: CopyStore, first: usize) -> (&Memory, usize) {
        (self.expansions[store as usize].memory(), first * size_of::<[u32; EXPANSION_WORDS]>())
    }

    /// The runs of the loaded step.
    pub fn state_runs(&self) -> LoadedRuns<'_> {
        let loaded = self.loaded.as_ref().expect("a step is loaded before it is run");
        LoadedRuns { plan: &loaded.run_plan, words: self.state_runs.memory() }
    }

    /// Whether the step's launches depend on its shape alone.
    pub fn repeats(&self) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.run_plan.repeats())
    }

    pub fn is_advanced(&self) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.advanced > 0)
    }

    /// The adapters of such rows.
    pub fn adapter_words(&self, rows: StepRows) -> AdapterWords<'_> {
        let logit_rows = (rows == StepRows::Logits).then(|| self.logit_rows.memory());
        AdapterWords { adapters: self.adapters.memory(), logit_rows }
    }

    /// Samples for all requests from `logits` `[logit_rows, vocab]`.
    pub fn sample(&self, device: &Device, logits: &Buffer) {
        let buffers = SampleBuffers {
            logits: logits.memory(),
            requests: (self.requests.memory(), 0),
            allowed: self.allowed.memory(),
            uniforms: (self.uniforms.memory(), 0),
            scratch: &self.sampler_scratch,
            results: (self.staging_slots.results(), 0),
            sampled: &self.sampled,
            counted: &self.counted,
        };
        self.sampler.sample(device, logits.rows, &buffers);
    }

    /// Keeps `values` `[logit_rows, outputs]`, f32, where the results of the step are copied from.
    pub fn keep_values(&self, device: &Device, values: &Buffer) -> Result<()> {
        assert_eq!((values.width, values.element), (self.outputs, Dtype::F32), "keep_values: shapes");
        device.copy(self.staging_slots.results(), 0, values.memory(), 0..values.rows * values.row_bytes())
    }

    /// Called when the run of a step is enqueued, which ends it unless its requests are late.
    pub fn end_run(&mut self, device: &Device) -> Result<()> {
        let loaded = self.loaded.as_ref().expect("a step is loaded before it is run");
        match loaded.sampling {
            Sampling::Late(_) => Ok(()),
            Sampling::None | Sampling::Given(_) | Sampling::Values(_) => self.finish(device),
        }
    }

    /// Called when the step is enqueued, its samples included: enqueues the copy of its results.
    pub fn finish(&mut self, device: &Device) -> Result<()> {
        let loaded = self.loaded.as_ref().expect("a step is loaded before it is run");
        self.staging_slots.finish(device, loaded.sampling.results())
    }

    /// Waits for the oldest step under way. Panics where there is none.
    pub fn collect(&mut self) -> Result<StepResults> {
        self.staging_slots.collect()
    }

    /// The slots of the loaded step's rows in `group`.
    pub fn slots(&self, group: GroupIx) -> SlotWords<'_> {
        let rows = self.loaded.as_ref().map_or(0, |loaded| loaded.shape.rows);
        SlotWords { words: (self.slots.memory(), group.ix() * rows * size_of::<u32>()), member: self.member }
    }
}

/// The bucket of a shape.
pub fn padded(shape: StepShape) -> StepShape {
    let copies = shape.copies.map(|copies| CopiesShape { expansions: bucket(copies.expansions), ..copies });
    StepShape { rows: bucket(shape.rows), logit_rows: bucket(shape.logit_rows), copies, ..shape }
}

/// Words of an expansion: both pages, and the first slot and that behind the last.
const EXPANSION_WORDS: usize = 4;

/// The words of `expansions`, padded to `count` by some of no slots.
fn expansion_words(expansions: &[Expansion], count: usize) -> Vec<u8> {
    let of = |Expansion { from, to, slots }: &Expansion| [from.0, to.0, slots.start, slots.end];
    let mut words: Vec<[u32; EXPANSION_WORDS]> = expansions.iter().map(of).collect();
    words.resize(count.max(words.len()), [0; EXPANSION_WORDS]);
    bytemuck::cast_slice(&words).to_vec()
}

/// `rows` rounded up by less than a sixteenth, or to a multiple of 8: at most 16 buckets an octave.
pub fn bucket(rows: usize) -> usize {
    let step = (rows.next_power_of_two() / 32).max(8);
    rows.next_multiple_of(step)
}

/// `values`, padded with `padding` to `count`, as the device reads them.
fn words(values: impl Iterator<Item = u32>, count: usize, padding: u32) -> Vec<u8> {
    let mut words: Vec<u32> = values.collect();
    words.resize(count.max(words.len()), padding);
    bytemuck::cast_slice(&words).to_vec()
}

/// Grows `memory` to `bytes`, and a quarter more if possible, as each growth invalidates all graphs; contents are lost.
/// Returns whether its address changed. On an error `memory` has its old size, at another address, or is empty.
fn reserve(device: &Device, memory: &mut Memory, bytes: usize) -> Result<bool> {
    let before = memory.bytes();
    if bytes <= before {
        return Ok(false);
    }
    // Freed first: there may be no room for both.
    *memory = device.alloc(0)?;
    match device.alloc(bytes.saturating_add(bytes / 4)).or_else(|_| device.alloc(bytes)) {
        Ok(larger) => *memory = larger,
        Err(refused) => {
            if let Ok(old) = device.alloc(before) {
                *memory = old;
            }
            return Err(refused);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_few_and_close() {
        let mut last = 0;
        for rows in 0..5000 {
            let bucket = bucket(rows);
            assert!(bucket >= rows && bucket >= last, "{rows} rows in a bucket of {bucket}");
            assert!(bucket - rows < 8 || (bucket - rows) * 16 < rows, "{rows} rows in a bucket of {bucket}");
            last = bucket;
        }
        let octave: std::collections::BTreeSet<usize> = (1025..=2048).map(bucket).collect();
        assert_eq!(octave.len(), 16);
    }
}
