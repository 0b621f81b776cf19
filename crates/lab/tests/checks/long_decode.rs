//! The long decode of `offshoot-lab check` on the CPU: the engine's default planner with advanced steps gives the same bits
//! as flat plans that are made anew at every step.

use offshoot_cases::{CheckEffort, CheckReport};
use offshoot_cpu::Cpu;
use offshoot_lab::check::long;

#[test]
fn the_cpu_agrees_with_itself_to_the_last_bit() {
    let mut report = CheckReport::default();
    long(Cpu::open, CheckEffort::Quick, &mut report).unwrap();
    report.rows.iter().for_each(|row| println!("{row}"));
    assert!(report.holds());
    let ops: Vec<_> = report.rows.iter().map(|row| (row.op, row.cases, row.error)).collect();
    assert_eq!(ops, [("long", 1, 0.0), ("long, mean", 1, 0.0)]);
    let note = &report.rows[0].notes[0];
    assert!(note.contains(" pages turned") && !note.contains(" 0 pages turned"), "{note}");
}
