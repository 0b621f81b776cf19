//! The list of cases for the ops of every backend, on every code path of the CPU: each op compared with the clear loops,
//! and those with f64.

use offshoot_cases::{CheckEffort, CheckReport, ReportRow, ops};
use offshoot_cpu::{Cpu, Isa};

#[test]
fn every_path_computes_what_the_definitions_say() {
    for isa in Isa::available() {
        let mut report = CheckReport::default();
        let print = |rows: &[ReportRow]| {
            rows.iter().for_each(|row| println!("{isa}: {row}"));
            Ok(())
        };
        // `quantised_products` takes codes of all shapes through every path.
        let effort = (CheckEffort::Full, CheckEffort::Quick);
        ops(&mut Cpu::with_isa(isa), &mut Cpu::with_isa(Isa::Portable), effort, &mut report, print).unwrap();
        assert!(report.holds(), "{isa}");
        assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
    }
}
