//! GPUs of one host that compute one model together: what passes between them, through memory that each writes of the
//! others (`peers`), or where NVLink does not join them, through NCCL (`gathered`). Nothing of a multicast is used.
//! `ways` says which kernel serves which size; `measure` times them and NCCL. `trainer` receives weights from another
//! process.
//!
//! # No deadlock in the driver
//! A kernel of an exchange ends when the same exchange was enqueued on every rank. Loading kernels and allocating
//! memory may wait for kernels that run, in the driver, on several GPUs at once. So outside of captured graphs all
//! ranks meet on the host before an exchange and wait for it: none loads or allocates while another one's exchange
//! runs. A graph is made and uploaded before they meet, and everything else that allocates ends before a step begins.

pub mod fabric;
mod gathered;
pub mod measure;
pub mod nccl;
mod peers;
pub mod trainer;
pub mod ways;

use std::sync::Arc;

use super::Cuda;
use super::attention::device_plan::WHOLE;
use super::compile::four_bit::FourBit;
use super::compile::units::ExchangedSums;
use super::driver::device::Device;
use super::driver::memory::ALIGNED;
use super::gemm::shared::SharedChoices;
use super::memory::buffer::Buffer;
use super::memory::kv::Kv;
use super::memory::weights::{Matrix, Vector};
use super::step::Step;
use fabric::{CudaFabric, Exchanges};
use offshoot_backend::ranks::meeting::Meeting;
use offshoot_backend::ranks::{PARTS, Place, Ranked, Reduced};
use offshoot_backend::{ActivationDtype, Backend, Dtype, MatrixPart, MemoryPart, Scoring};
use offshoot_core::error::{Error, Result};
use offshoot_core::ids::LayerIx;
use ways::{ChunkedPiece, MergedStates, SumBuffers};

impl Ranked for Cuda {
    type Fabric = CudaFabric;

    const SHARES_MEMORY: bool = false;
    const DIVIDES_POSITIONS: bool = true;

    fn connect(ranks: &[Self]) -> Result<CudaFabric> {
        let devices: Vec<Device> = ranks.iter().map(|cuda| cuda.device().clone()).collect();
        let fabric = CudaFabric {
            count: devices.len(),
            exchanges: Exchanges::connect(&devices)?,
            meeting: Meeting::new(devices.len()),
            choices: Arc::new(SharedChoices::default()),
            devices,
        };
        fabric.devices.iter().try_for_each(Device::synchronise)?;
        Ok(fabric)
    }

    fn place(&self) -> &Option<Place<CudaFabric>> {
        &self.place
    }

    fn place_mut(&mut self) -> &mut Option<Place<CudaFabric>> {
        &mut self.place
    }

    /// NCCL merges nothing.
    fn divides_positions(fabric: &CudaFabric) -> bool {
        fabric.peers().is_ok()
    }

    fn prepare_sums(&mut self, fabric: &CudaFabric, rank: usize, part: ActivationDtype, how: Reduced) -> Result<()> {
        let sums = ExchangedSums::of(fabric.count, part.narrowest(), how.wire, how.exact);
        fabric.exchanges.prepare_sums(self.device(), rank, sums)
    }

    fn all_reduce(&mut self, fabric: &CudaFabric, rank: usize, out: &mut Buffer, parts: &[&Buffer], how: Reduced) {
        let Some(part) = parts.first().map(|part| part.element) else { return };
        assert_eq!(out.element, Dtype::F32, "all_reduce: a buffer of sums");
        assert!(parts.iter().all(|part| (part.rows, part.width) == (out.rows, out.width)), "all_reduce: shapes");
        self.forget_before(out);
        if out.rows * out.width == 0 {
            return;
        }
        let sums = ExchangedSums::of(fabric.count, part, how.wire, how.exact);
        let (device, of) = (self.device().clone(), SumBuffers { out, parts, adds: how.adds });
        match &fabric.exchanges {
            Exchanges::Peers(peers) => match peers.sum_kernels(&device, rank, sums) {
                Ok(kernels) => fabric.exchange(&device, || {
                    let pieces = ways::pieces(sums, of.out.rows * of.out.width);
                    pieces.for_each(|piece| peers.launch_sums(&device, rank, &kernels, piece, &of));
                    Ok(())
                }),
                Err(error) => fabric.fail(&device, error),
            },
            Exchanges::Gathered(gathered) => match gathered.sum_kernels(&device, rank, sums) {
                Ok(kernels) => {
                    fabric.exchange(&device, || gathered.sum(&device, rank, (sums, &kernels), &of));
                }
                Err(error) => fabric.fail(&device, error),
            },
        }
    }

    fn all_gather(&mut self, fabric: &CudaFabric, rank: usize, out: &mut Buffer, x: &Buffer) {
        assert_eq!((out.rows, out.width), (x.rows, x.width * fabric.count), "all_gather: shapes");
        assert!(out.element == Dtype::F32 && x.element == Dtype::F32, "all_gather: buffers of sums");
        if fabric.count == 1 {
            return self.ops(Dtype::F32, out).columns(out, x, 0);
        }
        self.forget_before(out);
        if x.rows * x.width == 0 {
            return;
        }
        let device = self.device().clone();
        fabric.exchange(&device, || match &fabric.exchanges {
            Exchanges::Peers(peers) => {
                let pieces = ways::pieces_of_gather(fabric.count, x.rows * x.width);
                pieces.for_each(|piece: ChunkedPiece| peers.launch_gather(&device, rank, piece, out, x));
                Ok(())
            }
            Exchanges::Gathered(gathered) => gathered.gather(&device, rank, out, x),
        });
    }

    fn matrix_of_outputs(&mut self, parts: &[MatrixPart<'_>], outputs: usize) -> Result<Matrix> {
        let matrix = self.matrix(parts)?;
        if let Some(gemm) = self.gemms.get_mut(&matrix.format) {
            gemm.products.remember_whole(&matrix, outputs);
        }
        if FourBit::of_weights(matrix.format).is_some() {
            self.four_bit.remember_whole(&matrix, outputs);
        }
        Ok(matrix)
    }

    fn moves(&self, step: &Step) -> u64 {
        self.moves + step.moves
    }

    fn set_moves(&mut self, step: &mut Step, moves: u64) {
        step.moves = moves - self.moves;
    }

    fn resize_parts(&mut self, parts: &mut [&mut Buffer], rows: usize) -> Result<()> {
        self.forget_rounded();
        self.moves += u64::from(Buffer::resize_beside(parts, self.device(), rows)?);
        self.note_rows(rows)
    }

    /// Joins dense parts, which are copied to neighbouring memory.
    fn join_parts(&mut self, parts: &mut [Matrix]) -> Result<()> {
        let bytes = parts[0].memory.bytes();
        let is_joined = parts.iter().all(|part| part.format.dense().is_some() && part.memory.bytes() == bytes);
        if parts.len() < 2 || !is_joined || !bytes.is_multiple_of(ALIGNED) {
            return Ok(());
        }
        let joined = match self.device().alloc_of(MemoryPart::Weights, bytes * parts.len()) {
            // It serves speed alone.
            Err(Error::DeviceMemory { .. }) => return Ok(()),
            joined => joined?.divided(parts.len()),
        };
        for (part, memory) in parts.iter_mut().zip(joined) {
            self.device().copy(&memory, 0, &part.memory, 0..bytes)?;
            part.memory = Arc::new(memory);
        }
        Ok(())
    }

    /// Multiplies dense weights, by one call of cuBLASLt.
    fn linear_of_parts(&mut self, outs: &mut [&mut Buffer], x: &Buffer, w: &[Matrix]) -> bool {
        if w[0].format.dense().is_none() {
            return false;
        }
        outs.iter().for_each(|out| self.forget_before(out));
        let outs: Vec<&Buffer> = outs.iter().map(|out| &**out).collect();
        self.gemms.get_mut(&w[0].format).is_some_and(|gemm| gemm.linear_of_parts(&outs, x, w))
    }

    fn columns(&mut self, out: &mut Buffer, x: &Buffer, first: usize) {
        self.ops(out.element, out).columns(out, x, first);
    }
}

impl Cuda {
    /// Loads what merges partial results of the step, if it has some of a group's positions.
    pub(super) fn prepare_merges(&self, step: &Step) -> Result<()> {
        let Some(place) = self.place.as_ref().filter(|_| step.member() != WHOLE) else { return Ok(()) };
        let (fabric, peers) = (place.fabric(), place.fabric().peers()?);
        let mut all = step.member_states(fabric.count);
        all.try_for_each(|states| peers.merge_kernel(self.device(), place.number(), states).map(drop))
    }

    /// Tree attention to a member's positions, merged with what the others of its group find.
    pub(super) fn attend_as_member(
        &self,
        out: &mut Buffer,
        qkv: &Buffer,
        (kv, layer): (&Kv, LayerIx),
        step: &mut Step,
        plan: usize,
        scoring: Scoring<'_, Vector>,
    ) {
        let scoring = scoring.of_member(step.member());
        let place = self.place.as_ref().expect("a member has a place");
        let (device, fabric, rank) = (self.device(), place.fabric(), place.number());
        let (heads, states) = (kv.heads(layer), step.states_of(plan, fabric.count));
        let shape = (out.rows, out.width * states.members, out.element);
        assert_eq!(shape, (qkv.rows, heads.out_width(), states.element), "tree_attention of members: shapes");
        let sinks = scoring.sinks.map(|sinks| &sinks.memory);
        step.attend(device, None, None, qkv, (kv, layer), plan, scoring);
        let merge = match fabric.peers().and_then(|peers| Ok((peers, peers.merge_kernel(device, rank, states)?))) {
            Ok(merge) => merge,
            Err(error) => return fabric.fail(device, error),
        };
        let (words, partials) = step.partial_states(plan);
        let of = MergedStates { out, words, partials, sinks, q_heads: heads.q_heads };
        fabric.exchange(device, || {
            let units = of.out.rows * heads.q_heads / states.members;
            let pieces = ways::pieces_of_merge(fabric.count, units, heads.value_dim() + 2);
            pieces.for_each(|piece| merge.0.launch_merge(device, rank, &merge.1, piece, &of));
            Ok(())
        });
    }
}

/// Ranks are at most so many, for which kernels have been written.
const _: () = assert!(PARTS == 8);

#[cfg(test)]
mod tests {
    use super::*;

    /// On a GPU. A rank alone asks its device nothing before an exchange: the answer was the error of an earlier
    /// launch, which was lost, and the step's results were wrong.
    #[test]
    fn an_exchange_of_one_leaves_the_error_of_an_earlier_launch_to_be_reported() {
        let cuda = match Cuda::open(0) {
            Ok(cuda) => cuda,
            Err(why) => return crate::skip::skipped(why),
        };
        let fabric = Cuda::connect(std::slice::from_ref(&cuda)).expect("a GPU reaches itself");
        let device = cuda.device().clone();
        device.keep(Error::Internal("a launch failed".to_owned()));
        fabric.exchange(&device, || Ok(()));
        let kept = device.check().expect_err("what the launch has to report").to_string();
        assert!(kept.contains("a launch failed"), "{kept}");
    }
}
