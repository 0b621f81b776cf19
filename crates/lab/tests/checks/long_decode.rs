//! The long decode of `offshoot-lab check` on the CPU: the engine's default planner with advanced steps gives the same
//! bits as flat plans that are made anew at every step.

use crate::quick::rows;

#[test]
fn the_cpu_agrees_with_itself_to_the_last_bit() {
    let long = rows().iter().filter(|row| row["op"].as_str().is_some_and(|op| op.starts_with("long")));
    let long: Vec<_> = long.collect();
    let ops: Vec<_> =
        long.iter().map(|row| (row["op"].as_str(), row["cases"].as_u64(), row["error"].as_f64())).collect();
    assert_eq!(ops, [(Some("long"), Some(1), Some(0.0)), (Some("long, mean"), Some(1), Some(0.0))]);
    let note = long[0]["notes"][0].as_str().unwrap();
    assert!(note.contains(" pages turned") && !note.contains(" 0 pages turned"), "{note}");
}
