//! Which of the processor's vector instructions the fast paths use.

use std::fmt;

/// Instruction sets with a path of their own, from the definition to the fastest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The clear loops that define each op.
    #[default]
    Clear,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with bf16 dot products.
    Avx512Bf16,
}

impl Isa {
    /// The fastest set that this processor has. Bf16 dot products count only where they are faster than widening and f32
    /// multiply-adds: on AMD (Zen 4: 465 against 235 GFLOP/s on two cores), not on Intel (Emerald Rapids: 190 against 380).
    pub fn detect() -> Self {
        let mut sets = Self::available();
        if !dot_products_pay() {
            sets.retain(|isa| *isa != Isa::Avx512Bf16);
        }
        *sets.last().expect("the clear loops are always there")
    }

    /// Every set that this processor has, in the order of their instructions' age.
    pub fn available() -> Vec<Self> {
        let mut sets = vec![Isa::Clear];
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
                sets.push(Isa::Avx2);
            }
            if avx512 {
                sets.push(Isa::Avx512);
            }
            if avx512 && is_x86_feature_detected!("avx512bf16") {
                sets.push(Isa::Avx512Bf16);
            }
        }
        sets
    }
}

/// Whether the processor's maker does bf16 dot products at twice the rate of f32 multiply-adds.
#[cfg(target_arch = "x86_64")]
fn dot_products_pay() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).as_flattened() == b"AuthenticAMD"
}

#[cfg(not(target_arch = "x86_64"))]
fn dot_products_pay() -> bool {
    false
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Clear => "clear loops",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
            Isa::Avx512Bf16 => "AVX-512 BF16",
        })
    }
}
