//! A rank as a [`Backend`]: ops pass to its device, with the buffers, heads and matrices that it has of their operands.
//! Bytes and pages are those of all ranks.

use std::cell::RefCell;
use std::ops::Range;

use super::cut::{self, ColumnsOf, divides_experts};
use super::{LoraOperands, PARTS, Place, Portion, Rank, RankBuffer, RankLora, RankShare, Ranked, small};
use crate::{
    ActivationDtype, AdapterSlot, Backend, CopyStore, Dtype, Elements, ExpertInput, ExpertKind, Gate, GatedNorm,
    HeadKind, HeadLayout, HeadNormForm, HeadSteps, HeldPart, KvDtype, KvShape, LatentHeads, LatentSteps, LayerState,
    LoraShape, LoraWeights, MatrixPart, MemoryPart, OutputMode, RopeTable, Router, SampleRequest, SampledToken,
    SavedPages, ScanRule, Scoring, Share, Split, StateRule, StateShape, StepBatch, StepRows, StepShape, SwapRates,
    WeightFormat, WeightView, with_dense,
};
use offshoot_core::error::Result;
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_kv::KvSlot;
use offshoot_kv::plan::{CostModel, NewPage};

/// What `Rank::agree` brings of a rank that has not loaded a step.
const NOT_LOADED: u64 = u64::MAX;

impl<B: Ranked> Rank<B> {
    /// The memory of its share of keys, values and states.
    fn kv_shape(&self, shape: &KvShape) -> KvShape {
        let layers = shape.states.layers.iter().map(|&layer| self.state(layer)).collect();
        KvShape {
            heads: shape.heads.iter().map(|&heads| self.heads(heads)).collect(),
            states: StateShape { layers, ..shape.states },
            ..shape.clone()
        }
    }

    /// The tile of all members together: each one's part of a tile is a tile of its own.
    fn of_sharing(&self, tile: u32) -> u32 {
        match tile {
            1 => 1,
            tile => small(self.place().sharing) * tile,
        }
    }

    /// The heads in its `qkv`: its share of them, or all where every rank has all columns.
    fn heads_of(&self, qkv: &RankBuffer<B>, heads: HeadLayout) -> HeadLayout {
        match qkv.share {
            Share::Columns | Share::Heads(_) | Share::Latents(_) => self.heads(heads),
            Share::Whole | Share::Summed { .. } | Share::Gathered | Share::Parts => heads,
        }
    }

    /// Its share of the heads of latent attention: latents are whole on every rank.
    fn latent_heads(&self, heads: LatentHeads) -> LatentHeads {
        let Place { count, sharing, .. } = *self.place();
        let divides = heads.heads.is_multiple_of(count) && sharing == 1;
        assert!(divides, "latent attention of {heads} on {count} ranks, which `ModelConfig::check_ranks` refuses");
        LatentHeads { heads: heads.heads / count, ..heads }
    }

    /// The rows of a matrix of maps that are those of its heads.
    fn own_maps<'a>(&self, parts: &[HeldPart<'a>], split: &Split) -> Vec<HeldPart<'a>> {
        let Place { number, count, sharing, .. } = *self.place();
        match (self.portion(split), split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                cut::rows(parts, cut::shares(segments, number, count, sharing))
            }
            _ => panic!("maps of latents are divided by heads: {split:?}"),
        }
    }

    /// Loads its share of a matrix, in place of `old` if that is given.
    fn matrix_over(
        &mut self,
        old: Option<&RankShare<B::Matrix>>,
        parts: &[HeldPart<'_>],
        split: &Split,
    ) -> Result<RankShare<B::Matrix>> {
        let Place { number, count, sharing, .. } = *self.place();
        let (portion, of_sum) = (self.portion(split), self.parts());
        let device = &mut self.0;
        let each = match (portion, split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                let outputs = parts.iter().map(|held| held.part.rows()).sum();
                let own = cut::rows(parts, cut::shares(segments, number, count, sharing));
                let old = old.map(|old| &old.each[0]);
                vec![with_dense(&own, |own| match old {
                    None => device.matrix_of_outputs(own, outputs),
                    Some(old) => device.replace_matrix_of_outputs(old, own, outputs),
                })?]
            }
            (Portion::Inputs, _) => {
                let width = parts[0].part.cols() / count;
                let own = cut::columns_of(parts, number * width, width)?;
                let own: Vec<_> = own.iter().map(ColumnsOf::part).collect();
                let mut matrix = |number: usize, own: &[HeldPart<'_>]| match old {
                    None => with_dense(own, |own| device.matrix(own)),
                    Some(old) => device.replace_matrix(&old.each[number], own, &Split::Whole),
                };
                let mut matrices = match of_sum {
                    1 => vec![matrix(0, &own)?],
                    of_sum => {
                        let width = width / of_sum;
                        let part = |part: usize| {
                            let columns = cut::columns_of(&own, part * width, width)?;
                            matrix(part, &columns.iter().map(ColumnsOf::part).collect::<Vec<_>>())
                        };
                        (0..of_sum).map(part).collect::<Result<_>>()?
                    }
                };
                if old.is_none() {
                    device.join_parts(&mut matrices)?;
                }
                matrices
            }
            _ => vec![match old {
                None => with_dense(parts, |parts| device.matrix(parts))?,
                Some(old) => device.replace_matrix(&old.each[0], parts, &Split::Whole)?,
            }],
        };
        Ok(RankShare { each, portion })
    }

    /// Calls `load` with what it has of concatenated vectors.
    fn with_own_elements<T>(
        &mut self,
        parts: &[WeightView<'_>],
        split: &Split,
        load: impl FnOnce(&mut B, &[WeightView<'_>]) -> Result<T>,
    ) -> Result<T> {
        let Place { number, count, sharing, .. } = *self.place();
        match (self.portion(split), split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                load(&mut self.0, &cut::elements(parts, cut::shares(segments, number, count, sharing)))
            }
            _ => load(&mut self.0, parts),
        }
    }

    /// Whether it adds the biases of experts: of divided inputs a bias is added once, by the first part.
    fn has_bias(&self, portion: Portion) -> bool {
        portion != Portion::Inputs || self.place().number == 0
    }

    /// A whole matrix that has the elements of its share, `each` as `matrix_over` loads them, and zeros elsewhere.
    fn whole(&self, each: &[Elements], portion: Portion, split: &Split) -> Elements {
        let Place { number, count, sharing, .. } = *self.place();
        let Elements { dtype, rows, cols, .. } = each[0];
        match (portion, split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                let outputs = segments.iter().map(|segment| segment.width).sum();
                let mut whole = Elements::zeros(dtype, outputs, cols);
                let mut first = 0;
                for own in cut::shares(segments, number, count, sharing) {
                    let bytes = each[0].row_bytes(first..first + own.len());
                    whole.put(own.start, 0..cols, WeightView { dtype, rows: own.len(), cols, bytes });
                    first += own.len();
                }
                whole
            }
            (Portion::Inputs, _) => {
                let width = each.len() * cols;
                let mut whole = Elements::zeros(dtype, rows, count * width);
                for (part, own) in each.iter().enumerate() {
                    let first = number * width + part * cols;
                    whole.put(0, first..first + cols, own.view());
                }
                whole
            }
            _ => each[0].clone(),
        }
    }
}

impl<M> RankShare<M> {
    /// The one matrix that a rank has of a layer; `None` if it has several, one for each part of an exact sum.
    fn single(&self) -> Option<&M> {
        match &self.each[..] {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// Calls that pass to the device as they are.
macro_rules! passed_on {
    ($(fn $call:ident($($arg:ident: $kind:ty),*) -> $given:ty;)*) => {$(
        fn $call(&mut self, $($arg: $kind),*) -> $given {
            self.0.$call($($arg),*)
        }
    )*};
}

/// Ops that pass to the device with the rank's own buffers: first those that an op changes, then those that it reads.
macro_rules! on_own_buffers {
    ($(fn $op:ident([$($out:ident),*] [$($x:ident),*] $($arg:ident: $kind:ty),*);)*) => {$(
        fn $op(&mut self, $($out: &mut RankBuffer<B>,)* $($x: &RankBuffer<B>,)* $($arg: $kind),*) {
            self.0.$op($(&mut $out.own,)* $(&$x.own,)* $($arg),*);
        }
    )*};
}

impl<B: Ranked> Backend for Rank<B> {
    type Buffer = RankBuffer<B>;
    type Matrix = RankShare<B::Matrix>;
    type Vector = B::Vector;
    type Experts = RankShare<B::Experts>;
    type Routes = B::Routes;
    type Kv = B::Kv;
    type LatentMaps = B::LatentMaps;
    type Rope = B::Rope;
    type Step = B::Step;
    type Lora = RankLora<B::Lora>;
    type LoraTerm = Vec<B::LoraTerm>;

    const IS_ASYNC: bool = B::IS_ASYNC;
    /// Shares of inputs are neighbours.
    const ORDERS_INPUTS: bool = false;
    const MIXES_DTYPES: bool = B::MIXES_DTYPES;
    const REPLACES_IN_PLACE: bool = B::REPLACES_IN_PLACE;

    passed_on! {
        fn set_batch_invariant() -> ();
        fn set_kv_dtype(kv: KvDtype) -> ();
        fn sleep(part: MemoryPart, keeps: bool) -> Result<bool>;
        fn wake(part: MemoryPart) -> Result<()>;
        fn vector(parts: &[WeightView<'_>]) -> Result<B::Vector>;
        fn rope_table(table: &RopeTable) -> Result<B::Rope>;
        fn routes(experts: usize, router: Router) -> Result<B::Routes>;
        fn resize_routes(routes: &mut B::Routes, rows: usize) -> Result<()>;
        fn save_pages(kv: &B::Kv, pages: &[PageId]) -> Result<SavedPages>;
        fn restore_pages(kv: &mut B::Kv, saved: &SavedPages, pages: &[PageId]) -> Result<()>;
        fn read_routes(kv: &B::Kv, slots: &[KvSlot]) -> Result<Vec<u16>>;
        fn keep_routes(kv: &mut B::Kv, layer: LayerIx, routes: &B::Routes, step: &B::Step) -> ();
        fn save_state(kv: &B::Kv, slot: StateId) -> Result<Vec<u8>>;
        fn restore_state(kv: &mut B::Kv, saved: &[u8], slot: StateId) -> Result<()>;
        fn load(step: &mut B::Step, batch: StepBatch) -> Result<StepShape>;
        fn reserve(step: &mut B::Step, shape: StepShape) -> Result<StepShape>;
        fn advance(step: &mut B::Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape>;
        fn load_requests(step: &mut B::Step, requests: Vec<SampleRequest>) -> Result<()>;
        fn collect(step: &mut B::Step) -> Result<Vec<Option<SampledToken>>>;
        fn collect_values(step: &mut B::Step) -> Result<Vec<f32>>;
        fn expand_latents(
            copies: &mut B::Kv, copy_layer: LayerIx, kv: &B::Kv, layer: LayerIx, maps: &B::LatentMaps, store: CopyStore,
            step: &B::Step
        ) -> ();
    }

    on_own_buffers! {
        fn layer_norm([out] [x] weight: &B::Vector, bias: &B::Vector, eps: f32);
        fn rms_norm_add([out] [x] weight: &B::Vector, eps: f32);
        fn round([out] [x]);
        fn add([out] [x]);
        fn scale([x] [] factor: f32);
        fn softcap([x] [] cap: f32);
        fn tree_attention(
            [out] [qkv] kv: &B::Kv, layer: LayerIx, step: &mut B::Step, plan: usize, scoring: Scoring<'_, B::Vector>
        );
        fn tree_attention_lse(
            [out, lse] [qkv] kv: &B::Kv, layer: LayerIx, step: &mut B::Step, plan: usize,
            scoring: Scoring<'_, B::Vector>
        );
        fn merge_attended([out, lse] [other, other_lse]);
        fn absorb_queries([out] [queries] maps: &B::LatentMaps);
        fn map_values([out] [x] maps: &B::LatentMaps);
        fn gelu_times([x] [y] from: usize);
        fn gelu([x] []);
        fn relu([x] []);
        fn relu_squared([x] []);
        fn gelu_erf([x] []);
        fn xielu([x] [] numbers: &B::Vector);
        fn clamp([x] [] most: f32);
        fn scale_columns([x] [] factors: &B::Vector);
        fn weigh_places([out] [x] routes: &B::Routes);
        fn sigmoid_times([x] [y]);
        fn causal_conv(
            [out] [x] weight: &B::Vector, bias: Option<&B::Vector>, kv: &mut B::Kv, layer: LayerIx, step: &B::Step
        );
        fn state_update(
            [out] [qkv, gates] rule: StateRule<'_, B::Vector>, kv: &mut B::Kv, layer: LayerIx, step: &B::Step
        );
        fn channel_update(
            [out] [qkv, beta, decay] rate: &B::Vector, dt: &B::Vector, kv: &mut B::Kv, layer: LayerIx, step: &B::Step
        );
        fn selective_scan(
            [out] [x, steps, b, c] rule: ScanRule<'_, B::Vector>, kv: &mut B::Kv, layer: LayerIx, step: &B::Step
        );
        fn gated_conv(
            [out] [bcx] weight: &B::Vector, bias: Option<&B::Vector>, kv: &mut B::Kv, layer: LayerIx, step: &B::Step
        );
        fn gated_norm([x] [gate] weight: Option<&B::Vector>, how: GatedNorm);
        fn select_rows([out] [x] step: &B::Step);
        fn sample([] [logits] step: &mut B::Step);
    }

    fn keep_values(&mut self, values: &RankBuffer<B>, step: &mut B::Step) -> Result<()> {
        self.0.keep_values(&values.own, step)
    }

    fn sample_late(&mut self, logits: &RankBuffer<B>, step: &mut B::Step) -> Result<()> {
        self.0.sample_late(&logits.own, step)
    }

    fn is_first(&self) -> bool {
        self.place().number == 0
    }

    /// Where ranks divide positions, a page is cut into as many pages as there are members.
    fn page_tokens(&self) -> u32 {
        small(self.place().sharing) * self.0.page_tokens()
    }

    /// Always true of several ranks: some may have begun what another one could not.
    fn has_begun(&self) -> bool {
        self.devices() > 1 || self.0.has_begun()
    }

    fn describe(&self) -> String {
        match self.devices() {
            1 => self.0.describe(),
            ranks => format!("{ranks} x {}", self.0.describe()),
        }
    }

    /// Exact sums do not depend on the number of ranks.
    fn arithmetic(&self) -> String {
        let Place { count, sharing, exact, .. } = *self.place();
        let own = self.0.arithmetic();
        let sums = match exact || count == PARTS {
            true => format!("{own}, sums of {PARTS} parts"),
            false => format!("{own}, sums of {count} ranks"),
        };
        match sharing {
            1 => sums,
            members => format!("{sums}, attention of {members}"),
        }
    }

    fn page_layout(&self) -> String {
        let of_all = format!("{} ranks of {}", self.devices(), self.0.page_layout());
        match self.sharing() {
            1 => of_all,
            members => format!("{of_all}, pages cut in {members}"),
        }
    }

    fn cost_model(&self) -> CostModel {
        self.0.cost_model()
    }

    fn tile(&self) -> u32 {
        self.of_sharing(self.0.tile())
    }

    fn attention_tile(&self, heads: HeadLayout, dtype: Dtype, window: Option<u32>) -> u32 {
        self.of_sharing(self.0.attention_tile(heads, dtype, window))
    }

    fn swap_rates(&self) -> SwapRates {
        let SwapRates { host_bytes, flops } = self.0.swap_rates();
        let times = if B::SHARES_MEMORY { 1.0 } else { self.devices() as f64 };
        SwapRates { host_bytes: times * host_bytes, flops: times * flops }
    }

    /// As if all had as many.
    fn free_bytes(&self) -> Result<usize> {
        let free = self.0.free_bytes()?;
        Ok(if B::SHARES_MEMORY { free } else { free * self.devices() })
    }

    fn devices(&self) -> usize {
        self.place().count
    }

    fn sharing(&self) -> usize {
        self.place().sharing
    }

    /// Blocks of GGUF files are not divided by inputs.
    fn multiplies(&self, format: WeightFormat) -> bool {
        !matches!(format, WeightFormat::Blocks(_)) && self.0.multiplies(format)
    }

    /// Nor are codes of experts whose inputs would be cut within groups: experts are narrow, and become dense instead.
    fn multiplies_experts(&self, format: WeightFormat, width: usize) -> bool {
        let parts = self.parts() * self.devices();
        divides_experts(format, width, parts) && self.0.multiplies_experts(format, width / parts)
    }

    fn copies_from_devices(&self) -> bool {
        self.0.copies_from_devices()
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Self::Matrix> {
        let parts: Vec<_> = parts.iter().map(|&part| HeldPart { part, becomes: None }).collect();
        self.split_matrix(&parts, &Split::Whole)
    }

    fn split_matrix(&mut self, parts: &[HeldPart<'_>], split: &Split) -> Result<Self::Matrix> {
        self.matrix_over(None, parts, split)
    }

    fn replace_matrix(&mut self, old: &Self::Matrix, parts: &[HeldPart<'_>], split: &Split) -> Result<Self::Matrix> {
        self.matrix_over(Some(old), parts, split)
    }

    fn split_vector(&mut self, parts: &[WeightView<'_>], split: &Split) -> Result<Self::Vector> {
        self.with_own_elements(parts, split, |device, own| device.vector(own))
    }

    fn replace_vector(&mut self, old: &Self::Vector, parts: &[WeightView<'_>], split: &Split) -> Result<Self::Vector> {
        self.with_own_elements(parts, split, |device, own| device.replace_vector(old, own, &Split::Whole))
    }

    fn latent_maps(
        &mut self,
        parts: &[HeldPart<'_>],
        heads: LatentHeads,
        dtype: Dtype,
        split: &Split,
        old: Option<&Self::LatentMaps>,
    ) -> Result<Self::LatentMaps> {
        let (own, heads) = (self.own_maps(parts, split), self.latent_heads(heads));
        self.0.latent_maps(&own, heads, dtype, &Split::Whole, old)
    }

    fn prepare_latents(
        &mut self,
        queries: &mut Self::Buffer,
        latents: Option<&mut Self::Buffer>,
        absorbed: Option<&mut Self::Buffer>,
        steps: &LatentSteps<'_, Self::Vector, Self::Rope>,
        kv: &mut Self::Kv,
        step: &Self::Step,
    ) {
        let steps = LatentSteps { heads: self.latent_heads(steps.heads), ..*steps };
        let [latents, absorbed] = [latents, absorbed].map(|buffer| buffer.map(|buffer| &mut buffer.own));
        self.0.prepare_latents(&mut queries.own, latents, absorbed, &steps, kv, step);
    }

    fn experts(
        &mut self,
        matrices: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
        kind: ExpertKind,
    ) -> Result<Self::Experts> {
        let portion = matrices.first().map_or(Portion::Whole, |matrix| matrix.portion);
        let mut of_parts: Vec<Vec<B::Matrix>> = Vec::new();
        for matrix in matrices {
            of_parts.resize_with(matrix.each.len(), Vec::new);
            of_parts.iter_mut().zip(matrix.each).for_each(|(experts, matrix)| experts.push(matrix));
        }
        let mut biases = if self.has_bias(portion) { biases } else { Vec::new() };
        let experts = |matrices| self.0.experts(matrices, std::mem::take(&mut biases), kind);
        Ok(RankShare { each: of_parts.into_iter().map(experts).collect::<Result<_>>()?, portion })
    }

    fn lora(&mut self, shape: &LoraShape, split: &Split) -> Result<Self::Lora> {
        let Place { number, count, sharing, .. } = *self.place();
        let portion = self.portion(split);
        let (tables, own) = match (portion, split) {
            (Portion::Outputs, Split::Outputs(segments)) => {
                let pieces = shape.cut(cut::shares(segments, number, count, sharing));
                (1, LoraShape { pieces, ..shape.clone() })
            }
            (Portion::Inputs, _) => {
                let of_sum = self.parts();
                (of_sum, LoraShape { inputs: shape.inputs / count / of_sum, ..shape.clone() })
            }
            _ => (1, shape.clone()),
        };
        let each = (0..tables).map(|_| self.0.lora(&own, &Split::Whole)).collect::<Result<_>>()?;
        Ok(RankLora { each, portion, inputs: own.inputs })
    }

    /// Of a layer whose inputs are divided each part of a sum has its own columns of A.
    fn lora_term(&mut self, lora: &Self::Lora, parts: &[Option<LoraWeights<'_>>]) -> Result<Self::LoraTerm> {
        if lora.portion != Portion::Inputs {
            return Ok(vec![self.0.lora_term(&lora.each[0], parts)?]);
        }
        let (number, width) = (self.place().number, lora.inputs);
        let table = |(part, table): (usize, &B::Lora)| {
            let first = (number * lora.each.len() + part) * width;
            let bytes = |weights: &LoraWeights<'_>| cut::dense_columns(&weights.a, first..first + width);
            let bytes: Vec<Option<Vec<u8>>> = parts.iter().map(|part| part.as_ref().map(bytes)).collect();
            let own = parts.iter().zip(&bytes).map(|(part, bytes)| {
                let (weights, bytes) = (part.as_ref()?, bytes.as_deref()?);
                Some(LoraWeights { a: WeightView { cols: width, bytes, ..weights.a }, ..*weights })
            });
            self.0.lora_term(table, &own.collect::<Vec<_>>())
        };
        lora.each.iter().enumerate().map(table).collect()
    }

    fn set_lora(&mut self, lora: &mut Self::Lora, slot: AdapterSlot, term: Option<Self::LoraTerm>) {
        let mut terms = term.map(Vec::into_iter);
        for table in &mut lora.each {
            self.0.set_lora(table, slot, terms.as_mut().and_then(Iterator::next));
        }
    }

    fn replace_expert(&mut self, experts: &Self::Experts, expert: usize, matrix: Self::Matrix) -> Result<()> {
        let mut parts = experts.each.iter().zip(matrix.each);
        parts.try_for_each(|(own, matrix)| self.0.replace_expert(own, expert, matrix))
    }

    fn replace_expert_bias(&mut self, experts: &Self::Experts, expert: usize, bias: Self::Vector) -> Result<()> {
        match self.has_bias(experts.portion) {
            true => self.0.replace_expert_bias(&experts.each[0], expert, bias),
            false => Ok(()),
        }
    }

    fn forget_steps(&mut self) {
        self.0.forget_steps();
    }

    fn read_matrix(&mut self, matrix: &Self::Matrix, split: &Split) -> Result<Option<Elements>> {
        let each = matrix.each.iter().map(|own| self.0.read_matrix(own, &Split::Whole)).collect::<Result<Vec<_>>>()?;
        Ok(each.into_iter().collect::<Option<Vec<_>>>().map(|each| self.whole(&each, matrix.portion, split)))
    }

    fn read_vector(&mut self, vector: &Self::Vector, split: &Split) -> Result<Elements> {
        let own = self.0.read_vector(vector, &Split::Whole)?;
        let as_column = Elements { rows: own.cols, cols: 1, ..own };
        let portion = self.portion(split);
        let portion = if portion == Portion::Outputs { portion } else { Portion::Whole };
        let whole = self.whole(&[as_column], portion, split);
        Ok(Elements { rows: 1, cols: whole.rows, ..whole })
    }

    fn read_expert(
        &mut self,
        experts: &Self::Experts,
        expert: usize,
        split: &Split,
    ) -> Result<Option<(Elements, Vec<f32>)>> {
        let read = |own| self.0.read_expert(own, expert, &Split::Whole);
        let each = experts.each.iter().map(read).collect::<Result<Option<Vec<_>>>>()?;
        let Some(each) = each else { return Ok(None) };
        let (matrices, mut biases): (Vec<_>, Vec<_>) = each.into_iter().unzip();
        let matrix = self.whole(&matrices, experts.portion, split);
        let bias = biases.swap_remove(0);
        let bias = match experts.portion {
            Portion::Outputs if !bias.is_empty() => {
                let column = Elements { rows: bias.len(), cols: 1, ..Elements::of(&bias) };
                let whole = self.whole(&[column], Portion::Outputs, split);
                (0..whole.rows).map(|i| whole.view().get(i)).collect()
            }
            _ => bias,
        };
        Ok(Some((matrix, bias)))
    }

    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Self::Buffer> {
        self.shared_buffer(width, holds, Share::Whole)
    }

    fn shared_buffer(&mut self, width: usize, holds: ActivationDtype, share: Share) -> Result<Self::Buffer> {
        let (count, parts) = (self.place().count, self.parts());
        let of_parts = match share {
            Share::Summed { parts, inputs } => {
                let how = self.reduced(inputs);
                self.exchange(|device, fabric, number| device.prepare_sums(fabric, number, parts, how))?;
                parts
            }
            _ => holds,
        };
        let own_width = match share {
            Share::Columns => width / count,
            Share::Heads(heads) => self.heads(heads).qkv_width(),
            Share::Latents(heads) => self.latent_heads(heads).query_width() + heads.latent_width(),
            Share::Whole | Share::Summed { .. } | Share::Gathered | Share::Parts => width,
        };
        let (number, other_width) = match share {
            Share::Whole | Share::Columns | Share::Heads(_) | Share::Latents(_) => (0, 0),
            Share::Summed { .. } => (parts, width),
            // A width that the ranks do not divide is that of matrices which all have whole.
            Share::Gathered => (usize::from(width.is_multiple_of(count)), width / count),
            Share::Parts => (parts - 1, width),
        };
        let part_width = own_width / parts;
        let columns = match share {
            Share::Columns if parts > 1 => Some(RefCell::new(self.0.buffer(part_width, holds)?)),
            _ => None,
        };
        Ok(RankBuffer {
            share,
            own: self.0.buffer(own_width, holds)?,
            parts: (0..number).map(|_| self.0.buffer(other_width, of_parts)).collect::<Result<_>>()?,
            columns,
            part_width,
        })
    }

    fn resize(&mut self, buffer: &mut Self::Buffer, rows: usize) -> Result<()> {
        self.0.resize(&mut buffer.own, rows)?;
        if let Some(columns) = &mut buffer.columns {
            self.0.resize(columns.get_mut(), rows)?;
        }
        self.0.resize_parts(&mut buffer.parts.iter_mut().collect::<Vec<_>>(), rows)
    }

    fn write(&mut self, buffer: &mut Self::Buffer, rows: usize, values: &[f32]) -> Result<()> {
        assert!(is_whole(buffer.share), "a share of a buffer is not written by the host");
        self.0.write(&mut buffer.own, rows, values)
    }

    fn read(&mut self, buffer: &Self::Buffer, rows: usize) -> Result<Vec<f32>> {
        assert!(is_whole(buffer.share), "a share of a buffer is not read by the host");
        self.0.read(&buffer.own, rows)
    }

    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        self.0.kv_element_bytes(self.heads(heads), dtype)
    }

    fn latent_map_copies(&self) -> usize {
        self.0.latent_map_copies()
    }

    fn kv_copies(&self, heads: HeadLayout) -> usize {
        heads.copies(self.devices()) / self.sharing()
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        self.devices() * self.0.page_bytes(&self.kv_shape(shape))
    }

    fn kv_overhead_bytes(&self, shape: &KvShape) -> usize {
        self.devices() * self.0.kv_overhead_bytes(&self.kv_shape(shape))
    }

    fn kv(&mut self, shape: &KvShape) -> Result<Self::Kv> {
        let shape = self.kv_shape(shape);
        self.0.kv(&shape)
    }

    fn join_saved(
        kv: &Self::Kv,
        saved: &mut SavedPages,
        page: usize,
        others: &SavedPages,
        from: usize,
        slots: Range<u32>,
    ) {
        B::join_saved(kv, saved, page, others, from, slots);
    }

    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, outputs: usize) -> Result<Self::Step> {
        let heads: Vec<HeadLayout> = heads.iter().map(|&heads| self.heads(heads)).collect();
        self.0.step(&heads, dtype, outputs)
    }

    fn state_scratch_bytes(&self, layer: LayerState, dtype: Dtype, rows: usize) -> usize {
        self.devices() * self.0.state_scratch_bytes(self.state(layer), dtype, rows)
    }

    fn reserve_state_scratch(&mut self, layers: &[LayerState], dtype: Dtype, rows: usize) -> Result<()> {
        let layers: Vec<LayerState> = layers.iter().map(|&layer| self.state(layer)).collect();
        self.0.reserve_state_scratch(&layers, dtype, rows)
    }

    /// The ranks meet here, so that none runs a step which another one cannot, and while another one may allocate; and
    /// where one rank has forgotten what it repeats, all do.
    fn agree(&mut self, step: &mut Self::Step, is_loaded: bool) -> bool {
        let own = if is_loaded { self.0.moves(step) } else { NOT_LOADED };
        let most = self.exchange(|_, fabric, _| super::Fabric::meeting(fabric).agree(own));
        if most == NOT_LOADED {
            return false;
        }
        self.0.set_moves(step, most);
        true
    }

    fn run(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()> {
        self.0.run(step, shape, |device, step| ops(Self::of(device), step))
    }

    fn run_once(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()> {
        self.0.run_once(step, shape, |device, step| ops(Self::of(device), step))
    }

    fn embed(&mut self, out: &mut Self::Buffer, table: &Self::Matrix, step: &Self::Step) {
        self.0.embed(&mut out.own, &table.each[0], step);
    }

    fn add_positions(&mut self, out: &mut Self::Buffer, table: &Self::Matrix, step: &Self::Step) {
        self.0.add_positions(&mut out.own, &table.each[0], step);
    }

    fn rms_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        next: Option<&Self::Matrix>,
    ) {
        self.0.rms_norm(&mut out.own, &x.own, weight, eps, next.and_then(RankShare::single));
    }

    fn linear(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        mode: OutputMode,
    ) {
        self.multiply(out, x, w, bias, mode, None);
    }

    /// Only of layers that no exchange follows: `linear_with_lora` adds before it.
    fn add_lora(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        lora: &Self::Lora,
        rows: StepRows,
        step: &Self::Step,
    ) {
        let is_own = lora.portion != Portion::Inputs && out.share != Share::Gathered;
        assert!(is_own, "what adapters add to sums and shares of ranks is added before these are exchanged");
        self.0.add_lora(&mut out.own, &x.own, &lora.each[0], rows, step);
    }

    fn linear_with_lora(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        mode: OutputMode,
        lora: &Self::Lora,
        rows: StepRows,
        step: &Self::Step,
    ) {
        self.multiply(out, x, w, bias, mode, Some(LoraOperands { lora, rows, step }));
    }

    fn head_norm(
        &mut self,
        qkv: &mut Self::Buffer,
        heads: HeadLayout,
        kind: HeadKind,
        form: HeadNormForm,
        weight: &Self::Vector,
        eps: f32,
    ) {
        let heads = self.heads_of(qkv, heads);
        self.0.head_norm(&mut qkv.own, heads, kind, form, weight, eps);
    }

    fn rope(&mut self, qkv: &mut Self::Buffer, heads: HeadLayout, table: &Self::Rope, step: &Self::Step) {
        let heads = self.heads_of(qkv, heads);
        self.0.rope(&mut qkv.own, heads, table, step);
    }

    fn kv_append(&mut self, kv: &mut Self::Kv, layer: LayerIx, qkv: &Self::Buffer, step: &Self::Step) {
        self.0.kv_append(kv, layer, &qkv.own, step);
    }

    fn prepare_heads(
        &mut self,
        qkv: &mut Self::Buffer,
        steps: &HeadSteps<'_, Self::Vector, Self::Rope>,
        kv: &mut Self::Kv,
        step: &Self::Step,
    ) {
        let steps = HeadSteps { heads: self.heads_of(qkv, steps.heads), ..*steps };
        self.0.prepare_heads(&mut qkv.own, &steps, kv, step);
    }

    fn gated(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, gate: Gate, next: Option<&Self::Matrix>) {
        self.0.gated(&mut out.own, &x.own, gate, next.and_then(RankShare::single));
    }

    fn route(
        &mut self,
        routes: &mut Self::Routes,
        scores: &Self::Buffer,
        factors: Option<&Self::Vector>,
        bias: Option<&Self::Vector>,
    ) {
        self.0.route(routes, &scores.own, factors, bias);
    }

    fn expert_linear(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        experts: &Self::Experts,
        routes: &Self::Routes,
        input: ExpertInput,
    ) {
        if experts.portion != Portion::Inputs {
            return self.0.expert_linear(&mut out.own, &x.own, &experts.each[0], routes, input);
        }
        assert_eq!(out.share, Share::Parts, "experts whose inputs are divided write parts of sums");
        let outs = std::iter::once(&mut out.own).chain(&mut out.parts);
        for (part, (out, experts)) in outs.zip(&experts.each).enumerate() {
            x.with_part(&mut self.0, part, |device, x| device.expert_linear(out, x, experts, routes, input));
        }
    }

    fn expert_gated(
        &mut self,
        out: &mut Self::Buffer,
        inner: &mut Self::Buffer,
        x: &Self::Buffer,
        experts: &Self::Experts,
        routes: &Self::Routes,
        gate: Gate,
    ) {
        self.0.expert_gated(&mut out.own, &mut inner.own, &x.own, &experts.each[0], routes, gate);
    }

    fn combine(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        input: Option<&Self::Buffer>,
        routes: &Self::Routes,
        mode: OutputMode,
    ) {
        assert!(input.is_none_or(|input| is_whole(input.share)), "combine: every rank has the mixture's whole input");
        self.combine_parts(out, x, input, routes, mode);
    }
}

/// Whether every rank has the same numbers.
fn is_whole(share: Share) -> bool {
    matches!(share, Share::Whole | Share::Summed { .. } | Share::Gathered)
}
