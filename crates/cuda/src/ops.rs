//! Launchers of the memory-bound ops: each checks shapes, chooses the grid and passes the arguments in the order of its
//! kernel. `Backend` and the kernel's file define what an op computes; `gemm`, `attention` and `sampling` launch the
//! others.

use super::compile::elements::KvElement;
use super::compile::unit::Unit;
use super::compile::units;
use super::driver::args::Args;
use super::driver::device::Device;
use super::driver::function::Function;
use super::driver::grid::{LANE_BLOCK, LANES, lane_blocks, small};
use super::driver::memory::Memory;
use super::memory::buffer::Buffer;
use super::memory::kv::{Kv, SlotWords, value_beside};
use super::memory::weights::{Matrix, Vector};
use offshoot_backend::{
    Dtype, Gate, GateFunction, GatedNorm, HeadKind, HeadLayout, HeadNormForm, HeadSteps, NormOrder, RopePairs,
    RopeTable,
};
use offshoot_core::error::Result;
use offshoot_core::ids::LayerIx;

/// Words that vary from step to step: memory and an offset in bytes.
pub type Words<'a> = (&'a Memory, usize);

/// The words that `prepare_heads` reads.
pub struct HeadWords<'a> {
    /// One for each row.
    pub positions: Words<'a>,
    pub slots: SlotWords<'a>,
}

/// Head widths that kernels/ops/prepare_heads.cu takes: their threads divide a warp.
const FUSED_HEAD_DIMS: [usize; 6] = [8, 16, 32, 64, 128, 256];

/// Threads of a block that reduces a row, as in kernels/reduce.cuh.
const THREADS: u32 = 256;

/// Warps of a block of the other kernels.
const LANE_BLOCK_WARPS: u32 = LANE_BLOCK / 32;

/// The widest norm of `gated_norm` that one warp computes.
const WARP_NORM_MOST: usize = 1024;

/// The places of each row's chosen experts, as `combine` reads them.
pub struct ChosenPlaces<'a> {
    /// Experts of a row.
    pub chosen: usize,
    /// `[R, chosen]`: the place of each choice, and its weight; `None`: 1.
    pub places: &'a Memory,
    pub weights: Option<&'a Memory>,
    /// A word: how many places experts multiply; those behind them give their input.
    pub multiplied: (&'a Memory, usize),
}

/// The kernels of one element type.
pub struct Ops {
    device: Device,
    element: Dtype,
    embed: Function,
    rms_norm: Function,
    layer_norm: Function,
    head_norm: Function,
    rope: Function,
    gated_silu: Function,
    gated_gelu: Function,
    gated_clamped: Function,
    gelu: Function,
    gelu_times: Function,
    relu: Function,
    relu_squared: Function,
    gelu_erf: Function,
    xielu: Function,
    clamp: Function,
    scale_columns: Function,
    add_positions: Function,
    weigh_places: Function,
    gated_norm: Function,
    sigmoid_times: Function,
    combine: Function,
    add: Function,
    rms_norm_add: Function,
    round: Function,
    scale: Function,
    softcap: Function,
    select_rows: Function,
    columns: Function,
}

/// A [`RopeTable`] on the device.
pub struct Rope {
    pub(crate) cosines: Memory,
    pub(crate) sines: Memory,
    pub(crate) rotary: usize,
    pub(crate) pairs: RopePairs,
    pub(crate) keys: bool,
}

impl Rope {
    /// Does not wait for the device. A graph captured with another table keeps using that one.
    pub fn upload(device: &Device, table: &RopeTable) -> Result<Self> {
        let (cosines, sines) = (device.uploaded(&table.cos)?, device.uploaded(&table.sin)?);
        Ok(Self { cosines, sines, rotary: table.rotary, pairs: table.pairs, keys: table.keys })
    }
}

impl Ops {
    /// Compiles the kernels, or takes them from the cache.
    pub fn load(device: &Device, element: Dtype) -> Result<Self> {
        device.prepare(&units::ops(element))?;
        let plain = |source, name| device.function(&Unit::new(source), name);
        let typed = |source, name| device.function(&units::typed(source, element), name);
        Ok(Self {
            embed: typed(&units::EMBED, "embed")?,
            rms_norm: typed(&units::RMS_NORM, "rms_norm")?,
            layer_norm: typed(&units::LAYER_NORM, "layer_norm")?,
            head_norm: typed(&units::HEAD_NORM, "head_norm")?,
            rope: typed(&units::ROPE, "rope")?,
            gated_silu: typed(&units::GATED_SILU, "gated_silu")?,
            gated_gelu: typed(&units::GATED_GELU, "gated_gelu")?,
            gated_clamped: typed(&units::GATED_CLAMPED, "gated_clamped")?,
            gelu: typed(&units::GELU, "gelu")?,
            gelu_times: typed(&units::GELU_TIMES, "gelu_times")?,
            relu: typed(&units::RELU, "relu")?,
            relu_squared: typed(&units::RELU_SQUARED, "relu_squared")?,
            gelu_erf: typed(&units::GELU_ERF, "gelu_erf")?,
            xielu: typed(&units::XIELU, "xielu")?,
            clamp: typed(&units::CLAMP, "clamp")?,
            scale_columns: typed(&units::SCALE_COLUMNS, "scale_columns")?,
            add_positions: typed(&units::ADD_POSITIONS, "add_positions")?,
            weigh_places: typed(&units::WEIGH_PLACES, "weigh_places")?,
            gated_norm: typed(&units::GATED_NORM, "gated_norm")?,
            sigmoid_times: typed(&units::SIGMOID_TIMES, "sigmoid_times")?,
            combine: typed(&units::COMBINE, "combine")?,
            add: plain(&units::ADD, "add_sums")?,
            rms_norm_add: plain(&units::RMS_NORM_ADD, "rms_norm_add")?,
            round: typed(&units::ROUND, "round_sums")?,
            scale: plain(&units::SCALE, "scale")?,
            softcap: plain(&units::SOFTCAP, "softcap")?,
            select_rows: plain(&units::SELECT_ROWS, "select_rows")?,
            columns: plain(&units::COLUMNS, "columns")?,
            device: device.clone(),
            element,
        })
    }

    /// `tokens`: a `token_word` for each row of `out`; `sampled`: the tokens that the step before sampled.
    pub fn embed(&self, out: &Buffer, table: &Matrix, tokens: Words<'_>, sampled: &Memory) {
        assert_eq!((out.width, table.element()), (table.inner, self.element), "embed: shapes");
        self.assert_sums(out);
        let args = |out: &Memory| {
            Args::new()
                .memory(out)
                .memory(&table.memory)
                .memory_at(tokens.0, tokens.1)
                .memory(sampled)
                .u32(small(table.inner))
        };
        self.launch(&self.embed, out, 1, THREADS, 0, args);
    }

    /// `positions`: one word for each row.
    pub fn add_positions(&self, out: &Buffer, table: &Matrix, positions: Words<'_>) {
        assert_eq!((out.width, table.element()), (table.inner, self.element), "add_positions: shapes");
        self.assert_sums(out);
        let args = |out: &Memory| {
            let args = Args::new().memory(out).memory(&table.memory);
            args.memory_at(positions.0, positions.1).u32(small(table.inner))
        };
        self.launch(&self.add_positions, out, 1, THREADS, 0, args);
    }

    pub fn rms_norm(&self, out: &Buffer, x: &Buffer, weight: &Vector, eps: f32) {
        self.assert_operands(out);
        self.launch_rms_norm(&self.rms_norm, out, x, weight, eps);
    }

    /// Both buffers hold sums, whatever these kernels' element.
    pub fn rms_norm_add(&self, out: &Buffer, x: &Buffer, weight: &Vector, eps: f32) {
        self.assert_sums(out);
        self.launch_rms_norm(&self.rms_norm_add, out, x, weight, eps);
    }

    fn launch_rms_norm(&self, kernel: &Function, out: &Buffer, x: &Buffer, weight: &Vector, eps: f32) {
        assert_eq!((out.rows, out.width, weight.len), (x.rows, x.width, x.width), "{kernel}: shapes");
        self.assert_sums(x);
        let args = |out: &Memory| {
            Args::new().memory(out).memory(x.memory()).memory(&weight.memory).u32(small(x.width)).f32(eps)
        };
        self.launch(kernel, out, 1, THREADS, x.row_bytes(), args);
    }

    pub fn round(&self, out: &Buffer, x: &Buffer) {
        self.assert_operands(out);
        self.launch_on_sums(&self.round, out, x);
    }

    pub fn add(&self, out: &Buffer, x: &Buffer) {
        self.assert_sums(out);
        self.launch_on_sums(&self.add, out, x);
    }

    fn launch_on_sums(&self, kernel: &Function, out: &Buffer, x: &Buffer) {
        assert_eq!((out.rows, out.width), (x.rows, x.width), "{kernel}: shapes");
        self.assert_sums(x);
        let args = |out: &Memory| Args::new().memory(out).memory(x.memory()).u32(small(x.width));
        self.launch(kernel, out, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    pub fn softcap(&self, x: &Buffer, cap: f32) {
        self.launch_in_place(&self.softcap, x, cap);
    }

    pub fn scale(&self, x: &Buffer, factor: f32) {
        self.launch_in_place(&self.scale, x, factor);
    }

    fn launch_in_place(&self, kernel: &Function, x: &Buffer, number: f32) {
        self.assert_sums(x);
        let args = |memory: &Memory| Args::new().memory(memory).u32(small(x.width)).f32(number);
        self.launch(kernel, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    /// `adds`: to what `out` holds. There is a row.
    pub fn combine(&self, out: &Buffer, x: &Buffer, input: Option<&Buffer>, of: &ChosenPlaces<'_>, adds: bool) {
        assert_eq!((out.rows * of.chosen, out.width), (x.rows, x.width), "combine: shapes");
        self.assert_sums(out);
        self.assert_operands(x);
        if let Some(input) = input {
            assert_eq!((input.rows, input.width), (out.rows, out.width), "combine: a row of the input for each row");
            self.assert_operands(input);
        }
        let args = |out: &Memory| {
            let args = Args::new().memory(out).memory(x.memory()).memory_or_null(input.map(Buffer::memory));
            let (multiplied, at) = of.multiplied;
            let args = args.memory(of.places).memory_or_null(of.weights);
            let args = args.memory_at(multiplied, at).u32(small(of.chosen));
            args.u32(small(x.width)).u32(u32::from(adds))
        };
        self.launch(&self.combine, out, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    /// `places` and `weights` `[R, chosen]`: of each choice. There is a row.
    pub fn weigh_places(&self, out: &Buffer, x: &Buffer, (chosen, places, weights): (usize, &Memory, &Memory)) {
        assert_eq!((out.rows, out.width), (x.rows * chosen, x.width), "weigh_places: shapes");
        self.assert_operands(out);
        self.assert_operands(x);
        let args = |x: &Memory| {
            let args = Args::new().memory(out.memory()).memory(x).memory(places).memory(weights);
            args.u32(small(chosen)).u32(small(out.width))
        };
        self.launch(&self.weigh_places, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    pub fn layer_norm(&self, out: &Buffer, x: &Buffer, weight: &Vector, bias: &Vector, eps: f32) {
        assert_eq!((out.rows, out.width), (x.rows, x.width), "layer_norm: shape of the output");
        assert_eq!((weight.len, bias.len), (x.width, x.width), "layer_norm: lengths of weight and bias");
        self.assert_operands(out);
        self.assert_sums(x);
        let args = |out: &Memory| {
            let args = Args::new().memory(out).memory(x.memory()).memory(&weight.memory).memory(&bias.memory);
            args.u32(small(x.width)).f32(eps)
        };
        self.launch(&self.layer_norm, out, 1, THREADS, x.row_bytes(), args);
    }

    pub fn head_norm(
        &self,
        qkv: &Buffer,
        heads: HeadLayout,
        kind: HeadKind,
        form: HeadNormForm,
        weight: &Vector,
        eps: f32,
    ) {
        let (first, count) = kind.place(heads);
        let (first, width) = (first * heads.head_dim, count * heads.head_dim);
        let [unit, weights] = form.widths(heads, count);
        assert_eq!(qkv.width, heads.qkv_width(), "head_norm: shape of qkv");
        assert_eq!(weight.len, weights, "head_norm: length of the weights");
        self.assert_operands(qkv);
        // One head if they are normalised as one vector.
        let count = width / unit;
        let apart = if weights == unit { 0 } else { unit };
        let args = |memory: &Memory| {
            let args = Args::new().memory_at(memory, first * self.element.bytes()).memory(&weight.memory);
            let args = args.u32(small(qkv.width)).u32(small(count)).u32(small(unit)).u32(small(apart));
            args.u32(u32::from(form.centred)).f32(eps)
        };
        let blocks = small(count).div_ceil(LANE_BLOCK_WARPS);
        self.launch(&self.head_norm, qkv, blocks, LANE_BLOCK, 0, args);
    }

    /// `positions`: one word for each row.
    pub fn rope(&self, qkv: &Buffer, heads: HeadLayout, table: &Rope, positions: Words<'_>) {
        assert_eq!(qkv.width, heads.qkv_width(), "rope: shapes");
        assert!(table.rotary.is_multiple_of(2) && table.rotary <= heads.head_dim, "rope: rotated part of a head");
        self.assert_operands(qkv);
        if table.rotary == 0 {
            return;
        }
        let turned = small(heads.q_heads + if table.keys { heads.kv_heads } else { 0 });
        let args = |memory: &Memory| {
            let args = Args::new().memory(memory).memory(&table.cosines).memory(&table.sines);
            let args = args.memory_at(positions.0, positions.1).u32(small(qkv.width));
            let args = args.u32(turned).u32(small(heads.head_dim)).u32(small(table.rotary));
            args.u32(neighbours(table.pairs))
        };
        let pairs = turned * small(table.rotary / 2);
        self.launch(&self.rope, qkv, lane_blocks(pairs), LANE_BLOCK, 0, args);
    }

    pub fn kv_append(&self, kv: &Kv, layer: LayerIx, qkv: &Buffer, slots: SlotWords<'_>) {
        let heads = kv.heads(layer);
        assert_eq!((qkv.width, kv.shape().dtype), (heads.qkv_width(), self.element), "kv_append: shapes");
        self.assert_operands(qkv);
        // Bytes where they are copied, elements where they are rounded.
        let (unit, blocks) = match kv.kv_element(layer) {
            KvElement::Plain => (self.element.bytes(), chunk_blocks(heads.stored_width() * self.element.bytes())),
            KvElement::Rounded | KvElement::Fp8 => (1, lane_blocks(small(heads.stored_width()))),
        };
        let args = |memory: &Memory| {
            let args = Args::new().memory_at(kv.memory(), kv.layer_at(layer)).memory(memory);
            let SlotWords { words, member } = slots;
            let args = args.memory_at(words.0, words.1).u32(small(qkv.width * unit)).u32(small(heads.kv_heads));
            let args = args.u32(small(heads.head_dim * unit)).u32(small(value_beside(heads) * unit));
            args.u32(member.number).u32(member.of)
        };
        self.launch(kv.append(layer), qkv, blocks, LANE_BLOCK, 0, args);
    }

    /// The three before this in one launch, where one kernel does them: returns whether it does.
    pub fn prepare_heads(
        &self,
        qkv: &Buffer,
        steps: &HeadSteps<'_, Vector, Rope>,
        kv: &Kv,
        words: HeadWords<'_>,
    ) -> bool {
        let HeadSteps { heads, norms, form, eps, norms_after_rope, clip, ropes, layer, stores } = *steps;
        if form != HeadNormForm::PLAIN || norms_after_rope || clip.is_some() {
            return false;
        }
        let Some(kernel) = kv.prepare_heads(layer) else { return false };
        let is_cut = |rope: &Rope| rope.rotary.is_multiple_of(2 * LANES as usize) && rope.rotary <= heads.head_dim;
        let is_one = match ropes {
            [None, None] => norms.iter().any(Option::is_some),
            [Some(rope), None] | [None, Some(rope)] => is_cut(rope) && rope.rotary > 0,
            [Some(_), Some(_)] => false,
        };
        if !is_one || !FUSED_HEAD_DIMS.contains(&heads.head_dim) {
            return false;
        }
        assert_eq!(qkv.width, heads.qkv_width(), "prepare_heads: shape of qkv");
        assert!(!stores || (kv.heads(layer), kv.shape().dtype) == (heads, self.element), "prepare_heads: shapes");
        self.assert_operands(qkv);
        let rope = ropes.into_iter().flatten().next();
        let turned = |rope: &Rope| heads.q_heads + if rope.keys { heads.kv_heads } else { 0 };
        let args = |memory: &Memory| {
            let args = Args::new().memory(memory);
            let weights = norms.map(|weight| weight.map(|weight| &weight.memory));
            let args = weights.into_iter().fold(args, Args::memory_or_null).f32(eps);
            let args = args.memory_or_null(rope.map(|rope| &rope.cosines)).memory_or_null(rope.map(|rope| &rope.sines));
            let args = args.memory_at(words.positions.0, words.positions.1);
            let args = args.u32(small(rope.map_or(0, |rope| rope.rotary)));
            let args = args.u32(rope.map_or(0, |rope| neighbours(rope.pairs))).u32(small(rope.map_or(0, turned)));
            let args = match stores {
                true => args.memory_at(kv.memory(), kv.layer_at(layer)),
                false => args.memory_or_null(None),
            };
            let SlotWords { words, member } = words.slots;
            let args = args.memory_at(words.0, words.1);
            let args = args.u32(small(heads.q_heads)).u32(small(heads.kv_heads)).u32(small(heads.head_dim));
            args.u32(member.number).u32(member.of)
        };
        self.launch(kernel, qkv, lane_blocks(small(qkv.width)), LANE_BLOCK, 0, args);
        true
    }

    pub fn gated(&self, out: &Buffer, x: &Buffer, gate: Gate) {
        let kernel = match gate {
            Gate::Silu => &self.gated_silu,
            Gate::Gelu => &self.gated_gelu,
            Gate::Clamped => &self.gated_clamped,
        };
        assert_eq!((x.rows, x.width), (out.rows, 2 * out.width), "gated: shapes");
        self.assert_operands(out);
        self.assert_operands(x);
        let args = |out_memory: &Memory| Args::new().memory(out_memory).memory(x.memory()).u32(small(out.width));
        self.launch(kernel, out, lane_blocks(small(out.width)), LANE_BLOCK, 0, args);
    }

    pub fn gelu(&self, x: &Buffer) {
        self.launch_on_operands(&self.gelu, x);
    }

    pub fn relu(&self, x: &Buffer) {
        self.launch_on_operands(&self.relu, x);
    }

    pub fn relu_squared(&self, x: &Buffer) {
        self.launch_on_operands(&self.relu_squared, x);
    }

    pub fn gelu_erf(&self, x: &Buffer) {
        self.launch_on_operands(&self.gelu_erf, x);
    }

    pub fn xielu(&self, x: &Buffer, numbers: &Vector) {
        assert_eq!(numbers.len, 4, "xielu: four numbers");
        self.launch_with(&self.xielu, x, numbers);
    }

    pub fn scale_columns(&self, x: &Buffer, factors: &Vector) {
        assert_eq!(factors.len, x.width, "scale_columns: a factor for each column");
        self.launch_with(&self.scale_columns, x, factors);
    }

    fn launch_with(&self, kernel: &Function, x: &Buffer, numbers: &Vector) {
        self.assert_operands(x);
        let args = |memory: &Memory| Args::new().memory(memory).memory(&numbers.memory).u32(small(x.width));
        self.launch(kernel, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    pub fn clamp(&self, x: &Buffer, most: f32) {
        self.assert_operands(x);
        let args = |memory: &Memory| Args::new().memory(memory).u32(small(x.width)).f32(most);
        self.launch(&self.clamp, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    fn launch_on_operands(&self, kernel: &Function, x: &Buffer) {
        self.assert_operands(x);
        let args = |memory: &Memory| Args::new().memory(memory).u32(small(x.width));
        self.launch(kernel, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    pub fn gelu_times(&self, x: &Buffer, y: &Buffer, from: usize) {
        assert!(x.rows == y.rows && from + x.width <= y.width, "gelu_times: shapes");
        self.assert_operands(x);
        self.assert_sums(y);
        let args = |memory: &Memory| {
            let args = Args::new().memory(memory).memory(y.memory());
            args.u32(small(x.width)).u32(small(y.width)).u32(small(from))
        };
        self.launch(&self.gelu_times, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    pub fn gated_norm(&self, x: &Buffer, gate: &Buffer, weight: Option<&Vector>, how: GatedNorm) {
        let GatedNorm { width, eps, gate: by, order } = how;
        assert_eq!((x.rows, x.width), (gate.rows, gate.width), "gated_norm: shapes");
        assert!(x.width.is_multiple_of(width), "gated_norm: width of a norm");
        assert!(
            weight.is_none_or(|weight| [width, x.width].contains(&weight.len)),
            "gated_norm: length of the weights"
        );
        self.assert_operands(x);
        self.assert_operands(gate);
        let norms = small(x.width / width);
        // As in kernels/ops/gated_norm.cu.
        let flags = u32::from(weight.is_some_and(|weight| weight.len > width))
            | u32::from(by == GateFunction::Silu) << 1
            | u32::from(order == NormOrder::GateFirst) << 2;
        let args = |memory: &Memory| {
            let args = Args::new().memory(memory).memory(gate.memory());
            let args = args.memory_or_null(weight.map(|weight| &weight.memory));
            args.u32(norms).u32(small(width)).u32(flags).f32(eps)
        };
        let blocks = if width <= WARP_NORM_MOST { norms.div_ceil(LANE_BLOCK_WARPS) } else { norms };
        self.launch(&self.gated_norm, x, blocks, LANE_BLOCK, 0, args);
    }

    /// Both buffers are of these kernels' element.
    pub fn sigmoid_times(&self, x: &Buffer, y: &Buffer) {
        assert!(x.rows == y.rows && [1, x.width].contains(&y.width), "sigmoid_times: shapes");
        self.assert_operands(x);
        self.assert_operands(y);
        let args =
            |memory: &Memory| Args::new().memory(memory).memory(y.memory()).u32(small(x.width)).u32(small(y.width));
        self.launch(&self.sigmoid_times, x, lane_blocks(small(x.width)), LANE_BLOCK, 0, args);
    }

    /// `Ranked::columns`
    pub fn columns(&self, out: &Buffer, x: &Buffer, first: usize) {
        assert!(out.rows == x.rows && first + out.width <= x.width && out.element == x.element, "columns: shapes");
        let args = |out_memory: &Memory| {
            let args = Args::new().memory(out_memory).memory(x.memory()).u32(small(out.row_bytes()));
            args.u32(small(x.row_bytes())).u32(small(first * x.element.bytes()))
        };
        self.launch(&self.columns, out, chunk_blocks(out.row_bytes()), LANE_BLOCK, 0, args);
    }

    /// `rows`: for each row of `out`, the row of `x` to copy.
    pub fn select_rows(&self, out: &Buffer, x: &Buffer, rows: Words<'_>) {
        assert_eq!((out.width, out.element), (x.width, x.element), "select_rows: shapes");
        let args = |out: &Memory| {
            Args::new().memory(out).memory(x.memory()).memory_at(rows.0, rows.1).u32(small(x.row_bytes()))
        };
        self.launch(&self.select_rows, out, chunk_blocks(x.row_bytes()), LANE_BLOCK, 0, args);
    }

    /// Launches `blocks` blocks for each row of `of`, if it has rows. `args` takes the memory of `of`.
    fn launch(
        &self,
        kernel: &Function,
        of: &Buffer,
        blocks: u32,
        threads: u32,
        shared: usize,
        args: impl FnOnce(&Memory) -> Args,
    ) {
        if of.rows > 0 {
            self.device.launch(kernel, [small(of.rows), blocks, 1], threads, shared, &args(of.memory()));
        }
    }

    fn assert_operands(&self, buffer: &Buffer) {
        assert_eq!(buffer.element, self.element, "a buffer of operands has the dtype of the weights");
    }

    fn assert_sums(&self, buffer: &Buffer) {
        assert_eq!(buffer.element, Dtype::F32, "a buffer of sums is f32");
    }
}

/// Whether pairs are neighbours, as the argument of kernels: 0 or 1.
pub(crate) fn neighbours(pairs: RopePairs) -> u32 {
    u32::from(pairs == RopePairs::Neighbours)
}

/// Blocks over bytes that are copied 16 to a thread.
fn chunk_blocks(bytes: usize) -> u32 {
    small(bytes).div_ceil(LANE_BLOCK * 16)
}
