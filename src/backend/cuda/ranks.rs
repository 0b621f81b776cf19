//! GPUs of one host that compute one model together: what passes between them, through memory that each reads of the
//! others (kernels/ranks). Nothing of a multicast is used.

use std::panic::panic_any;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Cuda;
use super::compile::units;
use super::driver::args::Args;
use super::driver::device::Device;
use super::driver::function::Function;
use super::driver::grid::small;
use super::driver::memory::{Memory, Pinned};
use super::gemm::chooser::AlgorithmPolicy;
use super::memory::buffer::Buffer;
use crate::backend::Dtype;
use crate::backend::ranks::{Aborted, Ranked};
use crate::error::Result;

/// Blocks of an exchange, as in kernels/ranks/meet.cuh: fewer than any GPU runs at once.
const MOST_BLOCKS: usize = 64;
/// Threads of a block, each of which moves four floats at a time.
const THREADS: u32 = 512;
const FLOATS_OF_THREAD: usize = 4;

/// Floats of a half of a rank's mailbox; larger buffers pass through it in turns.
const HALF: usize = 4 << 20;

/// The memory and kernels of all ranks.
pub struct CudaFabric {
    ranks: Vec<RankExchange>,
    /// One word that kernels read: not zero when a rank has failed.
    aborted: Pinned,
}

struct RankExchange {
    all_reduce: Function,
    all_gather: Function,
    /// What the others read of this rank: two halves, and who has come.
    _mailbox: Memory,
    _came: Memory,
    /// Addresses of those of all ranks.
    ranks: Memory,
    had: Memory,
}

impl CudaFabric {
    fn aborted(&self) -> &AtomicU32 {
        let word: *const u8 = self.aborted.as_ptr();
        // SAFETY: four zeroed bytes, aligned to a page, that live as long as `self`; the host changes them only here,
        // and GPUs only read them.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Adds what all kernels of an exchange take, for rank `rank`.
    fn args(&self, rank: usize, args: Args) -> Args {
        let own = &self.ranks[rank];
        let args = args.memory(&own.ranks).memory(&own.had).u64(self.aborted.as_ptr() as u64);
        args.u32(small(rank)).u32(small(HALF))
    }

    /// Ends the thread of a rank whose exchange could not end.
    fn go_on(&self) {
        if self.aborted().load(Ordering::Acquire) != 0 {
            panic_any(Aborted);
        }
    }
}

/// Blocks that move `floats` floats.
fn blocks(floats: usize) -> u32 {
    small(floats.div_ceil(THREADS as usize * FLOATS_OF_THREAD).min(MOST_BLOCKS))
}

/// Zeroed device memory.
fn zeroed(device: &Device, bytes: usize) -> Result<Memory> {
    let memory = device.alloc(bytes)?;
    device.upload(&memory, 0, &vec![0; bytes])?;
    Ok(memory)
}

impl Ranked for Cuda {
    type Fabric = CudaFabric;

    const SHARES_MEMORY: bool = false;

    fn connect(rank_backends: &mut [Self]) -> Result<CudaFabric> {
        let devices: Vec<Device> = rank_backends.iter().map(|cuda| cuda.device().clone()).collect();
        for device in &devices {
            for peer in &devices {
                device.read_memory_of(peer)?;
            }
        }
        let count = devices.len();
        let memories = devices.iter().map(|device| {
            let came = count * MOST_BLOCKS * size_of::<u32>();
            Ok((device.alloc(2 * HALF * size_of::<f32>())?, zeroed(device, came)?))
        });
        let memories = memories.collect::<Result<Vec<_>>>()?;
        let addresses: Vec<u64> =
            memories.iter().flat_map(|(mailbox, came)| [mailbox.address(), came.address()]).collect();
        let ranks = devices.iter().zip(memories).map(|(device, (mailbox, came))| {
            let table = device.alloc(size_of_val(&addresses[..]))?;
            device.upload(&table, 0, bytemuck::cast_slice(&addresses))?;
            Ok(RankExchange {
                all_reduce: device.function(&units::all_reduce(count), "all_reduce")?,
                all_gather: device.function(&units::all_gather(count), "all_gather")?,
                _mailbox: mailbox,
                _came: came,
                ranks: table,
                had: zeroed(device, MOST_BLOCKS * size_of::<u32>())?,
            })
        });
        let (exchanges, aborted) = (ranks.collect::<Result<_>>()?, devices[0].pinned_for_all(size_of::<u32>())?);
        // What all ranks compute must have the same bits: an algorithm that one of them has measured may add in
        // another order.
        rank_backends.iter_mut().for_each(|cuda| cuda.choose_products(AlgorithmPolicy::First));
        Ok(CudaFabric { ranks: exchanges, aborted })
    }

    fn abort(fabric: &CudaFabric) {
        fabric.aborted().store(1, Ordering::Release);
    }

    fn is_aborted(fabric: &CudaFabric) -> bool {
        fabric.aborted().load(Ordering::Acquire) != 0
    }

    fn settle(&mut self) {
        if let Err(error) = self.device().synchronise() {
            log::warn!("a device that computed a model with others: {error}");
        }
    }

    fn all_reduce(&mut self, fabric: &CudaFabric, rank: usize, x: &mut Buffer) {
        assert_eq!(x.element, Dtype::F32, "all_reduce: a buffer of sums");
        fabric.go_on();
        if x.rows > 0 {
            let count = x.rows * x.width;
            let args = fabric.args(rank, Args::new().memory(x.memory()).u64(count as u64));
            self.device().launch(&fabric.ranks[rank].all_reduce, [blocks(count.min(HALF)), 1, 1], THREADS, 0, &args);
        }
    }

    fn all_gather(&mut self, fabric: &CudaFabric, rank: usize, out: &mut Buffer, x: &Buffer) {
        assert_eq!((out.rows, out.width), (x.rows, x.width * fabric.ranks.len()), "all_gather: shapes");
        assert!(out.element == Dtype::F32 && x.element == Dtype::F32, "all_gather: buffers of sums");
        fabric.go_on();
        if x.rows > 0 {
            let args = Args::new().memory(out.memory()).memory(x.memory());
            let args = fabric.args(rank, args.u64(x.rows as u64).u32(small(x.width)));
            let grid = [blocks((x.rows * x.width).min(HALF)), 1, 1];
            self.device().launch(&fabric.ranks[rank].all_gather, grid, THREADS, 0, &args);
        }
    }

    fn columns(&mut self, out: &mut Buffer, x: &Buffer, first: usize) {
        self.ops(out.element).columns(out, x, first);
    }
}
