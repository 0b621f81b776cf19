//! The suite of `offshoot check` holds where it is known what it must say: on the CPU's fast paths, which other suites hold
//! against the same definition.

use offshoot::backend::cpu::{Cpu, Isa};
use offshoot::check::{Effort, suite};

#[test]
fn the_fast_paths_pass() {
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Clear) {
        let effort = if isa == Isa::detect() { Effort::Full } else { Effort::Quick };
        let print = |rows: &[offshoot::check::Row]| {
            rows.iter().for_each(|row| println!("{row}"));
            Ok(())
        };
        let report = suite(&mut Cpu::with_isa(isa), effort, print).unwrap();
        assert!(report.holds(), "{isa}");
        assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
    }
}
