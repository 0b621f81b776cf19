//! What masks may take. A step's work in one state is bounded by llguidance's limits ([`limits`]), and the work of all
//! states of a form by its [`WorkBudget`], so that no form slows the steps of others for long. Work is counted in
//! units that depend on the form and on what it has met. Grammars that are very ambiguous take much time with few
//! units: there CPU time counts.

use std::sync::atomic::{AtomicI64, Ordering};

use std::time::Duration;

use llguidance::api::ParserLimits;
use llguidance::earley::ParserStats;
use offshoot_core::cpu_time;

use crate::lanes::Lane;

/// What a grammar, and each step in it, may take. The numbers are llguidance's units of work: about 14,000 of the
/// lexer, or 10,000 items of the parser, take a millisecond.
pub(crate) fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 10_000,
        initial_lexer_fuel: 1_000_000,
        // Measured with 128,000 tokens: a choice of 2,000 texts takes 26,000, other forms as people write them less.
        step_lexer_fuel: 100_000,
        // A schema of 300 optional properties takes 78,000.
        step_max_items: 100_000,
        // 1 to 2 kB each, in each lane.
        max_lexer_states: 50_000,
        max_grammar_size: 500_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}

/// Work, in nanoseconds that it takes a usual core, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Work(u64);

impl Work {
    const MILLISECOND: u64 = 1_000_000;

    /// Work that costs as much as this time.
    const fn milliseconds(number: u64) -> Work {
        Work(number * Work::MILLISECOND)
    }
}

/// Measures the work of a mask.
pub(crate) struct WorkMeter {
    /// Of the parser, when it began.
    before: ParserStats,
    began: Duration,
}

impl WorkMeter {
    /// A parser with these counts begins to work on this thread.
    pub fn new(before: &ParserStats) -> WorkMeter {
        WorkMeter { before: before.clone(), began: cpu_time::of_thread() }
    }

    /// What was done until the parser, of this lane, has these counts.
    pub fn work(&self, after: &ParserStats, lane: &Lane) -> Work {
        /// An item of the parser.
        const ITEM: u64 = 100;
        /// A node of the trie of tokens that is walked.
        const NODE: u64 = 6;
        /// A unit of the lexer's fuel.
        const FUEL: u64 = 70;
        /// CPU time of this many times what was counted is as much work. Forms that take half a millisecond or more take
        /// about what is counted; tests are compiled to run slowly.
        const SLOWEST: u64 = if cfg!(debug_assertions) { 8 } else { 2 };
        let items = after.all_items.saturating_sub(self.before.all_items) as u64;
        let nodes = after.trie_nodes_walked.saturating_sub(self.before.trie_nodes_walked) as u64;
        let counted = ITEM * items + NODE * nodes + FUEL * lane.take_fuel(after.lexer_cost);
        let time = cpu_time::of_thread().saturating_sub(self.began);
        Work(counted.max(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / SLOWEST))
    }
}

/// The work that the masks of a form may still take. A new form has a store; each sample that begins in it and each
/// mask add to it, up to that much again, so that a form whose masks take about what others' do never runs out.
#[derive(Debug)]
pub(crate) struct WorkBudget {
    /// May go below zero by what is computed at once.
    left: AtomicI64,
    /// What each mask adds.
    of_a_mask: Work,
}

impl WorkBudget {
    /// The store.
    const MOST: Work = Work::milliseconds(500);
    const OF_A_SAMPLE: Work = Work::milliseconds(20);

    /// The budget of a form of a model of so many tokens.
    pub fn new(vocab: usize) -> WorkBudget {
        const OF_A_MASK: Work = Work::milliseconds(1);
        /// Tokens that a mask of this work may look at one by one.
        const TOKENS: u64 = 1 << 17;
        let of_a_mask = Work(OF_A_MASK.0.max(OF_A_MASK.0 * vocab as u64 / TOKENS));
        WorkBudget { left: AtomicI64::new(WorkBudget::MOST.0 as i64), of_a_mask }
    }

    /// Whether nothing is left.
    pub fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) <= 0
    }

    /// A sample begins.
    pub fn begin_sample(&self) {
        self.add(WorkBudget::OF_A_SAMPLE.0 as i64);
    }

    /// A mask took this work.
    pub fn spend(&self, work: Work) {
        self.add(self.of_a_mask.0 as i64 - i64::try_from(work.0).unwrap_or(i64::MAX));
    }

    fn add(&self, amount: i64) {
        let added = |left: i64| Some(left.saturating_add(amount).min(WorkBudget::MOST.0 as i64));
        // Cannot fail: the closure always has a value.
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, added);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_usual_work_never_spend_a_budget_and_costly_ones_do() {
        let budget = WorkBudget::new(100_000);
        (0..10_000).for_each(|_| budget.spend(Work::milliseconds(1)));
        assert!(!budget.is_spent());
        let costly = Work::milliseconds(14);
        let masks = (0..1000).take_while(|_| !budget.is_spent()).inspect(|_| budget.spend(costly)).count();
        assert_eq!(masks, 500_usize.div_ceil(13));
        // Another sample may go on a little.
        budget.begin_sample();
        assert!(!budget.is_spent());
        (0..2).for_each(|_| budget.spend(costly));
        assert!(budget.is_spent());
        budget.spend(Work(u64::MAX));
        assert!(budget.is_spent());
        // Each mask of a model of more tokens may take more.
        let large = WorkBudget::new(1 << 18);
        (0..10_000).for_each(|_| large.spend(Work::milliseconds(2)));
        assert!(!large.is_spent());
    }
}
