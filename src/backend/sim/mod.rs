//! A device that computes nothing and keeps time: each op of `Backend` adds what it would take on a [`DeviceProfile`],
//! from the shapes that it is given, to a [`Clock`] that nobody has to wait for. Weights, activations, keys and values
//! take no memory here, but are counted against the profile's, so that what would not fit does not fit. What times are
//! made of is `profile`'s and `attention`'s; who drives an engine by such a clock is left to floor 8.
//!
//! # How near it comes
//! On the profile `h200`, beside benches/runs/2026-11-21-h200-wgmma (`cargo test --test modelled_times -- --nocapture`
//! prints both): attention of 52 trees 0.82 to 1.16 of what was measured; decoding of the 12 workloads 0.86 to 0.97
//! (mean 0.94, for a device that works for long lowers its clocks); prompts 0.83 to 0.96, but 0.5 to 0.7 where a
//! thousand branches and more begin at once, for what the host takes to begin a branch is left out.
//!
//! # Samples
//! Tokens are sampled as from a model whose logits are all equal ([`sample`]): a uniform has the same token in whatever
//! batch it is tossed. Texts are meaningless, and so lengths are to come from `Stop::max_tokens`, with `ignore_eos`.

mod attention;
mod clock;
mod profile;
mod sample;
mod step;

use std::sync::Arc;

pub use clock::{Clock, StepTime};
pub use profile::{AttentionTimes, BackendKind, CallTimes, DeviceProfile, LinearTimes, Products};
pub use sample::sample;
pub use step::Step;

use super::cuda::compile::elements::has_wgmma;
use super::{
    ActivationDtype, Backend, Dtype, HeadKind, HeadLayout, KvDtype, KvShape, MatrixPart, RopeTable, Sampled,
    StackShape, StepBatch, StepShape, SwapRates, WeightView,
};
use crate::error::{Error, Result};
use crate::ids::{LayerIx, PageId};
use crate::plan::{CostModel, NewPage};

/// The ops, timed. Every clone of its clock shows the same time.
pub struct Sim {
    profile: Arc<DeviceProfile>,
    clock: Clock,
    kv: KvDtype,
    /// Bytes that weights, activations, keys and values would take.
    used: usize,
    /// Nanoseconds of the ops of the step that is being enqueued.
    spent: f64,
}

/// Rows x width of nothing.
#[derive(Debug)]
pub struct Buffer {
    rows: usize,
    width: usize,
    element_bytes: usize,
    /// The most rows that it ever had: memory is kept.
    most_rows: usize,
}

impl Buffer {
    fn bytes(&self) -> usize {
        self.rows * self.row_bytes()
    }

    fn row_bytes(&self) -> usize {
        self.width * self.element_bytes
    }
}

/// The shape of a weight matrix `[rows, cols]` (outputs, inputs).
#[derive(Clone, Copy, Debug)]
pub struct Matrix(StackShape);

impl Matrix {
    fn bytes(&self) -> usize {
        self.0.format.bytes(self.0.rows * self.0.cols)
    }

    fn row_bytes(&self) -> usize {
        self.0.format.bytes(self.0.cols)
    }
}

impl Sim {
    pub fn new(profile: Arc<DeviceProfile>) -> Self {
        Self { profile, clock: Clock::default(), kv: KvDtype::Model, used: 0, spent: 0.0 }
    }

    /// The time here, for whoever drives the engine.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        let (device, total) = (self.describe(), self.profile.memory());
        let free = total.saturating_sub(self.used);
        if bytes > free {
            return Err(Error::DeviceMemory { device, asked: bytes, free, total });
        }
        self.used += bytes;
        Ok(())
    }

    /// Bytes of a token's keys and values in one layer.
    fn token_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        2 * heads.kv_heads * heads.head_dim * self.kv_element_bytes(heads, dtype)
    }

    /// An op that does nothing to speak of but move `bytes`.
    fn small_op(&mut self, bytes: usize) {
        self.spent += self.profile.small_op.ns(bytes);
    }

    /// Moves `pages` between device and host, once the device has done all that was asked of it.
    fn transfer(&self, bytes: usize) {
        self.clock.transfer(bytes as f64 / self.profile.host_link_bytes_per_s * 1e9);
    }
}

/// Bytes of keys and values of some pages that would be in host memory.
#[derive(Clone, Copy, Debug)]
pub struct SavedPages(usize);

impl Backend for Sim {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = ();
    type Kv = KvShape;
    type SavedPages = SavedPages;
    type Rope = ();
    type Step = Step;

    const IS_ASYNC: bool = true;
    const MIXES_DTYPES: bool = true;

    fn describe(&self) -> String {
        format!("{}, simulated", self.profile.name)
    }

    fn arithmetic(&self) -> String {
        self.describe()
    }

    fn page_tokens(&self) -> u32 {
        self.profile.backend.page_tokens()
    }

    fn cost_model(&self) -> CostModel {
        self.profile.cost_model()
    }

    fn tile(&self) -> u32 {
        self.profile.backend.tile()
    }

    /// It computes nothing, and models devices as they are by default.
    fn set_batch_invariant(&mut self) {}

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.kv = kv;
    }

    fn swap_rates(&self) -> SwapRates {
        SwapRates { host_bytes: self.profile.host_link_bytes_per_s, flops: self.profile.linear.flops_per_s }
    }

    fn free_bytes(&self) -> Result<usize> {
        Ok(self.profile.memory().saturating_sub(self.used))
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Matrix> {
        let matrix = Matrix(StackShape::of(parts));
        self.take(matrix.bytes())?;
        Ok(matrix)
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<()> {
        self.take(parts.iter().map(|part| part.rows * part.cols * size_of::<f32>()).sum())
    }

    fn rope_table(&mut self, _: &RopeTable) -> Result<()> {
        Ok(())
    }

    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Buffer> {
        let element = match holds {
            ActivationDtype::Sums => Dtype::F32,
            ActivationDtype::Operands(dtype) => dtype,
        };
        Ok(Buffer { rows: 0, width, element_bytes: element.bytes(), most_rows: 0 })
    }

    fn resize(&mut self, buffer: &mut Buffer, rows: usize) -> Result<()> {
        self.take(rows.saturating_sub(buffer.most_rows) * buffer.row_bytes())?;
        buffer.most_rows = buffer.most_rows.max(rows);
        buffer.rows = rows;
        Ok(())
    }

    fn write(&mut self, _: &mut Buffer, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn read(&mut self, buffer: &Buffer, rows: usize) -> Result<Vec<f32>> {
        Ok(vec![0.0; rows * buffer.width])
    }

    /// A device that has tiles has the kernel for Hopper, as the simulated times have it.
    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        let has_tiles = self.profile.cost_model().tiles.is_some();
        let fp8 = self.kv == KvDtype::Fp8 && has_tiles && has_wgmma(dtype, heads.head_dim);
        if fp8 { 1 } else { dtype.bytes() }
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        let token = |&heads: &HeadLayout| self.token_bytes(heads, shape.dtype);
        shape.heads.iter().map(token).sum::<usize>() * self.page_tokens() as usize
    }

    fn kv(&mut self, shape: &KvShape) -> Result<KvShape> {
        self.take(shape.pages * self.page_bytes(shape))?;
        Ok(shape.clone())
    }

    fn save_pages(&mut self, kv: &KvShape, pages: &[PageId]) -> Result<SavedPages> {
        let saved = SavedPages(pages.len() * self.page_bytes(kv));
        self.transfer(saved.0);
        Ok(saved)
    }

    fn restore_pages(&mut self, _: &mut KvShape, saved: &SavedPages, _: &[PageId]) -> Result<()> {
        self.transfer(saved.0);
        Ok(())
    }

    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, vocab: usize) -> Result<Step> {
        let heads = heads.iter().map(|&heads| (heads, self.kv_element_bytes(heads, dtype)));
        Ok(Step::new(heads.collect(), vocab))
    }

    fn load(&mut self, step: &mut Step, batch: StepBatch) -> Result<StepShape> {
        Ok(step.load(batch, &self.profile))
    }

    fn advance(&mut self, step: &mut Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        Ok(step.advance(uniforms, new_pages, &self.profile))
    }

    fn run(
        &mut self,
        step: &mut Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<()> {
        self.spent = self.profile.step_ns;
        ops(self, step)?;
        let host = self.profile.host_step_ns + self.profile.host_row_ns * shape.rows as f64;
        step.finish(self.clock.submit(host, self.spent));
        Ok(())
    }

    fn collect(&mut self, step: &mut Step) -> Result<Vec<Sampled>> {
        let (time, sampled) = step.collect();
        self.clock.wait_until(time.end);
        Ok(sampled)
    }

    fn embed(&mut self, out: &mut Buffer, table: &Matrix, _: &Step) {
        self.small_op(out.bytes() + out.rows * table.row_bytes());
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, (): &(), _: f32) {
        self.small_op(x.bytes() + out.bytes());
    }

    fn layer_norm(&mut self, out: &mut Buffer, x: &Buffer, (): &(), (): &(), _: f32) {
        self.small_op(x.bytes() + out.bytes());
    }

    fn linear(&mut self, out: &mut Buffer, _: &Buffer, w: &Matrix, _: Option<&()>) {
        self.spent += self.profile.linear.ns(w.bytes(), w.0.rows, w.0.cols, out.rows);
    }

    fn linear_add(&mut self, out: &mut Buffer, _: &Buffer, w: &Matrix, _: Option<&()>) {
        self.spent += self.profile.linear.ns(w.bytes(), w.0.rows, w.0.cols, out.rows);
    }

    fn head_norm(&mut self, qkv: &mut Buffer, heads: HeadLayout, kind: HeadKind, (): &(), _: f32) {
        let normed = match kind {
            HeadKind::Query => heads.q_heads,
            HeadKind::Key => heads.kv_heads,
        };
        self.small_op(2 * qkv.rows * normed * heads.head_dim * qkv.element_bytes);
    }

    fn rope(&mut self, qkv: &mut Buffer, heads: HeadLayout, (): &(), _: &Step) {
        self.small_op(2 * qkv.rows * (heads.q_heads + heads.kv_heads) * heads.head_dim * qkv.element_bytes);
    }

    fn kv_append(&mut self, kv: &mut KvShape, layer: LayerIx, qkv: &Buffer, _: &Step) {
        let heads = kv.heads[layer.ix()];
        let read = 2 * heads.kv_heads * heads.head_dim * qkv.element_bytes;
        self.small_op(qkv.rows * (read + self.token_bytes(heads, kv.dtype)));
    }

    fn tree_attention(
        &mut self,
        _: &mut Buffer,
        _: &Buffer,
        _: &KvShape,
        _: LayerIx,
        step: &mut Step,
        plan: usize,
        _: f32,
    ) {
        self.spent += step.attention_ns(plan);
    }

    fn gated_silu(&mut self, out: &mut Buffer, x: &Buffer) {
        self.small_op(x.bytes() + out.bytes());
    }

    fn gelu(&mut self, x: &mut Buffer) {
        self.small_op(2 * x.bytes());
    }

    fn select_rows(&mut self, out: &mut Buffer, _: &Buffer, _: &Step) {
        self.small_op(2 * out.bytes());
    }

    fn sample(&mut self, logits: &Buffer, step: &mut Step) {
        self.spent += self.profile.sample.ns(logits.bytes());
        step.note_sampled();
    }
}
