//! The CPU's code paths, one per instruction set: which ones this processor supports, which is fastest, and which one
//! the environment variable OFFSHOOT_CPU selects. Also states what each path rounds operands to. The ops themselves are
//! elsewhere.

use std::env;
use std::fmt;
use std::sync::LazyLock;

use offshoot_backend::Dtype;
use offshoot_core::error::{Error, Result};

/// A code path: the kernels for one instruction set, or the clear loops. Ordered from the definition to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The clear loops that define each op. Runs on every processor.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with bf16 dot products.
    Avx512Bf16,
    /// For bf16 weights, keys and values: products of tiles (AMX). Otherwise as `Avx512Bf16`.
    Amx,
}

impl Isa {
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16, Isa::Amx];

    /// The environment variable that selects a path.
    pub const VARIABLE: &str = "OFFSHOOT_CPU";

    /// The path named by OFFSHOOT_CPU, or else the fastest. Errors: the name is unknown or the processor lacks the
    /// path.
    pub fn chosen() -> Result<Self> {
        match env::var_os(Self::VARIABLE).filter(|value| !value.is_empty()) {
            Some(name) => Self::named(&name.to_string_lossy(), &Self::available()),
            None => Ok(Self::fastest()),
        }
    }

    /// The path of `available` with the name `name`.
    pub fn named(name: &str, available: &[Self]) -> Result<Self> {
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
            let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
            let expected = format!("one of {}, which this processor has", names.join(", "));
            Error::value(Self::VARIABLE, expected, format!("`{name}`"))
        })
    }

    /// The fastest path of this processor. bf16 dot products are chosen only where they beat f32 multiply-adds on
    /// widened weights: on AMD (Zen 4: 465 vs 235 GFLOP/s on two cores), not on Intel (Emerald Rapids: 190 vs 380),
    /// where tiles are (1,900 to 4,600).
    pub fn fastest() -> Self {
        let mut paths = Self::available();
        paths.retain(|isa| *isa != Isa::Avx512Bf16 || dot_products_pay());
        *paths.last().expect("`Portable` is always available")
    }

    /// The paths this processor supports, in the order of `ALL`.
    pub fn available() -> Vec<Self> {
        #[cfg_attr(
            not(target_arch = "x86_64"),
            expect(unused_mut, reason = "other processors have no paths of their own")
        )]
        let mut paths = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            let avx512 = avx2
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if avx2 {
                paths.push(Isa::Avx2);
            }
            if avx512 {
                paths.push(Isa::Avx512);
            }
            if avx512 && is_x86_feature_detected!("avx512bf16") {
                paths.push(Isa::Avx512Bf16);
                if super::amx::available() {
                    paths.push(Isa::Amx);
                }
            }
        }
        paths
    }

    /// The path's name in OFFSHOOT_CPU.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
            Isa::Amx => "amx",
        }
    }

    /// The dtype activations are rounded to before they are multiplied by weights of dtype `weights`. The same on all
    /// paths: even the definition rounds to bf16, as bf16 dot products must.
    pub fn linear_operand(self, weights: Dtype) -> Dtype {
        match weights {
            Dtype::F32 | Dtype::F16 => Dtype::F32,
            Dtype::Bf16 => Dtype::Bf16,
        }
    }

    /// The dtype queries and softmax numerators are rounded to before they are multiplied by keys and values of dtype
    /// `stored`. For bf16 the definition, dot products and products of tiles round to bf16; paths that widen do not
    /// round.
    pub fn attention_operand(self, stored: Dtype) -> Dtype {
        match (stored, self) {
            (Dtype::F32 | Dtype::F16, _) | (Dtype::Bf16, Isa::Avx2 | Isa::Avx512) => Dtype::F32,
            (Dtype::Bf16, Isa::Portable | Isa::Avx512Bf16 | Isa::Amx) => Dtype::Bf16,
        }
    }
}

/// Whether bf16 dot products run at twice the rate of f32 multiply-adds, judged by the CPU vendor.
fn dot_products_pay() -> bool {
    *IS_AMD
}

/// Whether weights of few rows come faster if they are prefetched soon before they are read, into the first-level
/// cache, than a strip ahead into the second; judged by the CPU vendor. One row takes 6 to 18 % less time so on Emerald
/// Rapids with AVX-512; on Zen 4 it takes half as long again on one thread, an eighth on two (benches/cpu/NOTES.md).
pub fn soon_prefetches_pay() -> bool {
    !*IS_AMD
}

static IS_AMD: LazyLock<bool> = LazyLock::new(|| {
    #[cfg(target_arch = "x86_64")]
    {
        let leaf = std::arch::x86_64::__cpuid(0);
        [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
});

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
            Isa::Avx512Bf16 => "AVX-512 BF16",
            Isa::Amx => "AMX",
        })
    }
}
