//! How long exchanges between GPUs take, by each way, beside what the link allows: a word that goes to another GPU and
//! back, and the rate of a large copy while all GPUs copy. For `bench allreduce`.

use super::fabric::CudaFabric;
use super::nccl::Nccl;
use super::ways::{self, SumPiece, Way};
use super::ways::{BLOCKS, SumBuffers, THREADS};
use crate::Cuda;
use crate::compile::units::{self, ExchangedSums};
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::grid::small;
use crate::memory::buffer::Buffer;
use offshoot_backend::ranks::members::Members;
use offshoot_backend::ranks::{Rank, Ranks};
use offshoot_backend::{ActivationDtype, Backend, Dtype};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::TENSOR_PARALLEL;

/// Exchanges in a captured graph, and its replays; the median of the replays counts.
const CALLS: usize = 20;
const REPLAYS: usize = 9;

/// Words sent in one launch.
const TURNS: u32 = 1000;

/// Bytes of the copy that measures the link, and how often it is made.
const COPIED: usize = 256 << 20;
const COPIES: usize = 5;

/// How sums are exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Added to what is there in f32, as steps need it.
    Own(Way),
    /// In place, in the dtype that is sent.
    Nccl,
    /// In place as `Nccl`, and then added as `Own` adds.
    NcclAdded,
}

/// GPUs that add up buffers.
pub struct MeasuredRanks {
    /// Ends before the GPUs are given back.
    nccl: Result<Nccl>,
    members: Members<Rank<Cuda>>,
    count: usize,
}

/// What the links allow, the worst of any rank.
#[derive(Clone, Copy, Debug)]
pub struct LinkLimits {
    /// Microseconds of a word to another GPU and back.
    pub round_trip_us: f64,
    /// Bytes a second that a GPU copies from its neighbour while all do.
    pub bytes_per_s: f64,
}

impl LinkLimits {
    /// Microseconds below which `ranks` ranks cannot add up buffers of `bytes` bytes, their elements and sums sent in
    /// one dtype: each GPU sends its share of the others' sums, and its own sum to each.
    pub fn floor_us(&self, ranks: usize, bytes: usize) -> f64 {
        let on_link = 2.0 * (ranks - 1) as f64 / ranks as f64 * bytes as f64;
        self.round_trip_us.max(on_link / self.bytes_per_s * 1e6)
    }
}

/// The median.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

impl MeasuredRanks {
    /// Opens and connects GPUs.
    ///
    /// # Errors
    ///
    /// One sentence.
    pub fn open(ordinals: &[usize]) -> Result<Self> {
        let gpus = ordinals.iter().map(|&ordinal| Cuda::open(ordinal)).collect::<Result<Vec<_>>>()?;
        if ![2, 4, 8].contains(&gpus.len()) {
            return Err(Error::value(TENSOR_PARALLEL, "2, 4 or 8 GPUs", gpus.len().to_string()));
        }
        let devices: Vec<Device> = gpus.iter().map(|gpu| gpu.device().clone()).collect();
        let ranks = Ranks::new(gpus, false)?;
        Ok(Self { count: devices.len(), nccl: Nccl::open(&devices), members: ranks.start(Ok)? })
    }

    pub fn describe(&self) -> String {
        self.members.of(0).describe()
    }

    /// The library's version, or why there is none.
    pub fn nccl(&self) -> std::result::Result<String, String> {
        self.nccl.as_ref().map(Nccl::version).map_err(ToString::to_string)
    }

    /// The way that a model's sums go.
    pub fn chosen(&self, count: usize, wire: Dtype) -> Way {
        ways::way(ExchangedSums::of(self.count, wire, wire, false), count)
    }

    pub fn limits(&self) -> Result<LinkLimits> {
        let round_trip = |gpu: &Cuda, fabric: &CudaFabric, number: usize, begin: u32| -> Result<f64> {
            let device = gpu.device();
            let peers = fabric.peers()?;
            let (before, after) = (device.event()?, device.event()?);
            fabric.meeting.meet();
            let us = before.us_until(&after, || {
                peers.launch_round_trip(device, number, begin, TURNS);
                Ok(())
            })?;
            Ok(us / f64::from(TURNS))
        };
        // The first one loads the kernel.
        let trips = (0..3u32).map(|time| {
            let trip = |gpu: &mut Cuda, fabric: &_, number| round_trip(gpu, fabric, number, time * TURNS);
            self.members.try_together(|rank| rank.exchange(trip))
        });
        let trips = trips.collect::<Result<Vec<_>>>()?;
        let memories = self.members.try_each(|rank| rank.exchange(|gpu, _, _| gpu.device().alloc(COPIED)))?;
        let copy = |gpu: &mut Cuda, fabric: &CudaFabric, number: usize| -> Result<f64> {
            let device = gpu.device();
            let (to, from) = (device.alloc(COPIED)?, &memories[(number + 1) % self.count]);
            let mut least = f64::INFINITY;
            for _ in 0..COPIES {
                let (before, after) = (device.event()?, device.event()?);
                fabric.meeting.meet();
                least = least.min(before.us_until(&after, || device.copy_of_peer(&to, from, COPIED))?);
            }
            Ok(least)
        };
        let copies = self.members.try_together(|rank| rank.exchange(copy))?;
        let slowest = |times: &[f64]| times.iter().copied().fold(0.0, f64::max);
        Ok(LinkLimits {
            round_trip_us: trips[1..].iter().map(|times| slowest(&times[..2])).fold(f64::INFINITY, f64::min),
            bytes_per_s: COPIED as f64 / slowest(&copies) * 1e6,
        })
    }

    /// Microseconds of one exchange of `count` elements, sent as `wire`, behind others in a captured graph. `None` if
    /// there is no such exchange for the size.
    ///
    /// # Errors
    ///
    /// A sum is wrong, or the exchange cannot be made.
    pub fn time(&self, exchange: Exchange, count: usize, wire: Dtype) -> Result<Option<f64>> {
        let sums = ExchangedSums::of(self.count, wire, wire, false);
        let pieces: Vec<SumPiece> = match exchange {
            Exchange::Own(way) => ways::pieces_by(way, sums, count).collect(),
            Exchange::Nccl | Exchange::NcclAdded if self.nccl.is_err() => return Ok(None),
            Exchange::Nccl | Exchange::NcclAdded => Vec::new(),
        };
        // Two shots of a small buffer are one.
        let is_none = exchange == Exchange::Own(Way::TwoShot) && pieces.iter().any(|piece| piece.way != Way::TwoShot);
        if is_none {
            return Ok(None);
        }
        let times = self.members.try_together(|rank| {
            let ending = EndsNccl(self.nccl.as_ref().ok());
            let time = rank
                .exchange(|gpu, fabric, number| self.time_on((gpu, fabric, number), &pieces, exchange, count, wire))?;
            ending.disarm();
            Ok(time)
        })?;
        Ok(Some(times.into_iter().fold(0.0, f64::max)))
    }

    fn time_on(
        &self,
        (backend, fabric, number): (&mut Cuda, &CudaFabric, usize),
        pieces: &[SumPiece],
        exchange: Exchange,
        count: usize,
        wire: Dtype,
    ) -> Result<f64> {
        let device = backend.device().clone();
        let operands = ActivationDtype::Operands(wire);
        let (mut x, mut out) = (backend.buffer(count, operands)?, backend.buffer(count, ActivationDtype::Sums)?);
        backend.resize(&mut x, 1)?;
        backend.resize(&mut out, 1)?;
        let own: Vec<f32> = (0..count).map(|i| number_at(number, i)).collect();
        backend.write(&mut x, 1, &own)?;
        backend.write(&mut out, 1, &vec![0.0; count])?;
        let peers = fabric.peers()?;
        let kernels = peers.sum_kernels(&device, number, ExchangedSums::of(self.count, wire, wire, false))?;
        let adds =
            device.function(&units::all_reduce(ExchangedSums::of(1, wire, wire, false)), "all_reduce_gathered")?;
        let call = |x: &Buffer, out: &Buffer| -> Result<()> {
            match (&self.nccl, exchange) {
                (Ok(nccl), Exchange::Nccl) => nccl.all_reduce(&device, number, x, count),
                (Ok(nccl), Exchange::NcclAdded) => {
                    nccl.all_reduce(&device, number, x, count)?;
                    let args = Args::new().memory(out.memory()).memory(x.memory()).u64(0).u32(small(count)).u32(1);
                    device.launch(&adds, [BLOCKS, 1, 1], THREADS, 0, &args);
                    Ok(())
                }
                _ => {
                    let of = SumBuffers { out, parts: &[x], adds: true };
                    pieces.iter().for_each(|&piece| peers.launch_sums(&device, number, &kernels, piece, &of));
                    Ok(())
                }
            }
        };
        fabric.meeting.meet();
        call(&x, &out)?;
        device.synchronise()?;
        let sums = backend.read(if exchange == Exchange::Nccl { &x } else { &out }, 1)?;
        self.check(&sums, exchange)?;
        let graph = device.capture(|| (0..CALLS).try_for_each(|_| call(&x, &out)))?;
        graph.upload()?;
        let mut times = Vec::new();
        for replay in 0..=REPLAYS {
            let (before, after) = (device.event()?, device.event()?);
            fabric.meeting.meet();
            let us = before.us_until(&after, || graph.launch())?;
            if replay > 0 {
                times.push(us / CALLS as f64);
            }
        }
        Ok(median(times))
    }

    fn check(&self, sums: &[f32], exchange: Exchange) -> Result<()> {
        let expected = |i: usize| (0..self.count).map(|rank| number_at(rank, i)).sum::<f32>();
        match sums.iter().enumerate().find(|&(i, &sum)| sum != expected(i)) {
            None => Ok(()),
            Some((i, sum)) => {
                let what = format!("element {i} of {} added up by {exchange:?}", sums.len());
                Err(Error::value(what, expected(i).to_string(), sum.to_string()))
            }
        }
    }
}

/// Ends NCCL when it is dropped: a rank fails, and others may wait for it there.
struct EndsNccl<'a>(Option<&'a Nccl>);

impl EndsNccl<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for EndsNccl<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|nccl| nccl.abort());
    }
}

/// What a rank adds up: small whole numbers, which every dtype has, as their sums.
fn number_at(rank: usize, i: usize) -> f32 {
    ((i + i / 4096 + 5 * rank) % 13) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_word_or_the_bytes() {
        let limits = LinkLimits { round_trip_us: 2.0, bytes_per_s: 4e11 };
        assert_eq!(limits.floor_us(2, 8192), 2.0);
        assert_eq!(limits.floor_us(2, 400_000_000), 1000.0);
        assert_eq!(limits.floor_us(8, 400_000_000), 1750.0);
    }
}
