//! What `offshoot-lab` refuses: values, options that a command would ignore, devices that are not there; and that the
//! commands that documents show are none of it.

use std::path::Path;

use clap::Parser;
use offshoot_cpu::Isa;
use offshoot_lab::command::Lab;

use crate::lab::{lab, refuses, succeeds};

/// Asserts that the command is refused with all of `words`.
#[track_caller]
fn refused(arguments: &[&str], words: &[&str]) {
    let said = refuses(&mut lab(arguments));
    for word in words {
        assert!(said.contains(word), "`{word}` is not in: {said}");
    }
}

#[test]
fn a_value_that_an_option_does_not_take_is_one_sentence_with_what_it_takes() {
    let batches = ["bench", "batches", "--shape", "s", "--table", "rate", "--span", "-1"];
    let span = "offshoot-lab: --span: expected a number of seconds above 0, at most 3600, found -1";
    refused(&batches, &[span]);
    let workloads = ["bench", "workloads", "--shape", "s", "--step-rows", "0"];
    refused(&workloads, &["offshoot-lab: --step-rows: expected a whole number from 1 up, found 0"]);
    refused(&["bench", "allreduce", "--bytes", "8X"], &["8X", "64M"]);
    refused(&["bench", "decode", "--config", "tasks/models/demo", "--dtype", "f32"], &["--dtype", "--random-weights"]);
}

#[test]
fn what_a_command_would_have_to_ignore_it_refuses() {
    for what in ["--kernels", "--paths"] {
        for [option, value] in [["--device", "cuda"], ["--threads", "2"]] {
            refused(&["check", what, option, value], &["expected no such option with --kernels", option, value]);
        }
    }
    for command in [&["check"][..], &["bench", "machine"]] {
        let with = |options: &[&'static str]| [command, options].concat();
        refused(&with(&["--devices", "cpu,cpu"]), &["--devices", "bench workloads", "cpu,cpu"]);
        refused(&with(&["--tensor-parallel", "2"]), &["--tensor-parallel", "bench workloads"]);
    }
}

#[test]
fn the_path_of_arithmetic_is_the_environment_s_where_the_processor_has_it() {
    let listed = succeeds(&mut lab(&["check", "--paths"]));
    let paths: Vec<&str> = listed.lines().collect();
    assert_eq!(paths, Isa::available().iter().map(|isa| isa.name()).collect::<Vec<_>>());
    assert_eq!(paths.first(), Some(&"portable"));
    for command in [&["check", "--device", "cpu"][..], &["bench", "machine"]] {
        let said = refuses(lab(command).env(Isa::VARIABLE, "avx9"));
        assert!(said.contains(Isa::VARIABLE) && said.contains("avx9") && said.contains(&paths.join(", ")), "{said}");
    }
}

#[test]
fn a_gpu_that_is_asked_for_and_not_there_is_one_sentence() {
    let commands: [&[&str]; 4] = [
        &["check", "--device", "cuda:1"],
        &["bench", "decode", "--config", "tasks/models/demo", "--device", "cuda:1"],
        &["bench", "gemm", "--shape", "llama-134m", "--device", "cuda:1"],
        &["bench", "attention", "--trees", "benches/trees-134m.jsonl", "--device", "cuda:1"],
    ];
    for command in commands {
        refused(command, &["cuda:1 cannot be used: "]);
    }
    refused(&["bench", "machine", "--device", "cuda:1"], &["--device", "cpu", "cuda:1"]);
    refused(&["bench", "allreduce", "--devices", "cpu,cpu"], &["--devices", "GPUs", "cpu"]);
}

/// Lines that begin with one, and those in the table of benches.
#[test]
fn commands_of_the_documents_are_known() {
    let mut checked = 0;
    for document in ["CONTRIBUTING.md", "docs/gpus.md", "docs/performance.md", "benches/README.md"] {
        let text = std::fs::read_to_string(Path::new(offshoot_fixtures::REPOSITORY).join(document)).unwrap();
        let is_table = document.starts_with("benches");
        let spans = text.split('`').filter(|_| is_table);
        for command in text.lines().chain(spans).filter(|command| command.starts_with("offshoot-lab ")) {
            checked += 1;
            let words = command.split('#').next().unwrap_or_default().split_whitespace();
            if let Err(error) = Lab::try_parse_from(words) {
                panic!("{document}: {command}\n{error}");
            }
        }
    }
    assert!(checked > 15, "only {checked} commands were found: the scan no longer reads what it should");
}
