//! What `check --model --forks` does, on a small model with recurrent layers.

#[allow(dead_code, unused_macros, reason = "the engine's suite uses more of it")]
#[path = "../../../engine/tests/engine/bench.rs"]
mod bench;

use bench::{Shape, decoder};
use offshoot_backend::StateDtype;
use offshoot_inspect::forks;

/// Scores and draws, while branches are preempted, swapped and computed again.
#[test]
fn forks_are_told_the_same_wherever_their_states_have_been() {
    let mut seen = (0, 0);
    for states in StateDtype::ALL {
        let (backend, mut decoder) = decoder(Shape::Hybrid);
        decoder.set_state_dtype(states);
        let report = forks(decoder.on(backend), 150, 1, false).unwrap();
        assert!(report.passes(), "{states} states: {report}");
        seen = (seen.0 + report.swapped, seen.1 + report.recomputed);
    }
    assert!(seen.0 > 0 && seen.1 > 0, "{seen:?} came back and were computed again");
}
