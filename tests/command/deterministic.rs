//! The deterministic mode on the CPU, where it is always on: runs of the bundled demo with other planners and with
//! interruptions.

use std::fs;

use offshoot_cpu::Isa;
use offshoot_cpu::attention::SECTION;
use serde_json::{Value, json};

use crate::runs;
use runs::{assert_equal_results, bytes, offshoot, run_into, task_folder};

#[test]
fn runs_do_not_depend_on_plans_or_interruptions() {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(20));
    let folder = folder.path();
    run_into(folder, "usual", &["--deterministic"]);
    run_into(folder, "flat", &["--deterministic", "--plan", "flat", "--max-branches", "3"]);
    run_into(folder, "without", &[]);
    assert_equal_results(folder, "usual", "flat");
    assert_equal_results(folder, "usual", "without");

    // Half of the samples, then the rest.
    run_into(folder, "resumed", &["--deterministic", "--limit", "3", "--samples", "2"]);
    run_into(folder, "resumed", &["--deterministic", "--resume"]);
    assert_equal_results(folder, "usual", "resumed");
}

/// The stderr of `--resume` for a run whose manifest was edited so that its last process has these fields.
fn resumed_after(fields: Value, options: &[&str]) -> String {
    let folder = task_folder(|task| task["sampling"]["max_tokens"] = json!(4));
    let folder = folder.path();
    run_into(folder, "out", &["--limit", "1"]);
    let mut manifest: Value = serde_json::from_slice(&bytes(folder, "out", "manifest.json")).unwrap();
    let process = manifest["processes"][0].as_object_mut().unwrap();
    assert_eq!(process["exact"], true);
    assert_eq!(process["arithmetic"], format!("cpu, {}, sections of {SECTION}", Isa::chosen().unwrap()));
    process.extend(fields.as_object().unwrap().clone());
    fs::write(folder.join("out/manifest.json"), manifest.to_string()).unwrap();
    let arguments = [&["run", "task.json", "--out", "out", "--resume", "--device", "cpu"], options].concat();
    let ran = offshoot(folder, &arguments).output().unwrap();
    assert!(ran.status.success());
    String::from_utf8(ran.stderr).unwrap()
}

#[test]
fn a_resume_says_where_samples_may_differ() {
    assert!(!resumed_after(json!({}), &[]).contains("may differ"));
    assert!(!resumed_after(json!({"device": "cpu, as it was"}), &["--deterministic"]).contains("may differ"));
    let threads = format!("cpu, {}, 99 threads", Isa::chosen().unwrap());
    assert!(!resumed_after(json!({"device": threads}), &[]).contains("may differ"));
    let gpu = |exact: bool| json!({"device": "a GPU", "exact": exact, "arithmetic": "a GPU"});
    for other in [gpu(true), gpu(false)] {
        let said = resumed_after(other.clone(), &[]);
        assert!(said.contains("started on a GPU") && said.contains("samples may differ"), "{other}: {said}");
    }
    let said = resumed_after(json!({"exact": false}), &[]);
    assert!(
        said.contains("--deterministic") && said.contains("--latent-copies") && said.contains("samples may differ"),
        "{said}"
    );
}
