//! The list of cases for the ops of every backend, on every code path of the CPU: each op compared with the clear
//! loops, and those with f64.

use offshoot_cases::{CheckEffort, CheckReport, levels, ops};
use offshoot_core::Result;
use offshoot_cpu::{Cpu, Isa};

/// Asserts that the cases hold on every path.
fn hold(cases: impl Fn(&mut Cpu, &mut CheckReport) -> Result<()>) {
    for isa in Isa::available() {
        let mut report = CheckReport::default();
        cases(&mut Cpu::with_isa(isa), &mut report).unwrap();
        report.rows.iter().for_each(|row| println!("{isa}: {row}"));
        assert!(report.holds(), "{isa}");
        assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
    }
}

#[test]
fn every_path_computes_what_the_definitions_say() {
    // `quantised_products` takes codes of all shapes through every path.
    let effort = (CheckEffort::Full, CheckEffort::Quick);
    hold(|cpu, report| ops(cpu, &mut Cpu::with_isa(Isa::Portable), effort, report, |_| Ok(())));
}

#[test]
fn every_path_attributes_attention_to_its_levels() {
    hold(|cpu, report| levels(cpu, CheckEffort::Full, report));
}
