//! A rank's layers: a product whose outputs are divided is its own, one whose inputs are divided is a sum of all ranks'
//! parts. Sums themselves are the fabric's.

use super::{LoraOperands, Portion, Rank, RankBuffer, RankShare, Ranked};
use crate::{OutputMode, Share};

impl<B: Ranked> Rank<B> {
    /// `out = w x (+ bias)`, or is increased by it; with what adapters add.
    pub(super) fn multiply(
        &mut self,
        out: &mut RankBuffer<B>,
        x: &RankBuffer<B>,
        w: &RankShare<B::Matrix>,
        bias: Option<&B::Vector>,
        mode: OutputMode,
        lora: Option<LoraOperands<'_, B>>,
    ) {
        match (w.portion, out.share) {
            (Portion::Inputs, _) => self.sum(out, mode == OutputMode::Add, |device, number, parts| {
                // A bias is added once.
                let bias = bias.filter(|_| number == 0);
                let is_done = parts.len() > 1 && bias.is_none() && device.linear_of_parts(parts, &x.own, &w.each);
                if is_done && lora.is_none() {
                    return;
                }
                for (part, (out, w)) in parts.iter_mut().zip(&w.each).enumerate() {
                    let bias = bias.filter(|_| part == 0);
                    x.with_part(device, part, |device, x| {
                        if !is_done {
                            device.linear(out, x, w, bias, OutputMode::Replace);
                        }
                        if let Some(lora) = &lora {
                            lora.add(device, part, out, x);
                        }
                    });
                }
            }),
            (Portion::Outputs, Share::Gathered) => {
                assert_eq!(mode, OutputMode::Replace, "no layer whose outputs are divided adds to the residual stream");
                let (out, columns) = (&mut out.own, &mut out.parts[0]);
                self.0.linear(columns, &x.own, &w.each[0], bias, mode);
                if let Some(lora) = &lora {
                    lora.add(&mut self.0, 0, columns, &x.own);
                }
                self.exchange(|device, fabric, number| device.all_gather(fabric, number, out, columns));
            }
            (Portion::Outputs | Portion::Whole, _) => {
                self.0.linear(&mut out.own, &x.own, &w.each[0], bias, mode);
                if let Some(lora) = &lora {
                    lora.add(&mut self.0, 0, &mut out.own, &x.own);
                }
            }
        }
    }

    /// `out = ` the sum of experts' parts by `routes`, or is increased by it.
    pub(super) fn combine_parts(
        &mut self,
        out: &mut RankBuffer<B>,
        x: &RankBuffer<B>,
        input: Option<&RankBuffer<B>>,
        routes: &B::Routes,
        mode: OutputMode,
    ) {
        assert_eq!(x.share, Share::Parts, "what experts write until it is combined");
        self.sum(out, mode == OutputMode::Add, |device, number, parts| {
            for (part, (x, to)) in std::iter::once(&x.own).chain(&x.parts).zip(parts).enumerate() {
                // What identities give is added once.
                let input = input.filter(|_| number == 0 && part == 0);
                device.combine(to, x, input.map(|input| &input.own), routes, OutputMode::Replace);
            }
        });
    }
}

impl<B: Ranked> RankBuffer<B> {
    /// Calls `work` with part `part` of the inputs of a layer whose inputs are divided: a rank's columns, cut further
    /// if its sums have several parts.
    pub(super) fn with_part(&self, device: &mut B, part: usize, work: impl FnOnce(&mut B, &B::Buffer)) {
        assert_eq!(self.share, Share::Columns, "the inputs of a layer whose inputs are divided");
        match &self.columns {
            None => work(device, &self.own),
            Some(columns) => {
                let columns = &mut *columns.borrow_mut();
                device.columns(columns, &self.own, part * self.part_width);
                work(device, columns);
            }
        }
    }
}
