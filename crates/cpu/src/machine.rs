//! Measures the processor's peak rates: multiply-adds and memory reads, with all threads of rayon's current pool.
//! Benchmarks compare their results with these rates, measured in the same run. Uses none of the backend's kernels.

use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use serde::Serialize;

use super::Isa;
use offshoot_backend::Dtype;

/// Peak rates of all threads together. A multiply-add counts as two operations.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MachineRates {
    pub threads: usize,
    /// f32 fused multiply-adds.
    pub f32_gflops: f64,
    /// bf16 dot products accumulated in f32, on the AMX path those of tiles; `None` if the processor has no such
    /// instruction.
    pub bf16_dot_gflops: Option<f64>,
    /// Sequential reads of memory far larger than the caches, one share per thread.
    pub read_gb_per_s: f64,
}

impl MachineRates {
    /// Measures the path `isa`; takes one or two seconds.
    pub fn measure(isa: Isa) -> Self {
        Self {
            threads: rayon::current_num_threads(),
            f32_gflops: peak(match isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => x86::f32_avx512,
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => x86::f32_avx2,
                _ => f32_plain,
            }),
            bf16_dot_gflops: bf16_dot_peak(isa),
            read_gb_per_s: read_bandwidth(),
        }
    }

    /// Peak rate of products with weights of `dtype`, in GFLOP/s.
    pub fn gflops(&self, dtype: Dtype) -> f64 {
        match dtype {
            Dtype::Bf16 => self.bf16_gflops(),
            Dtype::F32 | Dtype::F16 => self.f32_gflops,
        }
    }

    /// Peak rate of products with bf16 weights: by dot products or by f32 multiply-adds on widened weights, whichever
    /// is faster.
    pub fn bf16_gflops(&self) -> f64 {
        self.bf16_dot_gflops.map_or(self.f32_gflops, |dot| dot.max(self.f32_gflops))
    }
}

impl fmt::Display for MachineRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} GFLOP/s f32", self.f32_gflops)?;
        if let Some(dot) = self.bf16_dot_gflops {
            write!(f, ", {dot:.0} bf16 dot products")?;
        }
        write!(f, ", {:.1} GB/s of reads", self.read_gb_per_s)
    }
}

/// Measured even where the backend prefers to widen, so that both rates can be compared.
#[cfg(target_arch = "x86_64")]
fn bf16_dot_peak(isa: Isa) -> Option<f64> {
    if isa == Isa::Amx {
        return Some(peak(x86::bf16_tiles));
    }
    (isa >= Isa::Avx512 && Isa::available().contains(&Isa::Avx512Bf16)).then(|| peak(x86::bf16_dot))
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_dot_peak(_: Isa) -> Option<f64> {
    None
}

/// Runs `rounds` rounds of independent multiply-adds; returns the operations of one round.
type PeakLoop = fn(rounds: usize) -> usize;

const ROUNDS: usize = 20_000;
const PEAK_TIME: Duration = Duration::from_millis(300);
const READ_BYTES: usize = 768 << 20;
const READ_PASSES: usize = 3;

/// The rate of a loop running on all threads at once, in GFLOP/s: the sum of each thread's median over time. Not the
/// maximum, because a processor holds its highest clock only for a moment.
fn peak(work: PeakLoop) -> f64 {
    let until = Instant::now() + PEAK_TIME;
    let rates = rayon::broadcast(|_| {
        let mut rates = Vec::new();
        while rates.is_empty() || Instant::now() < until {
            let start = Instant::now();
            let operations = work(black_box(ROUNDS)) * ROUNDS;
            rates.push(operations as f64 / start.elapsed().as_secs_f64() * 1e-9);
        }
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    rates.iter().sum()
}

/// 32 independent sums, enough to hide the latency of a multiply-add.
fn f32_plain(rounds: usize) -> usize {
    let mut sums = [[0.0f32; 4]; 8];
    let factor = black_box(0.999_9f32);
    for _ in 0..rounds {
        for sum in sums.as_flattened_mut() {
            *sum = *sum * factor + 1.0;
        }
    }
    black_box(sums);
    2 * 32
}

/// Bandwidth in GB/s: the best of `READ_PASSES` passes over memory larger than the caches, split evenly by thread.
fn read_bandwidth() -> f64 {
    let mut memory = MmapMut::map_anon(READ_BYTES).expect("memory to read, without which no allocation would succeed");
    #[cfg(target_os = "linux")]
    if let Err(err) = memory.advise(memmap2::Advice::HugePage) {
        log::debug!("no huge pages to read: {err}");
    }
    memory.chunks_mut(4096).for_each(|page| page[0] = 1);
    let words: &[u64] = bytemuck::cast_slice(&memory);
    let share = words.len() / rayon::current_num_threads();
    let seconds = (0..READ_PASSES).map(|_| {
        let start = Instant::now();
        rayon::broadcast(|thread| black_box(sum_words(&words[thread.index() * share..][..share])));
        start.elapsed().as_secs_f64()
    });
    READ_BYTES as f64 / seconds.fold(f64::INFINITY, f64::min) * 1e-9
}

/// Sums `words` in four interleaved streams, about as many as one core can keep in flight.
fn sum_words(words: &[u64]) -> u64 {
    let mut sums = [0u64; 32];
    let quarter = words.len() / 4 / 8 * 8;
    let (a, rest) = words.split_at(quarter);
    let (b, rest) = rest.split_at(quarter);
    let (c, d) = rest.split_at(quarter);
    for (((a, b), c), d) in a.chunks_exact(8).zip(b.chunks_exact(8)).zip(c.chunks_exact(8)).zip(d.chunks_exact(8)) {
        for i in 0..8 {
            sums[i] = sums[i].wrapping_add(a[i]);
            sums[8 + i] = sums[8 + i].wrapping_add(b[i]);
            sums[16 + i] = sums[16 + i].wrapping_add(c[i]);
            sums[24 + i] = sums[24 + i].wrapping_add(d[i]);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use crate::amx::{self, ShapedTiles, TILE_ROWS, TileShapes};

    /// A loop over independent sums in registers: in every round each becomes `$next` of itself and an operand.
    macro_rules! peak_loop {
        ($name:ident, $features:literal, $sums:literal of $zero:expr, $x:ident = $operand:expr,
            $sum:ident => $next:expr, $operations:expr) => {
            pub fn $name(rounds: usize) -> usize {
                #[target_feature(enable = $features)]
                fn run(rounds: usize) {
                    let (mut sums, $x) = ([$zero; $sums], $operand);
                    for _ in 0..rounds {
                        for $sum in &mut sums {
                            *$sum = $next;
                        }
                    }
                    black_box(sums);
                }
                // SAFETY: called for paths that have the instructions only.
                unsafe { run(rounds) };
                $sums * $operations
            }
        };
    }

    peak_loop!(f32_avx512, "avx512f", 24 of _mm512_setzero_ps(), x = black_box(_mm512_set1_ps(1e-3)),
        sum => _mm512_fmadd_ps(x, x, *sum), 16 * 2);
    peak_loop!(f32_avx2, "avx2,fma", 12 of _mm256_setzero_ps(), x = black_box(_mm256_set1_ps(1e-3)),
        sum => _mm256_fmadd_ps(x, x, *sum), 8 * 2);
    peak_loop!(bf16_dot, "avx512f,avx512bf16", 24 of _mm512_setzero_ps(), x = {
        let pairs = black_box(_mm512_set1_ps(1e-3));
        _mm512_cvtne2ps_pbh(pairs, pairs)
    }, sum => _mm512_dpbf16_ps(*sum, x, x), 32 * 2);

    /// Four sums, as many as there are products of two tiles by two.
    pub fn bf16_tiles(rounds: usize) -> usize {
        static SHAPES: TileShapes = TileShapes::new([[TILE_ROWS, TILE_ROWS]; 8]);
        let ones = black_box([0x3f80_3f80_u32; TILE_ROWS * TILE_ROWS]);
        let (tile, stride) = (ones.as_ptr().cast(), TILE_ROWS * size_of::<u32>());
        // SAFETY: called for `Isa::Amx` only; `ones` is a whole tile.
        unsafe {
            let _tiles = ShapedTiles::new(&SHAPES);
            amx::zero::<0>();
            amx::zero::<1>();
            amx::zero::<2>();
            amx::zero::<3>();
            amx::load::<4>(tile, stride);
            amx::load::<5>(tile, stride);
            amx::load::<6>(tile, stride);
            amx::load::<7>(tile, stride);
            for _ in 0..rounds {
                amx::add_product::<0, 4, 6>();
                amx::add_product::<1, 4, 7>();
                amx::add_product::<2, 5, 6>();
                amx::add_product::<3, 5, 7>();
            }
        }
        4 * 2 * TILE_ROWS * TILE_ROWS * 2 * TILE_ROWS
    }
}
