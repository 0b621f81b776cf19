//! The list of cases for the ops of every backend, on every code path of the CPU: each op compared with the clear
//! loops, and those with f64.

use offshoot_cases::{CheckEffort, CheckReport, latents, levels, ops};
use offshoot_core::Result;
use offshoot_cpu::{Cpu, Isa};

use crate::full::some_or_full;

/// Asserts that the cases hold on every path: all of them on the one that is chosen here, on others few in CI.
fn hold(cases: impl Fn(&mut Cpu, CheckEffort, &mut CheckReport) -> Result<()>) {
    let chosen = Isa::chosen().unwrap();
    for isa in Isa::available() {
        let mut report = CheckReport::default();
        let of_others = some_or_full(CheckEffort::Quick, CheckEffort::Full);
        let effort = if isa == chosen { CheckEffort::Full } else { of_others };
        cases(&mut Cpu::with_isa(isa), effort, &mut report).unwrap();
        report.rows.iter().for_each(|row| println!("{isa}: {row}"));
        assert!(report.holds(), "{isa}");
        assert!(report.rows.iter().all(|row| row.cases > 0), "{isa}");
    }
}

#[test]
fn every_path_computes_what_the_definitions_say() {
    // `quantised_products` takes codes of all shapes through every path.
    let of_codes = CheckEffort::Quick;
    hold(|cpu, effort, report| ops(cpu, &mut Cpu::with_isa(Isa::Portable), (effort, of_codes), report, |_| Ok(())));
}

#[test]
fn every_path_attributes_attention_to_its_levels() {
    hold(levels);
}

/// The quick cases in CI: larger ones take minutes by the clear loops.
#[test]
fn every_path_computes_latent_attention_in_both_forms() {
    let most = some_or_full(CheckEffort::Quick, CheckEffort::Full);
    hold(|cpu, effort, report| latents(cpu, if effort == CheckEffort::Full { most } else { effort }, report));
}
