//! Tasks of tree attention: which rows and sections each has.

use offshoot_backend::HeadLayout;
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
        let heads = HeadLayout::new(kv_heads * group, kv_heads, 64);
        let tasks = HeadTasks::new(threads, heads, rows, sections.clone(), rows_per_call);
        let mut counts = vec![0; rows * kv_heads * sections.len()];
        for task in (0..tasks.count()).map(|task| tasks.get(task)) {
            assert_eq!(task.shares, task.sections != sections, "{task:?}");
            for (row, section) in task.rows.clone().flat_map(|row| task.sections.clone().map(move |s| (row, s))) {
                counts[(row * kv_heads + task.kv_head) * sections.len() + (section - sections.start) as usize] += 1;
            }
        }
        assert!(counts.iter().all(|&count| count == 1), "{threads} threads, {heads:?}, {rows} rows, {sections:?}");
        assert!(tasks.count() >= threads.min(kv_heads * sections.len()), "{} tasks", tasks.count());
        for row in 0..rows {
            let of_row: Vec<HeadTask> = tasks.of_row(row, kv_heads - 1).map(|task| tasks.get(task)).collect();
            assert!(of_row.iter().all(|task| task.rows.contains(&row) && task.kv_head == kv_heads - 1));
            assert!(of_row.is_sorted_by_key(|task| task.sections.start), "{of_row:?}");
        }
    }
}
