//! Random cases.

use proptest::prelude::{ProptestConfig, Strategy};
use proptest::test_runner::{TestCaseResult, TestRunner};

use crate::full::some_or_full;

/// Tries `test` on random values, and says which one fails.
pub fn for_any<S: Strategy>(values: S, test: impl Fn(S::Value) -> TestCaseResult) {
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(some_or_full(20, 60)) };
    TestRunner::new(config).run(&values, test).unwrap_or_else(|failure| panic!("{failure}"));
}
