//! The deterministic mode on the CPU, where it is always on.

use offshoot_cases::{CheckEffort, ReportRow};
use offshoot_cpu::{Cpu, Isa};
use offshoot_lab::check::deterministic;
use serde_json::Value;

use crate::lab::{lab, refuses, succeeds};

#[test]
fn a_row_depends_on_itself_alone() {
    // The emulation is slow; `ops` and `tree_attention` compare it with the instructions.
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Portable) {
        let effort = if isa == Isa::chosen().unwrap() { CheckEffort::Full } else { CheckEffort::Quick };
        let print = |rows: &[ReportRow]| {
            rows.iter().for_each(|row| println!("{isa}: {row}"));
            Ok(())
        };
        let report = deterministic(|| Ok(Cpu::with_isa(isa)), effort, print).unwrap();
        assert!(report.holds(), "{isa}");
        for op in ["exact, attention", "alone, attention", "alone, linear", "alone, chunks", "alone, model"] {
            assert!(report.rows.iter().any(|row| row.op == op && row.cases > 0), "{isa}: no case of {op}");
        }
    }
}

#[test]
fn check_takes_its_cases_alone() {
    let lines = succeeds(&mut lab(&["check", "--deterministic", "--quick", "--json", "--device", "cpu"]));
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().any(|row| row["op"] == "alone, model"), "{lines}");
    assert!(rows.iter().all(|row| row["holds"] == true && row["op"] != "embed"), "{lines}");
    let said = refuses(&mut lab(&["check", "--deterministic", "--kernels"]));
    assert!(said.contains("--deterministic") && said.contains("--kernels"), "{said}");
}
