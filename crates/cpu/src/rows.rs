//! Shared by the element-wise ops: compiling one loop for every instruction set, spreading rows over threads, sums in a
//! fixed order, and rounding to bf16. Each op's loop stays in the op's own file and defines it.

use super::CpuBuffer;
use super::team::Team;

/// Below this many elements an op runs on the calling thread: handing work to a worker that is awake costs about 1 us,
/// the time of a few thousand elements.
const PARALLEL_FROM: usize = 8 * 1024;

/// Shares of the rows per thread, so that the others can take over from one that was delayed.
const SHARES: usize = 2;

/// Calls `work(row, out_row)` for every row of `out`, on all threads when there is enough to do.
pub fn for_rows(team: &Team, out: &mut CpuBuffer, work: impl Fn(usize, &mut [f32]) + Sync) {
    let width = out.width.max(1);
    if out.data.len() < PARALLEL_FROM {
        out.data.chunks_exact_mut(width).enumerate().for_each(|(r, row)| work(r, row));
    } else {
        let share = out.rows.div_ceil(SHARES * team.threads());
        team.for_chunks(&mut out.data, share * width, |part, rows| {
            rows.chunks_exact_mut(width).enumerate().for_each(|(r, row)| work(part * share + r, row));
        });
    }
}

/// The sum of `f(x)` over `x`, in 16 lanes and then across the lanes: the same order for every instruction set, and
/// one that vectorises.
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
    sum_lanes(lanes)
}

/// The sum of 16 lanes, by halves.
#[inline(always)]
pub fn sum_lanes(mut lanes: [f32; 16]) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

/// The bits of `x` rounded to bf16 (to nearest even), in the low half. A NaN stays a NaN. Branch-free, so that loops
/// vectorise.
#[inline(always)]
pub fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 0x40;
    if x.is_nan() { quiet } else { rounded }
}

/// The exponential of functions of `for_each_isa` that run for `Isa::Portable`.
#[inline(always)]
pub fn std_exp(x: f32) -> f32 {
    x.exp()
}

/// Defines functions `fn name(isa, args)` whose bodies are compiled for each instruction set. In that of
/// `fn name[exp](args)`, `exp` is the polynomial, but for `Isa::Portable` the standard library's. In the other form
/// `Isa::Portable` runs `clear`, and each other the `#[inline(always)]` function `fast`.
macro_rules! for_each_isa {
    (@run $isa:ident, $clear:ident, $fast:ident, ($($arg:ident: $ty:ty),*) $(-> $out:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $out)? {
                $fast($($arg),*)
            }
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
            fn avx512($($arg: $ty),*) $(-> $out)? {
                $fast($($arg),*)
            }
            match $isa {
                Isa::Portable => $clear($($arg),*),
                // SAFETY: an `Isa` is only ever one that the processor has.
                Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { avx512($($arg),*) },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            match $isa {
                Isa::Portable => $clear($($arg),*),
                _ => $fast($($arg),*),
            }
        }
    }};
    (@body $isa:ident, ($($arg:ident: $ty:ty),*) $(-> $out:ty)?, $body:block) => {{
        #[inline(always)]
        fn body($($arg: $ty),*) $(-> $out)? $body
        for_each_isa! { @run $isa, body, body, ($($arg: $ty),*) $(-> $out)? }
    }};
    (@body $isa:ident [$exp:ident], ($($arg:ident: $ty:ty),*), $body:block) => {{
        fn clear($($arg: $ty),*) {
            use $crate::rows::std_exp as $exp;
            $body
        }
        #[inline(always)]
        fn fast($($arg: $ty),*) {
            use $crate::exp::exp as $exp;
            $body
        }
        for_each_isa! { @run $isa, clear, fast, ($($arg: $ty),*) }
    }};
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident($($arg:ident: $ty:ty),*) = $clear:ident or $fast:ident;
    )+) => {$(
        $(#[$doc])*
        $vis fn $name(isa: Isa, $($arg: $ty),*) {
            for_each_isa! { @run isa, $clear, $fast, ($($arg: $ty),*) }
        }
    )+};
    ($(
        $(#[$doc:meta])*
        $vis:vis fn $name:ident$([$exp:ident])?($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block
    )+) => {$(
        $(#[$doc])*
        $vis fn $name(isa: Isa, $($arg: $ty),*) $(-> $out)? {
            for_each_isa! { @body isa $([$exp])?, ($($arg: $ty),*) $(-> $out)?, $body }
        }
    )+};
}
pub(super) use for_each_isa;
