//! The ops of `Backend`, and those of `AttentionLevels`: each checks what the device must know beside its operands and
//! calls the launcher in its folder. `run` decides how a step is enqueued: op by op or as a graph.

use std::ops::Range;
use std::sync::Arc;

use crate::Cuda;
use crate::attention;
use crate::attention::device_plan::WHOLE;
use crate::attention::levels::LevelRows;
use crate::compile::elements::{Fp8Scaling, HeadWidths};
use crate::compile::four_bit::FourBit;
use crate::delta_rule::chunked;
use crate::discovery::probe::DeviceFacts;
use crate::driver::memory::Memory;
use crate::experts::dense::DenseExperts;
use crate::experts::four_bit::FourBitExperts;
use crate::experts::routes::Routes;
use crate::experts::{ExpertKernels, Experts};
use crate::gemm::chooser::AlgorithmPolicy;
use crate::gemm::cublaslt::{Library, WeightOrder};
use crate::gemm::heads::HeadProducts;
use crate::latents::{AtLayer, LatentMaps, MOST_EXPANDED};
use crate::loading::{Expanding, LOADED_WITH_STATES, OPENED_WITH_FP8};
use crate::lora::{Lora, LoraKernels, LoraTerm};
use crate::memory::buffer::Buffer;
use crate::memory::kv::{self, Kv};
use crate::memory::weights::{Matrix, Vector};
use crate::ops::{ChosenPlaces, HeadWords, Rope};
use crate::step::{LaunchMode, Step};
use offshoot_backend::ranks::{Fabric, Place};
use offshoot_backend::{
    ActivationDtype, AdapterSlot, Attended, AttentionLevels, Backend, CopyStore, Dtype, Elements, ExpertInput,
    ExpertKind, Gate, GatedNorm, HeadKind, HeadLayout, HeadNormForm, HeadSteps, HeldPart, KvDtype, KvShape,
    LatentHeads, LatentSteps, LayerState, LevelRow, LoraShape, LoraWeights, MatrixPart, MemoryPart, OutputMode,
    RopeTable, Router, RouterWeighs, SampleRequest, SampledToken, SavedPages, ScanRule, Scoring, Split, StateRule,
    StepBatch, StepRows, StepShape, SwapRates, WeightFormat, WeightView, prepare_heads_in_turn, with_dense,
};
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{AttentionPlan, CostModel, NewPage};

/// Why an op of layers of such a kind is not called.
const REFUSED_AT_LOAD: &str = "`kv` refuses these layers";

/// Ops that the element-wise kernels of their first buffer's dtype do, and which change that buffer alone.
macro_rules! element_wise {
    ($(fn $op:ident($out:ident $(, $arg:ident: $kind:ty)*);)*) => {$(
        fn $op(&mut self, $out: &mut Buffer $(, $arg: $kind)*) {
            self.ops($out.element, $out).$op($out $(, $arg)*);
        }
    )*};
}

impl Cuda {
    /// Enqueues a step by `ops`, or as a graph of what they enqueue.
    fn enqueue(
        &mut self,
        step: &mut Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<()> {
        // A graph must round what it multiplies, and changes what is held.
        self.forget_rounded();
        let (is_advanced, repeats) = (step.is_advanced(), step.repeats());
        self.has_begun = true;
        let way = step.graphs.way(shape, is_advanced, self.moves + step.moves);
        log::debug!(
            "a step of {} rows: {}",
            shape.rows,
            if repeats { way.name() } else { "op by op, as it does not repeat" }
        );
        match way {
            LaunchMode::OpByOp => self.without_tuning(|backend| ops(backend, step))?,
            LaunchMode::Tuning => ops(self, step)?,
            LaunchMode::Capture | LaunchMode::Replay(_) if !repeats => {
                self.without_tuning(|backend| ops(backend, step))?;
            }
            LaunchMode::Capture => {
                self.has_begun = false;
                let device = self.device.clone();
                let captured = device.capture(|| self.without_tuning(|backend| ops(backend, step)));
                // A graph's memory is taken when it is made and when it is first launched, or uploaded before.
                let launched = captured.and_then(|graph| {
                    if let Some(fabric) = self.place.as_ref().and_then(Place::fabric_of_several) {
                        graph.upload()?;
                        fabric.meeting().meet();
                    }
                    graph.launch().map(|()| graph)
                });
                match launched {
                    Ok(graph) => step.graphs.keep(shape, graph),
                    Err(error) => {
                        if error.is_shortage() {
                            step.graphs.do_without(shape);
                        }
                        return Err(error);
                    }
                }
            }
            LaunchMode::Replay(graph) => {
                self.has_begun = false;
                graph.launch()?;
            }
        }
        self.has_begun = true;
        self.forget_rounded();
        step.end_run(&self.device)
    }
}

impl Backend for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vector;
    type Kv = Kv;
    type LatentMaps = LatentMaps;
    type Rope = Rope;
    type Step = Step;
    type Experts = Experts;
    type Routes = Routes;
    type Lora = Lora;
    type LoraTerm = LoraTerm;

    const MIXES_DTYPES: bool = false;

    const ORDERS_INPUTS: bool = false;

    const REPLACES_IN_PLACE: bool = true;

    const IS_ASYNC: bool = true;

    fn describe(&self) -> String {
        self.device.facts().to_string()
    }

    /// The GPU model, and the versions of NVRTC and cuBLASLt: everything that affects the last bits.
    fn arithmetic(&self) -> String {
        let DeviceFacts { name, arch, driver, .. } = self.device.facts();
        let compiler = self.device.compiler().version();
        let attention = if self.deterministic { attention::DETERMINISTIC_ARITHMETIC } else { "" };
        format!("{name}, {arch}, driver {driver}, NVRTC {compiler}, cuBLASLt {}{attention}", Library::version())
    }

    /// Pages are swizzled by compute capability.
    fn page_layout(&self) -> String {
        format!("{}, {}", kv::LAYOUT, self.device.facts().arch)
    }

    fn page_tokens(&self) -> u32 {
        kv::PAGE_TOKENS
    }

    fn cost_model(&self) -> CostModel {
        let facts = self.device.facts();
        let cost = CostModel::of_gpu(facts.major, facts.minor);
        // Other deterministic kernels have narrow tiles only.
        if self.deterministic && facts.major == 9 { cost.wide_only() } else { cost }
    }

    fn tile(&self) -> u32 {
        attention::tile(self.deterministic)
    }

    fn attention_tile(&self, heads: HeadLayout, dtype: Dtype, window: Option<u32>) -> u32 {
        let kv_element = self.kv_element(heads, dtype);
        attention::tile_of(self.device.facts(), dtype, kv_element, HeadWidths::of(heads), self.deterministic, window)
    }

    /// Uses tiles at fixed positions for attention and batch-invariant algorithms for linear layers. All other ops are
    /// batch-invariant anyway: the row's width alone decides the order of their sums.
    fn set_batch_invariant(&mut self) {
        self.deterministic = true;
        self.four_bit.set_batch_invariant();
        self.choose_products(AlgorithmPolicy::BatchInvariant);
    }

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.kv = kv;
    }

    /// Rates of an H200: copies as `staging` is made for, bf16 products as measured (benches/runs/2026-11-21-h200).
    fn swap_rates(&self) -> SwapRates {
        SwapRates { host_bytes: 50e9, flops: 700e12 }
    }

    fn free_bytes(&self) -> Result<usize> {
        self.device.free_bytes()
    }

    fn multiplies(&self, format: WeightFormat) -> bool {
        let is_kept = format.dense().is_some() || FourBit::of_weights(format).is_some();
        is_kept || Fp8Scaling::of(format, self.device.facts().major).is_some()
    }

    fn multiplies_experts(&self, format: WeightFormat, _: usize) -> bool {
        let is_kept = format.dense().is_some() || FourBit::of_weights(format).is_some();
        is_kept || Fp8Scaling::of_experts(format, self.device.facts().major).is_some()
    }

    fn copies_from_devices(&self) -> bool {
        true
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Matrix> {
        self.matrix_over(parts, None)
    }

    fn replace_matrix(&mut self, old: &Matrix, parts: &[HeldPart<'_>], _: &Split) -> Result<Matrix> {
        let matrix = with_dense(parts, |parts| self.matrix_over(parts, Some(old)))?;
        self.moves += u64::from(!matrix.is_over(old));
        Ok(matrix)
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Vector> {
        self.loader.vector(parts, None)
    }

    fn replace_vector(&mut self, old: &Vector, parts: &[WeightView<'_>], _: &Split) -> Result<Vector> {
        let vector = self.loader.vector(parts, Some(old))?;
        self.moves += u64::from(!vector.is_over(old));
        Ok(vector)
    }

    fn experts(&mut self, matrices: Vec<Matrix>, biases: Vec<Vector>, kind: ExpertKind) -> Result<Experts> {
        if let Some(format) = matrices.first().and_then(|matrix| FourBit::of_weights(matrix.format)) {
            let experts = FourBitExperts::load(&self.device, format, matrices, &biases)?;
            return Ok(Experts::FourBit(experts));
        }
        if matrices.iter().any(|matrix| matrix.fp8.is_some()) {
            return self.fp8_experts(matrices, &biases, kind);
        }
        let dtype = matrices.first().map_or(Dtype::F32, |matrix| matrix.element());
        if !self.experts.contains_key(&dtype) {
            self.experts.insert(dtype, ExpertKernels::load(&self.device, dtype)?);
        }
        DenseExperts::load(&self.device, self.expert_kernels(dtype), matrices, biases, kind).map(Experts::Dense)
    }

    fn replace_expert(&mut self, experts: &Experts, expert: usize, matrix: Matrix) -> Result<()> {
        match experts {
            Experts::Dense(experts) => {
                experts.put(&self.device, self.expert_kernels(experts.element()), expert, &matrix)?;
            }
            Experts::Fp8(experts) => {
                let fp8 = self.fp8.as_ref().expect(OPENED_WITH_FP8);
                experts.put(&fp8.experts, expert, &matrix)?;
            }
            Experts::FourBit(experts) => experts.put(&self.device, expert, &matrix)?,
        }
        self.device.check()
    }

    fn replace_expert_bias(&mut self, experts: &Experts, expert: usize, bias: Vector) -> Result<()> {
        let all = experts.biases().expect("experts keep the biases that they were loaded with");
        let bytes = bias.len * size_of::<f32>();
        self.device.copy(all, expert * bytes, &bias.memory, 0..bytes)
    }

    fn latent_maps(
        &mut self,
        parts: &[HeldPart<'_>],
        heads: LatentHeads,
        dtype: Dtype,
        _: &Split,
        old: Option<&LatentMaps>,
    ) -> Result<LatentMaps> {
        let maps = self.latent_maps_over(parts, heads, dtype, old)?;
        self.moves += u64::from(old.is_some_and(|old| !maps.matrix.is_over(&old.matrix)));
        Ok(maps)
    }

    fn sleep(&mut self, part: MemoryPart, keeps: bool) -> Result<bool> {
        self.asleep.sleep(&self.device, self.loader.staging(), part, keeps)?;
        Ok(true)
    }

    fn wake(&mut self, part: MemoryPart) -> Result<()> {
        self.asleep.wake(self.loader.staging(), part)
    }

    fn read_matrix(&mut self, matrix: &Matrix, _: &Split) -> Result<Option<Elements>> {
        let Some(dtype) = matrix.format.dense() else { return Ok(None) };
        let Matrix { outputs: rows, inner: cols, .. } = *matrix;
        let bytes = self.device.download(&matrix.memory, 0..rows * cols * dtype.bytes())?;
        Ok(Some(Elements { dtype, rows, cols, bytes }))
    }

    fn read_vector(&mut self, vector: &Vector, _: &Split) -> Result<Elements> {
        let bytes = self.device.download(&vector.memory, 0..vector.len * size_of::<f32>())?;
        Ok(Elements { dtype: Dtype::F32, rows: 1, cols: vector.len, bytes })
    }

    fn read_expert(&mut self, experts: &Experts, expert: usize, _: &Split) -> Result<Option<(Elements, Vec<f32>)>> {
        match experts {
            Experts::Dense(experts) => experts.read(&self.device, expert).map(Some),
            Experts::Fp8(_) | Experts::FourBit(_) => Ok(None),
        }
    }

    fn forget_steps(&mut self) {
        self.moves += 1;
    }

    fn routes(&mut self, experts: usize, router: Router) -> Result<Routes> {
        Routes::new(&self.device, experts, router)
    }

    fn resize_routes(&mut self, routes: &mut Routes, rows: usize) -> Result<()> {
        self.moves += u64::from(routes.resize(rows)?);
        if routes.places() > self.most_places {
            self.most_places = routes.places();
            self.reserve_rounded()?;
        }
        Ok(())
    }

    fn rope_table(&mut self, table: &RopeTable) -> Result<Rope> {
        self.moves += 1;
        Rope::upload(&self.device, table)
    }

    fn lora(&mut self, shape: &LoraShape, _: &Split) -> Result<Lora> {
        self.load_ops(shape.dtype)?;
        if !self.lora.contains_key(&shape.dtype) {
            self.lora.insert(shape.dtype, LoraKernels::load(&self.device, shape.dtype)?);
        }
        Lora::new(&self.device, shape)
    }

    fn lora_term(&mut self, lora: &Lora, parts: &[Option<LoraWeights<'_>>]) -> Result<LoraTerm> {
        let term = lora.term(&self.device, parts)?;
        let before = self.lora_row_bytes;
        self.lora_row_bytes = before.max(lora.row_bytes_with(&term));
        let reserved = self.reserve_lora();
        if reserved.is_err() {
            self.lora_row_bytes = before;
        }
        reserved.map(|()| term)
    }

    fn set_lora(&mut self, lora: &mut Lora, slot: AdapterSlot, term: Option<LoraTerm>) {
        let moves = lora.set(&self.device, slot, term);
        self.moves += u64::from(moves);
    }

    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Buffer> {
        let element = holds.narrowest();
        self.load_ops(element)?;
        Ok(Buffer::new(width, element))
    }

    fn resize(&mut self, buffer: &mut Buffer, rows: usize) -> Result<()> {
        self.forget_rounded();
        self.moves += u64::from(buffer.resize(&self.device, rows)?);
        self.note_rows(rows)
    }

    fn write(&mut self, buffer: &mut Buffer, rows: usize, values: &[f32]) -> Result<()> {
        self.forget_rounded();
        buffer.write(&self.device, rows, values)
    }

    fn read(&mut self, buffer: &Buffer, rows: usize) -> Result<Vec<f32>> {
        buffer.read(&self.device, rows)
    }

    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        self.kv_element(heads, dtype).element_bytes(dtype)
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        kv::page_bytes(shape, &|heads| self.kv_element(heads, shape.dtype))
    }

    fn kv_overhead_bytes(&self, shape: &KvShape) -> usize {
        kv::overhead_bytes(shape, &|heads| self.kv_element(heads, shape.dtype))
    }

    fn state_scratch_bytes(&self, layer: LayerState, dtype: Dtype, rows: usize) -> usize {
        if self.deterministic { 0 } else { chunked::most_bytes(dtype, layer, rows) }
    }

    fn reserve_state_scratch(&mut self, layers: &[LayerState], dtype: Dtype, rows: usize) -> Result<()> {
        let bytes = layers.iter().map(|&layer| self.state_scratch_bytes(layer, dtype, rows)).max().unwrap_or(0);
        if self.chunk_products.as_ref().map_or(0, Memory::bytes) < bytes {
            self.chunk_products = None;
            self.chunk_products = Some(self.device.alloc(bytes)?);
        }
        Ok(())
    }

    fn kv(&mut self, shape: &KvShape) -> Result<Kv> {
        self.load_ops(shape.dtype)?;
        let states = &shape.states;
        states.layers.iter().try_for_each(|&layer| self.load_states(shape.dtype, states.dtype, layer))?;
        self.moves += 1;
        Kv::new(&self.device, shape, &|heads| self.kv_element(heads, shape.dtype))
    }

    fn save_pages(&mut self, kv: &Kv, pages: &[PageId]) -> Result<SavedPages> {
        Ok(SavedPages::Bytes(kv.save(pages, self.loader.staging())?))
    }

    fn restore_pages(&mut self, kv: &mut Kv, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        kv.restore(saved.of_device(), pages, self.loader.staging())
    }

    fn read_routes(&mut self, kv: &Kv, slots: &[KvSlot]) -> Result<Vec<u16>> {
        kv.read_routes(slots, self.loader.staging())
    }

    fn save_state(&mut self, kv: &Kv, slot: StateId) -> Result<Vec<u8>> {
        kv.save_state(slot, self.loader.staging())
    }

    fn restore_state(&mut self, kv: &mut Kv, saved: &[u8], slot: StateId) -> Result<()> {
        kv.restore_state(saved, slot, self.loader.staging())
    }

    fn join_saved(kv: &Kv, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        kv.join(saved.of_device_mut(), page, others.of_device(), from, slots);
    }

    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, outputs: usize) -> Result<Step> {
        let element_of = |heads| self.kv_element(heads, dtype);
        let member = self.place.as_ref().map_or(WHOLE, |place| place.member(self.page_tokens()));
        let step = Step::new(&self.device, heads, dtype, &element_of, outputs, self.deterministic, member)?;
        self.prepare_merges(&step)?;
        Ok(step)
    }

    fn reserve(&mut self, step: &mut Step, shape: StepShape) -> Result<StepShape> {
        self.reserve_expanding(most_expansions(&shape))?;
        step.reserve(&self.device, shape)
    }

    fn load(&mut self, step: &mut Step, batch: StepBatch) -> Result<StepShape> {
        let shape = step.load(&self.device, batch)?;
        self.reserve_expanding(most_expansions(&shape))?;
        Ok(shape)
    }

    fn advance(&mut self, step: &mut Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        step.advance(&self.device, uniforms, new_pages)
    }

    fn run(
        &mut self,
        step: &mut Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<()> {
        self.has_begun = false;
        let order = self.order()?;
        let turn = order.as_ref().map(|(order, end)| order.begin(&self.device, end)).transpose()?;
        let enqueued = self.enqueue(step, shape, ops);
        drop(turn);
        enqueued
    }

    fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn run_once(
        &mut self,
        step: &mut Step,
        _: StepShape,
        ops: impl FnOnce(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<()> {
        let order = self.order()?;
        let _turn = order.as_ref().map(|(order, end)| order.begin(&self.device, end)).transpose()?;
        self.without_tuning(|backend| ops(backend, step))?;
        self.forget_rounded();
        step.end_run(&self.device)
    }

    fn load_requests(&mut self, step: &mut Step, requests: Vec<SampleRequest>) -> Result<()> {
        step.load_requests(&self.device, &requests)
    }

    fn sample_late(&mut self, logits: &Buffer, step: &mut Step) -> Result<()> {
        step.sample(&self.device, logits);
        step.finish(&self.device)
    }

    fn collect(&mut self, step: &mut Step) -> Result<Vec<Option<SampledToken>>> {
        Ok(step.collect()?.samples())
    }

    fn keep_values(&mut self, values: &Buffer, step: &mut Step) -> Result<()> {
        step.keep_values(&self.device, values)
    }

    fn collect_values(&mut self, step: &mut Step) -> Result<Vec<f32>> {
        Ok(step.collect()?.values())
    }

    element_wise! {
        fn layer_norm(out, x: &Buffer, weight: &Vector, bias: &Vector, eps: f32);
        fn rms_norm_add(out, x: &Buffer, weight: &Vector, eps: f32);
        fn round(out, x: &Buffer);
        fn add(out, x: &Buffer);
        fn scale(x, factor: f32);
        fn softcap(x, cap: f32);
        fn head_norm(qkv, heads: HeadLayout, kind: HeadKind, form: HeadNormForm, weight: &Vector, eps: f32);
        fn gelu_times(x, y: &Buffer, from: usize);
        fn gelu(x);
        fn relu(x);
        fn relu_squared(x);
        fn gelu_erf(x);
        fn xielu(x, numbers: &Vector);
        fn clamp(x, most: f32);
        fn scale_columns(x, factors: &Vector);
        fn sigmoid_times(x, y: &Buffer);
        fn gated_norm(x, gate: &Buffer, weight: Option<&Vector>, how: GatedNorm);
    }

    fn reserve_at_once(&mut self) -> Result<()> {
        if self.branch.is_none() {
            self.gemms.values_mut().try_for_each(|gemm| gemm.products.reserve_branch())?;
            self.fp8.iter_mut().try_for_each(|fp8| fp8.linear.products.reserve_branch())?;
            self.branch = Some(Arc::new(self.device.branch()?));
        }
        Ok(())
    }

    /// As two branches of a captured graph; otherwise one behind the other.
    fn at_once(&mut self, first: impl FnOnce(&mut Self), second: impl FnOnce(&mut Self)) {
        let is_capturing = self.device.is_capturing().unwrap_or(false);
        let Some(branch) = self.branch.clone().filter(|_| is_capturing) else {
            first(self);
            second(self);
            return;
        };
        let forked = branch.fork();
        first(self);
        let joined = forked.and_then(|()| {
            let inside = branch.enter()?;
            second(self);
            drop(inside);
            branch.join()
        });
        if let Err(error) = joined {
            self.device.keep(error);
        }
    }

    fn embed(&mut self, out: &mut Buffer, table: &Matrix, step: &Step) {
        self.ops(table.element(), out).embed(out, table, (step.tokens.memory(), 0), &step.sampled);
    }

    fn add_positions(&mut self, out: &mut Buffer, table: &Matrix, step: &Step) {
        self.ops(table.element(), out).add_positions(out, table, (step.positions.memory(), 0));
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Vector, eps: f32, next: Option<&Matrix>) {
        let is_fused = self.fp8.as_mut().is_some_and(|fp8| fp8.rounder.rms_norm(out, x, weight, eps, next));
        if !is_fused {
            self.ops(out.element, out).rms_norm(out, x, weight, eps);
        }
    }

    fn linear(&mut self, out: &mut Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>, mode: OutputMode) {
        let accumulates = mode == OutputMode::Add;
        self.forget_rows_of(out);
        if w.format.dense().is_none() {
            self.share_memory_of_main();
        }
        match &mut self.fp8 {
            _ if FourBit::of_weights(w.format).is_some() => self.four_bit.linear(out, x, w, bias, accumulates),
            Some(fp8) if w.fp8.is_some() => fp8.linear.linear(&mut fp8.rounder, out, x, w, bias, accumulates),
            _ => self.gemm(w.format).linear(out, x, w, bias, accumulates),
        }
    }

    fn add_lora(&mut self, out: &mut Buffer, x: &Buffer, lora: &Lora, rows: StepRows, step: &Step) {
        self.forget_before(out);
        self.share_memory_of_main();
        let kernels = self.lora.get(&lora.element()).expect("loaded with the first table of their dtype");
        lora.add(&self.device, kernels, self.lora_sums.as_ref(), out, x, &step.adapter_words(rows));
    }

    fn rope(&mut self, qkv: &mut Buffer, heads: HeadLayout, table: &Rope, step: &Step) {
        self.ops(qkv.element, qkv).rope(qkv, heads, table, (step.positions.memory(), 0));
    }

    fn kv_append(&mut self, kv: &mut Kv, layer: LayerIx, qkv: &Buffer, step: &Step) {
        self.ops(qkv.element, qkv).kv_append(kv, layer, qkv, step.slots(kv.place(layer).group));
    }

    fn prepare_heads(&mut self, qkv: &mut Buffer, steps: &HeadSteps<'_, Vector, Rope>, kv: &mut Kv, step: &Step) {
        let words =
            HeadWords { positions: (step.positions.memory(), 0), slots: step.slots(kv.place(steps.layer).group) };
        if !self.ops(qkv.element, qkv).prepare_heads(qkv, steps, kv, words) {
            prepare_heads_in_turn(self, qkv, steps, kv, step);
        }
    }

    fn prepare_latents(
        &mut self,
        queries: &mut Buffer,
        latents: Option<&mut Buffer>,
        absorbed: Option<&mut Buffer>,
        steps: &LatentSteps<'_, Vector, Rope>,
        kv: &mut Kv,
        step: &Step,
    ) {
        let words =
            HeadWords { positions: (step.positions.memory(), 0), slots: step.slots(kv.place(steps.layer).group) };
        let (latents, absorbed) = (latents.as_deref(), absorbed.as_deref());
        self.latents(queries, |ops| ops.prepare((queries, latents, absorbed), steps, kv, words));
    }

    fn absorb_queries(&mut self, out: &mut Buffer, queries: &Buffer, maps: &LatentMaps) {
        let LatentHeads { heads, rank, nope, rope, value } = maps.heads;
        let is_wide = queries.width >= heads * (nope + rope);
        assert!(out.width == heads * (rank + rope) && is_wide, "absorb_queries: widths for {}", maps.heads);
        self.forget_before(out);
        let products = HeadProducts {
            heads,
            outputs: rank,
            inner: nope,
            x_apart: nope + rope,
            out_apart: rank + rope,
            weights_apart: (nope + value) * rank,
            order: WeightOrder::ByInput,
        };
        self.gemm(maps.matrix.format).linear_heads(out, queries, &maps.matrix.memory, products);
    }

    fn map_values(&mut self, out: &mut Buffer, x: &Buffer, maps: &LatentMaps) {
        self.forget_before(out);
        let LatentHeads { heads, rank, nope, value, .. } = maps.heads;
        assert_eq!((out.width, x.width), (heads * value, heads * rank), "map_values: widths for {}", maps.heads);
        let products = HeadProducts {
            heads,
            outputs: value,
            inner: rank,
            x_apart: rank,
            out_apart: value,
            weights_apart: (nope + value) * rank,
            order: WeightOrder::ByOutput,
        };
        self.gemm(maps.matrix.format).linear_heads(out, x, &maps.values, products);
    }

    /// At most [`MOST_EXPANDED`] slots at a time.
    fn expand_latents(
        &mut self,
        copies: &mut Kv,
        copy_layer: LayerIx,
        kv: &Kv,
        layer: LayerIx,
        maps: &LatentMaps,
        store: CopyStore,
        step: &Step,
    ) {
        let (copies, from) = (AtLayer { kv: copies, layer: copy_layer }, AtLayer { kv, layer });
        let all = step.expansions(store);
        let mut room = match self.take_expanding(maps, all) {
            Ok(room) => room,
            Err(error) => return self.device.keep(error),
        };
        let Expanding { gathered, mapped, .. } = &mut room;
        let pages = MOST_EXPANDED / kv::PAGE_TOKENS as usize;
        let reserved = gathered.rows;
        for first in (0..all).step_by(pages) {
            let rows = (all - first).min(pages) * kv::PAGE_TOKENS as usize;
            (gathered.rows, mapped.rows) = (rows, rows);
            let words = step.expansion_words(store, first);
            self.latents(gathered, |ops| ops.gather(gathered, from, words));
            self.linear(mapped, gathered, &maps.matrix, None, OutputMode::Replace);
            self.latents(mapped, |ops| ops.store(copies, mapped, from, maps.heads, words));
        }
        (gathered.rows, mapped.rows) = (reserved, reserved);
        self.give_expanding(room);
    }

    fn merge_attended(&mut self, out: &mut Buffer, lse: &mut Buffer, other: &Buffer, other_lse: &Buffer) {
        self.latents(out, |ops| ops.merge(out, lse, other, other_lse));
    }

    fn tree_attention(
        &mut self,
        out: &mut Buffer,
        qkv: &Buffer,
        kv: &Kv,
        layer: LayerIx,
        step: &mut Step,
        plan: usize,
        scoring: Scoring<'_, Vector>,
    ) {
        self.forget_before(out);
        if self.skips_attention {
            return;
        }
        match step.member() {
            WHOLE => step.attend(&self.device, Some(out), None, qkv, (kv, layer), plan, scoring),
            _ => self.attend_as_member(out, qkv, (kv, layer), step, plan, scoring),
        }
    }

    fn tree_attention_lse(
        &mut self,
        out: &mut Buffer,
        lse: &mut Buffer,
        qkv: &Buffer,
        kv: &Kv,
        layer: LayerIx,
        step: &mut Step,
        plan: usize,
        scoring: Scoring<'_, Vector>,
    ) {
        self.forget_before(out);
        self.forget_before(lse);
        if self.skips_attention {
            return;
        }
        assert_eq!(step.member(), WHOLE, "tree_attention_lse: members do not divide latents");
        step.attend(&self.device, Some(out), Some(lse), qkv, (kv, layer), plan, scoring);
    }

    fn gated(&mut self, out: &mut Buffer, x: &Buffer, gate: Gate, next: Option<&Matrix>) {
        let is_silu = gate == Gate::Silu;
        let is_fused = is_silu && self.fp8.as_mut().is_some_and(|fp8| fp8.rounder.gated_silu(out, x, next));
        if !is_fused {
            self.ops(x.element, out).gated(out, x, gate);
        }
    }

    fn causal_conv(
        &mut self,
        out: &mut Buffer,
        x: &Buffer,
        weight: &Vector,
        bias: Option<&Vector>,
        kv: &mut Kv,
        layer: LayerIx,
        step: &Step,
    ) {
        self.forget_before(out);
        let states = kv.states(layer);
        let kernels = self.state_kernels(x.element, states.dtype(), states.layer()).expect(LOADED_WITH_STATES);
        kernels.causal_conv(&self.device, out, x, weight, bias, states, step.state_runs());
    }

    fn state_update(
        &mut self,
        out: &mut Buffer,
        qkv: &Buffer,
        gates: &Buffer,
        rule: StateRule<'_, Vector>,
        kv: &mut Kv,
        layer: LayerIx,
        step: &Step,
    ) {
        self.forget_before(out);
        let (states, runs) = (kv.states(layer), step.state_runs());
        let kernels = self.state_kernels(qkv.element, states.dtype(), states.layer()).expect(LOADED_WITH_STATES);
        let bytes = kernels.chunk_bytes(runs.plan);
        let is_chunked = !self.deterministic && bytes > 0 && self.reserve_chunk_products(bytes);
        let products = self.chunk_products.as_ref().filter(|_| is_chunked);
        let kernels = self.state_kernels(qkv.element, states.dtype(), states.layer()).expect(LOADED_WITH_STATES);
        kernels.state_update(&self.device, out, qkv, gates, rule, states, runs, products);
    }

    fn channel_update(
        &mut self,
        _: &mut Buffer,
        _: &Buffer,
        _: &Buffer,
        _: &Buffer,
        _: &Vector,
        _: &Vector,
        _: &mut Kv,
        _: LayerIx,
        _: &Step,
    ) {
        unreachable!("{REFUSED_AT_LOAD}");
    }

    fn selective_scan(
        &mut self,
        _: &mut Buffer,
        _: &Buffer,
        _: &Buffer,
        _: &Buffer,
        _: &Buffer,
        _: ScanRule<'_, Vector>,
        _: &mut Kv,
        _: LayerIx,
        _: &Step,
    ) {
        unreachable!("{REFUSED_AT_LOAD}");
    }

    fn gated_conv(
        &mut self,
        _: &mut Buffer,
        _: &Buffer,
        _: &Vector,
        _: Option<&Vector>,
        _: &mut Kv,
        _: LayerIx,
        _: &Step,
    ) {
        unreachable!("{REFUSED_AT_LOAD}");
    }

    fn route(&mut self, routes: &mut Routes, scores: &Buffer, factors: Option<&Vector>, bias: Option<&Vector>) {
        routes.route(scores, factors, bias);
    }

    fn keep_routes(&mut self, kv: &mut Kv, layer: LayerIx, routes: &Routes, step: &Step) {
        routes.keep(kv, layer, step.slots(kv.routes().group));
    }

    fn expert_linear(&mut self, out: &mut Buffer, x: &Buffer, experts: &Experts, routes: &Routes, input: ExpertInput) {
        match (experts, &mut self.fp8) {
            (Experts::Dense(experts), _) => {
                self.forget_before(out);
                experts.linear(self.expert_kernels(experts.element()), out, x, routes, input);
            }
            (Experts::FourBit(experts), _) => {
                self.forget_before(out);
                experts.linear(&self.four_bit, out, x, routes, input);
            }
            (Experts::Fp8(experts), fp8) => {
                let fp8 = fp8.as_mut().expect(OPENED_WITH_FP8);
                fp8.rounder.forget_rows_of(out);
                experts.linear((&fp8.experts, &mut fp8.rounder), out, x, routes, input);
            }
        }
    }

    /// At once where a tensor-core kernel multiplies.
    fn expert_gated(
        &mut self,
        out: &mut Buffer,
        inner: &mut Buffer,
        x: &Buffer,
        experts: &Experts,
        routes: &Routes,
        gate: Gate,
    ) {
        match experts {
            Experts::Dense(dense) if dense.gates() => {
                self.forget_before(out);
                dense.gated(self.expert_kernels(dense.element()), out, x, routes, gate);
            }
            Experts::Fp8(experts) if experts.gates() => {
                let fp8 = self.fp8.as_mut().expect(OPENED_WITH_FP8);
                fp8.rounder.forget_rows_of(out);
                experts.gated((&fp8.experts, &mut fp8.rounder), out, x, routes, gate);
            }
            _ => {
                self.expert_linear(inner, x, experts, routes, ExpertInput::Rows);
                self.gated(out, inner, gate, None);
            }
        }
    }

    fn weigh_places(&mut self, out: &mut Buffer, x: &Buffer, routes: &Routes) {
        if x.rows > 0 {
            let of = (routes.chosen(), routes.places_of_choices(), routes.weights());
            self.ops(x.element, out).weigh_places(out, x, of);
        }
    }

    fn combine(&mut self, out: &mut Buffer, x: &Buffer, input: Option<&Buffer>, routes: &Routes, mode: OutputMode) {
        if out.rows > 0 {
            let of = ChosenPlaces {
                chosen: routes.chosen(),
                places: routes.places_of_choices(),
                weights: Some(routes.weights()).filter(|_| routes.weighs() == RouterWeighs::Outputs),
                multiplied: routes.multiplied_places(),
            };
            // The rows that experts have read stay rounded for a shared expert that comes behind them.
            self.forget_rows_of(out);
            self.ops_of(x.element).combine(out, x, input, &of, mode == OutputMode::Add);
        }
    }

    fn select_rows(&mut self, out: &mut Buffer, x: &Buffer, step: &Step) {
        self.ops(x.element, out).select_rows(out, x, (step.logit_rows.memory(), 0));
    }

    fn sample(&mut self, logits: &Buffer, step: &mut Step) {
        step.sample(&self.device, logits);
    }
}

/// The most expansions of any store of copies.
fn most_expansions(shape: &StepShape) -> usize {
    shape.copies.iter().map(|copies| copies.expansions).max().unwrap_or(0)
}

impl AttentionLevels for Cuda {
    type LevelRows = LevelRows;

    fn level_rows(&mut self, kv: &Kv, plans: &[AttentionPlan], rows: &[LevelRow]) -> Result<LevelRows> {
        LevelRows::new(&self.device, kv, plans, rows)
    }

    fn level_lse(&mut self, out: &mut Buffer, read: &Attended<'_, Self>, rows: &LevelRows) {
        rows.lse(&self.device, out, read.qkv, (read.kv, read.stored), read.plan, read.scoring);
    }

    fn add_level_mass(&mut self, mass: &mut Buffer, lse: &Buffer, layer: LayerIx, layers: usize) {
        attention::levels::add_mass(&self.device, mass, lse, layer.ix() == 0, layers);
    }
}
