//! GPUs of one host that compute one model together: what passes between them, through memory that each writes of the
//! others (kernels/ranks). Nothing of a multicast is used. `ways` says which kernel serves which size; `measure` times
//! them, `nccl` the library they are compared with.
//!
//! # No deadlock in the driver
//! A kernel of an exchange ends when the same exchange was enqueued on every rank. Loading kernels and allocating
//! memory may wait for kernels that run, in the driver, on several GPUs at once. So outside of captured graphs all
//! ranks meet on the host before an exchange and wait for it: none loads or allocates while another one's exchange
//! runs. A graph is made and uploaded before they meet, and everything else that allocates ends before a step begins.

pub mod measure;
pub mod nccl;
pub mod ways;

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::compile::unit::Unit;
use super::compile::units::{self, ExchangedSums};
use super::driver::args::Args;
use super::driver::device::Device;
use super::driver::function::Function;
use super::driver::grid::small;
use super::driver::memory::{Memory, Pinned};
use super::gemm::shared::SharedChoices;
use super::memory::buffer::Buffer;
use super::memory::weights::{Matrix, Vector};
use super::step::Step;
use super::{Cuda, four_bit_of};
use crate::backend::ranks::meeting::Meeting;
use crate::backend::ranks::{Aborted, FailedExchange, PARTS, Ranked, Reduced};
use crate::backend::{ActivationDtype, Backend, Dtype, MatrixPart, StepShape};
use crate::error::{Error, Result};
use ways::{ExchangePiece, MOST_BLOCKS, MOST_CHUNKS, Way};

/// Threads of a block of every exchange.
const THREADS: u32 = 512;

/// Phases of an exchange in which chunks are written, as in kernels/ranks/exchange.cuh.
const PHASES: usize = 2;

/// Bytes of a packet, which carries half as many.
const PACKET: usize = 16;

/// The memory and kernels of all ranks.
pub struct CudaFabric {
    ranks: Vec<RankExchange>,
    /// One word that kernels read: not zero when a rank has failed.
    aborted: Pinned,
    meeting: Arc<Meeting>,
    choices: Arc<SharedChoices>,
}

struct RankExchange {
    kernels: Kernels,
    /// What the others write of this rank.
    _written_by_others: Vec<Memory>,
    /// Addresses of those of all ranks.
    ranks: Memory,
    last: Memory,
}

/// Those of sums are loaded with the first buffers that are summed so, before a step needs them.
struct Kernels {
    sums: Mutex<HashMap<ExchangedSums, Arc<SumKernels>>>,
    /// Of two ranks and more.
    gather: Option<Function>,
    round_trip: Option<Function>,
}

/// A rank's parts of sums, and where the sums go, or are added.
struct SumBuffers<'a> {
    out: &'a Buffer,
    parts: &'a [&'a Buffer],
    adds: bool,
}

struct SumKernels {
    packets: Function,
    one_shot: Function,
    two_shot: Function,
}

impl Kernels {
    fn load(device: &Device, ranks: usize) -> Result<Self> {
        let of_several = |unit: &Unit, name| match ranks {
            1 => Ok(None),
            _ => device.function(unit, name).map(Some),
        };
        Ok(Self {
            sums: Mutex::default(),
            gather: of_several(&units::all_gather(ranks), "all_gather")?,
            round_trip: of_several(&units::round_trip(ranks), "round_trip")?,
        })
    }
}

impl CudaFabric {
    fn count(&self) -> usize {
        self.ranks.len()
    }

    fn aborted(&self) -> &AtomicU32 {
        let word: *const u8 = self.aborted.as_ptr();
        // SAFETY: four zeroed bytes, aligned to a page, that live as long as `self`; the host changes them only here,
        // and GPUs only read them.
        unsafe { &*word.cast::<AtomicU32>() }
    }

    /// Adds what all kernels of an exchange take, for rank `rank`.
    fn args(&self, rank: usize, args: Args) -> Args {
        let own = &self.ranks[rank];
        let args = args.memory(&own.ranks).memory(&own.last).u64(self.aborted.as_ptr() as u64);
        args.u32(small(rank)).u32(small(ways::MOST_PACKETS)).u32(small(ways::most_floats(self.count())))
    }

    /// Calls `launch`, which enqueues an exchange on `device`, as the module's comment says. Ends what a rank does
    /// whose exchange could not be made or end.
    fn exchange(&self, device: &Device, launch: impl FnOnce()) {
        // One alone waits for nobody.
        if self.count() == 1 {
            return launch();
        }
        match device.is_capturing() {
            Ok(true) => launch(),
            Ok(false) => {
                self.meeting.meet();
                launch();
                if let Err(error) = device.synchronise() {
                    self.fail(device, error);
                }
                // What it has brought may be incomplete.
                if self.is_over() {
                    resume_unwind(Box::new(Aborted));
                }
            }
            Err(error) => self.fail(device, error),
        }
    }

    /// Ends what a rank does that cannot do its part of an exchange: the others wait for it. One alone goes on to the
    /// step's end, which reports the error.
    fn fail(&self, device: &Device, error: Error) {
        match self.count() {
            1 => device.keep(error),
            _ => resume_unwind(Box::new(FailedExchange(error))),
        }
    }

    fn is_over(&self) -> bool {
        self.aborted().load(Ordering::Acquire) != 0
    }

    /// The kernels of sums exchanged so, loaded once.
    fn sum_kernels(&self, device: &Device, rank: usize, sums: ExchangedSums) -> Result<Arc<SumKernels>> {
        let mut loaded = self.ranks[rank].kernels.sums.lock().expect("nothing panics while it holds this lock");
        if let Some(known) = loaded.get(&sums) {
            return Ok(known.clone());
        }
        let unit = units::all_reduce(sums);
        let function = |name| device.function(&unit, name);
        let kernels = Arc::new(SumKernels {
            packets: function("all_reduce_packets")?,
            one_shot: function("all_reduce_one_shot")?,
            two_shot: function("all_reduce_two_shot")?,
        });
        // The driver brings a kernel to the device when it is first launched.
        self.warm_up_sums(device, rank, &kernels);
        loaded.insert(sums, kernels.clone());
        Ok(kernels)
    }

    /// Enqueues one launch of sums.
    fn launch_sums(
        &self,
        device: &Device,
        rank: usize,
        kernels: &SumKernels,
        piece: ExchangePiece,
        of: &SumBuffers<'_>,
    ) {
        let SumBuffers { out, parts, adds } = *of;
        let args = Args::new().memory(out.memory()).memories(parts.iter().map(|part| part.memory()), PARTS);
        let args = args.u64(piece.first as u64).u32(small(piece.count)).u32(u32::from(adds));
        let (kernel, args) = match piece.way {
            Way::Packets => (&kernels.packets, args),
            Way::OneShot => (&kernels.one_shot, args.u32(small(piece.chunk))),
            Way::TwoShot => (&kernels.two_shot, args.u32(small(piece.chunk))),
        };
        device.launch(kernel, [small(piece.blocks), 1, 1], THREADS, 0, &self.args(rank, args));
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

    fn warm_up_sums(&self, device: &Device, rank: usize, kernels: &SumKernels) {
        let args = || Args::new().u64(0).memories([], PARTS).u64(0).u32(0).u32(0);
        device.launch(&kernels.packets, [1, 1, 1], THREADS, 0, &self.args(rank, args()));
        device.launch(&kernels.one_shot, [2, 1, 1], THREADS, 0, &self.args(rank, args().u32(1)));
        device.launch(&kernels.two_shot, [3, 1, 1], THREADS, 0, &self.args(rank, args().u32(1)));
    }
}

/// Zeroed device memory.
fn zeroed(device: &Device, bytes: usize) -> Result<Memory> {
    let memory = device.alloc(bytes)?;
    device.zero(&memory)?;
    Ok(memory)
}

/// What the others write of one rank, in the order of `RankMemory` in kernels/ranks/exchange.cuh.
fn written_by_others(device: &Device, ranks: usize) -> Result<Vec<Memory>> {
    let others = ranks - 1;
    Ok(vec![
        zeroed(device, 2 * others * ways::MOST_PACKETS * PACKET)?,
        device.alloc(2 * others * ways::most_floats(ranks) * size_of::<f32>())?,
        zeroed(device, PHASES * others * MOST_CHUNKS * size_of::<u32>())?,
        zeroed(device, size_of::<u32>())?,
    ])
}

impl Ranked for Cuda {
    type Fabric = CudaFabric;

    const SHARES_MEMORY: bool = false;
    const DIVIDES_POSITIONS: bool = false;

    fn connect(rank_backends: &mut [Self]) -> Result<CudaFabric> {
        let devices: Vec<Device> = rank_backends.iter().map(|cuda| cuda.device().clone()).collect();
        let count = devices.len();
        for device in &devices {
            for peer in &devices {
                device.read_memory_of(peer)?;
            }
        }
        let memories =
            devices.iter().map(|device| written_by_others(device, count)).collect::<Result<Vec<Vec<Memory>>>>()?;
        let addresses: Vec<u64> = memories.iter().flatten().map(Memory::address).collect();
        let ranks = devices.iter().zip(memories).map(|(device, memories)| {
            let table = device.alloc(size_of_val(&addresses[..]))?;
            device.upload(&table, 0, bytemuck::cast_slice(&addresses))?;
            Ok(RankExchange {
                kernels: Kernels::load(device, count)?,
                _written_by_others: memories,
                ranks: table,
                last: zeroed(device, MOST_BLOCKS * size_of::<u32>())?,
            })
        });
        let fabric = CudaFabric {
            ranks: ranks.collect::<Result<_>>()?,
            aborted: devices[0].pinned_for_all(size_of::<u32>())?,
            meeting: Arc::new(Meeting::new(count)),
            choices: Arc::new(SharedChoices::default()),
        };
        for (rank, device) in devices.iter().enumerate() {
            fabric.warm_up(device, rank);
        }
        devices.iter().try_for_each(Device::synchronise)?;
        // What all ranks compute must have the same bits, so none chooses algorithms of its own.
        for (rank, cuda) in rank_backends.iter_mut().enumerate() {
            cuda.share_products(&fabric.choices, rank == 0);
            cuda.beside = (count > 1).then(|| fabric.meeting.clone());
        }
        Ok(fabric)
    }

    fn abort(fabric: &CudaFabric) {
        fabric.aborted().store(1, Ordering::Release);
        fabric.choices.end();
        fabric.meeting.abort();
    }

    fn is_aborted(fabric: &CudaFabric) -> bool {
        fabric.is_over()
    }

    fn prepare_sums(&mut self, fabric: &CudaFabric, rank: usize, part: ActivationDtype, how: Reduced) -> Result<()> {
        let part = match part {
            ActivationDtype::Sums => Dtype::F32,
            ActivationDtype::Operands(dtype) => dtype,
        };
        let sums = ExchangedSums::of(fabric.count(), part, how.wire, how.exact);
        fabric.sum_kernels(self.device(), rank, sums).map(drop)
    }

    fn settle(&mut self) {
        self.device().settle();
    }

    fn all_reduce(&mut self, fabric: &CudaFabric, rank: usize, out: &mut Buffer, parts: &[&Buffer], how: Reduced) {
        let Some(part) = parts.first().map(|part| part.element) else { return };
        assert_eq!(out.element, Dtype::F32, "all_reduce: a buffer of sums");
        assert!(parts.iter().all(|part| (part.rows, part.width) == (out.rows, out.width)), "all_reduce: shapes");
        self.forget_before(out);
        let device = self.device().clone();
        let pieces: Vec<ExchangePiece> = ways::pieces(fabric.count(), out.rows * out.width, how.wire).collect();
        if pieces.is_empty() {
            return;
        }
        let sums = ExchangedSums::of(fabric.count(), part, how.wire, how.exact);
        match fabric.sum_kernels(&device, rank, sums) {
            Ok(kernels) => {
                let of = SumBuffers { out, parts, adds: how.adds };
                let launch = |piece: ExchangePiece| fabric.launch_sums(&device, rank, &kernels, piece, &of);
                fabric.exchange(&device, || pieces.into_iter().for_each(launch));
            }
            Err(error) => fabric.fail(&device, error),
        }
    }

    fn all_gather(&mut self, fabric: &CudaFabric, rank: usize, out: &mut Buffer, x: &Buffer) {
        assert_eq!((out.rows, out.width), (x.rows, x.width * fabric.count()), "all_gather: shapes");
        assert!(out.element == Dtype::F32 && x.element == Dtype::F32, "all_gather: buffers of sums");
        let Some(gather) = &fabric.ranks[rank].kernels.gather else {
            return self.ops(Dtype::F32, out).columns(out, x, 0);
        };
        self.forget_before(out);
        let device = self.device().clone();
        let pieces: Vec<ExchangePiece> = ways::pieces_of_gather(fabric.count(), x.rows * x.width).collect();
        let launch = |piece: ExchangePiece| {
            let args = Args::new().memory(out.memory()).memory(x.memory()).u64(piece.first as u64);
            let args = args.u32(small(piece.count)).u32(small(x.width)).u32(small(piece.chunk));
            device.launch(gather, [small(piece.blocks), 1, 1], THREADS, 0, &fabric.args(rank, args));
        };
        if !pieces.is_empty() {
            fabric.exchange(&device, || pieces.into_iter().for_each(launch));
        }
    }

    fn matrix_of_outputs(&mut self, parts: &[MatrixPart<'_>], outputs: usize) -> Result<Matrix> {
        let matrix = self.matrix(parts)?;
        if let Some(gemm) = self.gemms.get_mut(&matrix.format) {
            gemm.remember_whole(&matrix, outputs);
        }
        if four_bit_of(matrix.format).is_some() {
            self.four_bit.remember_whole(&matrix, outputs);
        }
        Ok(matrix)
    }

    fn repeats(&self, step: &Step, shape: StepShape) -> bool {
        step.repeats() && step.graphs.will_replay(shape, step.is_advanced(), self.moves)
    }

    /// Of dense weights without a bias, where cuBLASLt takes the columns' place and distance.
    fn linear_of_columns(
        &mut self,
        out: &mut Buffer,
        x: &Buffer,
        first: usize,
        w: &Matrix,
        bias: Option<&Vector>,
    ) -> bool {
        if w.format.dense().is_none() || bias.is_some() {
            return false;
        }
        self.forget_before(out);
        self.gemms.get_mut(&w.format).is_some_and(|gemm| gemm.linear_of_columns(out, x, first, w))
    }

    fn columns(&mut self, out: &mut Buffer, x: &Buffer, first: usize) {
        self.ops(out.element, out).columns(out, x, first);
    }
}

/// Ranks are at most so many, for which kernels have been written.
const _: () = assert!(PARTS == 8);
