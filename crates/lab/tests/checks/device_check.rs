//! The suite of `offshoot-lab check` holds where it is known what it must say: on the CPU's fast paths, which other
//! suites hold against the same definition.

use offshoot_cases::{CheckEffort, ReportRow};
use offshoot_cpu::{Cpu, Isa};
use offshoot_lab::check::suite;

use crate::full::some_or_full;
use crate::quick::{has_cases_of, rows};

/// The path that `OFFSHOOT_CPU` names, or the machine's best; `.ci/run` takes `check --quick` through the others. All
/// cases are in `.ci/full`.
#[test]
fn the_chosen_path_passes() {
    has_cases_of(&["embed", "linear_add", "sample", "attention tree", "level_lse", "level_mass", "advance", "forward"]);
    has_cases_of(&["add_lora", "forward, adapters", "keep_routes", "expert_linear"]);
    has_cases_of(&["prepare_latents", "absorb_queries", "map_values", "expand_latents", "merge_attended"]);
    has_cases_of(&["latents absorbed", "latents expanded", "latents mixed"]);
    has_cases_of(&["record", "re-score", "late", "run, late", "run, given", "run, greedy", "long"]);
    for row in rows() {
        assert!(row["holds"] == true && row["cases"].as_u64() > Some(0), "{row:#}");
    }
    if some_or_full(false, true) {
        let isa = Isa::chosen().unwrap();
        let print = |rows: &[ReportRow]| {
            rows.iter().for_each(|row| println!("{row}"));
            Ok(())
        };
        let report = suite(&mut Cpu::with_isa(isa), CheckEffort::Full, print).unwrap();
        assert!(report.holds(), "{isa}");
        assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
    }
}
