//! The deterministic mode on the CPU, where it is always on.

use offshoot_cases::{CheckEffort, ReportRow};
use offshoot_cpu::{Cpu, Isa};
use offshoot_cuda::discovery::probe::probe;
use offshoot_lab::check::deterministic;

use crate::full::some_or_full;
use crate::lab::{lab, refuses};
use crate::quick::has_cases_of;
use crate::skip::skipped;

const OPS: [&str; 9] = [
    "exact, attention",
    "alone, attention",
    "alone, latents",
    "alone, linear",
    "alone, add_lora",
    "alone, experts",
    "alone, chunks",
    "alone, adapters",
    "alone, model",
];

/// The quick cases of the chosen path are the command's, which must hold (`the_chosen_path_passes`). Here one of the
/// other paths is taken, all of them in `.ci/full` with all cases of the chosen one. The emulation is slow; `ops` and
/// `tree_attention` compare it with the instructions.
#[test]
fn a_row_depends_on_itself_alone() {
    has_cases_of(&OPS);
    let chosen = Isa::chosen().unwrap();
    let others = Isa::available().into_iter().filter(|isa| ![Isa::Portable, chosen].contains(isa));
    let others = others.take(some_or_full(1, usize::MAX)).map(|isa| (isa, CheckEffort::Quick));
    let all_cases = some_or_full(None, Some((chosen, CheckEffort::Full))).filter(|(isa, _)| *isa != Isa::Portable);
    for (isa, effort) in others.chain(all_cases) {
        let print = |rows: &[ReportRow]| {
            rows.iter().for_each(|row| println!("{isa}: {row}"));
            Ok(())
        };
        let report = deterministic(|| Ok(Cpu::with_isa(isa)), effort, print).unwrap();
        assert!(report.holds(), "{isa}");
        for op in OPS {
            assert!(report.rows.iter().any(|row| row.op == op && row.cases > 0), "{isa}: no case of {op}");
        }
    }
}

/// Where no device is asked for, and no GPU is there, the CPU is checked.
#[test]
fn check_takes_its_cases_alone_and_prints_a_table() {
    let has_gpu = probe().is_ok();
    let mut command = lab(&["check", "--deterministic", "--quick"]);
    if has_gpu {
        skipped("there is a GPU: the CPU is named");
        command.args(["--device", "cpu"]);
    }
    let ran = command.output().unwrap();
    let (table, said) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && (has_gpu || said.contains("CUDA cannot be used: ")), "{said}");
    let lines: Vec<&str> = table.lines().collect();
    let [device, "", head, rows @ .., "", verdict] = &lines[..] else { panic!("{table}") };
    assert!(head.starts_with("op ") && head.ends_with(" verdict"), "{table}");
    assert!(rows.iter().all(|row| row.ends_with(" ok") && !row.starts_with("embed")), "{table}");
    for op in OPS {
        assert!(rows.iter().any(|row| row.starts_with(op)), "{op} is missing: {table}");
    }
    assert!(verdict.starts_with(device) && verdict.ends_with("within tolerance."), "{table}");
    let said = refuses(&mut lab(&["check", "--deterministic", "--kernels"]));
    assert!(said.contains("--deterministic") && said.contains("--kernels"), "{said}");
}
