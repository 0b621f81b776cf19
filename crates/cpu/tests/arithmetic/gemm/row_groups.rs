//! How rows are divided into groups.

use offshoot_cpu::gemm::row_groups::{groups, unit_groups};

/// A group of fewer rows than a unit has all rows: kernels of tiles rely on it.
#[test]
fn groups_of_units_cover_all_rows_and_only_a_pass_of_fewer_has_less_than_one() {
    for (rows, most, unit) in (1..300).flat_map(|rows| [(rows, 32, 16), (rows, 12, 4)]) {
        let mut next = 0;
        for group in unit_groups(rows, most, unit) {
            assert_eq!((group.first, group.first % unit), (next, 0));
            assert!((1..=most).contains(&group.rows) && (group.rows >= unit || group.rows == rows), "{group:?}");
            next += group.rows;
        }
        assert_eq!(next, rows);
    }
}

#[test]
fn groups_cover_all_rows_and_differ_by_one_row_at_most() {
    for rows in 0..100 {
        let mut next = 0;
        for group in groups(rows, 14) {
            assert_eq!(group.first, next);
            assert!(group.rows <= 14 && group.rows >= rows / rows.div_ceil(14));
            next += group.rows;
        }
        assert_eq!(next, rows);
    }
}
