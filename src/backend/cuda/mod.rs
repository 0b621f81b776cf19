//! The ops on an NVIDIA GPU, found at run time: nothing of CUDA is needed to build, and a machine without it says why.
//! This file only routes the ops of `Backend` to their folders; everything is enqueued on one stream, and graphs repeat
//! whole steps.
//!
//! A folder uses only folders below it, and no folder above uses one in a circle (`tests/texts/floors_cuda.rs`):
//!
//! ```text
//! timing                          how long a step takes, for benchmarks
//! step                            a step's words on the device, its graphs, and its results on their way to the host
//! ops, gemm, experts, attention,  the launchers: element-wise ops; linear layers; mixtures of experts; tree attention;
//! sampling                        sampling
//! four_bit                        products with 4-bit weights, of layers and experts
//! memory                          what lies on the device: activations, weights, KV pages, staged lists
//! driver                          one device: stream, allocations, kernels, events, graphs
//! compile                         from kernels/ to machine code
//! discovery                       which GPUs there are, and where CUDA's libraries lie
//! ```

pub mod attention;
pub mod compile;
pub mod discovery;
pub mod driver;
pub mod experts;
pub mod four_bit;
pub mod gemm;
pub mod memory;
pub mod ops;
pub mod sampling;
pub mod step;
mod timing;

use std::collections::HashMap;
use std::ops::Range;

pub use self::attention::levels::LevelRows;
pub use self::experts::Experts;
pub use self::experts::routes::Routes;
pub use self::memory::buffer::Buffer;
pub use self::memory::kv::{Kv, SavedPages};
pub use self::memory::weights::{Matrix, Vector};
pub use self::ops::Rope;
pub use self::step::Step;

use self::compile::elements::KvElement;
use self::compile::four_bit::FourBit;
use self::discovery::probe::DeviceFacts;
use self::driver::device::Device;
use self::experts::{ExpertKernels, ExpertLayout};
use self::four_bit::FourBitKernels;
use self::gemm::Gemm;
use self::gemm::chooser::{self, AlgorithmPolicy};
use self::gemm::cublaslt::Library;
use self::gemm::linear_fp8::LinearFp8;
use self::memory::kv;
use self::memory::weights::WeightLoader;
use self::ops::Ops;
use self::step::LaunchMode;
use super::{
    ActivationDtype, Attended, AttentionLevels, Backend, Dtype, ExpertInput, ExpertKind, Gate, HeadKind, HeadLayout,
    KvDtype, KvShape, LevelRow, MatrixPart, QuantView, RopeTable, Router, Sampled, Scoring, StackShape, StepBatch,
    StepShape, SwapRates, WeightFormat, WeightView,
};
use crate::error::Result;
use crate::ids::{LayerIx, PageId};
use crate::plan::{AttentionPlan, CostModel, Gpu, NewPage};

pub struct Cuda {
    device: Device,
    loader: WeightLoader,
    /// By dtype of operands; loaded with their first buffer, matrix or pages.
    ops: HashMap<Dtype, Ops>,
    /// By weight format; loaded with the first matrix.
    gemms: HashMap<WeightFormat, Gemm>,
    /// Loaded with the first matrix of e4m3.
    fp8: Option<LinearFp8>,
    four_bit: FourBitKernels,
    /// The most rows that any buffer had.
    most_rows: usize,
    /// By dtype of weights; loaded with the first experts.
    experts: HashMap<Dtype, ExpertKernels>,
    choosing: AlgorithmPolicy,
    /// Number of changes that invalidate captured graphs: memory addresses, or whether attention runs.
    moves: u64,
    skips_attention: bool,
    deterministic: bool,
    kv: KvDtype,
}

impl Cuda {
    /// Opens GPU number `ordinal`. The error is one sentence; see `Device::open`.
    pub fn open(ordinal: usize) -> Result<Self> {
        let device = Device::open(ordinal)?;
        let (ops, gemms, experts) = (HashMap::new(), HashMap::new(), HashMap::new());
        let choosing = AlgorithmPolicy::Fastest { at_most: chooser::TUNE_BUDGET };
        let loader = WeightLoader::new(&device)?;
        let (moves, skips_attention, deterministic) = (0, false, false);
        let kv = KvDtype::Model;
        let (fp8, four_bit, most_rows) = (None, FourBitKernels::new(&device, deterministic), 0);
        Ok(Self {
            loader,
            ops,
            gemms,
            fp8,
            four_bit,
            most_rows,
            experts,
            choosing,
            moves,
            skips_attention,
            deterministic,
            kv,
            device,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Leaves out attention from now on, which gives the upper bound for any attention. For benchmarks.
    pub fn skip_attention(&mut self) {
        self.moves += 1;
        self.skips_attention = true;
    }

    /// Sets how algorithms of linear layers are chosen; by default the fastest measured.
    pub fn choose_products(&mut self, choosing: AlgorithmPolicy) {
        self.moves += 1;
        self.choosing = choosing;
        self.gemms.values_mut().for_each(|gemm| gemm.choose(choosing));
    }

    /// Enqueues without autotuning, for shapes that may never recur.
    fn without_tuning(&mut self, enqueue: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.gemms.values_mut().for_each(|gemm| gemm.may_tune(false));
        let enqueued = enqueue(self);
        self.gemms.values_mut().for_each(|gemm| gemm.may_tune(true));
        enqueued
    }

    fn load_ops(&mut self, dtype: Dtype) -> Result<()> {
        if !self.ops.contains_key(&dtype) {
            self.ops.insert(dtype, Ops::load(&self.device, dtype)?);
        }
        Ok(())
    }

    fn load_kernels(&mut self, element: Dtype) -> Result<()> {
        self.load_ops(element)?;
        let format = WeightFormat::Dense(element);
        if !self.gemms.contains_key(&format) {
            let mut gemm = Gemm::load(&self.device, format)?;
            gemm.choose(self.choosing);
            self.gemms.insert(format, gemm);
        }
        Ok(())
    }

    /// The page layout of keys and values for a model with these heads and weights.
    fn kv_element(&self, heads: HeadLayout, dtype: Dtype) -> KvElement {
        KvElement::of(self.kv, self.device.facts(), dtype, heads.head_dim)
    }

    fn ops(&self, dtype: Dtype) -> &Ops {
        self.ops.get(&dtype).expect("loaded with the first buffer, matrix or pages of their dtype")
    }

    fn expert_kernels(&self, dtype: Dtype) -> &ExpertKernels {
        self.experts.get(&dtype).expect("loaded with the first experts of their dtype")
    }

    fn combine_rows(&self, out: &Buffer, x: &Buffer, routes: &Routes, adds: bool) {
        if out.rows > 0 {
            let (places, weights) = (routes.places_of_choices(), routes.weights());
            self.ops(x.element).combine(out, x, places, weights, routes.chosen(), adds);
        }
    }

    /// Stacks matrices of codes. The kernels are loaded with the first one.
    fn fp8_matrix(&mut self, views: &[QuantView<'_>]) -> Result<Matrix> {
        let fp8 = match &mut self.fp8 {
            Some(fp8) => fp8,
            loaded => loaded.insert(LinearFp8::load(&self.device)?),
        };
        let matrix = self.loader.fp8_matrix(views)?;
        self.moves += u64::from(fp8.reserve(self.most_rows, matrix.inner)?);
        Ok(matrix)
    }

    fn gemm(&mut self, format: WeightFormat) -> &mut Gemm {
        self.gemms.get_mut(&format).expect("loaded with the first matrix of its format")
    }
}

/// The 4-bit format of matrices of `format`, if it is one that kernels/four_bit multiplies.
fn four_bit_of(format: WeightFormat) -> Option<FourBit> {
    match format {
        WeightFormat::Quantised(format) => FourBit::of(format),
        WeightFormat::Dense(_) | WeightFormat::Blocks(_) => None,
    }
}

impl Backend for Cuda {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vector;
    type Kv = Kv;
    type SavedPages = SavedPages;
    type Rope = Rope;
    type Step = Step;
    type Experts = Experts;
    type Routes = Routes;

    const MIXES_DTYPES: bool = false;

    const ORDERS_INPUTS: bool = false;

    const IS_ASYNC: bool = true;

    fn describe(&self) -> String {
        self.device.facts().to_string()
    }

    /// The GPU model, and the versions of NVRTC and cuBLASLt: everything that affects the last bits.
    fn arithmetic(&self) -> String {
        let DeviceFacts { name, arch, driver, .. } = self.device.facts();
        let compiler = self.device.compiler().version();
        format!("{name}, {arch}, driver {driver}, NVRTC {compiler}, cuBLASLt {}", Library::version())
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
        let cost = Gpu::of(facts.major, facts.minor).cost;
        // Other deterministic kernels have narrow tiles only.
        if self.deterministic && facts.major == 9 { cost.wide_only() } else { cost }
    }

    fn tile(&self) -> u32 {
        attention::tile(self.deterministic)
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

    /// Of an H200: the copies that `staging` is made for, and bf16 products as measured (benches/runs/2026-11-21-h200).
    fn swap_rates(&self) -> SwapRates {
        SwapRates { host_bytes: 50e9, flops: 700e12 }
    }

    fn free_bytes(&self) -> Result<usize> {
        self.device.free_bytes()
    }

    fn multiplies(&self, format: WeightFormat) -> bool {
        let is_dense = format.dense().is_some();
        is_dense || four_bit_of(format).is_some() || LinearFp8::takes(format, self.device.facts().major)
    }

    fn multiplies_experts(&self, format: WeightFormat) -> bool {
        format.dense().is_some() || four_bit_of(format).is_some()
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Matrix> {
        let quantised = parts.iter().map(|part| match part {
            MatrixPart::Quantised(view) => Some(*view),
            MatrixPart::Dense(_) | MatrixPart::Random(_) | MatrixPart::Blocks(_) => None,
        });
        if let Some(views) = quantised.collect::<Option<Vec<_>>>() {
            return match FourBit::of(views[0].format) {
                Some(format) => {
                    self.four_bit.load(format)?;
                    memory::four_bit::matrix(&self.device, self.loader.staging(), &views)
                }
                None => self.fp8_matrix(&views),
            };
        }
        let element =
            StackShape::of(parts).dense.expect("dense parts of one dtype, by `multiplies` and `MIXES_DTYPES`");
        self.load_kernels(element)?;
        let matrix = self.loader.matrix(parts)?;
        self.gemm(matrix.format).remember(&matrix);
        Ok(matrix)
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Vector> {
        self.loader.vector(parts)
    }

    fn experts(&mut self, matrices: Vec<Matrix>, biases: Vec<Vector>, kind: ExpertKind) -> Result<Experts> {
        if let Some(format) = matrices.first().and_then(|matrix| four_bit_of(matrix.format)) {
            return Experts::load_four_bit(&self.device, format, matrices, biases, kind);
        }
        let dtype = matrices.first().map_or(Dtype::F32, |matrix| matrix.element());
        if !self.experts.contains_key(&dtype) {
            self.experts.insert(dtype, ExpertKernels::load(&self.device, dtype)?);
        }
        Experts::load(&self.device, self.expert_kernels(dtype), matrices, biases, kind)
    }

    fn routes(&mut self, experts: usize, router: Router) -> Result<Routes> {
        Routes::new(&self.device, experts, router)
    }

    fn resize_routes(&mut self, routes: &mut Routes, rows: usize) -> Result<()> {
        self.moves += u64::from(routes.resize(rows)?);
        Ok(())
    }

    fn rope_table(&mut self, table: &RopeTable) -> Result<Rope> {
        self.moves += 1;
        Rope::upload(&self.device, table)
    }

    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Buffer> {
        let element = match holds {
            ActivationDtype::Sums => Dtype::F32,
            ActivationDtype::Operands(dtype) => dtype,
        };
        self.load_ops(element)?;
        Ok(Buffer::new(width, element))
    }

    fn resize(&mut self, buffer: &mut Buffer, rows: usize) -> Result<()> {
        self.moves += u64::from(buffer.resize(&self.device, rows)?);
        if rows > self.most_rows {
            self.most_rows = rows;
            if let Some(fp8) = &mut self.fp8 {
                self.moves += u64::from(fp8.reserve(rows, 0)?);
            }
        }
        Ok(())
    }

    fn write(&mut self, buffer: &mut Buffer, rows: usize, values: &[f32]) -> Result<()> {
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

    fn kv(&mut self, shape: &KvShape) -> Result<Kv> {
        self.load_ops(shape.dtype)?;
        self.moves += 1;
        Kv::new(&self.device, shape, &|heads| self.kv_element(heads, shape.dtype))
    }

    fn save_pages(&mut self, kv: &Kv, pages: &[PageId]) -> Result<SavedPages> {
        kv.save(pages, self.loader.staging())
    }

    fn restore_pages(&mut self, kv: &mut Kv, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        kv.restore(saved, pages, self.loader.staging())
    }

    fn join_saved(kv: &Kv, saved: &mut SavedPages, page: usize, others: &SavedPages, from: usize, slots: Range<u32>) {
        kv.join(saved, page, others, from, slots);
    }

    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, vocab: usize) -> Result<Step> {
        let element_of = |heads| self.kv_element(heads, dtype);
        Step::new(&self.device, heads, dtype, &element_of, vocab, self.deterministic)
    }

    fn reserve(&mut self, step: &mut Step, shape: StepShape) -> Result<StepShape> {
        step.reserve(&self.device, shape)
    }

    fn load(&mut self, step: &mut Step, batch: StepBatch) -> Result<StepShape> {
        step.load(&self.device, batch)
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
        let is_advanced = step.is_advanced();
        match step.graphs.way(shape, is_advanced, self.moves) {
            LaunchMode::OpByOp => self.without_tuning(|backend| ops(backend, step))?,
            LaunchMode::Tuning => ops(self, step)?,
            LaunchMode::Capture => {
                let device = self.device.clone();
                let captured = device.capture(|| self.without_tuning(|backend| ops(backend, step)));
                // A graph's memory is taken when it is made and when it is first launched.
                let launched = captured.and_then(|graph| graph.launch().map(|()| graph));
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
            LaunchMode::Replay(graph) => graph.launch()?,
        }
        step.finish(&self.device)
    }

    fn run_once(
        &mut self,
        step: &mut Step,
        _: StepShape,
        ops: impl FnOnce(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<()> {
        self.without_tuning(|backend| ops(backend, step))?;
        step.finish(&self.device)
    }

    fn collect(&mut self, step: &mut Step) -> Result<Vec<Sampled>> {
        step.collect()
    }

    fn embed(&mut self, out: &mut Buffer, table: &Matrix, step: &Step) {
        self.ops(table.element()).embed(out, table, (step.tokens(), 0), step.sampled());
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Vector, eps: f32) {
        self.ops(out.element).rms_norm(out, x, weight, eps);
    }

    fn layer_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Vector, bias: &Vector, eps: f32) {
        self.ops(out.element).layer_norm(out, x, weight, bias, eps);
    }

    fn rms_norm_add(&mut self, out: &mut Buffer, x: &Buffer, weight: &Vector, eps: f32) {
        self.ops(out.element).rms_norm_add(out, x, weight, eps);
    }

    fn round(&mut self, out: &mut Buffer, x: &Buffer) {
        self.ops(out.element).round(out, x);
    }

    fn add(&mut self, out: &mut Buffer, x: &Buffer) {
        self.ops(out.element).add(out, x);
    }

    fn scale(&mut self, x: &mut Buffer, factor: f32) {
        self.ops(x.element).scale(x, factor);
    }

    fn softcap(&mut self, x: &mut Buffer, cap: f32) {
        self.ops(x.element).softcap(x, cap);
    }

    fn linear(&mut self, out: &mut Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>) {
        match (w.format.dense(), &self.fp8) {
            _ if four_bit_of(w.format).is_some() => self.four_bit.linear(out, x, w, bias, false),
            (None, Some(fp8)) => fp8.linear(out, x, w, bias, false),
            _ => self.gemm(w.format).linear(out, x, w, bias),
        }
    }

    fn linear_add(&mut self, out: &mut Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vector>) {
        match (w.format.dense(), &self.fp8) {
            _ if four_bit_of(w.format).is_some() => self.four_bit.linear(out, x, w, bias, true),
            (None, Some(fp8)) => fp8.linear(out, x, w, bias, true),
            _ => self.gemm(w.format).linear_add(out, x, w, bias),
        }
    }

    fn head_norm(&mut self, qkv: &mut Buffer, heads: HeadLayout, kind: HeadKind, weight: &Vector, eps: f32) {
        self.ops(qkv.element).head_norm(qkv, heads, kind, weight, eps);
    }

    fn rope(&mut self, qkv: &mut Buffer, heads: HeadLayout, table: &Rope, step: &Step) {
        self.ops(qkv.element).rope(qkv, heads, table, (step.positions(), 0));
    }

    fn kv_append(&mut self, kv: &mut Kv, layer: LayerIx, qkv: &Buffer, step: &Step) {
        self.ops(qkv.element).kv_append(kv, layer, qkv, step.slots(kv.place(layer).group));
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
        if !self.skips_attention {
            step.attend(&self.device, out, qkv, (kv, layer), plan, scoring);
        }
    }

    fn gated(&mut self, out: &mut Buffer, x: &Buffer, gate: Gate) {
        self.ops(x.element).gated(out, x, gate);
    }

    fn gelu_times(&mut self, x: &mut Buffer, y: &Buffer, from: usize) {
        self.ops(x.element).gelu_times(x, y, from);
    }

    fn gelu(&mut self, x: &mut Buffer) {
        self.ops(x.element).gelu(x);
    }

    fn route(&mut self, routes: &mut Routes, scores: &Buffer, factors: Option<&Vector>) {
        routes.route(scores, factors);
    }

    fn expert_linear(&mut self, out: &mut Buffer, x: &Buffer, experts: &Experts, routes: &Routes, input: ExpertInput) {
        match experts.layout() {
            ExpertLayout::FourBit(_) => experts.linear_four_bit(&self.four_bit, out, x, routes, input),
            ExpertLayout::Rows(element) | ExpertLayout::Panels(element) => {
                experts.linear(self.expert_kernels(element), out, x, routes, input);
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
        match experts.layout() {
            ExpertLayout::Panels(element) if experts.gates() => {
                experts.gated(self.expert_kernels(element), out, x, routes, gate);
            }
            _ => {
                self.expert_linear(inner, x, experts, routes, ExpertInput::Rows);
                self.gated(out, inner, gate);
            }
        }
    }

    fn combine(&mut self, out: &mut Buffer, x: &Buffer, routes: &Routes) {
        self.combine_rows(out, x, routes, false);
    }

    fn combine_add(&mut self, out: &mut Buffer, x: &Buffer, routes: &Routes) {
        self.combine_rows(out, x, routes, true);
    }

    fn select_rows(&mut self, out: &mut Buffer, x: &Buffer, step: &Step) {
        self.ops(x.element).select_rows(out, x, (step.logit_rows(), 0));
    }

    fn sample(&mut self, logits: &Buffer, step: &mut Step) {
        step.sample(&self.device, logits);
    }
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
