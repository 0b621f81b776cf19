//! The ops of the simulated device: each counts the memory that it takes and adds its estimated time to the step's.

use std::ops::Range;

use super::operands::{SimBuffer, SimExperts, SimLora, SimLoraTerm, SimMaps, SimMatrix, SimRoutes};
use super::profile::{self, BackendKind};
use super::{Sim, SimStep};

use offshoot_backend::{
    ActivationDtype, AdapterSlot, Backend, CopyStore, Dtype, Elements, ExpertInput, ExpertKind, Gate, GatedNorm,
    HeadKind, HeadLayout, HeadNormForm, HeldPart, KvDtype, KvShape, LatentHeads, LatentSteps, LayerState, LoraShape,
    LoraWeights, MOST_ADAPTERS, MatrixPart, OutputMode, RopeTable, Router, SampleRequest, SampledToken, SavedPages,
    ScanRule, Scoring, Segment, Share, Split, StackShape, StateRule, StepBatch, StepRows, StepShape, SwapRates,
    WeightFormat, WeightView, with_dense,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_cuda::compile::elements::{HeadWidths, KvElement};
use offshoot_cuda::delta_rule::chunked;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{CostModel, NewPage};

impl Backend for Sim {
    type Buffer = SimBuffer;
    type Matrix = SimMatrix;
    type Vector = ();
    type Experts = SimExperts;
    type Routes = SimRoutes;
    type Kv = KvShape;
    type LatentMaps = SimMaps;
    type Rope = ();
    type Step = SimStep;
    type Lora = SimLora;
    type LoraTerm = SimLoraTerm;

    const IS_ASYNC: bool = true;
    const MIXES_DTYPES: bool = true;
    const REPLACES_IN_PLACE: bool = true;

    fn describe(&self) -> String {
        format!("{}, simulated", self.profile.name)
    }

    fn arithmetic(&self) -> String {
        self.describe()
    }

    fn page_layout(&self) -> String {
        self.describe()
    }

    fn page_tokens(&self) -> u32 {
        self.of_members(self.profile.backend.page_tokens())
    }

    fn cost_model(&self) -> CostModel {
        self.profile.cost_model()
    }

    fn tile(&self) -> u32 {
        match self.profile.backend.tile() {
            1 => 1,
            tile => self.of_members(tile),
        }
    }

    /// Changes memory alone: the profile describes the device's default kernels.
    fn set_batch_invariant(&mut self) {
        self.deterministic = true;
    }

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.kv = kv;
    }

    fn swap_rates(&self) -> SwapRates {
        SwapRates { host_bytes: self.profile.host_link_bytes_per_s, flops: self.profile.linear.flops_per_s }
    }

    fn free_bytes(&self) -> Result<usize> {
        Ok(self.profile.memory().saturating_sub(self.used))
    }

    /// It only counts bytes.
    fn multiplies(&self, _: WeightFormat) -> bool {
        true
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<SimMatrix> {
        let mut shape = StackShape::of(parts);
        if parts.iter().any(|part| !self.profile.multiplies(part.format())) {
            // The device makes them dense, of 16 bits.
            shape.bytes = shape.rows * shape.cols * Dtype::Bf16.bytes();
        }
        let speed = if parts.iter().all(|part| self.profile.scales(part.format())) { 2.0 } else { 1.0 };
        let matrix = SimMatrix { shape, speed, split: [false; 2] };
        self.allocate(matrix.bytes())?;
        Ok(matrix)
    }

    fn split_matrix(&mut self, parts: &[HeldPart<'_>], split: &Split) -> Result<SimMatrix> {
        let devices = self.profile.devices;
        let is_divided = |segments: &[Segment]| segments.iter().all(|segment| segment.share(0, devices, 1).is_some());
        let split = match split {
            Split::Whole => [false; 2],
            Split::Inputs => [true, false],
            Split::Outputs(segments) => [false, is_divided(segments)],
        };
        Ok(SimMatrix { split, ..with_dense(parts, |parts| self.matrix(parts))? })
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<()> {
        self.allocate(parts.iter().map(|part| part.rows * part.cols * size_of::<f32>()).sum())
    }

    fn latent_maps(
        &mut self,
        _: &[HeldPart<'_>],
        heads: LatentHeads,
        dtype: Dtype,
        _: &Split,
        old: Option<&SimMaps>,
    ) -> Result<SimMaps> {
        let maps = SimMaps { heads, bytes: heads.map_rows() * heads.rank * dtype.bytes() };
        if old.is_none() {
            self.allocate(self.latent_map_copies() * maps.bytes)?;
        }
        Ok(maps)
    }

    fn experts(&mut self, matrices: Vec<SimMatrix>, _: Vec<()>, _: ExpertKind) -> Result<SimExperts> {
        Ok(SimExperts(matrices))
    }

    /// Its memory is that of `old`.
    fn replace_matrix(&mut self, old: &SimMatrix, _: &[HeldPart<'_>], _: &Split) -> Result<SimMatrix> {
        Ok(*old)
    }

    fn replace_vector(&mut self, (): &(), _: &[WeightView<'_>], _: &Split) -> Result<()> {
        Ok(())
    }

    /// The new matrix, which was counted, takes the place of the old one.
    fn replace_expert(&mut self, _: &SimExperts, _: usize, matrix: SimMatrix) -> Result<()> {
        self.used -= matrix.bytes();
        Ok(())
    }

    fn replace_expert_bias(&mut self, _: &SimExperts, _: usize, (): ()) -> Result<()> {
        Ok(())
    }

    /// It has no elements.
    fn read_matrix(&mut self, matrix: &SimMatrix, _: &Split) -> Result<Option<Elements>> {
        let StackShape { rows, cols, dense, .. } = matrix.shape;
        Ok(dense.map(|dtype| Elements::zeros(dtype, rows, cols)))
    }

    /// Vectors are not kept, and their lengths neither.
    fn read_vector(&mut self, (): &(), _: &Split) -> Result<Elements> {
        Err(Error::value("an update of weights", "all vectors of a layer, on a simulated device", "some alone"))
    }

    fn read_expert(
        &mut self,
        experts: &SimExperts,
        expert: usize,
        split: &Split,
    ) -> Result<Option<(Elements, Vec<f32>)>> {
        Ok(self.read_matrix(&experts.0[expert], split)?.map(|elements| (elements, Vec::new())))
    }

    fn routes(&mut self, _: usize, router: Router) -> Result<SimRoutes> {
        Ok(SimRoutes { router, rows: 0 })
    }

    fn resize_routes(&mut self, routes: &mut SimRoutes, rows: usize) -> Result<()> {
        routes.rows = rows;
        Ok(())
    }

    fn rope_table(&mut self, _: &RopeTable) -> Result<()> {
        Ok(())
    }

    fn lora(&mut self, shape: &LoraShape, _: &Split) -> Result<SimLora> {
        Ok(SimLora { shape: shape.clone(), slots: vec![None; MOST_ADAPTERS] })
    }

    fn lora_term(&mut self, lora: &SimLora, parts: &[Option<LoraWeights<'_>>]) -> Result<SimLoraTerm> {
        let LoraShape { dtype, inputs, parts: count, .. } = lora.shape;
        let rank = lora.shape.rank(parts);
        let bytes = rank * (count * inputs + lora.shape.outputs()) * dtype.bytes();
        self.allocate(bytes)?;
        Ok(SimLoraTerm { rank, bytes })
    }

    fn set_lora(&mut self, lora: &mut SimLora, slot: AdapterSlot, term: Option<SimLoraTerm>) {
        if let Some(before) = std::mem::replace(&mut lora.slots[slot.ix()], term) {
            self.used -= before.bytes;
        }
    }

    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<SimBuffer> {
        let element_bytes = holds.narrowest().bytes();
        Ok(SimBuffer { rows: 0, width, element_bytes, most_rows: 0, share: Share::Whole })
    }

    fn shared_buffer(&mut self, width: usize, holds: ActivationDtype, share: Share) -> Result<SimBuffer> {
        Ok(SimBuffer { share, ..self.buffer(width, holds)? })
    }

    fn resize(&mut self, buffer: &mut SimBuffer, rows: usize) -> Result<()> {
        self.allocate(rows.saturating_sub(buffer.most_rows) * buffer.row_bytes())?;
        buffer.most_rows = buffer.most_rows.max(rows);
        buffer.rows = rows;
        Ok(())
    }

    fn write(&mut self, _: &mut SimBuffer, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn read(&mut self, buffer: &SimBuffer, rows: usize) -> Result<Vec<f32>> {
        Ok(vec![0.0; rows * buffer.width])
    }

    /// All devices store fp8 latents as fp8, Hopper other heads too.
    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        let is_hopper = self.profile.is_hopper();
        let is_read = heads.values_in_keys()
            || is_hopper && KvElement::is_fp8_read(profile::HOPPER, dtype, HeadWidths::of(heads));
        if heads.kv_dtype(self.kv) == KvDtype::Fp8 && is_read { 1 } else { dtype.bytes() }
    }

    fn latent_map_copies(&self) -> usize {
        self.profile.backend.latent_map_copies()
    }

    fn kv_copies(&self, heads: HeadLayout) -> usize {
        heads.copies(self.profile.devices) / self.profile.sharing
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        let token = |&heads: &HeadLayout| self.token_bytes(heads, shape.dtype);
        let routes = shape.routes.map_or(0, |routes| routes.page_bytes(self.page_tokens()));
        shape.parts().iter().map(token).sum::<usize>() * self.page_tokens() as usize + routes
    }

    fn state_scratch_bytes(&self, layer: LayerState, dtype: Dtype, rows: usize) -> usize {
        match self.profile.backend {
            BackendKind::Cuda if self.deterministic => 0,
            BackendKind::Cpu => 0,
            BackendKind::Cuda => chunked::most_bytes(dtype, layer, rows),
        }
    }

    fn reserve_state_scratch(&mut self, layers: &[LayerState], dtype: Dtype, rows: usize) -> Result<()> {
        let bytes = layers.iter().map(|&layer| self.state_scratch_bytes(layer, dtype, rows)).max().unwrap_or(0);
        self.allocate(bytes.saturating_sub(self.state_scratch))?;
        self.state_scratch = self.state_scratch.max(bytes);
        Ok(())
    }

    fn kv(&mut self, shape: &KvShape) -> Result<KvShape> {
        self.allocate(shape.pages * self.page_bytes(shape) + shape.states.slots * shape.states.state_bytes())?;
        Ok(shape.clone())
    }

    fn save_pages(&mut self, kv: &KvShape, pages: &[PageId]) -> Result<SavedPages> {
        let bytes = pages.len() * self.page_bytes(kv);
        self.transfer(bytes);
        Ok(SavedPages::Simulated { bytes })
    }

    fn restore_pages(&mut self, _: &mut KvShape, saved: &SavedPages, _: &[PageId]) -> Result<()> {
        self.transfer(saved.bytes());
        Ok(())
    }

    /// The first experts of each layer, in their order.
    fn read_routes(&mut self, kv: &KvShape, slots: &[KvSlot]) -> Result<Vec<u16>> {
        let Some(routes) = kv.routes else { return Ok(Vec::new()) };
        self.transfer(slots.len() * routes.slot_bytes());
        let layer = 0..u16::try_from(routes.chosen).expect("a row chooses few experts");
        Ok((0..slots.len() * routes.layers).flat_map(|_| layer.clone()).collect())
    }

    fn save_state(&mut self, kv: &KvShape, _: StateId) -> Result<Vec<u8>> {
        let bytes = kv.states.state_bytes();
        self.transfer(bytes);
        Ok(vec![0; bytes])
    }

    fn restore_state(&mut self, _: &mut KvShape, saved: &[u8], _: StateId) -> Result<()> {
        self.transfer(saved.len());
        Ok(())
    }

    fn join_saved(_: &KvShape, _: &mut SavedPages, _: usize, _: &SavedPages, _: usize, _: Range<u32>) {}

    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, outputs: usize) -> Result<SimStep> {
        // fp8 latents are widened before they are multiplied, and so take as long as those of twice the bytes.
        let read_bytes = |heads: HeadLayout| match heads.values_in_keys() {
            true => dtype.bytes(),
            false => self.kv_element_bytes(heads, dtype),
        };
        let heads = heads.iter().map(|&heads| (heads, self.kv_copies(heads) * read_bytes(heads)));
        Ok(SimStep::new(heads.collect(), outputs))
    }

    fn load(&mut self, step: &mut SimStep, batch: StepBatch) -> Result<StepShape> {
        Ok(step.load(batch, &self.profile))
    }

    fn advance(&mut self, step: &mut SimStep, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        Ok(step.advance(uniforms, new_pages, &self.profile))
    }

    fn run(
        &mut self,
        step: &mut SimStep,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut SimStep) -> Result<()>,
    ) -> Result<()> {
        self.spent = self.profile.step_ns;
        ops(self, step)?;
        let host = self.profile.host_step_ns + self.profile.host_row_ns * shape.rows as f64;
        let time = self.clock.submit(host, self.spent);
        if !step.is_late() {
            step.finish(time);
        }
        Ok(())
    }

    fn load_requests(&mut self, step: &mut SimStep, requests: Vec<SampleRequest>) -> Result<()> {
        step.load_requests(requests);
        Ok(())
    }

    /// The host's time for late requests is not modelled.
    fn sample_late(&mut self, logits: &SimBuffer, step: &mut SimStep) -> Result<()> {
        self.spent = 0.0;
        self.sample(logits, step);
        step.finish(self.clock.go_on(self.spent));
        Ok(())
    }

    fn collect(&mut self, step: &mut SimStep) -> Result<Vec<Option<SampledToken>>> {
        let (time, results) = step.collect();
        self.clock.wait_until(time.end);
        Ok(results.samples())
    }

    fn keep_values(&mut self, values: &SimBuffer, _: &mut SimStep) -> Result<()> {
        self.small_op(2 * values.bytes());
        Ok(())
    }

    fn collect_values(&mut self, step: &mut SimStep) -> Result<Vec<f32>> {
        let (time, results) = step.collect();
        self.clock.wait_until(time.end);
        Ok(results.values())
    }

    fn embed(&mut self, out: &mut SimBuffer, table: &SimMatrix, _: &SimStep) {
        self.small_op(out.bytes() + out.rows * table.row_bytes());
    }

    fn rms_norm(&mut self, out: &mut SimBuffer, x: &SimBuffer, (): &(), _: f32, _: Option<&SimMatrix>) {
        self.small_op(x.bytes_of_sums() + out.bytes());
    }

    fn layer_norm(&mut self, out: &mut SimBuffer, x: &SimBuffer, (): &(), (): &(), _: f32) {
        self.small_op(x.bytes_of_sums() + out.bytes());
    }

    fn rms_norm_add(&mut self, out: &mut SimBuffer, x: &SimBuffer, (): &(), _: f32) {
        self.small_op(x.bytes_of_sums() + 2 * out.bytes_of_sums());
    }

    fn round(&mut self, out: &mut SimBuffer, x: &SimBuffer) {
        self.small_op(x.bytes() + out.bytes());
    }

    fn add(&mut self, out: &mut SimBuffer, x: &SimBuffer) {
        self.small_op(x.bytes_of_sums() + 2 * out.bytes_of_sums());
    }

    fn scale(&mut self, x: &mut SimBuffer, _: f32) {
        self.small_op(2 * x.bytes_of_sums());
    }

    fn softcap(&mut self, x: &mut SimBuffer, _: f32) {
        self.small_op(2 * x.bytes_of_sums());
    }

    fn linear(&mut self, out: &mut SimBuffer, x: &SimBuffer, w: &SimMatrix, _: Option<&()>, _: OutputMode) {
        self.product(out, x, w);
    }

    /// The time of two launches, which read each adapter once, and the rows' sums in between.
    fn add_lora(&mut self, out: &mut SimBuffer, x: &SimBuffer, lora: &SimLora, _: StepRows, step: &SimStep) {
        let terms = step.adapters().filter_map(|slot| lora.slots[slot.ix()]);
        let (bytes, rank) = terms.fold((0, 0), |(bytes, rank), term| (bytes + term.bytes, rank.max(term.rank)));
        let sums = x.rows * lora.shape.parts * rank * Dtype::F32.bytes();
        self.small_op(x.bytes() + bytes / 2 + sums);
        self.small_op(2 * out.bytes() + bytes / 2 + sums);
    }

    fn head_norm(&mut self, qkv: &mut SimBuffer, heads: HeadLayout, kind: HeadKind, _: HeadNormForm, (): &(), _: f32) {
        let (_, normed) = kind.place(heads);
        self.small_op(2 * qkv.rows * normed * heads.head_dim * qkv.element_bytes);
    }

    fn rope(&mut self, qkv: &mut SimBuffer, heads: HeadLayout, (): &(), _: &SimStep) {
        self.small_op(2 * qkv.rows * (heads.q_heads + heads.kv_heads) * heads.head_dim * qkv.element_bytes);
    }

    fn kv_append(&mut self, kv: &mut KvShape, layer: LayerIx, qkv: &SimBuffer, _: &SimStep) {
        let heads = kv.heads[layer.ix()];
        let read = heads.stored_width() * qkv.element_bytes;
        self.small_op(qkv.rows * (read + self.token_bytes(heads, kv.dtype)));
    }

    fn tree_attention(
        &mut self,
        out: &mut SimBuffer,
        _: &SimBuffer,
        _: &KvShape,
        _: LayerIx,
        step: &mut SimStep,
        plan: usize,
        _: Scoring<'_, ()>,
    ) {
        let partial = out.rows * out.width * Dtype::F32.bytes();
        self.spent += step.attention_ns(plan) + self.profile.merge_members_ns(partial);
    }

    fn tree_attention_lse(
        &mut self,
        out: &mut SimBuffer,
        _: &mut SimBuffer,
        queries: &SimBuffer,
        kv: &KvShape,
        layer: LayerIx,
        step: &mut SimStep,
        plan: usize,
        scoring: Scoring<'_, ()>,
    ) {
        self.tree_attention(out, queries, kv, layer, step, plan, scoring);
    }

    fn merge_attended(&mut self, out: &mut SimBuffer, lse: &mut SimBuffer, other: &SimBuffer, other_lse: &SimBuffer) {
        self.small_op(2 * (out.bytes() + lse.bytes()) + other.bytes() + other_lse.bytes());
    }

    fn prepare_latents(
        &mut self,
        queries: &mut SimBuffer,
        latents: Option<&mut SimBuffer>,
        absorbed: Option<&mut SimBuffer>,
        steps: &LatentSteps<'_, (), ()>,
        kv: &mut KvShape,
        _: &SimStep,
    ) {
        let stored = queries.rows * self.token_bytes(kv.heads[steps.layer.ix()], kv.dtype);
        let latents = latents.map_or(0, |latents| latents.bytes());
        let LatentHeads { rank, rope, .. } = steps.heads;
        let tails = absorbed.map_or(0, |absorbed| absorbed.bytes() / (rank + rope) * rope);
        self.small_op(2 * queries.bytes() + latents + stored + tails);
    }

    fn absorb_queries(&mut self, out: &mut SimBuffer, _: &SimBuffer, maps: &SimMaps) {
        let LatentHeads { heads, rank, nope, .. } = maps.heads;
        self.map_rows(maps, nope, heads * rank, nope, out.rows);
    }

    fn map_values(&mut self, out: &mut SimBuffer, _: &SimBuffer, maps: &SimMaps) {
        let LatentHeads { heads, rank, value, .. } = maps.heads;
        self.map_rows(maps, value, heads * value, rank, out.rows);
    }

    /// A product with all maps, and the copies that are written.
    fn expand_latents(
        &mut self,
        copies: &mut KvShape,
        copy_layer: LayerIx,
        _: &KvShape,
        _: LayerIx,
        maps: &SimMaps,
        store: CopyStore,
        step: &SimStep,
    ) {
        let tokens = step.expanded_tokens(store);
        let LatentHeads { rank, nope, value, .. } = maps.heads;
        self.map_rows(maps, nope + value, maps.heads.map_rows(), rank, tokens);
        self.small_op(tokens * self.token_bytes(copies.heads[copy_layer.ix()], copies.dtype));
    }

    fn gated(&mut self, out: &mut SimBuffer, x: &SimBuffer, _: Gate, _: Option<&SimMatrix>) {
        self.small_op(x.bytes() + out.bytes());
    }

    fn gelu_times(&mut self, x: &mut SimBuffer, _: &SimBuffer, _: usize) {
        self.small_op(3 * x.bytes());
    }

    fn relu(&mut self, x: &mut SimBuffer) {
        self.small_op(2 * x.bytes());
    }

    fn relu_squared(&mut self, x: &mut SimBuffer) {
        self.small_op(2 * x.bytes());
    }

    fn gelu_erf(&mut self, x: &mut SimBuffer) {
        self.small_op(2 * x.bytes());
    }

    fn xielu(&mut self, x: &mut SimBuffer, (): &()) {
        self.small_op(2 * x.bytes());
    }

    fn clamp(&mut self, x: &mut SimBuffer, _: f32) {
        self.small_op(2 * x.bytes());
    }

    fn scale_columns(&mut self, x: &mut SimBuffer, (): &()) {
        self.small_op(2 * x.bytes());
    }

    fn add_positions(&mut self, out: &mut SimBuffer, _: &SimMatrix, _: &SimStep) {
        self.small_op(3 * out.bytes());
    }

    fn weigh_places(&mut self, out: &mut SimBuffer, x: &SimBuffer, _: &SimRoutes) {
        self.small_op(x.bytes() + out.bytes());
    }

    fn gelu(&mut self, x: &mut SimBuffer) {
        self.small_op(2 * x.bytes());
    }

    fn sigmoid_times(&mut self, x: &mut SimBuffer, y: &SimBuffer) {
        self.small_op(2 * x.bytes() + y.bytes());
    }

    fn causal_conv(
        &mut self,
        out: &mut SimBuffer,
        x: &SimBuffer,
        (): &(),
        _: Option<&()>,
        _: &mut KvShape,
        _: LayerIx,
        _: &SimStep,
    ) {
        self.small_op(x.bytes() + out.bytes());
    }

    /// The time of reading and writing the state of each run once, and of the rows.
    fn state_update(
        &mut self,
        out: &mut SimBuffer,
        qkv: &SimBuffer,
        gates: &SimBuffer,
        _: StateRule<'_, ()>,
        kv: &mut KvShape,
        layer: LayerIx,
        step: &SimStep,
    ) {
        self.small_op(qkv.bytes() + gates.bytes() + out.bytes() + state_traffic(kv, layer, step));
    }

    fn channel_update(
        &mut self,
        out: &mut SimBuffer,
        qkv: &SimBuffer,
        beta: &SimBuffer,
        decay: &SimBuffer,
        (): &(),
        (): &(),
        kv: &mut KvShape,
        layer: LayerIx,
        step: &SimStep,
    ) {
        let rows = qkv.bytes() + beta.bytes() + decay.bytes() + out.bytes();
        self.small_op(rows + state_traffic(kv, layer, step));
    }

    fn selective_scan(
        &mut self,
        out: &mut SimBuffer,
        x: &SimBuffer,
        steps: &SimBuffer,
        b: &SimBuffer,
        c: &SimBuffer,
        _: ScanRule<'_, ()>,
        kv: &mut KvShape,
        layer: LayerIx,
        step: &SimStep,
    ) {
        let rows = x.bytes() + steps.bytes() + b.bytes() + c.bytes() + out.bytes();
        self.small_op(rows + state_traffic(kv, layer, step));
    }

    fn gated_conv(
        &mut self,
        out: &mut SimBuffer,
        bcx: &SimBuffer,
        (): &(),
        _: Option<&()>,
        kv: &mut KvShape,
        layer: LayerIx,
        step: &SimStep,
    ) {
        self.small_op(bcx.bytes() + out.bytes() + state_traffic(kv, layer, step));
    }

    fn gated_norm(&mut self, x: &mut SimBuffer, gate: &SimBuffer, _: Option<&()>, _: GatedNorm) {
        self.small_op(2 * x.bytes() + gate.bytes());
    }

    fn route(&mut self, _: &mut SimRoutes, scores: &SimBuffer, _: Option<&()>, _: Option<&()>) {
        self.small_op(scores.bytes());
    }

    fn keep_routes(&mut self, _: &mut KvShape, _: LayerIx, routes: &SimRoutes, _: &SimStep) {
        self.small_op(routes.rows * routes.router.chosen * size_of::<u16>());
    }

    /// One product with the experts that are chosen, if rows choose as evenly as they can.
    fn expert_linear(
        &mut self,
        out: &mut SimBuffer,
        _: &SimBuffer,
        experts: &SimExperts,
        routes: &SimRoutes,
        _: ExpertInput,
    ) {
        let Some(one) = experts.0.first() else { return };
        let chosen = routes.router.experts_chosen(experts.0.len(), routes.rows).round() as usize;
        let rows_each = out.rows.div_ceil(chosen.max(1));
        let (bytes, outputs) = (chosen * one.bytes(), chosen * one.shape.rows);
        self.spent += self.profile.linear.ns(bytes, outputs, one.shape.cols, rows_each, one.speed);
    }

    fn expert_gated(
        &mut self,
        out: &mut SimBuffer,
        inner: &mut SimBuffer,
        x: &SimBuffer,
        experts: &SimExperts,
        routes: &SimRoutes,
        gate: Gate,
    ) {
        self.expert_linear(inner, x, experts, routes, ExpertInput::Rows);
        self.gated(out, inner, gate, None);
    }

    fn combine(&mut self, out: &mut SimBuffer, x: &SimBuffer, _: Option<&SimBuffer>, _: &SimRoutes, mode: OutputMode) {
        let times = if mode == OutputMode::Add { 2 } else { 1 };
        self.sum_of_experts(out, x, x.bytes() + times * out.bytes());
    }

    fn select_rows(&mut self, out: &mut SimBuffer, _: &SimBuffer, _: &SimStep) {
        self.small_op(2 * out.bytes());
    }

    fn sample(&mut self, logits: &SimBuffer, step: &mut SimStep) {
        self.spent += self.profile.sample.ns(logits.bytes());
        step.note_sampled();
    }
}

/// Bytes of reading and writing the state of each run once.
fn state_traffic(kv: &KvShape, layer: LayerIx, step: &SimStep) -> usize {
    2 * step.state_runs() * kv.states.layers[layer.ix()].state_bytes(kv.states.dtype)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use offshoot_backend::DeltaHeads;

    use super::super::DeviceProfile;
    use super::*;

    #[test]
    fn sums_and_shares_take_the_time_of_the_link() {
        let one = DeviceProfile::named("h200").expect("it is built in");
        let link = one.link.expect("measured");
        let two = Sim::new(Arc::new(one.clone().together(2, 0, 1)));
        let spent = |mut sim: Sim, split: &Split, share: Share| {
            let operands = ActivationDtype::Operands(Dtype::Bf16);
            let matrix = vec![0; 2 * 64 * 64];
            let part = MatrixPart::Dense(WeightView { dtype: Dtype::Bf16, rows: 64, cols: 64, bytes: &matrix });
            let w = sim.split_matrix(&[HeldPart { part, becomes: None }], split).unwrap();
            let mut out = sim.shared_buffer(64, ActivationDtype::Sums, share).unwrap();
            let mut x = sim.shared_buffer(64, operands, Share::Columns).unwrap();
            sim.resize(&mut out, 8).unwrap();
            sim.resize(&mut x, 8).unwrap();
            sim.linear(&mut out, &x, &w, None, OutputMode::Replace);
            sim.spent
        };
        let summed = Share::Summed { parts: ActivationDtype::Sums, inputs: Dtype::Bf16 };
        let alone = spent(Sim::new(two.profile.clone()), &Split::Whole, Share::Whole);
        let sum = spent(Sim::new(two.profile.clone()), &Split::Inputs, summed) - alone;
        let gathered = spent(two, &Split::outputs([64]), Share::Gathered) - alone;
        let expected = |bytes: f64| link.call_ns + bytes / link.bytes_per_s * 1e9;
        // Sums in bf16, one half of each buffer twice; half of the shares in f32.
        assert!(
            (sum - expected(8.0 * 64.0 * 2.0)).abs() < 1e-6 && (gathered - expected(8.0 * 32.0 * 4.0)).abs() < 1e-6
        );
        let single = |split: &Split, share: Share| spent(Sim::new(Arc::new(one.clone())), split, share);
        assert_eq!(single(&Split::Inputs, summed), single(&Split::Whole, Share::Whole));
    }

    #[test]
    fn products_of_chunks_take_memory_once_for_all_layers() {
        let heads = DeltaHeads { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128 };
        let layer = LayerState::delta(heads, 4);
        let taken = |name: &str, dtype: Dtype, deterministic: bool| {
            let mut sim = Sim::new(Arc::new(DeviceProfile::named(name).expect("it is built in")));
            if deterministic {
                sim.set_batch_invariant();
            }
            let free = sim.free_bytes().unwrap();
            sim.reserve_state_scratch(&[layer; 3], dtype, 1024).unwrap();
            sim.reserve_state_scratch(&[layer; 3], dtype, 2048).unwrap();
            free - sim.free_bytes().unwrap()
        };
        // 64 chunks of 32 heads: W, U and A in 16 bits, and 212 floats.
        assert_eq!(taken("h200", Dtype::Bf16, false), 64 * 32 * (2 * 64 * (128 + 128 + 64) + 4 * 212));
        assert_eq!([taken("h200", Dtype::F32, false), taken("cpu", Dtype::Bf16, false)], [0, 0]);
        // Deterministic steps compute token by token.
        assert_eq!(taken("h200", Dtype::Bf16, true), 0);
    }
}
