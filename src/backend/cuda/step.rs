//! The step that the GPU's ops read: a batch as words at fixed device addresses, the scratch memory that its attention and
//! its sampler need, its graphs, and the draws that are on their way to the host.
//!
//! Row counts are padded to buckets, so that few shapes occur and each is captured as a graph once. A padded row holds token
//! 0 at position 0 and has no slot; a padded request is greedy. Nobody reads what becomes of them.

use std::collections::VecDeque;

use super::args::Args;
use super::attention::{self, At, AttentionKernels};
use super::buffer::Buffer;
use super::device::Device;
use super::device_plan::DevicePlan;
use super::event::Event;
use super::function::Function;
use super::graphs::Graphs;
use super::kv::{NO_SLOT, slot_word};
use super::memory::Memory;
use super::sampling::{self, ResultLayout, SampleBuffers, SamplerKernels};
use super::staged::{Fetched, Staged, TURNS, Turn};
use super::token_word::token_word;
use super::units;
use crate::backend::{Dtype, HeadLayout, SampleRequest, Sampled, StepBatch, StepShape};
use crate::error::Result;

/// Bytes that every list begins with; they grow by doubling.
const SMALLEST: usize = 4096;

pub struct Step {
    heads: HeadLayout,
    vocab: usize,
    advance: Function,
    attention: AttentionKernels,
    sampler: SamplerKernels,

    tokens: Staged,
    positions: Staged,
    slots: Staged,
    wanted: Staged,
    requests: Staged,
    coins: Staged,
    plans: Vec<Staged>,
    results: Fetched,
    /// Token drawn for each request; read by the next step's `embed`.
    drawn: Memory,
    partials: Memory,
    sampler_scratch: Memory,

    loaded: Option<Loaded>,
    pub(super) graphs: Graphs,
    turn: Turn,
    /// Reached when the step of a turn is done, its results included.
    done: [Event; TURNS],
    under_way: VecDeque<UnderWay>,
}

/// What the host keeps of the step on the device.
struct Loaded {
    rows: usize,
    /// Padded.
    shape: StepShape,
    results: ResultLayout,
}

enum UnderWay {
    Running { turn: Turn, results: ResultLayout },
    Done(Vec<Sampled>),
}

impl Step {
    pub fn new(device: &Device, heads: HeadLayout, dtype: Dtype, vocab: usize) -> Result<Self> {
        let staged = || Staged::new(device, SMALLEST);
        Ok(Self {
            heads,
            vocab,
            advance: device.function(&units::advance(), "advance")?,
            attention: AttentionKernels::load(device, dtype, heads)?,
            sampler: SamplerKernels::load(device, vocab)?,
            tokens: staged()?,
            positions: staged()?,
            slots: staged()?,
            wanted: staged()?,
            requests: staged()?,
            coins: staged()?,
            plans: Vec::new(),
            results: Fetched::new(device, SMALLEST)?,
            drawn: device.alloc(SMALLEST)?,
            partials: device.alloc(SMALLEST)?,
            sampler_scratch: device.alloc(SMALLEST)?,
            loaded: None,
            graphs: Graphs::default(),
            turn: Turn::default(),
            done: [device.event()?, device.event()?],
            under_way: VecDeque::new(),
        })
    }

    pub fn load(&mut self, device: &Device, batch: StepBatch) -> Result<StepShape> {
        self.begin()?;
        let shape = padded(batch.shape());
        let turn = self.turn;
        let mut moves = false;
        let tokens = batch.tokens.iter().map(|&token| token_word(token));
        moves |= self.tokens.fill(device, turn, &words(tokens, shape.rows, 0))?;
        moves |= self.positions.fill(device, turn, &words(batch.positions.iter().copied(), shape.rows, 0))?;
        moves |=
            self.slots.fill(device, turn, &words(batch.slots.iter().copied().map(slot_word), shape.rows, NO_SLOT))?;
        moves |= self.wanted.fill(device, turn, &words(batch.wanted.iter().copied(), shape.wanted, 0))?;
        let mut partial_slots = 0;
        for (number, plan) in batch.plans.iter().enumerate() {
            if number == self.plans.len() {
                self.plans.push(Staged::new(device, SMALLEST)?);
            }
            let plan = DevicePlan::build(plan, self.heads, shape.rows, self.attention.tiling());
            partial_slots = partial_slots.max(plan.partial_slots());
            moves |= self.plans[number].fill(device, turn, bytemuck::cast_slice(plan.words()))?;
        }
        moves |= reserve(device, &mut self.partials, attention::scratch_bytes(partial_slots, self.heads))?;
        let results = ResultLayout::new(&batch.requests, shape.wanted, self.vocab);
        if shape.draws {
            let mut block = Vec::new();
            sampling::pack(&batch.requests, shape.wanted, &mut block);
            moves |= self.requests.fill(device, turn, &block)?;
            moves |= self.fill_coins(device, batch.requests.iter().map(SampleRequest::coin), shape.wanted)?;
            moves |= self.reserve_drawn(device, 4 * shape.wanted)?;
            let scratch = SamplerKernels::scratch_bytes(shape.wanted, self.vocab);
            moves |= reserve(device, &mut self.sampler_scratch, scratch)?;
            if results.bytes() > self.results.memory().bytes() {
                self.settle()?;
                moves |= self.results.reserve(device, results.bytes())?;
            }
        }
        if moves {
            self.graphs.clear();
        }
        self.loaded = Some(Loaded { rows: batch.tokens.len(), shape, results });
        Ok(shape)
    }

    /// Tokens, positions and slots move on where they are; only coins come from the host.
    pub fn advance(&mut self, device: &Device, coins: &[f64]) -> Result<StepShape> {
        self.begin()?;
        let Loaded { rows, shape, .. } = *self.loaded.as_ref().expect("a step is loaded before it is advanced");
        let rows = u32::try_from(rows).expect("a step has fewer than 2^32 rows");
        let args = Args::new()
            .memory(self.tokens.memory())
            .memory(self.positions.memory())
            .memory(self.slots.memory())
            .u32(rows);
        device.launch(&self.advance, [rows.div_ceil(256), 1, 1], 256, 0, &args);
        if self.fill_coins(device, coins.iter().copied(), shape.wanted)? {
            self.graphs.clear();
        }
        Ok(shape)
    }

    /// Takes the turn of the step before last, which must be done.
    fn begin(&mut self) -> Result<()> {
        self.turn = self.turn.next();
        self.done[self.turn.ix()].wait()
    }

    /// Makes room for the tokens of this step, which still has to read those of the last.
    fn reserve_drawn(&mut self, device: &Device, bytes: usize) -> Result<bool> {
        let moves = bytes > self.drawn.bytes();
        if moves {
            let larger = device.alloc(bytes.next_power_of_two())?;
            device.copy(&larger, 0, &self.drawn, 0..self.drawn.bytes())?;
            self.drawn = larger;
        }
        Ok(moves)
    }

    /// Takes the results of all steps under way, so that their memory can be given up.
    fn settle(&mut self) -> Result<()> {
        for step in &mut self.under_way {
            if let UnderWay::Running { turn, results } = step {
                self.done[turn.ix()].wait()?;
                *step = UnderWay::Done(results.parse(self.results.bytes(*turn)));
            }
        }
        Ok(())
    }

    fn fill_coins(&mut self, device: &Device, coins: impl Iterator<Item = f64>, padded: usize) -> Result<bool> {
        let mut coins: Vec<f64> = coins.collect();
        coins.resize(padded, 0.0);
        self.coins.fill(device, self.turn, bytemuck::cast_slice(&coins))
    }

    /// Tree attention by plan number `plan`; `kv` is where the layer's pages begin.
    pub fn attend(&self, device: &Device, out: &Buffer, qkv: &Buffer, kv: At<'_>, plan: usize, scale: f32) {
        let operands = attention::Operands {
            out: out.memory(),
            qkv: qkv.memory(),
            kv,
            plan: (self.plans[plan].memory(), 0),
            positions: (self.positions.memory(), 0),
            partials: &self.partials,
        };
        self.attention.tree_attention(device, &operands, scale, out.rows);
    }

    /// Draws for all requests from `logits` `[wanted, vocab]`.
    pub fn sample(&self, device: &Device, logits: &Buffer) {
        let buffers = SampleBuffers {
            logits: logits.memory(),
            requests: (self.requests.memory(), 0),
            coins: (self.coins.memory(), 0),
            scratch: &self.sampler_scratch,
            results: (self.results.memory(), 0),
            drawn: &self.drawn,
        };
        self.sampler.sample(device, logits.rows, &buffers);
    }

    /// The step has been enqueued: its results follow.
    pub fn finish(&mut self, device: &Device) -> Result<()> {
        let Loaded { shape, results, .. } = self.loaded.as_ref().expect("a step is loaded before it is run");
        if shape.draws {
            self.results.fetch(device, self.turn, results.bytes())?;
        }
        self.done[self.turn.ix()].record()?;
        self.under_way.push_back(match shape.draws {
            true => UnderWay::Running { turn: self.turn, results: results.clone() },
            false => UnderWay::Done(Vec::new()),
        });
        Ok(())
    }

    /// Waits for the oldest step under way. Panics where there is none.
    pub fn collect(&mut self) -> Result<Vec<Sampled>> {
        match self.under_way.pop_front().expect("a step is run before it is collected") {
            UnderWay::Done(drawn) => Ok(drawn),
            UnderWay::Running { turn, results } => {
                self.done[turn.ix()].wait()?;
                Ok(results.parse(self.results.bytes(turn)))
            }
        }
    }

    pub fn tokens(&self) -> &Memory {
        self.tokens.memory()
    }

    pub fn positions(&self) -> &Memory {
        self.positions.memory()
    }

    pub fn slots(&self) -> &Memory {
        self.slots.memory()
    }

    pub fn wanted(&self) -> &Memory {
        self.wanted.memory()
    }

    pub fn drawn(&self) -> &Memory {
        &self.drawn
    }
}

/// The bucket of a shape.
pub fn padded(shape: StepShape) -> StepShape {
    StepShape { rows: bucket(shape.rows), wanted: bucket(shape.wanted), ..shape }
}

/// `rows` rounded up by less than a sixteenth, or to a multiple of 8: at most 16 buckets an octave.
pub fn bucket(rows: usize) -> usize {
    let step = (rows.next_power_of_two() / 32).max(8);
    rows.next_multiple_of(step)
}

/// `values`, then `padding` up to `count`, as the device reads them.
fn words(values: impl Iterator<Item = u32>, count: usize, padding: u32) -> Vec<u8> {
    let mut words: Vec<u32> = values.collect();
    words.resize(count.max(words.len()), padding);
    bytemuck::cast_slice(&words).to_vec()
}

/// Makes room for `bytes` in `memory`, contents lost; says whether its address changed.
fn reserve(device: &Device, memory: &mut Memory, bytes: usize) -> Result<bool> {
    let moves = bytes > memory.bytes();
    if moves {
        // Freed first: there may be no room for both.
        *memory = device.alloc(0)?;
        *memory = device.alloc(bytes)?;
    }
    Ok(moves)
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
