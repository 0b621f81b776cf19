//! Which path of the CPU's arithmetic is used: those this processor has, the fastest of them, and the one that the
//! environment variable OFFSHOOT_CPU forces. What each path rounds operands to is stated here; the ops themselves are
//! their own rooms'.

use std::env;
use std::fmt;

use crate::backend::Dtype;
use crate::error::{Error, Result};

/// A path of arithmetic: an instruction set with kernels of its own, or clear loops. From the definition to the
/// fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// The clear loops that define each op; every processor has them.
    Portable,
    /// The bits of `Avx512Bf16` for bf16 weights, keys and values, computed by the software twin of its instructions
    /// (`bf16_dot`); otherwise the clear loops. For tests: every processor has it, and it is slow.
    Bf16Twin,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// AVX-512 with bf16 dot products.
    Avx512Bf16,
}

impl Isa {
    pub const ALL: [Isa; 5] = [Isa::Portable, Isa::Bf16Twin, Isa::Avx2, Isa::Avx512, Isa::Avx512Bf16];

    /// The environment variable that forces a path.
    pub const VARIABLE: &str = "OFFSHOOT_CPU";

    /// The path that OFFSHOOT_CPU names, else the fastest. Errors: no path has that name, or this processor lacks it.
    pub fn chosen() -> Result<Self> {
        match env::var_os(Self::VARIABLE).filter(|value| !value.is_empty()) {
            Some(name) => Self::named(&name.to_string_lossy(), &Self::available()),
            None => Ok(Self::fastest()),
        }
    }

    /// The path of `available` that is called `name`.
    fn named(name: &str, available: &[Self]) -> Result<Self> {
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| {
            let names: Vec<&str> = available.iter().map(|isa| isa.name()).collect();
            let expected = format!("one of {}, which this processor has", names.join(", "));
            Error::value(Self::VARIABLE, expected, format!("`{name}`"))
        })
    }

    /// The fastest path of this processor. Bf16 dot products count only where they are faster than widening and f32
    /// multiply-adds: on AMD (Zen 4: 465 against 235 GFLOP/s on two cores), not on Intel (Emerald Rapids: 190 against
    /// 380).
    pub fn fastest() -> Self {
        let mut paths = Self::available();
        paths.retain(|isa| *isa != Isa::Bf16Twin && (*isa != Isa::Avx512Bf16 || dot_products_pay()));
        *paths.last().expect("the clear loops are always there")
    }

    /// Every path that this processor has, in the order of `ALL`.
    pub fn available() -> Vec<Self> {
        let mut paths = vec![Isa::Portable, Isa::Bf16Twin];
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
            }
        }
        paths
    }

    /// What OFFSHOOT_CPU calls it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Bf16Twin => "bf16-twin",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512bf16",
        }
    }

    /// What an activation is rounded to before it is multiplied by weights of this dtype. All paths agree: so does the
    /// definition, for the sake of those that have bf16 dot products only.
    pub fn linear_operand(self, weights: Dtype) -> Dtype {
        match weights {
            Dtype::F32 | Dtype::F16 => Dtype::F32,
            Dtype::Bf16 => Dtype::Bf16,
        }
    }

    /// What attention rounds queries and softmax numerators to before it multiplies them by keys and values of this
    /// dtype: bf16 by the definition and before dot products of bf16; paths that widen bf16 round nothing.
    pub fn attention_operand(self, stored: Dtype) -> Dtype {
        match (stored, self) {
            (Dtype::F32 | Dtype::F16, _) | (Dtype::Bf16, Isa::Avx2 | Isa::Avx512) => Dtype::F32,
            (Dtype::Bf16, Isa::Portable | Isa::Bf16Twin | Isa::Avx512Bf16) => Dtype::Bf16,
        }
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
            Isa::Portable => "portable",
            Isa::Bf16Twin => "AVX-512 BF16 in software",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
            Isa::Avx512Bf16 => "AVX-512 BF16",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found_by_their_names_where_the_processor_has_them() {
        for isa in Isa::ALL {
            assert_eq!(Isa::named(isa.name(), &Isa::ALL).expect("all are there"), isa);
        }
        let old = [Isa::Portable, Isa::Bf16Twin, Isa::Avx2];
        for name in ["avx512bf16", "sse2", "AVX2", "clear"] {
            let error = Isa::named(name, &old).expect_err(name);
            let said = error.to_string();
            assert!(said.contains("OFFSHOOT_CPU") && said.contains("portable, bf16-twin, avx2,"), "{said}");
            assert!(said.contains(&format!("found `{name}`")) && error.exit_code() == 2, "{said}");
        }
    }

    #[test]
    fn the_fastest_path_is_hardware_s_own() {
        let fastest = Isa::fastest();
        assert!(Isa::available().contains(&fastest) && fastest != Isa::Bf16Twin);
    }
}
