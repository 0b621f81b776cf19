//! Draws by a key: the same on every machine, because resumed runs ask the same questions.

use offshoot_core::mix::{GOLDEN, mix};

/// Numbers that follow from a key.
pub(crate) struct Draws {
    state: u64,
}

impl Draws {
    /// The numbers of `key`, for the purpose that `of` names.
    pub fn new(key: u64, of: u64) -> Draws {
        Draws { state: mix(key ^ mix(of.wrapping_add(GOLDEN))) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        mix(self.state)
    }

    /// A number below `n`, which is above 0.
    fn below(&mut self, n: usize) -> usize {
        // The high half of a product: no number below 2^32 is more likely than another by more than 2^-32.
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Heads or tails.
    pub fn is_heads(&mut self) -> bool {
        self.below(2) == 0
    }

    /// The numbers below `n` in a drawn order.
    pub fn order(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for last in (1..n).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn orders_follow_from_the_key_and_reach_everything() {
        let of = |key: u64| Draws::new(key, 0).order(4);
        assert_eq!(of(7), of(7));
        let orders: HashSet<Vec<usize>> = (0..2000).map(of).collect();
        assert_eq!(orders.len(), 24, "every order of four occurs");
        let heads = (0..1000).filter(|&key| Draws::new(key, 1).is_heads()).count();
        assert!((400..600).contains(&heads), "{heads}");
        assert_eq!((Draws::new(1, 0).order(0), Draws::new(1, 0).order(1)), (vec![], vec![0]));
    }
}
