//! Where the attention of drawn tokens fell, added up.

use serde::{Deserialize, Serialize};

use crate::backend::{LevelMass, MOST_LEVELS};

/// Of tokens that were drawn: what part of attention fell on each level of the path before them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LevelMasses {
    /// Sums over tokens; each token's own add up to 1.
    sums: [f64; MOST_LEVELS],
    tokens: usize,
}

impl LevelMasses {
    /// One more token.
    pub fn add(&mut self, mass: &LevelMass) {
        self.sums.iter_mut().zip(mass).for_each(|(sum, &mass)| *sum += f64::from(mass));
        self.tokens += 1;
    }

    /// All of another's tokens.
    pub fn join(&mut self, other: &LevelMasses) {
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, other)| *sum += other);
        self.tokens += other.tokens;
    }

    /// The mean token's, of the first `levels` levels; `None` where there are no tokens.
    pub fn mean(&self, levels: usize) -> Option<Vec<f32>> {
        let mean = |sum: &f64| (sum / self.tokens as f64) as f32;
        (self.tokens > 0).then(|| self.sums.iter().take(levels).map(mean).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_weighs_the_same() {
        let mass = |first: f32| std::array::from_fn(|level| [first, 1.0 - first].get(level).copied().unwrap_or(0.0));
        let (mut one, mut others) = (LevelMasses::default(), LevelMasses::default());
        assert_eq!(one.mean(2), None);
        one.add(&mass(1.0));
        others.add(&mass(0.25));
        others.add(&mass(0.25));
        one.join(&others);
        assert_eq!(one.mean(1), Some(vec![0.5]));
        assert_eq!(one.mean(3), Some(vec![0.5, 0.5, 0.0]));
    }
}
