//! What masks may take. A step's work in one state is bounded by llguidance's limits ([`limits`]), and the work of all
//! states of a form by its [`WorkBudget`], so that no form slows the steps of others for long. Work is counted in
//! units that depend on the form and on what it has met. Grammars that are very ambiguous take much time with few
//! units: there CPU time counts.

use std::sync::atomic::{AtomicI64, Ordering};

use std::time::Duration;

use llguidance::api::ParserLimits;
use llguidance::earley::ParserStats;

/// What a grammar, and each step in it, may take. The numbers are llguidance's units of work: about 14,000 of the
/// lexer, or 20,000 items of the parser, take a millisecond.
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

    /// What a parser did between two of its counts, but for its lexer.
    pub fn between(before: &ParserStats, after: &ParserStats) -> Work {
        /// An item of the parser, and a node of the trie of tokens that is walked.
        const ITEM: u64 = 50;
        const NODE: u64 = 6;
        let items = after.all_items.saturating_sub(before.all_items) as u64;
        let nodes = after.trie_nodes_walked.saturating_sub(before.trie_nodes_walked) as u64;
        Work(ITEM * items + NODE * nodes)
    }

    /// The most that a mask may take.
    pub fn of_a_step() -> Work {
        let ParserLimits { step_lexer_fuel, step_max_items, .. } = limits();
        let stats = ParserStats { all_items: step_max_items, ..ParserStats::default() };
        Work::between(&ParserStats::default(), &stats).plus(Work::of_fuel(step_lexer_fuel))
    }

    /// What a lexer did that spent so much fuel.
    pub fn of_fuel(fuel: u64) -> Work {
        const FUEL: u64 = 70;
        Work(FUEL * fuel)
    }

    /// The least work that takes this CPU time: on any machine less than what usual work of that time is counted as.
    pub fn least_in(time: Duration) -> Work {
        const SLOWEST: u64 = 4;
        Work(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) / SLOWEST)
    }

    pub fn plus(self, other: Work) -> Work {
        Work(self.0 + other.0)
    }
}

/// The work that the masks of a form may still take. A new form has a store; each sample that begins in it and each
/// mask add to it, up to that much again, so that a form whose masks take about what others' do never runs out.
#[derive(Debug)]
pub(crate) struct WorkBudget {
    /// May go below zero by what is computed at once.
    left: AtomicI64,
}

impl WorkBudget {
    /// The store.
    const MOST: Work = Work::milliseconds(500);
    const OF_A_SAMPLE: Work = Work::milliseconds(20);
    const OF_A_MASK: Work = Work::milliseconds(1);

    pub fn new() -> WorkBudget {
        WorkBudget { left: AtomicI64::new(WorkBudget::MOST.0 as i64) }
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
        self.add(WorkBudget::OF_A_MASK.0 as i64 - i64::try_from(work.0).unwrap_or(i64::MAX));
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
        let budget = WorkBudget::new();
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
    }
}
