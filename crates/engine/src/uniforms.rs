//! Uniforms: the random numbers that sampling uses, as a pure function of (run seed, item, branch path, position).
//! Nothing here has a state, so neither batch order nor the number of siblings can change a sample.
//!
//! The function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
//! generators", 2014), a bijection of 64 bits that passes as a counter-based generator: `mix(key + position * GOLDEN)`.
//! Paths are hashed by the same function, one link at a time; item names by FNV-1a first.
#![warn(missing_docs)]

use serde::{Deserialize, Serialize};

use offshoot_core::mix::{GOLDEN, fnv1a, mix};

/// The purpose of a fork. Each kind has its own ordinals, so that more forks of one kind change no sample of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkKind {
    /// An answer or a thought.
    Sample,
    /// A judgement of one candidate.
    Value,
    /// A ballot over several candidates.
    Vote,
    /// A list of thoughts that could come next.
    Propose,
}

/// The source of one branch's uniforms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UniformKey(pub u64);

impl UniformKey {
    /// The key of an item's root.
    pub fn root(seed: u64, item_id: &str) -> Self {
        UniformKey(mix(mix(seed.wrapping_add(GOLDEN)) ^ fnv1a(item_id.as_bytes())))
    }

    /// The key of the `ordinal`-th fork of this `kind` below.
    pub fn child(self, kind: ForkKind, ordinal: u64) -> Self {
        let link = mix((kind as u64 + 1).wrapping_mul(GOLDEN)).wrapping_add(ordinal.wrapping_mul(GOLDEN));
        UniformKey(mix(self.0.rotate_left(32) ^ mix(link)))
    }

    /// The uniform, in [0, 1), that samples the token at absolute position `position` of the branch.
    pub fn uniform(self, position: u32) -> f64 {
        let bits = mix(self.0.wrapping_add(u64::from(position).wrapping_add(1).wrapping_mul(GOLDEN)));
        // The 53 leading bits are what an f64 in [0, 1) holds exactly.
        (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn uniforms_are_evenly_spread_and_differ_by_every_part_of_the_key() {
        let mut seen = HashSet::new();
        let mut sum = 0.0;
        let mut tenths = [0u32; 10];
        for seed in 0..4 {
            for item in ["a", "b", "", "item-17"] {
                for kind in [ForkKind::Sample, ForkKind::Value, ForkKind::Vote] {
                    for ordinal in 0..16 {
                        let key = UniformKey::root(seed, item).child(kind, ordinal);
                        for position in 0..16 {
                            let uniform = key.uniform(position);
                            assert!((0.0..1.0).contains(&uniform));
                            seen.insert(uniform.to_bits());
                            sum += uniform;
                            tenths[(uniform * 10.0) as usize] += 1;
                        }
                    }
                }
            }
        }
        let n = 4 * 4 * 3 * 16 * 16;
        assert_eq!(seen.len(), n, "no two uniforms are equal");
        // Mean of n uniforms: standard deviation 1/sqrt(12 n) = 0.0026; five of them.
        assert!((sum / n as f64 - 0.5).abs() < 0.013);
        // Each tenth holds n/10 = 1229 uniforms, standard deviation 33; five of them.
        assert!(tenths.iter().all(|&count| (1063..=1395).contains(&count)), "{tenths:?}");
    }

    #[test]
    fn a_key_never_changes() {
        // Computed once, outside this program: another value would change every sample of every recorded run.
        let root = UniformKey::root(1, "item-0");
        assert_eq!(root, UniformKey(0x6d15_906b_62a8_8a2f));
        let sample = root.child(ForkKind::Sample, 7);
        assert_eq!(sample, UniformKey(0x6899_b83b_c0e4_ba63));
        assert_eq!(sample.uniform(100), 0.3603714083932297);
        let path = |a, b| root.child(ForkKind::Sample, a).child(ForkKind::Sample, b);
        assert_ne!(path(0, 1), path(1, 0));
    }
}
