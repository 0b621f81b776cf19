//! What element-wise ops share: compiling one loop for every instruction set, spreading rows over threads, and sums in
//! one fixed order. The loops themselves are the definition of their op and stay with it.

use rayon::prelude::*;

use super::Buffer;

/// Below this many elements an op runs on the calling thread. Handing work to a thread that is awake costs about a
/// microsecond, as long as some thousand elements take; a thread left idle for 20 falls asleep, and waking it costs 30
/// (measured in a virtual machine), so that the stretches on one thread must also be short.
const PARALLEL_FROM: usize = 8 * 1024;

/// Calls `work(row, out_row)` for every row of `out`, on all threads when there is enough to do.
pub fn for_rows(out: &mut Buffer, work: impl Fn(usize, &mut [f32]) + Sync) {
    let width = out.width.max(1);
    if out.data.len() < PARALLEL_FROM {
        out.data.chunks_exact_mut(width).enumerate().for_each(|(r, row)| work(r, row));
    } else {
        let share = out.rows.div_ceil(rayon::current_num_threads());
        out.data.par_chunks_mut(share * width).enumerate().for_each(|(part, rows)| {
            rows.chunks_exact_mut(width).enumerate().for_each(|(r, row)| work(part * share + r, row));
        });
    }
}

/// Sum of `f(x)` in 16 lanes, then of the lanes by halves: one order for every instruction set, and one that
/// vectorises.
#[inline(always)]
pub fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (chunks, rest) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += f(x);
    }
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// `fn name(isa, args)` that runs the `#[inline(always)]` function `body` compiled for `isa`. With `clear or body`, the
/// clear loops are another function.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? = $body:ident;) => {
        for_each_isa! { $(#[$doc])* fn $name($($arg: $ty),*) $(-> $out)? = $body or $body; }
    };
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? = $clear:ident or $body:ident;) => {
        $(#[$doc])*
        fn $name(isa: Isa, $($arg: $ty),*) $(-> $out)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $out)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
                fn avx512($($arg: $ty),*) $(-> $out)? {
                    $body($($arg),*)
                }
                match isa {
                    Isa::Portable => $clear($($arg),*),
                    Isa::Bf16Twin => $body($($arg),*),
                    // SAFETY: an `Isa` is only ever one that the processor has.
                    Isa::Avx2 => unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx512 | Isa::Avx512Bf16 => unsafe { avx512($($arg),*) },
                }
            }
            #[cfg(not(target_arch = "x86_64"))]
            {
                match isa {
                    Isa::Portable => $clear($($arg),*),
                    _ => $body($($arg),*),
                }
            }
        }
    };
}
pub(super) use for_each_isa;
