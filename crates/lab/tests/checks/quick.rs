//! The quick cases of `offshoot-lab check` on the CPU's chosen path, which the command computes once for all tests
//! here; its rows are read from its JSON lines.

use std::sync::LazyLock;

use serde_json::Value;

use crate::lab::{lab, succeeds};

static ROWS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let lines = succeeds(&mut lab(&["check", "--quick", "--json", "--device", "cpu"]));
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
});

/// All rows, in the order of the suite.
pub fn rows() -> &'static [Value] {
    &ROWS
}

/// Asserts that each of these ops has a row with cases.
#[track_caller]
pub fn has_cases_of(ops: &[&str]) {
    for op in ops {
        let of_op = |row: &&Value| row["op"] == *op && row["cases"].as_u64() > Some(0);
        assert!(rows().iter().any(|row| of_op(&row)), "no case of {op}: {:#?}", rows());
    }
}
