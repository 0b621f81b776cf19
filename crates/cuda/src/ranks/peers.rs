//! What GPUs exchange that write into each other's memory: its places, the kernels of kernels/ranks that use them, and
//! their launches. When they may be launched is left to `CudaFabric`.

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use super::ways::{
    self, ChunkedPiece, MOST_BLOCKS, MOST_CHUNKS, MergedStates, SUM_THREADS, SumBuffers, SumPiece, THREADS, Way,
};
use crate::compile::unit::Unit;
use crate::compile::units::{self, ExchangedSums, MemberStates};
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::{Memory, Pinned};
use crate::memory::buffer::Buffer;
use offshoot_backend::ranks::PARTS;
use offshoot_core::error::Result;

/// Bytes of a line, as in kernels/ranks/exchange.cuh.
const LINE: usize = 128;

/// The memory and kernels of all ranks.
pub(super) struct Peers {
    ranks: Vec<RankExchange>,
    /// One word that kernels read: not zero when a rank has failed.
    aborted: Pinned,
}

struct RankExchange {
    kernels: RankKernels,
    /// What the others write of this rank.
    _written_by_others: Vec<Memory>,
    /// Addresses of those of all ranks.
    ranks: Memory,
    last: Memory,
}

/// A rank's kernels. Those of sums are loaded with the first buffers that are summed so, before a step needs them.
struct RankKernels {
    sums: Mutex<HashMap<ExchangedSums, Arc<SumKernels>>>,
    /// Loaded with the first step that is a member's.
    merges: Mutex<HashMap<MemberStates, Arc<Function>>>,
    /// The kernel that gathers, of two ranks and more.
    gather: Option<Function>,
    round_trip: Option<Function>,
}

pub(super) struct SumKernels {
    one_shot: Function,
    two_shot: Function,
}

impl RankKernels {
    fn load(device: &Device, ranks: usize) -> Result<Self> {
        let of_several = |unit: &Unit, name| match ranks {
            1 => Ok(None),
            _ => device.function(unit, name).map(Some),
        };
        Ok(Self {
            sums: Mutex::default(),
            merges: Mutex::default(),
            gather: of_several(&units::all_gather(ranks), "all_gather")?,
            round_trip: of_several(&units::round_trip(ranks), "round_trip")?,
        })
    }
}

impl Peers {
    /// Lets these GPUs write into each other's memory, as their contexts already may.
    pub fn connect(devices: &[Device]) -> Result<Self> {
        let count = devices.len();
        let memories =
            devices.iter().map(|device| written_by_others(device, count)).collect::<Result<Vec<Vec<Memory>>>>()?;
        let addresses: Vec<u64> = memories.iter().flatten().map(Memory::address).collect();
        let ranks = devices.iter().zip(memories).map(|(device, memories)| {
            Ok(RankExchange {
                kernels: RankKernels::load(device, count)?,
                _written_by_others: memories,
                ranks: device.uploaded(&addresses)?,
                last: device.zeroed(MOST_BLOCKS * size_of::<u32>())?,
            })
        });
        let peers =
            Peers { ranks: ranks.collect::<Result<_>>()?, aborted: devices[0].pinned_for_all(size_of::<u32>())? };
        devices.iter().enumerate().for_each(|(rank, device)| peers.warm_up(device, rank));
        Ok(peers)
    }

    fn count(&self) -> usize {
        self.ranks.len()
    }

    /// Not zero when a rank has failed.
    pub fn aborted(&self) -> &AtomicU32 {
        let word: *const u8 = self.aborted.as_ptr();
        // SAFETY: four zeroed bytes, aligned to a page, that live as long as `self`; the host changes them only here,
        // and GPUs only read them.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Adds what all kernels of an exchange take, for rank `rank`.
    fn args(&self, rank: usize, args: Args) -> Args {
        let own = &self.ranks[rank];
        let args = args.memory(&own.ranks).memory(&own.last).u64(self.aborted.as_ptr() as u64);
        args.u32(small(rank)).u32(small(ways::most_lines(self.count()))).u32(small(ways::most_floats(self.count())))
    }

    /// The kernels of sums exchanged so, loaded once.
    pub fn sum_kernels(&self, device: &Device, rank: usize, sums: ExchangedSums) -> Result<Arc<SumKernels>> {
        let mut loaded = self.ranks[rank].kernels.sums.lock().expect("nothing panics while it holds this lock");
        if let Some(known) = loaded.get(&sums) {
            return Ok(known.clone());
        }
        let unit = units::all_reduce(sums);
        let function = |name| device.function(&unit, name);
        let kernels = Arc::new(SumKernels {
            one_shot: function("all_reduce_one_shot")?,
            two_shot: function("all_reduce_two_shot")?,
        });
        // The driver brings a kernel to the device when it is first launched.
        for kernel in [&kernels.one_shot, &kernels.two_shot] {
            let args = Args::new().u64(0).memories([], PARTS).u64(0).u32(0).u32(0);
            device.launch_early(kernel, [1, 1], SUM_THREADS, 0, &self.args(rank, args));
        }
        loaded.insert(sums, kernels.clone());
        Ok(kernels)
    }

    /// The kernel that merges such states, loaded once.
    pub fn merge_kernel(&self, device: &Device, rank: usize, states: MemberStates) -> Result<Arc<Function>> {
        let mut loaded = self.ranks[rank].kernels.merges.lock().expect("nothing panics while it holds this lock");
        if let Some(known) = loaded.get(&states) {
            return Ok(known.clone());
        }
        let merge = Arc::new(device.function(&units::merge_members(states), "merge_members")?);
        // As in `warm_up`.
        let args = Args::new().u64(0).u64(0).u64(0).u64(0).u32(0).u64(0).u32(0).u32(1);
        device.launch(&merge, [2, 1, 1], THREADS, 0, &self.args(rank, args));
        loaded.insert(states, merge.clone());
        Ok(merge)
    }

    /// Enqueues one launch of a merge.
    pub fn launch_merge(&self, device: &Device, rank: usize, merge: &Function, piece: ChunkedPiece, of: &MergedStates) {
        let MergedStates { out, words, partials, sinks, q_heads } = *of;
        let args = Args::new().memory(out.memory()).memory(words).memory(partials).memory_or_null(sinks);
        let args = args.u32(small(q_heads)).u64(piece.first as u64).u32(small(piece.count)).u32(small(piece.chunk));
        device.launch(merge, [small(piece.blocks), 1, 1], THREADS, 0, &self.args(rank, args));
    }

    /// Enqueues one launch of sums.
    pub fn launch_sums(
        &self,
        device: &Device,
        rank: usize,
        kernels: &SumKernels,
        piece: SumPiece,
        of: &SumBuffers<'_>,
    ) {
        let SumBuffers { out, parts, adds } = *of;
        let args = Args::new().memory(out.memory()).memories(parts.iter().map(|part| part.memory()), PARTS);
        let args = args.u64(piece.first as u64).u32(small(piece.count)).u32(u32::from(adds));
        let kernel = match piece.way {
            Way::OneShot => &kernels.one_shot,
            Way::TwoShot => &kernels.two_shot,
        };
        device.launch_early(kernel, [small(piece.blocks), 1], SUM_THREADS, 0, &self.args(rank, args));
    }

    /// Launches each kernel once with nothing to do, which loads it: that is no exchange, and waits for no other rank.
    fn warm_up(&self, device: &Device, rank: usize) {
        let kernels = &self.ranks[rank].kernels;
        if let Some(gather) = &kernels.gather {
            let args = Args::new().u64(0).u64(0).u64(0).u32(0).u32(1).u32(1);
            device.launch(gather, [2, 1, 1], THREADS, 0, &self.args(rank, args));
        }
        if let Some(round_trip) = &kernels.round_trip {
            device.launch(round_trip, [1, 1, 1], 1, 0, &self.args(rank, Args::new().u32(0).u32(0)));
        }
    }

    /// Enqueues one launch that gathers elements of `x`. One alone has no such kernel.
    pub fn launch_gather(&self, device: &Device, rank: usize, piece: ChunkedPiece, out: &Buffer, x: &Buffer) {
        let Some(gather) = &self.ranks[rank].kernels.gather else { return };
        let args = Args::new().memory(out.memory()).memory(x.memory()).u64(piece.first as u64);
        let args = args.u32(small(piece.count)).u32(small(x.width)).u32(small(piece.chunk));
        device.launch(gather, [small(piece.blocks), 1, 1], THREADS, 0, &self.args(rank, args));
    }

    /// Enqueues words that go to the other of the first two ranks and back.
    pub fn launch_round_trip(&self, device: &Device, rank: usize, begin: u32, turns: u32) {
        let Some(round_trip) = self.ranks[rank].kernels.round_trip.as_ref().filter(|_| rank < 2) else { return };
        device.launch(round_trip, [1, 1, 1], 1, 0, &self.args(rank, Args::new().u32(begin).u32(turns)));
    }
}

/// What the others write of one rank, in the order of `RankMemory` in kernels/ranks/exchange.cuh.
fn written_by_others(device: &Device, ranks: usize) -> Result<Vec<Memory>> {
    let others = ranks - 1;
    Ok(vec![
        device.zeroed(2 * others * ways::most_lines(ranks) * LINE)?,
        device.alloc(2 * others * ways::most_floats(ranks) * size_of::<f32>())?,
        device.zeroed(others * MOST_CHUNKS * size_of::<u32>())?,
        device.zeroed(size_of::<u32>())?,
    ])
}
