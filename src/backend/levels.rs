//! The levels of a row's context, by position: a few-shot text, a problem, a sample's own text. What part of a row's attention
//! falls on each is an output that a step can be asked for (`Backend::level_lse`); nothing else depends on levels, and a level
//! may begin anywhere in a segment or page.

use std::ops::Range;

/// Levels of a context at most.
pub const MOST_LEVELS: usize = 8;

/// Where each level but the first begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelBorders {
    /// The first `levels - 1` of them; behind these are zeros.
    begins: [u32; MOST_LEVELS - 1],
    levels: usize,
}

/// What part of a row's attention fell on each level: 1 in all.
pub type LevelMass = [f32; MOST_LEVELS];

impl LevelBorders {
    /// The first levels end at `ends`, one more has all behind them. `None` where that makes more than [`MOST_LEVELS`], or
    /// where `ends` fall.
    pub fn behind(ends: &[u32]) -> Option<Self> {
        let mut begins = [0; MOST_LEVELS - 1];
        begins.get_mut(..ends.len())?.copy_from_slice(ends);
        ends.is_sorted().then_some(LevelBorders { begins, levels: 1 + ends.len() })
    }

    /// One level.
    pub fn none() -> Self {
        LevelBorders { begins: [0; MOST_LEVELS - 1], levels: 1 }
    }

    /// How many levels there are, empty ones among them.
    pub fn count(&self) -> usize {
        self.levels
    }

    /// The positions of a level; none where there are fewer levels. No context reaches the last position of all.
    pub fn level(&self, level: usize) -> Range<u32> {
        let borders = &self.begins[..self.levels - 1];
        let begin = if level == 0 { 0 } else { borders.get(level - 1).copied().unwrap_or(u32::MAX) };
        begin..borders.get(level).copied().unwrap_or(u32::MAX)
    }

    /// Where each level but the first begins, as kernels read it: those that are not there, behind every position.
    pub fn words(&self) -> [u32; MOST_LEVELS - 1] {
        std::array::from_fn(|border| self.level(border + 1).start)
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
            let words = borders.words();
            assert_eq!(words[..ends.len()], *ends);
            assert!(words[ends.len()..].iter().all(|&word| word == u32::MAX), "{words:?}: no position is in them");
        }
        assert_eq!(LevelBorders::behind(&[]), Some(LevelBorders::none()));
        assert_eq!(LevelBorders::behind(&[3, 2]), None);
        assert_eq!(LevelBorders::behind(&[1; MOST_LEVELS]), None);
    }
}
