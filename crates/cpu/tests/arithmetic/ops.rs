//! The list of cases that `offshoot check` runs on any device, on every code path of the CPU: each op compared with the
//! clear loops, and those with f64.

use offshoot_cpu::{Cpu, Isa};
use offshoot_lab::check::{CheckEffort, CheckReport, ReportRow, ops};

#[test]
fn every_path_computes_what_the_definitions_say() {
    for isa in Isa::available() {
        let mut report = CheckReport::default();
        let print = |rows: &[ReportRow]| {
            rows.iter().for_each(|row| println!("{isa}: {row}"));
            Ok(())
        };
        // `quantised_products` takes codes of all shapes through every path.
        ops(&mut Cpu::with_isa(isa), (CheckEffort::Full, CheckEffort::Quick), &mut report, print).unwrap();
        assert!(report.holds(), "{isa}");
        assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
    }
}
