//! Times the CPU's tree attention on one shared prompt with many samples, and compares it with the machine's rates of
//! arithmetic and memory reads. The callers print the results.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::backend::cpu::attention::{self, AttentionScratch, TILE};
use crate::backend::cpu::kv::PAGE_TOKENS;
use crate::backend::cpu::{Cores, CpuBuffer, Isa, KvStore};
use crate::backend::{Dtype, HeadLayout, KvDtype, KvShape, Scoring};
use crate::error::{Error, Result};
use crate::ids::{GroupIx, LayerIx, PageId, TokenId};
use crate::kv::{Forest, KvSlot, PagePool, PrefixTree, StepRow};
use crate::plan::{AttentionPlan, CostModel, PlanHints, Planner};

use crate::backend::cpu::machine::MachineRates;

/// One decode step: `samples` branches of `own_tokens` tokens each (the newest is the row) under a prompt of `prompt`
/// tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AttentionShape {
    pub prompt: usize,
    pub samples: usize,
    pub own_tokens: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub dtype: Dtype,
    pub planner: Planner,
    /// Layers, run one after another, each with its own keys and values, as in a model; results are per layer.
    pub layers: usize,
}

/// One layer of one step, medians over the repetitions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttentionTiming {
    pub shape: AttentionShape,
    pub isa: String,
    pub threads: usize,
    pub attention_us: f64,
    /// Time to store the step's keys and values.
    pub append_us: f64,
    /// Multiplications and additions of attention over all visible positions, independent of the plan.
    pub flops: f64,
    pub gflops_per_s: f64,
    /// Bytes of keys and values that the plan's work items read.
    pub kv_bytes: f64,
    pub gbytes_per_s: f64,
    /// Time of `flops` and of `kv_bytes` at the machine's rates.
    pub flops_floor_us: f64,
    pub bytes_floor_us: f64,
    /// The larger lower bound divided by the measured time.
    pub share_of_floor: f64,
}

/// Times `shape` for about `budget`.
///
/// # Errors
///
/// An impossible shape, or too little memory.
pub fn time(isa: Isa, shape: &AttentionShape, rates: &MachineRates, budget: Duration) -> Result<AttentionTiming> {
    let mut step = PreparedStep::new(isa, shape)?;
    step.run();
    let begin = Instant::now();
    let mut times = Vec::new();
    while times.len() < 3 || (begin.elapsed() < budget && times.len() < 1000) {
        times.push(step.run());
    }
    let median = |mut us: Vec<f64>| {
        us.sort_by(f64::total_cmp);
        us[us.len() / 2] / shape.layers as f64
    };
    let attention_us = median(times.iter().map(|t| t.0).collect());
    let append_us = median(times.iter().map(|t| t.1).collect());
    let context: u64 = step.plan.row_positions.iter().map(|&p| u64::from(p) + 1).sum();
    let flops = (4 * context * (shape.q_heads * shape.head_dim) as u64) as f64;
    let kv_bytes = step.plan.stats(&shape.hints()).kv_bytes_read as f64;
    let flops_floor_us = flops / rates.gflops(shape.dtype) / 1e3;
    let bytes_floor_us = kv_bytes / rates.read_gb_per_s / 1e3;
    Ok(AttentionTiming {
        shape: *shape,
        isa: isa.to_string(),
        threads: rayon::current_num_threads(),
        attention_us,
        append_us,
        flops,
        gflops_per_s: flops / attention_us / 1e3,
        kv_bytes,
        gbytes_per_s: kv_bytes / attention_us / 1e3,
        flops_floor_us,
        bytes_floor_us,
        share_of_floor: flops_floor_us.max(bytes_floor_us) / attention_us,
    })
}

impl AttentionShape {
    fn heads(&self) -> HeadLayout {
        HeadLayout { q_heads: self.q_heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    fn hints(&self) -> PlanHints {
        PlanHints {
            group: GroupIx(0),
            tile: TILE,
            window: None,
            q_heads: self.q_heads as u32,
            kv_heads: self.kv_heads as u32,
            head_dim: self.head_dim as u32,
            kv_element_bytes: self.dtype.bytes() as u32,
            cost: CostModel::CPU,
        }
    }

    fn check(&self) -> Result<()> {
        let fits = self.prompt > 0
            && self.samples > 0
            && self.own_tokens > 0
            && self.layers > 0
            && self.kv_heads > 0
            && self.q_heads.is_multiple_of(self.kv_heads)
            && self.head_dim > 0
            && self.head_dim.is_multiple_of(2);
        match fits {
            true => Ok(()),
            false => Err(Error::value(
                "attention shape",
                "no zeros, an even head_dim, and q_heads a multiple of kv_heads",
                format!("q_heads {}, kv_heads {}, head_dim {}", self.q_heads, self.kv_heads, self.head_dim),
            )),
        }
    }
}

/// A decode step, ready to run.
struct PreparedStep {
    cores: Cores,
    layers: usize,
    kv: KvStore,
    scratch: AttentionScratch,
    plan: AttentionPlan,
    slots: Vec<KvSlot>,
    qkv: CpuBuffer,
    out: CpuBuffer,
    scale: f32,
}

impl PreparedStep {
    fn new(isa: Isa, shape: &AttentionShape) -> Result<Self> {
        shape.check()?;
        let pages = (shape.prompt + 1) / PAGE_TOKENS as usize
            + 2
            + shape.samples * (shape.own_tokens / PAGE_TOKENS as usize + 2);
        let (forest, slots) = grow(shape, pages)?;
        let heads = shape.heads();
        let kv = KvShape::uniform(shape.layers, heads, shape.dtype, pages);
        let mut kv = KvStore::new(&kv, KvDtype::Model)?;
        fill(&mut kv, pages, shape);
        let mut qkv = CpuBuffer::new(shape.samples, heads.qkv_width());
        noise(&mut qkv);
        Ok(Self {
            cores: Cores::new(isa),
            layers: shape.layers,
            kv,
            scratch: AttentionScratch::default(),
            plan: shape.planner.plan(&forest, &shape.hints()),
            slots,
            qkv,
            out: CpuBuffer::new(shape.samples, heads.q_width()),
            scale: (heads.head_dim as f32).powf(-0.5),
        })
    }

    /// Runs the step; returns microseconds of attention and of appending, over all layers.
    fn run(&mut self) -> (f64, f64) {
        let (mut attention, mut append) = (Duration::ZERO, Duration::ZERO);
        for layer in (0..self.layers).map(LayerIx::new) {
            let begin = Instant::now();
            self.kv.append(&self.cores, layer, &self.qkv, &self.slots);
            let appended = Instant::now();
            attention::tree_attention(
                &self.cores,
                &mut self.scratch,
                &mut self.out,
                &self.qkv,
                &self.kv,
                layer,
                &self.plan,
                Scoring::scaled(self.scale),
                None,
            );
            append += appended - begin;
            attention += appended.elapsed();
        }
        (attention.as_secs_f64() * 1e6, append.as_secs_f64() * 1e6)
    }
}

/// The forest of the step and the slots of its rows.
fn grow(shape: &AttentionShape, pages: usize) -> Result<(Forest, Vec<KvSlot>)> {
    let mut pool = PagePool::new(pages);
    let mut tree = PrefixTree::new(PAGE_TOKENS);
    let short = |_| Error::Internal(format!("{pages} pages do not hold {shape:?}"));
    let prompt = tree.admit(&mut pool, &vec![TokenId(1); shape.prompt]).map_err(short)?;
    tree.mark_computed(prompt, tree.end(prompt));
    let mut rows = Vec::new();
    for _ in 0..shape.samples {
        let branch = tree.fork(prompt);
        tree.append(&mut pool, branch, &vec![TokenId(2); shape.own_tokens]).map_err(short)?;
        tree.mark_computed(branch, tree.end(branch) - 1);
        rows.push(StepRow { segment: branch, position: tree.end(branch) - 1 });
    }
    tree.depth_first(&mut rows);
    let slots = rows.iter().map(|row| tree.slot(row.segment, row.position)).collect();
    Ok((tree.forest(&rows), slots))
}

/// Writes numbers to all slots of all layers.
fn fill(kv: &mut KvStore, pages: usize, shape: &AttentionShape) {
    let tokens = PAGE_TOKENS as usize;
    let mut qkv = CpuBuffer::new(tokens, shape.heads().qkv_width());
    noise(&mut qkv);
    let cores = Cores::new(Isa::Portable);
    for layer in (0..shape.layers).map(LayerIx::new) {
        for page in 0..pages {
            let page = PageId::new(page);
            let slots: Vec<KvSlot> = (0..PAGE_TOKENS).map(|slot| KvSlot { page, slot }).collect();
            kv.append(&cores, layer, &qkv, &slots);
        }
    }
}

/// Fills `buffer` with numbers between -1 and 1.
fn noise(buffer: &mut CpuBuffer) {
    let mut state = 1_u32;
    for x in &mut buffer.data {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *x = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_shape_is_timed_and_counted() {
        let shape = AttentionShape {
            prompt: 128,
            samples: 4,
            own_tokens: 3,
            q_heads: 2,
            kv_heads: 1,
            head_dim: 16,
            dtype: Dtype::Bf16,
            planner: Planner::Tree,
            layers: 2,
        };
        let rates = MachineRates { threads: 1, f32_gflops: 1.0, bf16_dot_gflops: None, read_gb_per_s: 1.0 };
        let timing = time(Isa::fastest(), &shape, &rates, Duration::ZERO).unwrap();
        // 4 rows x 131 positions x 2 heads x 16 x (two products of a multiplication and an addition)
        assert_eq!(timing.flops, (4 * 131 * 2 * 16 * 4) as f64);
        // the prompt once and 3 tokens for each sample; keys and values of one head
        assert_eq!(timing.kv_bytes, ((128 + 4 * 3) * 16 * 2 * 2) as f64);
        assert!(timing.attention_us > 0.0 && timing.share_of_floor > 0.0);
    }

    #[test]
    fn an_impossible_shape_is_refused() {
        let shape = AttentionShape {
            prompt: 1,
            samples: 1,
            own_tokens: 1,
            q_heads: 3,
            kv_heads: 2,
            head_dim: 16,
            dtype: Dtype::F32,
            planner: Planner::Flat,
            layers: 1,
        };
        let rates = MachineRates { threads: 1, f32_gflops: 1.0, bf16_dot_gflops: None, read_gb_per_s: 1.0 };
        assert!(time(Isa::Portable, &shape, &rates, Duration::ZERO).is_err());
    }
}
