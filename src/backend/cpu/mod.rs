//! The CPU backend. Each op is a clear loop (the definition, `Isa::Portable`) and, where it pays, fast paths beside it,
//! chosen once at start from what the processor has. Rayon's current pool runs them. This file only routes ops to their
//! rooms.

mod activation;
pub mod attention;
mod bf16_dot;
pub mod exp;
pub mod gemm;
pub mod isa;
pub mod kv;
mod levels;
pub mod machine;
mod memory;
mod norm;
mod rope;
mod rows;
pub mod sampling;
pub mod step;
mod timed;

use crate::error::{Error, Result};
use crate::ids::{LayerIx, PageId};
use crate::plan::{CostModel, NewPage};

use super::{
    ActivationDtype, Backend, Dtype, HeadKind, HeadLayout, KvDtype, KvShape, MatrixPart, RopeTable, Sampled, StepBatch,
    StepShape, SwapRates, WeightView, with_bytes,
};
pub use gemm::Matrix;
pub use isa::Isa;
pub use kv::{KvStore, SavedPages};
pub use levels::LevelRows;
pub use memory::free_bytes;
pub use step::Step;

pub struct Cpu {
    isa: Isa,
    kv: KvDtype,
    attention: attention::Scratch,
    gemm: gemm::Scratch,
    most_rows: usize,
}

impl Cpu {
    /// The path that OFFSHOOT_CPU names, else the fastest of this processor. Errors: see [`Isa::chosen`].
    pub fn open() -> Result<Self> {
        Ok(Self::with_isa(Isa::chosen()?))
    }

    /// A given path; `Isa::Portable` is the definition of every op. Panics where the processor lacks it.
    pub fn with_isa(isa: Isa) -> Self {
        assert!(Isa::available().contains(&isa), "this processor has no path {isa}");
        Self { isa, kv: KvDtype::Model, attention: Default::default(), gemm: Default::default(), most_rows: usize::MAX }
    }

    /// Refuses steps of more rows from now on, as a device does that has no memory for them.
    #[must_use]
    pub fn with_most_rows(self, most_rows: usize) -> Self {
        Self { most_rows, ..self }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// f32 activations, `rows x width`, row-major.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pub rows: usize,
    pub width: usize,
    pub data: Vec<f32>,
}

impl Buffer {
    pub fn new(rows: usize, width: usize) -> Self {
        Self { rows, width, data: vec![0.0; rows * width] }
    }

    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.width..][..self.width]
    }
}

impl Backend for Cpu {
    type Buffer = Buffer;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Kv = KvStore;
    type SavedPages = SavedPages;
    type Rope = RopeTable;
    type Step = Step;

    const MIXES_DTYPES: bool = true;
    const IS_ASYNC: bool = false;

    fn describe(&self) -> String {
        format!("cpu, {}, {} threads", self.isa, rayon::current_num_threads())
    }

    /// Instruction sets differ in how many products they add at once, and in what they round operands to.
    fn arithmetic(&self) -> String {
        format!("cpu, {}", self.isa)
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

    /// It always is.
    fn set_batch_invariant(&mut self) {}

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.kv = kv;
    }

    /// Of two cores with AVX-512 (benches/runs/2026-11-20-emerald-rapids-2core): f32 products, and half of what is
    /// read, for a copy reads and writes.
    fn swap_rates(&self) -> SwapRates {
        SwapRates { host_bytes: 14e9, flops: 350e9 }
    }

    fn free_bytes(&self) -> Result<usize> {
        Ok(memory::free_bytes())
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Matrix> {
        Ok(with_bytes(parts, |views| Matrix::pack(self.isa, views)))
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Vec<f32>> {
        Ok(parts.iter().flat_map(|part| (0..part.rows * part.cols).map(|i| part.get(i))).collect())
    }

    /// Rounded or not, in the weights' dtype.
    fn kv_element_bytes(&self, _: HeadLayout, dtype: Dtype) -> usize {
        dtype.bytes()
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        KvStore::page_bytes(shape)
    }

    fn kv(&mut self, shape: &KvShape) -> Result<KvStore> {
        KvStore::new(shape, self.kv)
    }

    fn rope_table(&mut self, table: &RopeTable) -> Result<RopeTable> {
        Ok(table.clone())
    }

    fn buffer(&mut self, width: usize, _: ActivationDtype) -> Result<Buffer> {
        Ok(Buffer::new(0, width))
    }

    fn resize(&mut self, buffer: &mut Buffer, rows: usize) -> Result<()> {
        buffer.rows = rows;
        buffer.data.resize(rows * buffer.width, 0.0);
        Ok(())
    }

    fn write(&mut self, buffer: &mut Buffer, rows: usize, values: &[f32]) -> Result<()> {
        buffer.data[..rows * buffer.width].copy_from_slice(values);
        Ok(())
    }

    fn read(&mut self, buffer: &Buffer, rows: usize) -> Result<Vec<f32>> {
        Ok(buffer.data[..rows * buffer.width].to_vec())
    }

    fn save_pages(&mut self, kv: &KvStore, pages: &[PageId]) -> Result<SavedPages> {
        Ok(kv.save(pages))
    }

    fn restore_pages(&mut self, kv: &mut KvStore, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        kv.restore(saved, pages);
        Ok(())
    }

    fn step(&mut self, _: &[HeadLayout], _: Dtype, _: usize) -> Result<Step> {
        Ok(Step::default())
    }

    fn load(&mut self, step: &mut Step, batch: StepBatch) -> Result<StepShape> {
        let (rows, most) = (batch.tokens.len(), self.most_rows);
        if rows > most {
            let [asked, free] = [rows, most].map(|rows| rows * size_of::<f32>());
            return Err(Error::DeviceMemory { device: "cpu".to_string(), asked, free, total: free });
        }
        Ok(step.load(batch))
    }

    fn advance(&mut self, step: &mut Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        Ok(step.advance(uniforms, new_pages))
    }

    fn run(
        &mut self,
        step: &mut Step,
        _: StepShape,
        ops: impl FnOnce(&mut Self, &mut Step) -> Result<()>,
    ) -> Result<()> {
        ops(self, step)?;
        step.finish();
        Ok(())
    }

    fn collect(&mut self, step: &mut Step) -> Result<Vec<Sampled>> {
        Ok(step.collect())
    }

    fn embed(&mut self, out: &mut Buffer, table: &Matrix, step: &Step) {
        gemm::embed(out, table, step.tokens());
    }

    fn rms_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Vec<f32>, eps: f32) {
        norm::rms_norm(self.isa, out, x, weight, eps);
    }

    fn layer_norm(&mut self, out: &mut Buffer, x: &Buffer, weight: &Vec<f32>, bias: &Vec<f32>, eps: f32) {
        norm::layer_norm(self.isa, out, x, weight, bias, eps);
    }

    fn linear(&mut self, out: &mut Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vec<f32>>) {
        gemm::linear(self.isa, &mut self.gemm, out, x, w, bias, gemm::Into::Replace);
    }

    fn linear_add(&mut self, out: &mut Buffer, x: &Buffer, w: &Matrix, bias: Option<&Vec<f32>>) {
        gemm::linear(self.isa, &mut self.gemm, out, x, w, bias, gemm::Into::Add);
    }

    fn head_norm(&mut self, qkv: &mut Buffer, heads: HeadLayout, kind: HeadKind, weight: &Vec<f32>, eps: f32) {
        norm::head_norm(self.isa, qkv, heads, kind, weight, eps);
    }

    fn rope(&mut self, qkv: &mut Buffer, heads: HeadLayout, table: &RopeTable, step: &Step) {
        rope::rope(self.isa, qkv, heads, table, &step.batch().positions);
    }

    fn kv_append(&mut self, kv: &mut KvStore, layer: LayerIx, qkv: &Buffer, step: &Step) {
        kv.append(layer, qkv, &step.batch().slots);
    }

    fn tree_attention(
        &mut self,
        out: &mut Buffer,
        qkv: &Buffer,
        kv: &KvStore,
        layer: LayerIx,
        step: &mut Step,
        plan: usize,
        scale: f32,
    ) {
        let plan = &step.batch().plans[plan];
        attention::tree_attention(self.isa, &mut self.attention, out, qkv, kv, layer, plan, scale);
    }

    fn gated_silu(&mut self, out: &mut Buffer, x: &Buffer) {
        activation::gated_silu(self.isa, out, x);
    }

    fn gelu(&mut self, x: &mut Buffer) {
        activation::gelu(self.isa, x);
    }

    fn select_rows(&mut self, out: &mut Buffer, x: &Buffer, step: &Step) {
        for (i, &row) in step.batch().logit_rows.iter().enumerate() {
            out.data[i * x.width..][..x.width].copy_from_slice(x.row(row as usize));
        }
    }

    fn sample(&mut self, logits: &Buffer, step: &mut Step) {
        let sampled = sampling::sample(self.isa, logits, step.requests());
        step.note_sampled(sampled);
    }
}
