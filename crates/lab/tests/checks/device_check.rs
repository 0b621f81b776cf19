//! The suite of `offshoot-lab check` holds where it is known what it must say: on the CPU's fast paths, which other suites
//! hold against the same definition.

use offshoot_cases::{CheckEffort, ReportRow};
use offshoot_cpu::{Cpu, Isa};
use offshoot_lab::check::suite;
use serde_json::Value;

use crate::full::some_or_full;
use crate::lab::{lab, succeeds};

/// The path that `OFFSHOOT_CPU` names, or the machine's best; `.ci/run` takes `check --quick` through the others. All
/// cases are in `.ci/full`.
#[test]
fn the_chosen_path_passes() {
    let isa = Isa::chosen().unwrap();
    let print = |rows: &[ReportRow]| {
        rows.iter().for_each(|row| println!("{row}"));
        Ok(())
    };
    let report = suite(&mut Cpu::with_isa(isa), some_or_full(CheckEffort::Quick, CheckEffort::Full), print).unwrap();
    assert!(report.holds(), "{isa}");
    assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
}

fn check(args: &[&str]) -> String {
    succeeds(lab(&["check", "--device", "cpu"]).args(args))
}

#[test]
fn the_command_says_how_it_went() {
    let table = check(&["--quick"]);
    assert!(table.trim_end().ends_with("within tolerance."), "{table}");
    let lines = check(&["--quick", "--json"]);
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for op in [
        "embed",
        "linear_add",
        "sample",
        "attention tree",
        "level_lse",
        "level_mass",
        "advance",
        "forward",
        "run, given",
        "run, greedy",
        "long",
    ] {
        assert!(rows.iter().any(|row| row["op"] == op), "{op} is missing: {lines}");
        assert!(table.contains(op), "{op} is missing: {table}");
    }
    assert!(rows.iter().all(|row| row["holds"] == true), "{lines}");
}
