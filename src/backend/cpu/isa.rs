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
    /// The fastest set that this processor has. Intel's cores do one bf16 dot product in the time of four multiply-adds, which
    /// is half as much work (Sapphire Rapids: 172 against 349 GFLOP/s on two cores); AMD's do twice as much by dot products.
    pub fn detect() -> Self {
        let slow_dot = cfg!(target_arch = "x86_64") && vendor() == *b"GenuineIntel";
        let usable = |isa: &Self| !(slow_dot && *isa == Isa::Avx512Bf16);
        Self::available().into_iter().rfind(usable).expect("the clear loops are always there")
    }

    /// Every set that this processor has, slowest first.
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

/// The processor's maker, as it names itself.
#[cfg(target_arch = "x86_64")]
fn vendor() -> [u8; 12] {
    let id = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    for (part, register) in name.chunks_exact_mut(4).zip([id.ebx, id.edx, id.ecx]) {
        part.copy_from_slice(&register.to_le_bytes());
    }
    name
}

#[cfg(not(target_arch = "x86_64"))]
fn vendor() -> [u8; 12] {
    [0; 12]
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
