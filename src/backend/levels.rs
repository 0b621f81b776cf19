//! The levels of a row's context, by position: a few-shot text, a problem, a sample's own text. What part of a row's attention
//! falls on each is an output that a step can be asked for (`Backend::level_lse`); nothing else depends on levels, and a level
//! may begin anywhere in a segment or page.

use std::ops::Range;

/// Levels of a context at most.
pub const MOST_LEVELS: usize = 8;

/// Where each level but the first begins. Levels that a context does not have are empty, behind the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelBorders([u32; MOST_LEVELS - 1]);

/// What part of a row's attention fell on each level: 1 in all.
pub type LevelMass = [f32; MOST_LEVELS];

impl LevelBorders {
    /// The first levels end at `ends`, one more has all behind them. `None` where that makes more than [`MOST_LEVELS`], or
    /// where `ends` fall.
    pub fn behind(ends: &[u32]) -> Option<Self> {
        let mut borders = [u32::MAX; MOST_LEVELS - 1];
        borders.get_mut(..ends.len())?.copy_from_slice(ends);
        ends.is_sorted().then_some(LevelBorders(borders))
    }

    /// One level.
    pub fn none() -> Self {
        LevelBorders([u32::MAX; MOST_LEVELS - 1])
    }

    /// How many levels there are, empty ones among them.
    pub fn count(&self) -> usize {
        1 + self.0.iter().take_while(|&&border| border < u32::MAX).count()
    }

    /// The positions of a level; no context reaches the last position of all.
    pub fn level(&self, level: usize) -> Range<u32> {
        let begin = if level == 0 { 0 } else { self.0[level - 1] };
        begin..self.0.get(level).copied().unwrap_or(u32::MAX)
    }

    /// As kernels read them.
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_in_one_level() {
        let most: Vec<u32> = (0..MOST_LEVELS as u32 - 1).map(|i| 5 * i).collect();
        for ends in [&[][..], &[7], &[0, 7, 7, 40], &most] {
            let borders = LevelBorders::behind(ends).unwrap();
            for position in 0..50 {
                let of: Vec<usize> = (0..MOST_LEVELS).filter(|&l| borders.level(l).contains(&position)).collect();
                assert_eq!(of, [ends.iter().filter(|&&end| end <= position).count()], "{position} in {ends:?}");
            }
            assert_eq!(borders.count(), ends.len() + 1);
        }
        assert_eq!(LevelBorders::behind(&[]), Some(LevelBorders::none()));
        assert_eq!(LevelBorders::behind(&[3, 2]), None);
        assert_eq!(LevelBorders::behind(&[1; MOST_LEVELS]), None);
    }
}
