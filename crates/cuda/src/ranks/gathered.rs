//! What GPUs exchange that NVLink does not join: NCCL gathers what each rank has, and every rank makes of it what the
//! kernels of `peers` would, with the same bits. Slower than those, and on PCIe all there is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::nccl::Nccl;
use super::ways::{BLOCKS, SumBuffers, THREADS};
use crate::compile::units::{self, ExchangedSums};
use crate::driver::args::Args;
use crate::driver::device::Device;
use crate::driver::function::Function;
use crate::driver::grid::small;
use crate::driver::memory::{Memory, RowsAt};
use crate::memory::buffer::Buffer;
use offshoot_backend::ranks::PARTS;
use offshoot_core::error::Result;

/// Bytes of what all ranks give at once.
const GIVEN: usize = 64 << 20;

/// All ranks, and where each finds what all have given.
pub(super) struct Gathered {
    pub nccl: Nccl,
    ranks: Vec<RankGathered>,
}

struct RankGathered {
    /// `GIVEN` bytes: equal shares, in the order of the ranks.
    given: Memory,
    kernels: Mutex<HashMap<ExchangedSums, Arc<GatheredKernels>>>,
}

pub(super) struct GatheredKernels {
    own: Function,
    gathered: Function,
}

impl Gathered {
    /// Connects these GPUs.
    ///
    /// # Errors
    ///
    /// NCCL cannot be used: one sentence.
    pub fn connect(devices: &[Device]) -> Result<Self> {
        let nccl = Nccl::open(devices)?;
        let given = devices.iter().map(|device| device.alloc(GIVEN)).collect::<Result<Vec<Memory>>>()?;
        // The first call makes connections, for which ranks wait on the host.
        nccl.gather_on_all(devices, &given, size_of::<u32>())?;
        let ranks = given.into_iter().map(|given| RankGathered { given, kernels: Mutex::default() }).collect();
        Ok(Self { nccl, ranks })
    }

    fn count(&self) -> usize {
        self.ranks.len()
    }

    /// The kernels of such sums, loaded once.
    pub fn sum_kernels(&self, device: &Device, rank: usize, sums: ExchangedSums) -> Result<Arc<GatheredKernels>> {
        let mut loaded = self.ranks[rank].kernels.lock().expect("nothing panics while it holds this lock");
        if let Some(known) = loaded.get(&sums) {
            return Ok(known.clone());
        }
        let unit = units::all_reduce(sums);
        let function = |name| device.function(&unit, name);
        let kernels =
            Arc::new(GatheredKernels { own: function("all_reduce_own")?, gathered: function("all_reduce_gathered")? });
        // The driver brings a kernel to the device when it is first launched.
        let none = Args::new().u64(0).memories([], PARTS).u64(0).u32(0);
        device.launch(&kernels.own, [1, 1, 1], THREADS, 0, &none);
        device.launch(&kernels.gathered, [1, 1, 1], THREADS, 0, &Args::new().u64(0).u64(0).u64(0).u32(0).u32(0));
        loaded.insert(sums, kernels.clone());
        Ok(kernels)
    }

    /// Enqueues the sums of all elements.
    pub fn sum(
        &self,
        device: &Device,
        rank: usize,
        (sums, kernels): (ExchangedSums, &GatheredKernels),
        of: &SumBuffers<'_>,
    ) -> Result<()> {
        let (given, count) = (&self.ranks[rank].given, of.out.rows * of.out.width);
        let at_once = GIVEN / self.count() / sums.wire.bytes();
        for first in (0..count).step_by(at_once) {
            let count = at_once.min(count - first);
            let share = count * sums.wire.bytes();
            let args = Args::new().memory_at(given, rank * share);
            let args = args.memories(of.parts.iter().map(|part| part.memory()), PARTS).u64(first as u64);
            device.launch(&kernels.own, [BLOCKS, 1, 1], THREADS, 0, &args.u32(small(count)));
            self.nccl.gather(device, rank, given, share)?;
            let args = Args::new().memory(of.out.memory()).memory(given).u64(first as u64).u32(small(count));
            device.launch(&kernels.gathered, [BLOCKS, 1, 1], THREADS, 0, &args.u32(u32::from(of.adds)));
        }
        Ok(())
    }

    /// Enqueues `out[r] = [x[r] of rank 0, x[r] of rank 1, ..]`.
    pub fn gather(&self, device: &Device, rank: usize, out: &Buffer, x: &Buffer) -> Result<()> {
        let (given, width) = (&self.ranks[rank].given, x.row_bytes());
        let at_once = GIVEN / self.count() / width;
        assert!(at_once > 0, "a row of {width} bytes of each of {} ranks in {GIVEN}", self.count());
        for first in (0..x.rows).step_by(at_once) {
            let rows = at_once.min(x.rows - first);
            let share = rows * width;
            device.copy(given, rank * share, x.memory(), first * width..first * width + share)?;
            self.nccl.gather(device, rank, given, share)?;
            for sender in 0..self.count() {
                let from = RowsAt { memory: given, first: sender * share, apart: width };
                let to = (first * self.count() + sender) * width;
                let to = RowsAt { memory: out.memory(), first: to, apart: self.count() * width };
                device.copy_rows(to, from, width, rows)?;
            }
        }
        Ok(())
    }
}
