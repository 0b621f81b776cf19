//! `--tensor-parallel` as a user meets it: with `--deterministic` a run leaves the same results whatever the number of
//! devices that compute its model, here of the CPU.

use crate::runs::{assert_equal_results, refuses, run, run_into, succeeds, task_folder};

const TWO: &[&str] = &["--deterministic", "--device", "cpu", "--tensor-parallel", "2"];
const FOUR: &[&str] = &["--deterministic", "--devices", "cpu,cpu,cpu,cpu", "--tensor-parallel", "4"];

#[test]
fn results_do_not_depend_on_the_number_of_devices() {
    let folder = task_folder(|_| {});
    let path = folder.path();
    run_into(path, "one", &["--limit", "3", "--deterministic", "--device", "cpu", "--tensor-parallel", "1"]);
    for (out, on) in [("two", TWO), ("four", FOUR)] {
        run_into(path, out, &[&["--limit", "3"], on].concat());
        assert_equal_results(path, "one", out);
    }
    // And a run goes on where another number has left it.
    run_into(path, "parts", &[&["--limit", "1"], TWO].concat());
    run_into(path, "parts", &[&["--limit", "3", "--resume"], FOUR].concat());
    assert_equal_results(path, "one", "parts");
}

#[test]
fn a_dry_run_has_the_memory_of_all_together() {
    let folder = task_folder(|_| {});
    let page = succeeds(run(folder.path(), &[&["run", "task.json", "--dry-run"], TWO].concat()));
    assert!(page.lines().any(|line| line.starts_with("device ") && line.contains("2 x cpu")), "{page}");
}

#[test]
fn numbers_of_devices_that_cannot_be_are_refused() {
    let folder = task_folder(|_| {});
    let refused = |more: &[&str], words: &[&str]| {
        refuses(&run(folder.path(), &[&["run", "task.json", "--device", "cpu"], more].concat()), words);
    };
    // The bundled model has four key heads.
    refused(&["--tensor-parallel", "8"], &["num_key_value_heads of layer 0", "1, 2, 4 devices do", "4"]);
    refused(&["--tensor-parallel", "3"], &["num_attention_heads of layer 0", "1, 2, 4 devices do"]);
    refused(&["--tensor-parallel", "9"], &["--tensor-parallel", "9"]);
    let listed = ["run", "task.json", "--devices", "cpu,cpu", "--tensor-parallel", "4"];
    refuses(&run(folder.path(), &listed), &["4 devices, as --tensor-parallel says", "cpu,cpu"]);
    refuses(&run(folder.path(), &["check", "--tensor-parallel", "2"]), &["--tensor-parallel", "bench workloads"]);
    refuses(&run(folder.path(), &["vote", "x", "--tensor-parallel", "2"]), &["--tensor-parallel"]);
}
