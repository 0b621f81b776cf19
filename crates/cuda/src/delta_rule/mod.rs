//! Launchers of the ops of recurrent layers that read and write states: one launch for each wave of the step's runs
//! (`runs`), and for its long runs those of `chunked`. kernels/delta_rule has their kernels; `ops` launches the layers'
//! other ops.

pub mod chunked;
pub mod runs;

use self::chunked::ChunkedKernels;
use self::runs::{RUN_WORDS, RunPlan};
use super::compile::units;
use super::driver::args::Args;
use super::driver::device::Device;
use super::driver::function::Function;
use super::driver::grid::{LANE_BLOCK, small};
use super::driver::memory::Memory;
use super::memory::buffer::Buffer;
use super::memory::states::LayerStates;
use super::memory::weights::Vector;
use offshoot_backend::{ConvShape, DeltaHeads, Dtype, LayerState, StateDtype, StateKind, StateRule};
use offshoot_core::error::{Error, Result};

/// The widest keys: half as many elements of a state are in the registers of a thread.
pub const MOST_KEY_DIM: usize = 256;

/// Columns of a state that a warp has, and the most warps of a block, as in kernels/delta_rule/delta_rule.cu.
const WARP_COLUMNS: usize = 16;
const MOST_WARPS: usize = 4;

/// Channels of a row that a block of `causal_conv` takes: 4 for each thread.
const BLOCK_CHANNELS: u32 = 4 * LANE_BLOCK;

/// The kernels of layers with such a state, whose matrices are of `state`, in a model of `element`.
pub struct StateKernels {
    pub element: Dtype,
    pub state: StateDtype,
    pub layer: LayerState,
    heads: DeltaHeads,
    causal_conv: Function,
    delta_rule: Function,
    chunked: Option<ChunkedKernels>,
}

/// The runs of the loaded step: their plan, and its words on the device.
#[derive(Clone, Copy)]
pub struct LoadedRuns<'a> {
    pub plan: &'a RunPlan,
    pub words: &'a Memory,
}

impl LoadedRuns<'_> {
    /// The bytes before the run or segment with that number.
    fn at(number: usize) -> usize {
        number * RUN_WORDS * size_of::<u32>()
    }
}

impl StateKernels {
    /// Errors: layers of another kind, or keys wider than [`MOST_KEY_DIM`].
    pub fn load(device: &Device, element: Dtype, state: StateDtype, layer: LayerState) -> Result<Self> {
        let StateKind::Delta(heads) = layer.kind else {
            return Err(Error::value("recurrent layers", "layers that a GPU computes", layer.to_string()));
        };
        if heads.key_dim > MOST_KEY_DIM {
            let expected = format!("keys of at most {MOST_KEY_DIM} on a GPU");
            return Err(Error::value("heads of recurrent layers", expected, heads.to_string()));
        }
        let delta_rule = units::delta_rule(element, state, heads.key_dim, heads.value_dim);
        Ok(Self {
            element,
            state,
            layer,
            heads,
            causal_conv: device.function(&units::causal_conv(element, layer.conv.tokens), "causal_conv")?,
            delta_rule: device.function(&delta_rule, "delta_rule")?,
            chunked: ChunkedKernels::load(device, element, state, heads)?,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    pub fn causal_conv(
        &self,
        device: &Device,
        out: &Buffer,
        x: &Buffer,
        weight: &Vector,
        bias: Option<&Vector>,
        states: LayerStates<'_>,
        runs: LoadedRuns<'_>,
    ) {
        let ConvShape { width, tokens } = self.layer.conv;
        assert_eq!((out.rows, out.width, out.element), (x.rows, x.width, x.element), "causal_conv: shapes");
        assert_eq!((x.width, x.element, weight.len), (width, self.element, tokens * width), "causal_conv: width");
        assert!(bias.is_none_or(|bias| bias.len == width), "causal_conv: length of the bias");
        let (tails, tails_at) = states.tails();
        for wave in runs.plan.waves() {
            let args = Args::new().memory(out.memory()).memory(x.memory()).memory(&weight.memory);
            let args = args.memory_or_null(bias.map(|bias| &bias.memory));
            let args = args.memory_at(tails, tails_at).memory_at(runs.words, LoadedRuns::at(wave.segments.start));
            let grid = [small(wave.segments.len()), small(width).div_ceil(BLOCK_CHANNELS), 1];
            device.launch(&self.causal_conv, grid, LANE_BLOCK, 0, &args.u32(small(width)));
        }
    }

    /// Bytes that the products of the plan's chunks need, if its long runs are to be computed in chunks.
    pub fn chunk_bytes(&self, plan: &RunPlan) -> usize {
        self.chunked.as_ref().map_or(0, |chunked| chunked.bytes(plan))
    }

    /// `products`: memory of `chunk_bytes`; without it all runs are computed token by token.
    #[expect(clippy::too_many_arguments, reason = "operands of one op, each named once")]
    pub fn state_update(
        &self,
        device: &Device,
        out: &Buffer,
        qkv: &Buffer,
        gates: &Buffer,
        rule: StateRule<'_, Vector>,
        states: LayerStates<'_>,
        runs: LoadedRuns<'_>,
        products: Option<&Memory>,
    ) {
        let heads = self.heads;
        let shapes = [(out, heads.value_width(), self.element), (qkv, heads.conv_width(), self.element)];
        for (buffer, width, element) in shapes.into_iter().chain([(gates, 2 * heads.value_heads, Dtype::F32)]) {
            let found = (buffer.rows, buffer.width, buffer.element);
            assert_eq!(found, (out.rows, width, element), "state_update: shapes");
        }
        let StateRule::Delta { rate, dt } = rule else { panic!("state_update: a rule that is not of {}", self.layer) };
        let lengths = (rate.len, dt.len);
        assert_eq!(lengths, (heads.value_heads, heads.value_heads), "state_update: lengths of the gates");
        let warps = heads.value_dim.div_ceil(WARP_COLUMNS).min(MOST_WARPS);
        let blocks = heads.value_heads * heads.value_dim.div_ceil(WARP_COLUMNS * warps);
        let (matrices, matrices_at) = states.matrices();
        let [key_heads, value_heads] = [heads.key_heads, heads.value_heads].map(small);
        for wave in runs.plan.waves() {
            let mut first = wave.runs.start;
            if let (Some(chunked), Some(products), 1..) = (&self.chunked, products, wave.long) {
                let (rows, threads) = (qkv.memory(), chunked::PRODUCTS_THREADS);
                let args = Args::new().memory(products).memory(rows).memory(gates.memory()).memory(&rate.memory);
                let segments = LoadedRuns::at(wave.segments.start);
                let args = args.memory(&dt.memory).memory_at(runs.words, segments).u32(key_heads).u32(value_heads);
                let grid = [small(chunked::products_blocks(heads, wave.long_segments)), 1, 1];
                device.launch(&chunked.products, grid, threads, chunked::products_shared(heads), &args);
                let (states, blocks) = chunked.walk(wave.long);
                let shared = chunked::states_shared(heads, states.walk);
                let args = Args::new().memory(out.memory()).memory(products).memory(rows);
                let args = args.memory_at(matrices, matrices_at).memory_at(runs.words, LoadedRuns::at(first));
                let args = args.u32(key_heads).u32(value_heads);
                device.launch(&states.function, [small(blocks), 1, 1], states.walk.threads(), shared, &args);
                first += wave.long;
            }
            if first < wave.runs.end {
                let args = Args::new().memory(out.memory()).memory(qkv.memory()).memory(gates.memory());
                let args = args.memory(&rate.memory).memory(&dt.memory).memory_at(matrices, matrices_at);
                let args = args.memory_at(runs.words, LoadedRuns::at(first)).u32(key_heads).u32(value_heads);
                let grid = [small((wave.runs.end - first) * blocks), 1, 1];
                device.launch(&self.delta_rule, grid, small(32 * warps), 0, &args);
            }
        }
    }
}
