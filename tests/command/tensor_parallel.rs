//! `--tensor-parallel` as a user meets it: a run leaves the same results whatever the number of devices that compute
//! its model. Here these are CPUs, which add up alike with and without `--deterministic`.

use crate::runs::{assert_equal_results, refuses, run, run_into, succeeds, task_folder};

const TWO: &[&str] = &["--device", "cpu", "--tensor-parallel", "2"];
/// Each of its key heads is on two of them.
const EIGHT: &[&str] = &["--device", "cpu", "--tensor-parallel", "8"];
const FOUR: &[&str] = &["--deterministic", "--devices", "cpu,cpu,cpu,cpu", "--tensor-parallel", "4"];

#[test]
fn results_do_not_depend_on_the_number_of_devices() {
    let folder = task_folder(|_| {});
    let path = folder.path();
    run_into(path, "one", &["--limit", "2", "--deterministic", "--device", "cpu", "--tensor-parallel", "1"]);
    for (out, on) in [("two", TWO), ("four", FOUR), ("eight", EIGHT)] {
        run_into(path, out, &[&["--limit", "2"], on].concat());
        assert_equal_results(path, "one", out);
    }
    // And a run goes on where another number has left it.
    run_into(path, "parts", &[&["--limit", "1"], TWO].concat());
    run_into(path, "parts", &[&["--limit", "2", "--resume"], FOUR].concat());
    assert_equal_results(path, "one", "parts");
}

#[test]
fn a_dry_run_has_the_memory_of_all_together() {
    let folder = task_folder(|_| {});
    let page = succeeds(run(folder.path(), &[&["run", "task.json", "--dry-run"], TWO].concat()));
    let device = page.lines().find(|line| line.starts_with("device ")).expect("the devices");
    assert!(device.contains("2 x cpu") && device.contains("weights") && device.contains("on each"), "{device}");
    // Two devices of eight have each key head: its positions are not divided where bits are those of any number.
    let kv = |more: &[&str]| {
        let page = succeeds(run(folder.path(), &[&["run", "task.json", "--dry-run"], more].concat()));
        page.lines().find(|line| line.starts_with("kv ")).expect("keys and values").to_owned()
    };
    let (two, copied) = (kv(TWO), kv(EIGHT));
    let a_token = |line: &str| line.split(" a token").next().expect("a beginning").to_owned();
    assert!(copied.contains("a token in 2 copies") && a_token(&copied) != a_token(&two), "{copied}");
}

#[test]
fn a_plan_has_the_memory_of_each_device_and_opens_none() {
    let folder = task_folder(|_| {});
    let plan = |more: &[&str]| {
        let args = [&["plan", "task.json", "--json", "--predict", "never"], more].concat();
        serde_json::from_str::<serde_json::Value>(&succeeds(run(folder.path(), &args))).expect("one object")
    };
    let (one, two) = (plan(&[]), plan(&["--tensor-parallel", "2", "--devices", "cuda:0,cuda:1"]));
    assert!(one.get("ranks").is_none(), "{one}");
    let of = |plan: &serde_json::Value, group: &str, field: &str| plan[group][field].as_u64().expect("bytes");
    let (weights, each) = (of(&one, "model", "weight_bytes"), of(&two, "ranks", "weight_bytes"));
    let undivided = of(&two, "ranks", "undivided_bytes");
    assert!(undivided > 0 && each == (weights + undivided) / 2, "{each} of {weights}");
    assert_eq!(2 * of(&two, "ranks", "kv_bytes_per_token"), of(&one, "model", "kv_bytes_per_token"));
    // It has four key heads, whose positions GPUs divide, in pages of twice as many tokens; CPUs have copies.
    for (profile, members, copies) in [("h200", 2, 1), ("cpu", 1, 2)] {
        let plan = |more: &[&str]| plan(&[&["--device-profile", profile], more].concat());
        let (one, eight) = (plan(&[]), plan(&["--tensor-parallel", "8"]));
        let of_eight = |field: &str| of(&eight, "ranks", field);
        assert_eq!(8 * of_eight("kv_bytes_per_token"), copies * of(&one, "model", "kv_bytes_per_token"));
        assert_eq!(of(&eight, "model", "kv_bytes_per_token"), copies * of(&one, "model", "kv_bytes_per_token"));
        assert_eq!((of_eight("position_members"), of_eight("kv_copies")), (members, copies));
    }
    let text = succeeds(run(folder.path(), &["plan", "task.json", "--tensor-parallel", "4"]));
    assert!(text.lines().any(|line| line.starts_with("each device") && line.contains("of 4: ")), "{text}");
    assert!(!text.contains("takes no time"), "{text}");
}

#[test]
fn numbers_of_devices_that_cannot_be_are_refused() {
    let folder = task_folder(|_| {});
    let refused = |more: &[&str], words: &[&str]| {
        refuses(&run(folder.path(), &[&["run", "task.json", "--device", "cpu"], more].concat()), words);
    };
    refused(&["--tensor-parallel", "3"], &["num_attention_heads of layer 0", "1, 2, 4, 8 devices do"]);
    refused(&["--tensor-parallel", "9"], &["--tensor-parallel", "9"]);
    let listed = ["run", "task.json", "--devices", "cpu,cpu", "--tensor-parallel", "4"];
    refuses(&run(folder.path(), &listed), &["4 devices, as --tensor-parallel says", "cpu,cpu"]);
    let checked = ["check", "--model", "x", "--tensor-parallel", "2"];
    refuses(&run(folder.path(), &checked), &["--tensor-parallel", "batch, serve"]);
    refuses(&run(folder.path(), &["vote", "x", "--tensor-parallel", "2"]), &["--tensor-parallel"]);
}
