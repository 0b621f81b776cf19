//! The engine on a tiny random model: whatever the batch, the plan, the pool and the order of commands, the same draws.
//! Also whether engines collect each step before the next is submitted or run ahead, and, for what does not look inside
//! an engine, with three of them behind one handle: `bench::Mode`.

use offshoot_core::dice;

#[path = "../../../../tests/common/full.rs"]
mod full;

/// `in_modes! { in_turn, run_ahead: one_test, another }`: tests of these functions of a `Mode`, in a module of each
/// mode's name.
macro_rules! in_modes {
    ($($mode:ident),+: $($tests:ident),+ $(,)?) => { in_modes! { @each [$($mode)+] [$($tests)+] } };
    (@each [$($mode:ident)+] $tests:tt) => { $(in_modes! { @one $mode $tests })+ };
    (@one $mode:ident [$($test:ident)+]) => {
        mod $mode {
            $(
                #[test]
                fn $test() {
                    super::$test(crate::bench::$mode());
                }
            )+
        }
    };
}

mod ahead;
mod any;
mod bench;
mod bursts;
mod generate;
mod jobs;
mod levels;
mod pages;
mod pins;
mod plain;
mod priorities;
mod ranks;
mod requests;
mod samples;
mod scheduling;
mod scores;
mod scripts;
mod shortage;
mod states;
mod steps;
mod stops;
mod store;
mod swap;
mod waves;
mod windows;
