//! The CPU as a backend: which module computes each op.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::experts::{CpuExperts, CpuRoutes};
use super::fabric::{CpuFabric, attend_as};
use super::gemm::CpuWeights;
use super::kv::{CpuPageLayout, KvStore};
use super::latent::{self, CpuLatentMaps, LATENT_MAP_COPIES};
use super::lora::{CpuLora, CpuLoraTerm, add_lora};
use super::step::CpuStep;
use super::{Cores, CpuBuffer, Isa, Team};
use super::{
    activation, attention, causal_conv, gated_norm, gemm, kv, norm, rope, sampling, selective_scan, state_update, sums,
};
use offshoot_backend::ranks::Place;
use offshoot_backend::{
    ActivationDtype, AdapterSlot, Backend, CopyStore, Dtype, Elements, ExpertInput, ExpertKind, Gate, GatedNorm,
    HeadKind, HeadLayout, HeadNormForm, HeldPart, KvDtype, KvShape, LatentHeads, LatentSteps, LoraShape, LoraWeights,
    MatrixPart, OutputMode, RopeTable, Router, SampleRequest, SampledToken, SavedPages, ScanRule, Scoring, Split,
    StateRule, StepBatch, StepRows, StepShape, SwapRates, WeightFormat, WeightView,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_core::memory::free_bytes;
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{CostModel, Member, NewPage};

/// The CPU as a [`Backend`].
pub struct Cpu {
    pub(super) cores: Cores,
    kv: KvDtype,
    attention: attention::AttentionScratch,
    conv: causal_conv::ConvScratch,
    updates: state_update::UpdateScratch,
    gemm: gemm::GemmScratch,
    latent: latent::LatentScratch,
    sampling: sampling::SampleScratch,
    /// The sums of `add_lora` between its two products.
    lora: Vec<f32>,
    /// `load` refuses steps of more rows.
    most_rows: usize,
    /// Whether `run` fails behind all ops, by the number of the step since the first and its rows.
    fails: fn(usize, usize) -> bool,
    runs: usize,
    /// Time that threads had no work in steps, in the mean of all threads.
    idle: Duration,
    /// Among the ranks of a model.
    pub(super) place: Option<Place<CpuFabric>>,
}

impl Cpu {
    /// Uses the path named by OFFSHOOT_CPU, or else the fastest one of this processor. Errors: see [`Isa::chosen`].
    pub fn open() -> Result<Self> {
        Ok(Self::with_isa(Isa::chosen()?))
    }

    /// Uses the path `isa`. Panics if the processor does not support it.
    pub fn with_isa(isa: Isa) -> Self {
        assert!(Isa::available().contains(&isa), "this processor has no path {isa}");
        Self::on(Cores::new(isa))
    }

    /// A second backend on the threads of this one, for another model. They compute the ops of one of them at a time:
    /// an op that finds them taken runs on its calling thread alone, so whoever runs both has their steps take turns.
    #[must_use]
    pub fn beside(&self) -> Self {
        Self::on(Cores { isa: self.cores.isa, team: self.cores.team.clone() })
    }

    fn on(cores: Cores) -> Self {
        Self {
            cores,
            kv: KvDtype::Model,
            attention: Default::default(),
            conv: Default::default(),
            updates: Default::default(),
            gemm: Default::default(),
            latent: Default::default(),
            sampling: Default::default(),
            lora: Vec::new(),
            most_rows: usize::MAX,
            fails: |_, _| false,
            runs: 0,
            idle: Duration::ZERO,
            place: None,
        }
    }

    /// This backend on one replica's share of its threads, at least one thread; `replicas` divide them.
    #[must_use]
    pub fn on_a_share_of_cores(self, replicas: usize) -> Self {
        let Cores { isa, team } = self.cores;
        Self { cores: Cores { isa, team: Arc::new(Team::new(team.threads() / replicas.max(1))) }, ..self }
    }

    /// Makes `load` fail with `Error::DeviceMemory` for steps of more than `most_rows` rows, as a full device would.
    #[must_use]
    pub fn with_most_rows(self, most_rows: usize) -> Self {
        Self { most_rows, ..self }
    }

    /// Makes `run` fail in the same way when all ops of the step have been computed, where `fails` says so of the
    /// step's number, from 0, and its rows.
    #[must_use]
    pub fn failing_where(self, fails: fn(usize, usize) -> bool) -> Self {
        Self { fails, ..self }
    }

    pub fn isa(&self) -> Isa {
        self.cores.isa
    }

    /// Ranks divide the heads of latent attention, and each has all latents.
    fn assert_has_all_positions(&self) {
        assert!(self.place.as_ref().and_then(member).is_none(), "ranks do not divide the positions of latents");
    }
}

const NOT_IN_PLACE: &str = "the CPU loads experts anew, as `REPLACES_IN_PLACE` is false";

/// The error of a device that lacks memory for `rows` and has some for `most`.
fn shortage_of(rows: usize, most: usize) -> Error {
    let [asked, free] = [rows, most].map(|rows| rows * size_of::<f32>());
    Error::DeviceMemory { device: "cpu".to_string(), asked: Some(asked), free, total: free }
}

/// The part of a rank at `place` in a group of ranks that divide positions.
fn member(place: &Place<CpuFabric>) -> Option<Member> {
    let member = place.member(kv::PAGE_TOKENS);
    (member.of > 1).then_some(member)
}

/// Ops that functions of their names compute, and which change their first buffer alone.
macro_rules! by_functions {
    ($(fn $module:ident::$op:ident($out:ident $(, $arg:ident: $kind:ty)*);)*) => {$(
        fn $op(&mut self, $out: &mut CpuBuffer $(, $arg: $kind)*) {
            $module::$op(&self.cores, $out $(, $arg)*);
        }
    )*};
}

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type Matrix = CpuWeights;
    type Vector = Vec<f32>;
    type Experts = CpuExperts;
    type Routes = CpuRoutes;
    type Kv = KvStore;
    type LatentMaps = CpuLatentMaps;
    type Rope = RopeTable;
    type Step = CpuStep;
    type Lora = CpuLora;
    type LoraTerm = CpuLoraTerm;

    const MIXES_DTYPES: bool = true;
    const IS_ASYNC: bool = false;

    fn describe(&self) -> String {
        format!("cpu, {}, {} threads", self.cores.isa, self.cores.team.threads())
    }

    /// Results differ between instruction sets: they sum in different orders and round operands differently. Versions
    /// without sections have other results.
    fn arithmetic(&self) -> String {
        format!("cpu, {}, sections of {}", self.cores.isa, attention::SECTION)
    }

    fn page_layout(&self) -> String {
        kv::LAYOUT.to_owned()
    }

    fn page_tokens(&self) -> u32 {
        kv::PAGE_TOKENS
    }

    fn cost_model(&self) -> CostModel {
        CostModel::CPU
    }

    fn tile(&self) -> u32 {
        attention::TILE
    }

    /// Does nothing: the CPU's ops always are batch-invariant.
    fn set_batch_invariant(&mut self) {}

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.kv = kv;
    }

    /// Measured on two cores with AVX-512 (benches/runs/2026-11-20-emerald-rapids-2core): the f32 product rate, and
    /// half of the read bandwidth, since a copy reads and writes. Tiles multiply faster than this says.
    fn swap_rates(&self) -> SwapRates {
        SwapRates { host_bytes: 14e9, flops: 350e9 }
    }

    fn free_bytes(&self) -> Result<usize> {
        Ok(free_bytes())
    }

    fn multiplies(&self, _: WeightFormat) -> bool {
        true
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<CpuWeights> {
        Ok(CpuWeights::pack(parts))
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Vec<f32>> {
        Ok(parts.iter().flat_map(|part| (0..part.rows * part.cols).map(|i| part.get(i))).collect())
    }

    fn experts(&mut self, matrices: Vec<CpuWeights>, biases: Vec<Vec<f32>>, _: ExpertKind) -> Result<CpuExperts> {
        Ok(CpuExperts { matrices, biases })
    }

    fn replace_expert(&mut self, _: &CpuExperts, _: usize, _: CpuWeights) -> Result<()> {
        unreachable!("{NOT_IN_PLACE}")
    }

    fn replace_expert_bias(&mut self, _: &CpuExperts, _: usize, _: Vec<f32>) -> Result<()> {
        unreachable!("{NOT_IN_PLACE}")
    }

    fn read_matrix(&mut self, matrix: &CpuWeights, _: &Split) -> Result<Option<Elements>> {
        Ok(matrix.elements())
    }

    fn read_vector(&mut self, vector: &Vec<f32>, _: &Split) -> Result<Elements> {
        Ok(Elements::of(vector))
    }

    fn read_expert(&mut self, experts: &CpuExperts, expert: usize, _: &Split) -> Result<Option<(Elements, Vec<f32>)>> {
        let bias = experts.bias(expert).unwrap_or_default().to_vec();
        Ok(experts.matrices[expert].elements().map(|elements| (elements, bias)))
    }

    fn latent_maps(
        &mut self,
        parts: &[HeldPart<'_>],
        heads: LatentHeads,
        dtype: Dtype,
        _: &Split,
        _: Option<&CpuLatentMaps>,
    ) -> Result<CpuLatentMaps> {
        Ok(CpuLatentMaps::pack(parts, heads, dtype))
    }

    fn routes(&mut self, experts: usize, router: Router) -> Result<CpuRoutes> {
        Ok(CpuRoutes::new(experts, router))
    }

    fn resize_routes(&mut self, routes: &mut CpuRoutes, rows: usize) -> Result<()> {
        routes.resize(rows);
        Ok(())
    }

    fn latent_map_copies(&self) -> usize {
        LATENT_MAP_COPIES
    }

    /// fp8 latents are stored as fp8, other fp8 values in the weights' dtype.
    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        CpuPageLayout::new(dtype, &heads).rounded_to(self.kv).element_bytes()
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        KvStore::page_bytes(shape, self.kv)
    }

    fn kv(&mut self, shape: &KvShape) -> Result<KvStore> {
        KvStore::new(shape, self.kv)
    }

    fn rope_table(&mut self, table: &RopeTable) -> Result<RopeTable> {
        Ok(table.clone())
    }

    fn lora(&mut self, shape: &LoraShape, _: &Split) -> Result<CpuLora> {
        Ok(CpuLora::new(shape))
    }

    fn lora_term(&mut self, lora: &CpuLora, parts: &[Option<LoraWeights<'_>>]) -> Result<CpuLoraTerm> {
        Ok(lora.term(parts))
    }

    fn set_lora(&mut self, lora: &mut CpuLora, slot: AdapterSlot, term: Option<CpuLoraTerm>) {
        lora.set(slot, term);
    }

    fn buffer(&mut self, width: usize, _: ActivationDtype) -> Result<CpuBuffer> {
        Ok(CpuBuffer::new(0, width))
    }

    fn resize(&mut self, buffer: &mut CpuBuffer, rows: usize) -> Result<()> {
        buffer.rows = rows;
        buffer.data.resize(rows * buffer.width, 0.0);
        Ok(())
    }

    fn write(&mut self, buffer: &mut CpuBuffer, rows: usize, values: &[f32]) -> Result<()> {
        buffer.data[..rows * buffer.width].copy_from_slice(values);
        Ok(())
    }

    fn read(&mut self, buffer: &CpuBuffer, rows: usize) -> Result<Vec<f32>> {
        Ok(buffer.data[..rows * buffer.width].to_vec())
    }

    fn save_pages(&mut self, kv: &KvStore, pages: &[PageId]) -> Result<SavedPages> {
        Ok(SavedPages::Bytes(kv.save(pages)))
    }

    fn restore_pages(&mut self, kv: &mut KvStore, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        kv.restore(saved.of_device(), pages);
        Ok(())
    }

    fn read_routes(&mut self, kv: &KvStore, slots: &[KvSlot]) -> Result<Vec<u16>> {
        Ok(kv.read_routes(slots))
    }

    fn save_state(&mut self, kv: &KvStore, slot: StateId) -> Result<Vec<u8>> {
        Ok(kv.save_state(slot))
    }

    fn restore_state(&mut self, kv: &mut KvStore, saved: &[u8], slot: StateId) -> Result<()> {
        kv.restore_state(saved, slot);
        Ok(())
    }

    fn join_saved(
        kv: &KvStore,
        saved: &mut SavedPages,
        page: usize,
        others: &SavedPages,
        from: usize,
        slots: Range<u32>,
    ) {
        kv.join(saved.of_device_mut(), page, others.of_device(), from, slots);
    }

    fn step(&mut self, _: &[HeadLayout], _: Dtype, _: usize) -> Result<CpuStep> {
        Ok(CpuStep::default())
    }

    fn load(&mut self, step: &mut CpuStep, batch: StepBatch) -> Result<StepShape> {
        let rows = batch.tokens.len();
        if rows > self.most_rows {
            return Err(shortage_of(rows, self.most_rows));
        }
        Ok(step.load(batch, self.place.as_ref().and_then(member)))
    }

    fn advance(&mut self, step: &mut CpuStep, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        Ok(step.advance(uniforms, new_pages))
    }

    fn run(
        &mut self,
        step: &mut CpuStep,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut CpuStep) -> Result<()>,
    ) -> Result<()> {
        let (begun, before) = (Instant::now(), self.cores.team.times());
        ops(self, step)?;
        self.idle += self.cores.team.idle_since(before, begun.elapsed());
        let number = self.runs;
        self.runs += 1;
        if (self.fails)(number, shape.rows) {
            step.fail();
            return Err(shortage_of(shape.rows, 0));
        }
        step.end_run();
        Ok(())
    }

    fn load_requests(&mut self, step: &mut CpuStep, requests: Vec<SampleRequest>) -> Result<()> {
        step.load_requests(requests);
        Ok(())
    }

    fn sample_late(&mut self, logits: &CpuBuffer, step: &mut CpuStep) -> Result<()> {
        let (begun, before) = (Instant::now(), self.cores.team.times());
        self.sample(logits, step);
        self.idle += self.cores.team.idle_since(before, begun.elapsed());
        step.finish();
        Ok(())
    }

    fn idle(&self) -> Option<Duration> {
        Some(self.idle)
    }

    fn collect(&mut self, step: &mut CpuStep) -> Result<Vec<Option<SampledToken>>> {
        Ok(step.collect().samples())
    }

    fn keep_values(&mut self, values: &CpuBuffer, step: &mut CpuStep) -> Result<()> {
        step.keep_values(&values.data);
        Ok(())
    }

    fn collect_values(&mut self, step: &mut CpuStep) -> Result<Vec<f32>> {
        Ok(step.collect().values())
    }

    by_functions! {
        fn norm::layer_norm(out, x: &CpuBuffer, weight: &Vec<f32>, bias: &Vec<f32>, eps: f32);
        fn norm::rms_norm_add(out, x: &CpuBuffer, weight: &Vec<f32>, eps: f32);
        fn norm::head_norm(qkv, heads: HeadLayout, kind: HeadKind, form: HeadNormForm, weight: &Vec<f32>, eps: f32);
        fn sums::add(out, x: &CpuBuffer);
        fn sums::scale(x, factor: f32);
        fn sums::softcap(x, cap: f32);
        fn activation::gelu_times(x, y: &CpuBuffer, from: usize);
        fn activation::gelu(x);
        fn activation::relu(x);
        fn activation::relu_squared(x);
        fn activation::gelu_erf(x);
        fn activation::xielu(x, numbers: &Vec<f32>);
        fn activation::clamp(x, most: f32);
        fn activation::scale_columns(x, factors: &Vec<f32>);
        fn gated_norm::sigmoid_times(x, y: &CpuBuffer);
        fn gated_norm::gated_norm(x, gate: &CpuBuffer, weight: Option<&Vec<f32>>, how: GatedNorm);
    }

    fn embed(&mut self, out: &mut CpuBuffer, table: &CpuWeights, step: &CpuStep) {
        gemm::embed(&self.cores.team, out, table, step.tokens());
    }

    fn add_positions(&mut self, out: &mut CpuBuffer, table: &CpuWeights, step: &CpuStep) {
        gemm::add_rows(&self.cores.team, out, table, &step.batch().positions);
    }

    fn rms_norm(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, weight: &Vec<f32>, eps: f32, _: Option<&CpuWeights>) {
        norm::rms_norm(&self.cores, out, x, weight, eps);
    }

    fn round(&mut self, out: &mut CpuBuffer, x: &CpuBuffer) {
        out.data.copy_from_slice(&x.data);
    }

    fn linear(
        &mut self,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        w: &CpuWeights,
        bias: Option<&Vec<f32>>,
        mode: OutputMode,
    ) {
        gemm::linear_stack(&self.cores, &mut self.gemm, out, x, w, bias.map(Vec::as_slice), mode);
    }

    fn add_lora(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, lora: &CpuLora, rows: StepRows, step: &CpuStep) {
        add_lora(&self.cores, &mut self.lora, out, x, lora, rows, step);
    }

    fn rope(&mut self, qkv: &mut CpuBuffer, heads: HeadLayout, table: &RopeTable, step: &CpuStep) {
        rope::rope(&self.cores, qkv, heads, table, &step.batch().positions);
    }

    fn kv_append(&mut self, kv: &mut KvStore, layer: LayerIx, qkv: &CpuBuffer, step: &CpuStep) {
        let group = kv.group(layer);
        match step.own_rows(group) {
            None => kv.append(&self.cores, layer, qkv, &step.batch().slots[group.ix()]),
            Some(rows) => {
                let mut own = CpuBuffer::new(rows.len(), qkv.width);
                for (to, &(row, _)) in own.data.chunks_exact_mut(qkv.width.max(1)).zip(rows) {
                    to.copy_from_slice(qkv.row(row));
                }
                let slots: Vec<KvSlot> = rows.iter().map(|&(_, at)| at).collect();
                kv.append(&self.cores, layer, &own, &slots);
            }
        }
    }

    fn tree_attention(
        &mut self,
        out: &mut CpuBuffer,
        qkv: &CpuBuffer,
        kv: &KvStore,
        layer: LayerIx,
        step: &mut CpuStep,
        plan: usize,
        scoring: Scoring<'_, Vec<f32>>,
    ) {
        let (plan, cores, scratch) = (step.plan(plan), &self.cores, &mut self.attention);
        match (&self.place, self.place.as_ref().and_then(member)) {
            (Some(place), Some(member)) => {
                let scoring = scoring.of_member(member);
                attend_as(cores, scratch, place, member, out, qkv, kv, layer, plan, scoring);
            }
            _ => attention::tree_attention(cores, scratch, out, qkv, kv, layer, plan, scoring, None),
        }
    }

    fn tree_attention_lse(
        &mut self,
        out: &mut CpuBuffer,
        lse: &mut CpuBuffer,
        qkv: &CpuBuffer,
        kv: &KvStore,
        layer: LayerIx,
        step: &mut CpuStep,
        plan: usize,
        scoring: Scoring<'_, Vec<f32>>,
    ) {
        self.assert_has_all_positions();
        let (plan, cores, scratch) = (step.plan(plan), &self.cores, &mut self.attention);
        attention::tree_attention(cores, scratch, out, qkv, kv, layer, plan, scoring, Some(lse));
    }

    fn merge_attended(&mut self, out: &mut CpuBuffer, lse: &mut CpuBuffer, other: &CpuBuffer, other_lse: &CpuBuffer) {
        latent::merge_attended(&self.cores.team, out, lse, other, other_lse);
    }

    fn prepare_latents(
        &mut self,
        queries: &mut CpuBuffer,
        latents: Option<&mut CpuBuffer>,
        absorbed: Option<&mut CpuBuffer>,
        steps: &LatentSteps<'_, Vec<f32>, RopeTable>,
        kv: &mut KvStore,
        step: &CpuStep,
    ) {
        self.assert_has_all_positions();
        let StepBatch { slots, positions, .. } = step.batch();
        let slots = &slots[kv.group(steps.layer).ix()];
        latent::prepare(&self.cores, (queries, latents), steps, kv, slots, positions);
        if let Some(absorbed) = absorbed {
            latent::copy_tails(&self.cores, absorbed, queries, steps.heads);
        }
    }

    fn absorb_queries(&mut self, out: &mut CpuBuffer, queries: &CpuBuffer, maps: &CpuLatentMaps) {
        latent::absorb(&self.cores, &mut self.latent, out, queries, maps);
    }

    fn map_values(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, maps: &CpuLatentMaps) {
        latent::map_values(&self.cores, &mut self.latent, out, x, maps);
    }

    fn expand_latents(
        &mut self,
        copies: &mut KvStore,
        copy_layer: LayerIx,
        kv: &KvStore,
        layer: LayerIx,
        maps: &CpuLatentMaps,
        store: CopyStore,
        step: &CpuStep,
    ) {
        let Some(expansions) = &step.batch().expansions else { return };
        let expansions = &expansions[store as usize];
        latent::expand(&self.cores, &mut self.latent, copies, copy_layer, kv, layer, maps, expansions);
    }

    fn gated(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, gate: Gate, _: Option<&CpuWeights>) {
        activation::gated(&self.cores, out, x, gate);
    }

    fn causal_conv(
        &mut self,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        weight: &Vec<f32>,
        bias: Option<&Vec<f32>>,
        kv: &mut KvStore,
        layer: LayerIx,
        step: &CpuStep,
    ) {
        let (states, runs) = (kv.states(layer), &step.batch().state_runs);
        let bias = bias.map(Vec::as_slice);
        causal_conv::causal_conv(&self.cores, &mut self.conv, out, x, weight, bias, states, runs);
    }

    fn state_update(
        &mut self,
        out: &mut CpuBuffer,
        qkv: &CpuBuffer,
        gates: &CpuBuffer,
        rule: StateRule<'_, Vec<f32>>,
        kv: &mut KvStore,
        layer: LayerIx,
        step: &CpuStep,
    ) {
        let (states, runs) = (kv.states(layer), &step.batch().state_runs);
        state_update::state_update(&self.cores, &mut self.updates, out, qkv, gates, rule, states, runs);
    }

    fn channel_update(
        &mut self,
        out: &mut CpuBuffer,
        qkv: &CpuBuffer,
        beta: &CpuBuffer,
        decay: &CpuBuffer,
        rate: &Vec<f32>,
        dt: &Vec<f32>,
        kv: &mut KvStore,
        layer: LayerIx,
        step: &CpuStep,
    ) {
        let (states, runs, learned) = (kv.states(layer), &step.batch().state_runs, [&rate[..], dt]);
        state_update::channel_update(&self.cores, &mut self.updates, out, qkv, beta, decay, learned, states, runs);
    }

    fn selective_scan(
        &mut self,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        steps: &CpuBuffer,
        b: &CpuBuffer,
        c: &CpuBuffer,
        rule: ScanRule<'_, Vec<f32>>,
        kv: &mut KvStore,
        layer: LayerIx,
        step: &CpuStep,
    ) {
        let (states, runs) = (kv.states(layer), &step.batch().state_runs);
        selective_scan::selective_scan(&self.cores, &mut self.updates, out, x, steps, [b, c], rule, states, runs);
    }

    fn gated_conv(
        &mut self,
        out: &mut CpuBuffer,
        bcx: &CpuBuffer,
        weight: &Vec<f32>,
        bias: Option<&Vec<f32>>,
        kv: &mut KvStore,
        layer: LayerIx,
        step: &CpuStep,
    ) {
        let (states, runs) = (kv.states(layer), &step.batch().state_runs);
        let bias = bias.map(Vec::as_slice);
        causal_conv::gated_conv(&self.cores, &mut self.conv, out, bcx, weight, bias, states, runs);
    }

    fn route(
        &mut self,
        routes: &mut CpuRoutes,
        scores: &CpuBuffer,
        factors: Option<&Vec<f32>>,
        bias: Option<&Vec<f32>>,
    ) {
        routes.route(&self.cores.team, scores, factors.map(Vec::as_slice), bias.map(Vec::as_slice));
    }

    fn keep_routes(&mut self, kv: &mut KvStore, layer: LayerIx, routes: &CpuRoutes, step: &CpuStep) {
        let group = kv.routes().group;
        match step.own_rows(group) {
            None => kv.keep_routes(layer, routes, step.batch().slots[group.ix()].iter().copied().enumerate()),
            Some(rows) => kv.keep_routes(layer, routes, rows.iter().copied()),
        }
    }

    fn weigh_places(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, routes: &CpuRoutes) {
        routes.weigh_places(&self.cores.team, out, x);
    }

    fn expert_linear(
        &mut self,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        experts: &CpuExperts,
        routes: &CpuRoutes,
        input: ExpertInput,
    ) {
        gemm::expert_linear(&self.cores, &mut self.gemm, out, x, experts, routes, input);
    }

    fn expert_gated(
        &mut self,
        out: &mut CpuBuffer,
        inner: &mut CpuBuffer,
        x: &CpuBuffer,
        experts: &CpuExperts,
        routes: &CpuRoutes,
        gate: Gate,
    ) {
        self.expert_linear(inner, x, experts, routes, ExpertInput::Rows);
        self.gated(out, inner, gate, None);
    }

    fn combine(
        &mut self,
        out: &mut CpuBuffer,
        x: &CpuBuffer,
        input: Option<&CpuBuffer>,
        routes: &CpuRoutes,
        mode: OutputMode,
    ) {
        routes.combine(&self.cores.team, out, x, input, mode);
    }

    fn select_rows(&mut self, out: &mut CpuBuffer, x: &CpuBuffer, step: &CpuStep) {
        for (i, &row) in step.batch().logit_rows.iter().enumerate() {
            out.data[i * x.width..][..x.width].copy_from_slice(x.row(row as usize));
        }
    }

    fn sample(&mut self, logits: &CpuBuffer, step: &mut CpuStep) {
        let (requests, sampled) = step.sampling();
        sampling::sample(&self.cores, &mut self.sampling, logits, requests, sampled);
    }
}
