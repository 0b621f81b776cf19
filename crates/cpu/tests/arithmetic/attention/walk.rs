//! Where a sink is counted.

use offshoot_cpu::attention::walk::section_of_sink;

#[test]
fn a_sink_is_in_a_section_that_some_task_has() {
    let found = [0, 2, 3, 4, 9].map(|first| section_of_sink(first, &(2..4)));
    assert_eq!(found, [2, 2, 3, 3, 3]);
}
