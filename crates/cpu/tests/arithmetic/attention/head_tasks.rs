//! Tasks of tree attention: which rows and sections each has.

use std::ops::Range;

use offshoot_backend::{HeadLayout, Values};
use offshoot_cpu::attention::head_tasks::{HeadTask, HeadTasks};
use offshoot_cpu::attention::lanes::{MOST_ROWS, VECTOR_ROWS};

#[test]
fn every_row_and_section_has_one_task_and_few_rows_of_few_heads_have_a_task_for_each_thread() {
    let cases = [
        (1, 1, 1, 1, 0..1),
        (8, 1, 8, 1, 2..11),
        (2, 3, 1, 1, 0..3),
        (2, 12, 1, 32, 0..3),
        (8, 2, 4, 900, 1..6),
        (8, 1, 8, 20, 0..4),
    ];
    let cases =
        [VECTOR_ROWS, MOST_ROWS].into_iter().flat_map(|rows_per_call| cases.clone().map(|c| (c, rows_per_call)));
    for ((threads, kv_heads, group, rows, sections), rows_per_call) in cases {
        let beside = HeadLayout::new(kv_heads * group, kv_heads, 64);
        let in_keys = HeadLayout { head_dim: 576, values: Values::InKeys(512), ..beside };
        for heads in [beside, in_keys] {
            have_all(threads, heads, rows, sections.clone(), rows_per_call);
        }
    }
}

fn have_all(threads: usize, heads: HeadLayout, rows: usize, sections: Range<u32>, rows_per_call: usize) {
    let HeadLayout { q_heads, kv_heads, .. } = heads;
    let tasks = HeadTasks::new(threads, heads, rows, sections.clone(), rows_per_call);
    let mut counts = vec![0; rows * q_heads * sections.len()];
    for task in (0..tasks.count()).map(|task| tasks.get(task)) {
        assert_eq!(task.shares, task.sections != sections, "{task:?}");
        assert!(task.heads.clone().all(|head| head / heads.group() == task.kv_head), "{task:?}");
        for (row, head) in task.rows.clone().flat_map(|row| task.heads.clone().map(move |head| (row, head))) {
            for section in task.sections.clone() {
                counts[(row * q_heads + head) * sections.len() + (section - sections.start) as usize] += 1;
            }
        }
    }
    assert!(counts.iter().all(|&count| count == 1), "{threads} threads, {heads:?}, {rows} rows, {sections:?}");
    assert!(tasks.count() >= threads.min(kv_heads * sections.len()), "{} tasks", tasks.count());
    for (row, share) in (0..rows).flat_map(|row| (0..tasks.head_shares()).map(move |share| (row, share))) {
        let of_row: Vec<HeadTask> = tasks.of_row(row, share).map(|task| tasks.get(task)).collect();
        assert!(of_row.iter().all(|task| task.rows.contains(&row) && task.heads == tasks.heads(share)));
        assert!(of_row.is_sorted_by_key(|task| task.sections.start), "{of_row:?}");
    }
}

#[test]
fn query_heads_of_one_key_head_are_divided_where_threads_have_too_few_tasks_or_states_are_many() {
    let heads =
        |q_heads| HeadLayout { q_heads, kv_heads: 1, head_dim: 576, values: Values::InKeys(512), expanded: false };
    let tasks = |threads, q_heads, rows| HeadTasks::new(threads, heads(q_heads), rows, 0..1, VECTOR_ROWS);
    assert_eq!(tasks(1, 128, 1).head_shares(), 1);
    assert_eq!(tasks(4, 128, 1).head_shares(), 4);
    assert_eq!(tasks(2, 512, 1).get(0).heads, 0..256, "half a MiB of states");
    let many = tasks(1, 128, 40);
    assert!((0..many.count()).all(|task| many.get(task).rows.len() <= 2));
    // No thread has more rows than another.
    let even = tasks(2, 12, 32);
    assert_eq!((0..even.count()).map(|task| even.get(task).rows).collect::<Vec<_>>(), [16..32, 0..16]);
}
