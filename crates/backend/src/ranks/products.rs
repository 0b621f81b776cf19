//! Layers on all ranks: a product whose outputs are divided is each rank's own, one whose inputs are divided is a sum
//! of the ranks' parts. Sums themselves are the fabric's.

use super::members::lock;
use super::{Each, Portion, RankBuffer, RankExperts, RankMatrix, RankRoutes, RankVector, Ranked, Ranks};
use crate::{Backend, ExpertInput, Share};

impl<B: Ranked> Ranks<B> {
    /// `out = w x (+ bias)`, or is increased by it.
    pub(super) fn multiply(
        &mut self,
        out: &RankBuffer<B>,
        x: &RankBuffer<B>,
        w: &RankMatrix<B>,
        bias: Option<&RankVector<B>>,
        adds: bool,
    ) {
        let (each, bias) = (w.each.clone(), bias.map(|bias| bias.0.clone()));
        match (w.portion, out.share) {
            (Portion::Inputs, _) => {
                let inputs = Inputs::of(x, self.parts);
                self.sum(out, x.holds, adds, move |rank, parts| {
                    let at = rank.number;
                    // A bias is added once.
                    let bias = bias.as_ref().filter(|_| at == 0).map(|bias| &bias[0]);
                    inputs.multiply(rank.backend, at, parts, &each[at], bias);
                });
            }
            (Portion::Outputs, Share::Gathered) => {
                assert!(!adds, "no layer whose outputs are divided adds to the residual stream");
                let (own, columns, x) = (out.own.clone(), out.parts[0].clone(), x.own.clone());
                self.op(move |rank| {
                    let at = rank.number;
                    let columns = &mut *lock(&columns[at]);
                    rank.backend.linear(columns, &lock(&x[at]), &each[at][0], bias.as_ref().map(|bias| &bias[at]));
                    rank.backend.all_gather(rank.fabric, at, &mut lock(&own[at]), columns);
                });
            }
            (Portion::Outputs | Portion::Whole, _) => self.map(out, x, move |backend, out, x, at| {
                let bias = bias.as_ref().map(|bias| &bias[at]);
                match adds {
                    true => backend.linear_add(out, x, &each[at][0], bias),
                    false => backend.linear(out, x, &each[at][0], bias),
                }
            }),
        }
    }

    /// `out[place] = w[expert] x`; of divided inputs, parts of it.
    pub(super) fn multiply_experts(
        &mut self,
        out: &RankBuffer<B>,
        x: &RankBuffer<B>,
        experts: &RankExperts<B>,
        routes: &RankRoutes<B>,
        input: ExpertInput,
    ) {
        let (each, routes) = (experts.each.clone(), routes.0.clone());
        if experts.portion != Portion::Inputs {
            return self.map(out, x, move |backend, out, x, at| {
                backend.expert_linear(out, x, &each[at][0], &lock(&routes[at]), input);
            });
        }
        assert_eq!(out.share, Share::Parts, "experts whose inputs are divided write parts of sums");
        let outs: Vec<_> = [&out.own].into_iter().chain(&out.parts).cloned().collect();
        let inputs = Inputs::of(x, self.parts);
        self.op(move |rank| {
            let at = rank.number;
            for (part, (out, experts)) in outs.iter().zip(&each[at]).enumerate() {
                inputs.with(rank.backend, at, part, |backend, x| {
                    backend.expert_linear(&mut lock(&out[at]), x, experts, &lock(&routes[at]), input);
                });
            }
        });
    }

    /// `out = ` the sum of experts' parts by `routes`, or is increased by it.
    pub(super) fn combine_parts(&mut self, out: &RankBuffer<B>, x: &RankBuffer<B>, routes: &RankRoutes<B>, adds: bool) {
        assert_eq!(x.share, Share::Parts, "what experts write until it is combined");
        let (routes, first, others) = (routes.0.clone(), x.own.clone(), x.parts.clone());
        self.sum(out, x.holds, adds, move |rank, parts| {
            let at = rank.number;
            for (x, to) in [&first].into_iter().chain(&others).zip(parts) {
                rank.backend.combine(to, &lock(&x[at]), &lock(&routes[at]));
            }
        });
    }
}

/// The inputs of a layer whose inputs are divided: a buffer of columns, cut further if sums have several parts.
struct Inputs<B: Backend> {
    x: Each<B::Buffer>,
    columns: Option<Each<B::Buffer>>,
    /// Columns of a part.
    width: usize,
}

impl<B: Ranked> Inputs<B> {
    fn of(x: &RankBuffer<B>, parts: usize) -> Self {
        assert_eq!(x.share, Share::Columns, "the inputs of a layer whose inputs are divided");
        Self { x: x.own.clone(), columns: x.columns.clone(), width: x.width / parts }
    }

    /// `outs[i] = w[i] x` of the columns of part `i` of rank `at`; the first is increased by the bias.
    fn multiply(
        &self,
        backend: &mut B,
        at: usize,
        outs: &mut [&mut B::Buffer],
        w: &[B::Matrix],
        bias: Option<&B::Vector>,
    ) {
        let is_plain = outs.len() > 1 && bias.is_none();
        if is_plain && backend.linear_of_parts(outs, &lock(&self.x[at]), w) {
            return;
        }
        for (part, (out, w)) in outs.iter_mut().zip(w).enumerate() {
            let bias = bias.filter(|_| part == 0);
            self.with(backend, at, part, |backend, x| backend.linear(out, x, w, bias));
        }
    }

    /// Calls `work` with the columns of part `part` of rank `at`.
    fn with(&self, backend: &mut B, at: usize, part: usize, work: impl FnOnce(&mut B, &B::Buffer)) {
        let x = lock(&self.x[at]);
        match &self.columns {
            None => work(backend, &x),
            Some(columns) => {
                let columns = &mut *lock(&columns[at]);
                backend.columns(columns, &x, part * self.width);
                work(backend, columns);
            }
        }
    }
}
