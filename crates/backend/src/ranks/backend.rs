//! Each op of [`Backend`] on all ranks. What is the same on all is asked of the first.

use std::ops::Range;

use super::loading::shared;
use super::members::lock;
use super::{
    Op, PARTS, RankBuffer, RankExperts, RankKv, RankMatrix, RankRope, RankRoutes, RankStep, RankVector, Ranked, Ranks,
    small,
};
use crate::{
    ActivationDtype, Backend, DeltaGates, DeltaHeads, Dtype, ExpertInput, ExpertKind, Gate, HeadKind, HeadLayout,
    HeadSteps, KvDtype, KvShape, MatrixPart, RopeTable, Router, Sampled, SavedPages, Scoring, Share, Split, StateShape,
    StepBatch, StepShape, SwapRates, WeightFormat, WeightView,
};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::{LayerIx, PageId, StateId};
use offshoot_kv::plan::{CostModel, Member, NewPage};

/// Whether the inputs of experts of this width are divided into so many parts where they are stored as `format`.
pub fn divides_experts(format: WeightFormat, width: usize, parts: usize) -> bool {
    match format {
        WeightFormat::Dense(_) => true,
        WeightFormat::Quantised(format) => width.is_multiple_of(parts * format.group.map_or(1, |group| group as usize)),
        WeightFormat::Blocks(_) => false,
    }
}

impl<B: Ranked> Ranks<B> {
    /// The memory of one rank's share of keys, values and states.
    fn kv_shape(&self, shape: &KvShape) -> KvShape {
        let states = shape.states.heads.iter().map(|&heads| self.delta_heads(heads)).collect();
        KvShape {
            heads: shape.heads.iter().map(|&heads| self.heads(heads)).collect(),
            states: StateShape { heads: states, ..shape.states },
            ..shape.clone()
        }
    }

    /// An op that changes `out` by what is in `x`, each rank by itself.
    pub(super) fn map(
        &mut self,
        out: &RankBuffer<B>,
        x: &RankBuffer<B>,
        op: impl Fn(&mut B, &mut B::Buffer, &B::Buffer, usize) + Send + Sync + 'static,
    ) {
        let (out, x) = (out.own.clone(), x.own.clone());
        self.op(move |rank| {
            let at = rank.number;
            op(rank.backend, &mut lock(&out[at]), &lock(&x[at]), at);
        });
    }

    /// An op that changes `x`, each rank by itself.
    fn change(&mut self, x: &RankBuffer<B>, op: impl Fn(&mut B, &mut B::Buffer, usize) + Send + Sync + 'static) {
        let x = x.own.clone();
        self.op(move |rank| op(rank.backend, &mut lock(&x[rank.number]), rank.number));
    }
}

impl<B: Ranked> Backend for Ranks<B> {
    type Buffer = RankBuffer<B>;
    type Matrix = RankMatrix<B>;
    type Vector = RankVector<B>;
    type Experts = RankExperts<B>;
    type Routes = RankRoutes<B>;
    type Kv = RankKv<B>;
    type Rope = RankRope<B>;
    type Step = RankStep<B>;

    const IS_ASYNC: bool = B::IS_ASYNC;
    /// Shares of inputs are neighbours.
    const ORDERS_INPUTS: bool = false;
    const MIXES_DTYPES: bool = B::MIXES_DTYPES;

    /// Where ranks divide positions, a page is cut into as many pages as there are members.
    fn page_tokens(&self) -> u32 {
        small(self.sharing) * self.members.first().page_tokens()
    }

    /// Of several ranks some may have begun what another one could not.
    fn has_begun(&self) -> bool {
        self.count() > 1 || self.members.first().has_begun()
    }

    fn describe(&self) -> String {
        match self.count() {
            1 => self.members.first().describe(),
            ranks => format!("{ranks} x {}", self.members.first().describe()),
        }
    }

    /// Exact sums do not depend on the number of ranks.
    fn arithmetic(&self) -> String {
        let own = self.members.first().arithmetic();
        let sums = match self.parts * self.count() {
            PARTS if self.parts > 1 || self.count() == PARTS => format!("{own}, sums of {PARTS} parts"),
            ranks => format!("{own}, sums of {ranks} ranks"),
        };
        match self.sharing {
            1 => sums,
            members => format!("{sums}, attention of {members}"),
        }
    }

    fn page_layout(&self) -> String {
        let of_all = format!("{} ranks of {}", self.count(), self.members.first().page_layout());
        match self.sharing {
            1 => of_all,
            members => format!("{of_all}, pages cut in {members}"),
        }
    }

    fn cost_model(&self) -> CostModel {
        self.members.first().cost_model()
    }

    fn tile(&self) -> u32 {
        self.of_sharing(self.members.first().tile())
    }

    fn attention_tile(&self, heads: HeadLayout, dtype: Dtype, window: Option<u32>) -> u32 {
        self.of_sharing(self.members.first().attention_tile(heads, dtype, window))
    }

    fn set_batch_invariant(&mut self) {
        self.members.each(|rank| rank.backend.set_batch_invariant());
    }

    fn set_kv_dtype(&mut self, kv: KvDtype) {
        self.members.each(|rank| rank.backend.set_kv_dtype(kv));
    }

    fn swap_rates(&self) -> SwapRates {
        let SwapRates { host_bytes, flops } = self.members.first().swap_rates();
        let times = if B::SHARES_MEMORY { 1.0 } else { self.count() as f64 };
        SwapRates { host_bytes: times * host_bytes, flops: times * flops }
    }

    fn free_bytes(&self) -> Result<usize> {
        let free = self.members.try_in_turn(|rank| rank.backend.free_bytes())?;
        let least = free.into_iter().min().unwrap_or(0);
        Ok(if B::SHARES_MEMORY { least } else { least * self.count() })
    }

    fn devices(&self) -> usize {
        self.count()
    }

    fn sharing(&self) -> usize {
        self.sharing
    }

    /// Blocks of GGUF files are not divided by inputs.
    fn multiplies(&self, format: WeightFormat) -> bool {
        !matches!(format, WeightFormat::Blocks(_)) && self.members.first().multiplies(format)
    }

    /// Nor are codes of experts whose inputs would be cut within groups: experts are narrow, and become dense instead.
    fn multiplies_experts(&self, format: WeightFormat, width: usize) -> bool {
        let parts = self.parts * self.count();
        divides_experts(format, width, parts) && self.members.first().multiplies_experts(format, width / parts)
    }

    fn matrix(&mut self, parts: &[MatrixPart<'_>]) -> Result<Self::Matrix> {
        self.split_matrix(parts, &Split::Whole)
    }

    fn split_matrix(&mut self, parts: &[MatrixPart<'_>], split: &Split) -> Result<Self::Matrix> {
        self.load_matrix(parts, split)
    }

    fn vector(&mut self, parts: &[WeightView<'_>]) -> Result<Self::Vector> {
        self.split_vector(parts, &Split::Whole)
    }

    fn split_vector(&mut self, parts: &[WeightView<'_>], split: &Split) -> Result<Self::Vector> {
        self.load_vector(parts, split)
    }

    fn experts(
        &mut self,
        matrices: Vec<Self::Matrix>,
        biases: Vec<Self::Vector>,
        kind: ExpertKind,
    ) -> Result<Self::Experts> {
        self.load_experts(matrices, biases, kind)
    }

    fn rope_table(&mut self, table: &RopeTable) -> Result<Self::Rope> {
        Ok(RankRope(shared(self.members.try_each(|rank| rank.backend.rope_table(table))?)))
    }

    fn buffer(&mut self, width: usize, holds: ActivationDtype) -> Result<Self::Buffer> {
        self.shared_buffer(width, holds, Share::Whole)
    }

    fn shared_buffer(&mut self, width: usize, holds: ActivationDtype, share: Share) -> Result<Self::Buffer> {
        self.load_buffer(width, holds, share)
    }

    fn resize(&mut self, buffer: &mut Self::Buffer, rows: usize) -> Result<()> {
        self.members.try_in_turn(|rank| {
            let at = rank.number;
            let mut singles = [&buffer.own].into_iter().chain(&buffer.columns);
            singles.try_for_each(|each| rank.backend.resize(&mut lock(&each[at]), rows))?;
            let mut parts: Vec<_> = buffer.parts.iter().map(|part| lock(&part[at])).collect();
            let mut parts: Vec<&mut B::Buffer> = parts.iter_mut().map(|part| &mut **part).collect();
            rank.backend.resize_parts(&mut parts, rows)
        })?;
        Ok(())
    }

    fn routes(&mut self, experts: usize, router: Router) -> Result<Self::Routes> {
        Ok(RankRoutes(shared(self.members.try_each(|rank| rank.backend.routes(experts, router))?)))
    }

    fn resize_routes(&mut self, routes: &mut Self::Routes, rows: usize) -> Result<()> {
        self.members.try_in_turn(|rank| rank.backend.resize_routes(&mut lock(&routes.0[rank.number]), rows))?;
        Ok(())
    }

    fn write(&mut self, buffer: &mut Self::Buffer, rows: usize, values: &[f32]) -> Result<()> {
        assert!(is_whole(buffer.share), "a share of a buffer is not written by the host");
        self.members.try_each(|rank| rank.backend.write(&mut lock(&buffer.own[rank.number]), rows, values))?;
        Ok(())
    }

    fn read(&mut self, buffer: &Self::Buffer, rows: usize) -> Result<Vec<f32>> {
        assert!(is_whole(buffer.share), "a share of a buffer is not read by the host");
        let read = self.members.try_together(|rank| match rank.number {
            0 => rank.backend.read(&lock(&buffer.own[0]), rows),
            _ => Ok(Vec::new()),
        });
        Ok(read?.swap_remove(0))
    }

    fn kv_element_bytes(&self, heads: HeadLayout, dtype: Dtype) -> usize {
        self.members.first().kv_element_bytes(self.heads(heads), dtype)
    }

    fn kv_copies(&self, heads: HeadLayout) -> usize {
        heads.copies(self.count()) / self.sharing
    }

    fn page_bytes(&self, shape: &KvShape) -> usize {
        self.count() * self.members.first().page_bytes(&self.kv_shape(shape))
    }

    fn kv_overhead_bytes(&self, shape: &KvShape) -> usize {
        self.count() * self.members.first().kv_overhead_bytes(&self.kv_shape(shape))
    }

    fn kv(&mut self, shape: &KvShape) -> Result<Self::Kv> {
        let shape = self.kv_shape(shape);
        let each = shared(self.members.try_each(|rank| rank.backend.kv(&shape))?);
        Ok(RankKv { each, members: (0..self.count()).map(|rank| self.member(rank)).collect() })
    }

    fn save_pages(&mut self, kv: &Self::Kv, pages: &[PageId]) -> Result<SavedPages> {
        let each = self.members.try_each(|rank| rank.backend.save_pages(&lock(&kv.each[rank.number]), pages))?;
        Ok(SavedPages::Ranks(each))
    }

    fn restore_pages(&mut self, kv: &mut Self::Kv, saved: &SavedPages, pages: &[PageId]) -> Result<()> {
        let ranks = self.count();
        let restored = self.members.try_each(|rank| {
            let saved = saved.of_rank(rank.number, ranks);
            rank.backend.restore_pages(&mut lock(&kv.each[rank.number]), &saved, pages)
        });
        restored.map(drop)
    }

    /// One rank's share after the other's.
    fn save_state(&mut self, kv: &Self::Kv, slot: StateId) -> Result<Vec<u8>> {
        let each = self.members.try_each(|rank| rank.backend.save_state(&lock(&kv.each[rank.number]), slot))?;
        Ok(each.concat())
    }

    fn restore_state(&mut self, kv: &mut Self::Kv, saved: &[u8], slot: StateId) -> Result<()> {
        let share = saved.len() / self.count();
        let restored = self.members.try_each(|rank| {
            let own = &saved[rank.number * share..][..share];
            rank.backend.restore_state(&mut lock(&kv.each[rank.number]), own, slot)
        });
        restored.map(|_| ())
    }

    fn join_saved(
        kv: &Self::Kv,
        saved: &mut SavedPages,
        page: usize,
        others: &SavedPages,
        from: usize,
        slots: Range<u32>,
    ) {
        let ranks = kv.each.len();
        for (rank, saved) in saved.of_ranks_mut().iter_mut().enumerate() {
            let own = kv.members[rank].map_or(slots.clone(), |member| member.slots(slots.clone()));
            if !own.is_empty() {
                B::join_saved(&lock(&kv.each[rank]), saved, page, &others.of_rank(rank, ranks), from, own);
            }
        }
    }

    fn step(&mut self, heads: &[HeadLayout], dtype: Dtype, vocab: usize) -> Result<Self::Step> {
        let heads: Vec<HeadLayout> = heads.iter().map(|&heads| self.heads(heads)).collect();
        Ok(RankStep(shared(self.members.try_each(|rank| rank.backend.step(&heads, dtype, vocab))?)))
    }

    fn delta_rule_bytes(&self, heads: DeltaHeads, dtype: Dtype, rows: usize) -> usize {
        self.count() * self.members.first().delta_rule_bytes(self.delta_heads(heads), dtype, rows)
    }

    fn reserve_delta_rule(&mut self, heads: &[DeltaHeads], dtype: Dtype, rows: usize) -> Result<()> {
        let heads: Vec<DeltaHeads> = heads.iter().map(|&heads| self.delta_heads(heads)).collect();
        self.members.try_each(|rank| rank.backend.reserve_delta_rule(&heads, dtype, rows)).map(drop)
    }

    fn reserve(&mut self, step: &mut Self::Step, shape: StepShape) -> Result<StepShape> {
        same(self.members.try_in_turn(|rank| rank.backend.reserve(&mut lock(&step.0[rank.number]), shape)))
    }

    fn load(&mut self, step: &mut Self::Step, batch: StepBatch) -> Result<StepShape> {
        let members: Vec<Option<Member>> = (0..self.count()).map(|rank| self.member(rank)).collect();
        same(self.members.try_each(|rank| {
            let (at, step, batch) = (rank.number, &mut *lock(&step.0[rank.number]), batch.clone());
            match members[at] {
                Some(member) => rank.backend.load_member(rank.fabric, at, step, batch, member),
                None => rank.backend.load(step, batch),
            }
        }))
    }

    fn advance(&mut self, step: &mut Self::Step, uniforms: &[f64], new_pages: &[NewPage]) -> Result<StepShape> {
        let advance =
            |rank: super::Rank<'_, B>| rank.backend.advance(&mut lock(&step.0[rank.number]), uniforms, new_pages);
        same(self.members.try_each(advance))
    }

    fn run(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()> {
        self.level_moves(step)?;
        // What all would repeat anyway is not recorded: that takes the host longer than to repeat it.
        let repeats = self.members.first().repeats(&lock(&step.0[0]), shape);
        let ops = if repeats { Vec::new() } else { self.record(step, ops)? };
        self.members.try_together(|rank| {
            let (number, fabric) = (rank.number, rank.fabric);
            let step = &mut *lock(&step.0[number]);
            rank.backend.run(step, shape, |backend, step| match repeats {
                true => Err(Error::Internal(format!("rank {number} does not repeat a step that the first one does"))),
                false => play(&ops, number, backend, fabric, step),
            })
        })?;
        Ok(())
    }

    fn run_once(
        &mut self,
        step: &mut Self::Step,
        shape: StepShape,
        ops: impl FnOnce(&mut Self, &mut Self::Step) -> Result<()>,
    ) -> Result<()> {
        let ops = self.record(step, ops)?;
        self.members.try_together(|rank| {
            let (number, fabric) = (rank.number, rank.fabric);
            let step = &mut *lock(&step.0[number]);
            rank.backend.run_once(step, shape, |backend, step| play(&ops, number, backend, fabric, step))
        })?;
        Ok(())
    }

    /// All ranks draw the same tokens; the first one's are returned. An error if they do not: their keys and values
    /// would be those of different texts from here on.
    fn collect(&mut self, step: &mut Self::Step) -> Result<Vec<Sampled>> {
        let mut each = self.members.try_together(|rank| rank.backend.collect(&mut lock(&step.0[rank.number])))?;
        let first = each.swap_remove(0);
        let tokens = |samples: &[Sampled]| samples.iter().map(|sample| sample.token).collect::<Vec<_>>();
        match each.iter().all(|other| tokens(other) == tokens(&first)) {
            true => Ok(first),
            false => Err(Error::Internal(format!("the {} devices of one model drew different tokens", self.count()))),
        }
    }

    fn embed(&mut self, out: &mut Self::Buffer, table: &Self::Matrix, step: &Self::Step) {
        let (out, table) = (out.own.clone(), table.each.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            rank.backend.embed(&mut lock(&out[at]), &table[at][0], step);
        });
    }

    fn rms_norm(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, weight: &Self::Vector, eps: f32) {
        let weight = weight.0.clone();
        self.map(out, x, move |backend, out, x, at| backend.rms_norm(out, x, &weight[at], eps));
    }

    fn rms_norm_for(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        eps: f32,
        next: &Self::Matrix,
    ) {
        if next.is_cut() {
            return self.rms_norm(out, x, weight, eps);
        }
        let (weight, each) = (weight.0.clone(), next.each.clone());
        self.map(out, x, move |backend, out, x, at| backend.rms_norm_for(out, x, &weight[at], eps, &each[at][0]));
    }

    fn layer_norm(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        bias: &Self::Vector,
        eps: f32,
    ) {
        let (weight, bias) = (weight.0.clone(), bias.0.clone());
        self.map(out, x, move |backend, out, x, at| backend.layer_norm(out, x, &weight[at], &bias[at], eps));
    }

    fn rms_norm_add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, weight: &Self::Vector, eps: f32) {
        let weight = weight.0.clone();
        self.map(out, x, move |backend, out, x, at| backend.rms_norm_add(out, x, &weight[at], eps));
    }

    fn round(&mut self, out: &mut Self::Buffer, x: &Self::Buffer) {
        self.map(out, x, |backend, out, x, _| backend.round(out, x));
    }

    fn add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer) {
        self.map(out, x, |backend, out, x, _| backend.add(out, x));
    }

    fn scale(&mut self, x: &mut Self::Buffer, factor: f32) {
        self.change(x, move |backend, x, _| backend.scale(x, factor));
    }

    fn softcap(&mut self, x: &mut Self::Buffer, cap: f32) {
        self.change(x, move |backend, x, _| backend.softcap(x, cap));
    }

    fn linear(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, w: &Self::Matrix, bias: Option<&Self::Vector>) {
        self.multiply(out, x, w, bias, false);
    }

    fn linear_add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, w: &Self::Matrix, bias: Option<&Self::Vector>) {
        self.multiply(out, x, w, bias, true);
    }

    fn head_norm(
        &mut self,
        qkv: &mut Self::Buffer,
        heads: HeadLayout,
        kind: HeadKind,
        weight: &Self::Vector,
        eps: f32,
    ) {
        let (heads, weight) = (self.heads_of(qkv, heads), weight.0.clone());
        self.change(qkv, move |backend, qkv, at| backend.head_norm(qkv, heads, kind, &weight[at], eps));
    }

    fn rope(&mut self, qkv: &mut Self::Buffer, heads: HeadLayout, table: &Self::Rope, step: &Self::Step) {
        let (heads, qkv, table) = (self.heads_of(qkv, heads), qkv.own.clone(), table.0.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            rank.backend.rope(&mut lock(&qkv[at]), heads, &lock(&table[at]), step);
        });
    }

    fn kv_append(&mut self, kv: &mut Self::Kv, layer: LayerIx, qkv: &Self::Buffer, step: &Self::Step) {
        let (kv, qkv) = (kv.each.clone(), qkv.own.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            rank.backend.kv_append(&mut lock(&kv[at]), layer, &lock(&qkv[at]), step);
        });
    }

    fn prepare_heads(
        &mut self,
        qkv: &mut Self::Buffer,
        steps: &HeadSteps<'_, Self::Vector, Self::Rope>,
        kv: &mut Self::Kv,
        step: &Self::Step,
    ) {
        let HeadSteps { norms, eps, layer, stores, .. } = *steps;
        let heads = self.heads_of(qkv, steps.heads);
        let norms = norms.map(|weight| weight.map(|weight| weight.0.clone()));
        let ropes = steps.ropes.map(|rope| rope.map(|rope| rope.0.clone()));
        let (qkv, kv) = (qkv.own.clone(), kv.each.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            let tables = ropes.each_ref().map(|rope| rope.as_ref().map(|rope| lock(&rope[at])));
            let ropes = tables.each_ref().map(|table| table.as_deref());
            let norms = norms.each_ref().map(|weight| weight.as_ref().map(|weight| &weight[at]));
            let steps = HeadSteps { heads, norms, eps, ropes, layer, stores };
            rank.backend.prepare_heads(&mut lock(&qkv[at]), &steps, &mut lock(&kv[at]), step);
        });
    }

    fn tree_attention(
        &mut self,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        kv: &Self::Kv,
        layer: LayerIx,
        step: &mut Self::Step,
        plan: usize,
        scoring: Scoring<'_, Self::Vector>,
    ) {
        let members = if matches!(qkv.share, Share::Heads(_)) { self.sharing } else { 1 };
        let Scoring { scale, softcap, sinks } = scoring;
        let (out, qkv, kv) = (out.own.clone(), qkv.own.clone(), kv.each.clone());
        let sinks = sinks.map(|sinks| sinks.0.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            // A sink is one score of a row, which the first member of a group adds.
            let sinks = sinks.as_ref().filter(|_| at.is_multiple_of(members)).map(|sinks| &sinks[at]);
            let scoring = Scoring { scale, softcap, sinks };
            let (out, qkv, kv) = (&mut *lock(&out[at]), &*lock(&qkv[at]), &*lock(&kv[at]));
            match members {
                1 => rank.backend.tree_attention(out, qkv, kv, layer, step, plan, scoring),
                _ => {
                    let (backend, fabric) = (&mut *rank.backend, rank.fabric);
                    backend.tree_attention_of_members(fabric, at, out, qkv, kv, layer, step, plan, scoring);
                }
            }
        });
    }

    fn gated(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, gate: Gate) {
        self.map(out, x, move |backend, out, x, _| backend.gated(out, x, gate));
    }

    fn gated_for(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, gate: Gate, next: &Self::Matrix) {
        if next.is_cut() {
            return self.gated(out, x, gate);
        }
        let each = next.each.clone();
        self.map(out, x, move |backend, out, x, at| backend.gated_for(out, x, gate, &each[at][0]));
    }

    fn gelu_times(&mut self, x: &mut Self::Buffer, y: &Self::Buffer, from: usize) {
        self.map(x, y, move |backend, x, y, _| backend.gelu_times(x, y, from));
    }

    fn gelu(&mut self, x: &mut Self::Buffer) {
        self.change(x, |backend, x, _| backend.gelu(x));
    }

    fn sigmoid_times(&mut self, x: &mut Self::Buffer, y: &Self::Buffer) {
        self.map(x, y, |backend, x, y, _| backend.sigmoid_times(x, y));
    }

    fn causal_conv(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        weight: &Self::Vector,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    ) {
        let (out, x, weight, kv) = (out.own.clone(), x.own.clone(), weight.0.clone(), kv.each.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            let (out, x, kv) = (&mut *lock(&out[at]), &*lock(&x[at]), &mut *lock(&kv[at]));
            rank.backend.causal_conv(out, x, &weight[at], kv, layer, step);
        });
    }

    fn delta_rule(
        &mut self,
        out: &mut Self::Buffer,
        qkv: &Self::Buffer,
        ba: &Self::Buffer,
        gates: DeltaGates<'_, Self::Vector>,
        kv: &mut Self::Kv,
        layer: LayerIx,
        step: &Self::Step,
    ) {
        let (rate, dt) = (gates.rate.0.clone(), gates.dt.0.clone());
        let (out, qkv, ba, kv) = (out.own.clone(), qkv.own.clone(), ba.own.clone(), kv.each.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            let gates = DeltaGates { rate: &rate[at], dt: &dt[at] };
            let (out, qkv, ba) = (&mut *lock(&out[at]), &*lock(&qkv[at]), &*lock(&ba[at]));
            rank.backend.delta_rule(out, qkv, ba, gates, &mut lock(&kv[at]), layer, step);
        });
    }

    fn gated_rms_norm(&mut self, x: &mut Self::Buffer, gate: &Self::Buffer, weight: &Self::Vector, eps: f32) {
        let weight = weight.0.clone();
        self.map(x, gate, move |backend, x, gate, at| backend.gated_rms_norm(x, gate, &weight[at], eps));
    }

    fn route(&mut self, routes: &mut Self::Routes, scores: &Self::Buffer, factors: Option<&Self::Vector>) {
        let (routes, scores, factors) =
            (routes.0.clone(), scores.own.clone(), factors.map(|factors| factors.0.clone()));
        self.op(move |rank| {
            let at = rank.number;
            let factors = factors.as_ref().map(|factors| &factors[at]);
            rank.backend.route(&mut lock(&routes[at]), &lock(&scores[at]), factors);
        });
    }

    fn expert_linear(
        &mut self,
        out: &mut Self::Buffer,
        x: &Self::Buffer,
        experts: &Self::Experts,
        routes: &Self::Routes,
        input: ExpertInput,
    ) {
        self.multiply_experts(out, x, experts, routes, input);
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
        let (each, routes, inner) = (experts.each.clone(), routes.0.clone(), inner.own.clone());
        self.map(out, x, move |backend, out, x, at| {
            backend.expert_gated(out, &mut lock(&inner[at]), x, &each[at][0], &lock(&routes[at]), gate);
        });
    }

    fn combine(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, routes: &Self::Routes) {
        self.combine_parts(out, x, routes, false);
    }

    fn combine_add(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, routes: &Self::Routes) {
        self.combine_parts(out, x, routes, true);
    }

    fn select_rows(&mut self, out: &mut Self::Buffer, x: &Self::Buffer, step: &Self::Step) {
        let (out, x) = (out.own.clone(), x.own.clone());
        self.op_on(step, move |rank, step| {
            let at = rank.number;
            rank.backend.select_rows(&mut lock(&out[at]), &lock(&x[at]), step);
        });
    }

    fn sample(&mut self, logits: &Self::Buffer, step: &mut Self::Step) {
        let logits = logits.own.clone();
        self.op_on(step, move |rank, step| rank.backend.sample(&lock(&logits[rank.number]), step));
    }
}

impl<B: Ranked> Ranks<B> {
    /// The tile of all members together: each one's part of a tile is a tile of its own.
    fn of_sharing(&self, tile: u32) -> u32 {
        match tile {
            1 => 1,
            tile => small(self.sharing) * tile,
        }
    }

    /// The heads of one rank's `qkv`: its share of them, or all where every rank has all columns.
    fn heads_of(&self, qkv: &RankBuffer<B>, heads: HeadLayout) -> HeadLayout {
        if matches!(qkv.share, Share::Columns | Share::Heads(_)) { self.heads(heads) } else { heads }
    }

    /// Where one rank has forgotten what it repeats, all do.
    fn level_moves(&self, step: &RankStep<B>) -> Result<()> {
        if self.sharing == 1 {
            return Ok(());
        }
        let each = self.members.try_in_turn(|rank| Ok(rank.backend.moves(&lock(&step.0[rank.number]))))?;
        let most = each.into_iter().max().unwrap_or(0);
        let set = |rank: super::Rank<'_, B>| {
            rank.backend.set_moves(&mut lock(&step.0[rank.number]), most);
            Ok(())
        };
        self.members.try_in_turn(set).map(drop)
    }

    /// The ops of a step.
    fn record(
        &mut self,
        step: &mut RankStep<B>,
        ops: impl FnOnce(&mut Self, &mut RankStep<B>) -> Result<()>,
    ) -> Result<Vec<Op<B>>> {
        self.recorded = Some(Vec::new());
        let ended = ops(self, step);
        let recorded = self.recorded.take().expect("no step is run inside of another");
        ended.map(|()| recorded)
    }
}

/// Carries out the ops of a step on rank `number`.
fn play<B: Ranked>(
    ops: &[Op<B>],
    number: usize,
    backend: &mut B,
    fabric: &B::Fabric,
    step: &mut B::Step,
) -> Result<()> {
    let mut rank = super::Rank { number, backend, fabric };
    for op in ops {
        match op {
            Op::Plain(op) => op(&mut rank),
            Op::OnStep(op) => op(&mut rank, step),
        }
    }
    Ok(())
}

/// Whether every rank has the same numbers.
fn is_whole(share: Share) -> bool {
    matches!(share, Share::Whole | Share::Summed { .. } | Share::Gathered)
}

/// What all ranks found, which is the same.
fn same<T: PartialEq + std::fmt::Debug>(each: Result<Vec<T>>) -> Result<T> {
    let mut each = each?;
    debug_assert!(each.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ: {each:?}");
    Ok(each.swap_remove(0))
}
