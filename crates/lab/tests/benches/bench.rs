//! Runs `offshoot-lab bench` on small inputs and checks the numbers it prints.

use std::path::Path;

use offshoot_backend::Dtype;
use offshoot_cases::setting::tolerance;
use offshoot_cpu::Isa;
use serde_json::{Value, json};

use crate::full::some_or_full;
use crate::lab::{lab, refuses, succeeds};

/// Runs `offshoot-lab bench` on the code path that the environment selects, and parses its JSON lines.
fn bench(args: &[&str]) -> Vec<Value> {
    bench_by(Isa::chosen().unwrap(), args)
}

fn bench_by(isa: Isa, args: &[&str]) -> Vec<Value> {
    lines(&succeeds(lab(&["bench", "--device", "cpu"]).env(Isa::VARIABLE, isa.name()).args(args)))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("{field} of {line}"))
}

#[test]
fn delta_rule_layers_are_timed_beside_the_time_of_their_states() {
    let rates = ["--floor-bandwidth", "1e9", "--floor-flops", "1e12"];
    let steps = ["--branches", "1,2", "--prompts", "2x5"];
    let lines = bench(&[&["delta-rule", "--json"], &steps[..], &rates[..]].concat());
    let ops = ["causal_conv", "state_update", "gated_norm", "layer"];
    let expected: Vec<_> = [(1, 1), (2, 1), (2, 5)].into_iter().flat_map(|step| ops.map(|op| (step, op))).collect();
    assert_eq!(lines.len(), expected.len());
    for (line, ((sequences, tokens), op)) in lines.iter().zip(expected) {
        assert_eq!((&line["op"], &line["sequences"], &line["tokens"]), (&op.into(), &sequences.into(), &tokens.into()));
        assert_eq!(line["count"], 24, "{line}");
        assert!(number(line, "us") > 0.0, "{line}");
        // 32 matrices of 128 x 128 and four inputs of 8,192 channels, read and written, at a byte a nanosecond.
        let state = 4.0 * f64::from(32 * 128 * 128 + 4 * 8192);
        let floor = 2.0 * state / 1e3 * f64::from(sequences);
        assert!(op != "layer" || (number(line, "floor_us") - floor).abs() < 0.006, "{line}, not {floor}");
    }
}

#[test]
fn ops_of_latents_are_timed_beside_what_they_must_read() {
    let rates = ["--floor-bandwidth", "1e9", "--floor-flops", "1e15"];
    let sizes = ["--shape", "minicpm3", "--rows", "1,3", "--tokens", "32"];
    let lines = bench(&[&["latents", "--json"], &sizes[..], &rates[..]].concat());
    let ops = ["prepare_latents", "absorb_queries", "map_values", "merge_attended"];
    let expected: Vec<_> = [1, 3].into_iter().flat_map(|rows| ops.map(|op| (op, rows))).collect();
    let expected = [expected, vec![("expand_latents", 32)]].concat();
    assert_eq!(lines.len(), expected.len());
    for (line, (op, rows)) in lines.iter().zip(expected) {
        assert_eq!((&line["op"], &line["rows"]), (&op.into(), &rows.into()));
        assert!(number(line, "us") > 0.0, "{line}");
        // 40 maps of 64 x 256 in bf16, at a byte a nanosecond, and what is not rotated of a row's queries in both
        // forms.
        let floor = 2.0 * (40.0 * 64.0 * 256.0 + f64::from(rows) * 40.0 * (64.0 + 256.0)) / 1e3;
        assert!(op != "absorb_queries" || (number(line, "floor_us") - floor).abs() < 0.006, "{line}, not {floor}");
    }
}

#[test]
fn trees_of_every_form_are_timed_and_correct() {
    let folder = tempfile::tempdir().unwrap();
    let trees = concat!(
        r#"{"name": "levels", "q_heads": 8, "kv_heads": 2, "head_dim": 64, "dtype": "bf16", "leaves": 32, "#,
        r#""levels": [[500, 32], [64, 8], [33, 1]]}
{"name": "shared", "q_heads": 4, "kv_heads": 4, "head_dim": 64, "dtype": "f16", "leaves": 32, "levels": [[512, 32]]}
{"name": "alone", "q_heads": 4, "kv_heads": 4, "head_dim": 64, "dtype": "f32", "leaves": 8, "levels": [[512, 1]]}
{"name": "ragged", "q_heads": 4, "kv_heads": 2, "head_dim": 128, "dtype": "bf16", "parents": [-1, 0, 0, 1, 1], "#,
        r#""tokens": [300, 100, 40, 7, 90]}
"#
    );
    let file = written(folder.path(), "trees.jsonl", trees);
    let rates = ["--floor-bandwidth", "1e9", "--floor-flops", "1e10"];
    let chosen = Isa::chosen().unwrap();
    let plans = ["flat", "single", "tree"].map(|plan| (chosen, plan));
    let fast_or_chosen = |isa: Isa| isa != Isa::Portable || isa == chosen;
    let paths = Isa::available().into_iter().filter(|&isa| some_or_full(fast_or_chosen(isa), true));
    let paths = paths.map(|isa| (isa, "balanced"));
    for (isa, plan) in plans.into_iter().chain(paths) {
        let lines = bench_by(isa, &[&["attention", "--trees", &file, "--plan", plan], &rates[..]].concat());
        let names: Vec<&str> = lines.iter().map(|line| line["workload"].as_str().unwrap()).collect();
        assert_eq!(names, ["levels", "shared", "alone", "ragged"]);
        for (line, dtype) in lines.iter().zip([Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::Bf16]) {
            assert!(line["device"].as_str().unwrap().contains(&isa.to_string()), "{isa}: {line}");
            // Results are f32 for any KV dtype.
            let tolerance = tolerance(isa.attention_operand(dtype), Dtype::F32);
            assert!(number(line, "rel_err") < tolerance, "{isa}, {plan}: {line}, not {tolerance}");
            assert!(number(line, "us") >= number(line, "min_us"), "{line}");
            let floor = (number(line, "bytes") / 1e9).max(number(line, "flops") / 1e10) * 1e6;
            // Printed with two decimals.
            assert!((number(line, "floor_us") - floor).abs() < 0.006, "{line}");
        }
    }
    let one = bench(&[&["attention", "--trees", &file, "--only", "ragged"], &rates[..]].concat());
    assert_eq!((one.len(), &one[0]["kv_dtype"]), (1, &Value::from("model")));
    // fp8 has eight numbers per power of two: relative errors are a few hundredths.
    for line in bench(&[&["attention", "--trees", &file, "--kv-dtype", "fp8"], &rates[..]].concat()) {
        assert!((0.01..0.08).contains(&number(&line, "rel_err")) && line["kv_dtype"] == "fp8", "{line}");
    }
}

#[test]
fn samples_with_forms_are_measured_beside_free_ones() {
    let model = "tasks/models/demo";
    let rates = ["--floor-bandwidth", "1e9", "--floor-flops", "1e12"];
    let sizes = ["--samples", "6", "--generate", "9", "--prompt", "20", "--schemas", "0,1,3"];
    let lines = bench(&[&["forms", "--model", model], &sizes[..], &rates[..]].concat());
    assert_eq!(lines.iter().map(|line| number(line, "schemas")).collect::<Vec<_>>(), [0.0, 1.0, 3.0]);
    for line in &lines {
        // No text of a schema ends within its tokens.
        assert_eq!((number(line, "out_tokens"), number(line, "ended_early")), (54.0, 0.0), "{line}");
        assert!(number(line, "tok_s") > 0.0 && number(&line["floor"], "tok_s") > 0.0, "{line}");
        let (asked, computed) = (number(line, "masks_requested"), number(line, "masks_computed"));
        match number(line, "schemas") {
            0.0 => assert!(asked == 0.0 && line["of_free"].is_null(), "{line}"),
            _ => assert!(number(line, "of_free") > 0.0 && asked >= 54.0, "{line}"),
        }
        // Each mask is computed, or known by its state or its place.
        assert_eq!(computed + number(line, "masks_shared"), asked, "{line}");
    }
    let refused = |args: &[&str]| refuses(lab(&["bench", "forms"]).args(args));
    assert!(refused(&["--shape", "llama3-8b"]).contains("--tokenizer"));
    assert!(refused(&["--model", model, "--generate", "100000"]).contains("a prompt with its continuation"));
}

#[test]
fn sampling_is_timed_by_the_sets_of_its_rows() {
    let sizes = ["--rows", "4", "--vocab", "700", "--json"];
    let lines = bench(&[&["masks", "--floor-bandwidth", "1e9", "--floor-flops", "1e12"], &sizes[..]].concat());
    let sets: Vec<&str> = lines.iter().map(|line| line["sets"].as_str().unwrap()).collect();
    assert_eq!(sets, ["none", "shared", "kept", "new", "forced"]);
    for line in &lines {
        assert!(number(line, "ms") >= number(line, "host_ms"), "{line}");
        // 4 x 700 x 4 bytes at a byte a nanosecond, in three decimals of a millisecond.
        assert_eq!(number(line, "floor_ms"), 0.011, "{line}");
        let copied = if ["new", "forced"].contains(&line["sets"].as_str().unwrap()) { 4.0 * 88.0 } else { 0.0 };
        assert_eq!(number(line, "copied_bytes"), copied, "{line}");
    }
}

#[test]
fn workloads_sample_the_tokens_their_file_specifies() {
    let folder = tempfile::tempdir().unwrap();
    let workloads = r#"{
        "shapes": {"tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320}},
        "workloads": {
            "one": {"levels": [[100, 1]], "samples": 16, "generate": 20},
            "two": {"tiny": {"levels": [[60, 2], [20, 3]], "samples": 2, "generate": 10}},
            "of another shape": {"big": {"levels": [[60, 2]], "samples": 2, "generate": 10}}}}"#;
    let file = written(folder.path(), "workloads.json", workloads);
    let rates = ["--floor-bandwidth", "1e9", "--floor-flops", "1e12"];
    let lines = bench(&[&["workloads", "--shape", "tiny", "--file", &file], &rates[..]].concat());
    let sampled: Vec<_> =
        lines.iter().map(|line| (line["workload"].as_str().unwrap(), number(line, "out_tokens"))).collect();
    assert_eq!(sampled, [("one", 320.0), ("two", 120.0)]);
    for line in &lines {
        assert!(number(line, "seconds") > 0.0 && number(line, "prefill_s") > 0.0, "{line}");
        assert!(number(line, "kv_bytes") < number(line, "kv_bytes_unshared"), "{line}");
        // One step per token for all continuations together; prompts fit into one chunk.
        assert!(number(line, "steps") <= number(line, "generate") + 2.0, "{line}");
        assert!(number(line, "steps_replanned") <= number(line, "steps"), "{line}");
        assert_eq!(number(line, "preemptions"), 0.0, "{line}");
    }
    let two = [&["workloads", "--shape", "tiny", "--file", &file, "--workload", "two"], &rates[..]].concat();
    assert_eq!(bench(&two).len(), 1);
    let sampling = ["--top-p", "0.9", "--top-k", "20", "--allowed", "40", "--top-logprobs", "0"];
    let line = &bench(&[&two[..], &sampling].concat())[0];
    assert_eq!(["top_k", "allowed", "top_logprobs"].map(|key| number(line, key)), [20.0, 40.0, 0.0], "{line}");
    let lines = bench(&[&two[..], &["--top-p", "0.9", "--records", "none,all,drawn,confidence,none"]].concat());
    let records: Vec<&Value> = lines.iter().map(|line| &line["records"]).collect();
    let [all, drawn, confidence] = ["all", "drawn", "confidence"].map(|word| json!(word));
    assert_eq!(records, [&Value::Null, &all, &drawn, &confidence, &Value::Null], "{lines:?}");
}

#[test]
fn steps_with_adapters_are_timed_beside_steps_without() {
    let folder = tempfile::tempdir().unwrap();
    let shapes = r#"{
        "shapes": {"tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 256},
            "windows": {"model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 256, "sliding_window": 64}},
        "workloads": {}}"#;
    let file = written(folder.path(), "shapes.json", shapes);
    let rates = ["--floor-bandwidth", "1e6", "--floor-flops", "1e18"];
    let sizes = ["--rows", "1,6", "--adapters", "0,1,3,0", "--rank", "4", "--prompt", "20", "--steps", "5"];
    let asked = [&["adapters", "--shape", "tiny", "--file", &file], &sizes[..], &rates[..]].concat();
    let lines = bench(&[&asked[..], &["--json"]].concat());
    let cases: Vec<_> = lines.iter().map(|line| (number(line, "rows"), number(line, "adapters"))).collect();
    // A row has one adapter at most.
    let expected = [(1, 0), (1, 1), (1, 1), (1, 0), (6, 0), (6, 1), (6, 3), (6, 0)];
    assert_eq!(cases, expected.map(|(rows, adapters)| (f64::from(rows), f64::from(adapters))));
    assert!(lines.iter().all(|line| number(line, "step_ms") > 0.0 && number(line, "over_none") > 0.0), "{lines:?}");
    // Where reads take all the time, an adapter adds its bytes: rank 4 of queries, keys, values, output, and three
    // matrices of the feed-forward block, in two layers, in bf16.
    let an_adapter = f64::from(2 * 2 * 4 * ((32 + 32) + 2 * (32 + 16) + (32 + 32) + 3 * (32 + 48))) / 1e3;
    let floor = |at: usize| number(&lines[at], "floor_ms");
    for (at, adapters) in [(5, 1.0), (6, 3.0), (7, 0.0)] {
        assert!((floor(at) - floor(4) - adapters * an_adapter).abs() < 1e-3, "{lines:?}");
    }
    let table = succeeds(lab(&["bench", "--device", "cpu"]).args(&asked).arg("--deterministic"));
    assert_eq!(table.lines().count(), 2 + lines.len(), "{table}");
    let windows = ["adapters", "--shape", "windows", "--file", &file];
    assert!(refuses(lab(&["bench", "--device", "cpu"]).args(windows)).contains("attend to all tokens"));
}

/// Small jobs of the two built-in groups' forms. The floor is summed here step by step, where reads take all the time.
#[test]
fn groups_are_compared_with_the_sum_of_their_steps_floors() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = r#"{
        "shapes": {"tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 256}},
        "workloads": {
            "alike": {"levels": [[64, 4]], "samples": 4, "generate": 8},
            "drawn": {"levels": [[20, 6]], "samples": 5,
                "generate": {"log_mean": 2.0, "log_deviation": 1.0, "most": 24, "seed": 1}}}}"#;
    let file = written(folder.path(), "jobs.json", jobs);
    let rates = ["--floor-bandwidth", "1e6", "--floor-flops", "1e18"];
    let lines = bench(&[&["workloads", "--shape", "tiny", "--file", &file], &rates[..]].concat());
    let [alike, drawn] = &lines[..] else { panic!("{lines:?}") };
    let lengths: Vec<u64> = drawn["lengths"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect();
    assert!(lengths.len() == 30 && lengths.iter().all(|length| (1..=24).contains(length)), "{lengths:?}");
    assert!(lengths.iter().min() < lengths.iter().max());
    assert_eq!((number(alike, "out_tokens"), &alike["lengths"]), (128.0, &Value::Null));
    assert_eq!(number(drawn, "out_tokens"), lengths.iter().sum::<u64>() as f64);
    assert_eq!(drawn["generate"]["most"], 24, "{drawn}");

    // Queries, keys, values and their output; three matrices; norms; then the last norm and the output layer. In bf16.
    let layer = 32 * (32 + 16 + 16 + 32) + 3 * 32 * 48 + 2 * 32;
    let weights = 2 * (2 * layer + 32 + 256 * 32);
    let kv = 2 * 2 * 2 * 16;
    for (line, prompt, samples, lengths) in [(alike, 64, 4, vec![8; 16]), (drawn, 20, 5, lengths)] {
        let steps = (1..*lengths.iter().max().unwrap()).map(|step| {
            let rows = lengths.iter().filter(|&&length| length > step).count() as u64;
            let prompts = lengths.chunks(samples).filter(|group| group.iter().any(|&length| length > step)).count();
            weights + kv * (prompts as u64 * prompt + rows * step)
        });
        let decode = steps.sum::<u64>() as f64 / 1e6;
        let prefill = (weights + kv * prompt * (lengths.len() / samples) as u64) as f64 / 1e6;
        let floor = &line["floor"];
        for (field, expected) in [("prefill_s", prefill), ("decode_s", decode)] {
            assert!((number(floor, field) - expected).abs() < 6e-4, "{field}: {floor}, not {expected}");
        }
        let per_second = number(line, "out_tokens") / (prefill + decode);
        assert!((number(floor, "tok_s") - per_second).abs() < 0.51, "{floor}, not {per_second}");
        assert!(number(line, "steps") >= *lengths.iter().max().unwrap() as f64, "{line}");
        assert!(number(line, "kv_bytes") > 0.0 && number(line, "preemptions") == 0.0, "{line}");
    }
    let several = ["workloads", "--shape", "tiny", "--file", &file, "--devices", "cpu,cpu", "--workload", "drawn"];
    let lines = self::lines(&succeeds(lab(&["bench"]).args(several)));
    assert_eq!(lines.iter().map(|line| &line["out_tokens"]).collect::<Vec<_>>(), [&drawn["out_tokens"]; 2]);
    assert!(lines.iter().all(|line| line["floor"].is_null()), "{lines:?}");
}

#[test]
fn workloads_compare_several_devices_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = r#"{
        "shapes": {"tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 256}},
        "workloads": {"groups": {"levels": [[64, 4], [16, 4]], "samples": 4, "generate": 8}}
    }"#;
    let file = written(folder.path(), "jobs.json", jobs);
    let asked = ["bench", "workloads", "--file", &file, "--shape", "tiny", "--dtype", "f32", "--devices", "cpu,cpu"];
    let lines = lines(&succeeds(&mut lab(&asked)));
    let [one, two] = &lines[..] else { panic!("a line for one and a line for all: {lines:?}") };
    assert_eq!((&one["out_tokens"], &two["out_tokens"]), (&json!(512), &json!(512)));
    assert_eq!(one["prompt_tokens_computed"], 4 * 64 + 16 * 16);
    let over = &two["over_one_device"];
    assert_eq!((&over["devices"], &over["prompt_tokens"]), (&json!(2), &json!(1.0)), "{two}");
    assert!(over["speed"].as_f64().is_some_and(|speed| speed > 0.0), "{two}");
}

/// Runs `offshoot-lab bench`, which must refuse, and returns its stderr.
fn refused(args: &[&str]) -> String {
    refuses(lab(&["bench", "--device", "cpu"]).args(args))
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let tree = concat!(
        r#"{"name": "t", "q_heads": 2, "kv_heads": 2, "head_dim": 8, "dtype": "bf16", "leaves": 1, "#,
        r#""levels": [[5, 1]]}"#
    );
    let trees = written(folder.path(), "trees.jsonl", tree);
    let empty = written(folder.path(), "empty.jsonl", "\n");
    let of_trees = |more: &[&str]| refused(&[&["attention", "--trees", &trees], more].concat());
    assert!(refused(&["attention", "--trees", &empty]).contains("at least one tree"));
    for rate in ["0", "-1", "nan", "inf"] {
        assert!(of_trees(&[&format!("--floor-bandwidth={rate}")]).contains("above 0"), "{rate}");
        assert!(of_trees(&[&format!("--floor-flops={rate}")]).contains("above 0"), "{rate}");
    }

    let work = |work: &str| {
        let shape = r#""shapes": {"s": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320}}"#;
        let file = written(folder.path(), "workloads.json", &format!("{{ {shape}, \"workloads\": {{ {work} }} }}"));
        move |more: &[&str]| refused(&[&["workloads", "--shape", "s", "--file", &file], more].concat())
    };
    assert!(work("")(&[]).contains("one for the shape s"));
    let many = work(r#""a": {"levels": [[4, 99999999999]], "samples": 1, "generate": 1}"#);
    assert!(many(&[]).contains("99999999999"));
    let many = work(r#""a": {"levels": [[4, 1000000], [4, 1000000]], "samples": 1, "generate": 1}"#);
    assert!(many(&[]).contains("continuations"));
    let small = work(r#""a": {"levels": [[4, 2]], "samples": 1, "generate": 1}"#);
    let most = usize::MAX.to_string();
    assert!(small(&["--allowed", "321"]).contains("--allowed: expected at most the vocabulary's 320 tokens"));
    assert!(small(&["--top-p", "1.5"]).contains("top_p"));
    for option in ["--max-branches", "--step-rows"] {
        assert!(small(&[option, &most]).contains("free memory"), "{option}");
    }

    let decode = |more: &[&str]| refused(&[&["decode", "--config", "tasks/models/demo"], more].concat());
    for (option, value) in [("--prompt", "0"), ("--generate", "0"), ("--samples", "0"), ("--samples", "99999999999")] {
        assert!(decode(&[option, value]).contains(option), "{option} {value}");
    }
    assert!(decode(&["--swap-memory", "999999999999"]).contains("--swap-memory"));
}

#[test]
fn linear_layers_sum_to_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let shapes = r#"{
        "shapes": {"tiny": {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320}},
        "workloads": {"none": {"levels": [[1, 1]], "samples": 1, "generate": 1}}
    }"#;
    let file = written(folder.path(), "shapes.json", shapes);
    let rates = ["--floor-bandwidth", "1e9", "--floor-flops", "1e10"];
    let asked = ["gemm", "--shape", "tiny", "--file", &file, "--rows", "3,40", "--json"];
    let lines = bench(&[&asked[..], &rates[..]].concat());
    let layers: Vec<_> = lines.iter().map(|line| (line["layer"].as_str().unwrap(), number(line, "rows"))).collect();
    let expected = ["qkv", "out", "up", "down", "head", "step"].map(|layer| [(layer, 3.0), (layer, 40.0)]).concat();
    assert_eq!(layers, expected);
    // Stacked q, k and v; gate and up; the head once per step.
    let sizes = [(128.0, 64.0, 3.0), (64.0, 64.0, 3.0), (192.0, 64.0, 3.0), (64.0, 96.0, 3.0), (320.0, 64.0, 1.0)];
    for (step, rows) in [(10, 3.0), (11, 40.0)] {
        let of_rows: Vec<&Value> = lines[..10].iter().filter(|line| number(line, "rows") == rows).collect();
        let sum = |field: &str| of_rows.iter().map(|line| number(line, "count") * number(line, field)).sum::<f64>();
        for (line, (outputs, inputs, count)) in of_rows.iter().zip(sizes) {
            assert_eq!(
                (number(line, "outputs"), number(line, "inputs"), number(line, "count")),
                (outputs, inputs, count)
            );
            let floor = (2.0 * outputs * inputs / 1e9).max(2.0 * rows * outputs * inputs / 1e10) * 1e6;
            assert!((number(line, "floor_us") - floor).abs() < 0.006, "{line}");
            assert!(number(line, "us") > 0.0 && line["first_us"].is_null(), "{line}");
        }
        // Printed with two decimals, summed over 13 layers.
        assert!((number(&lines[step], "us") - sum("us")).abs() < 0.1, "{}", lines[step]);
        assert!((number(&lines[step], "floor_us") - sum("floor_us")).abs() < 0.1, "{}", lines[step]);
    }
}

const TINY: &str = r#"{"shapes": {"tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 320}}, "workloads": {}}"#;

#[test]
fn batches_are_run_as_their_tables_say() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "tiny.json", TINY);
    let lengths = written(folder.path(), "lengths.csv", "9,4\n20,3\n\n7,9\n");
    let questions = written(folder.path(), "questions.json", "[5, 17, 30, 8]");
    let asked = ["batches", "--shape", "tiny", "--file", &file, "--lengths", &lengths, "--questions", &questions];
    let small = ["--job", "2000-200-x16,four,industry-1100,prompt-1024-shared-1024,system-2048,behind-500"];
    let tables =
        ["--table", "batchllm,ablation,chunk,relay,mmlu", "--requests", "16", "--rate", "200", "--span", "0.1"];
    let all = [&asked[..], &small, &tables, &["--step-rows", "512"]].concat();
    let measured = bench(&all);
    let modelled = bench(&[&all[..], &["--simulated", "h200"]].concat());
    let named = |line: &Value| ["table", "job", "way"].map(|field| line[field].as_str().unwrap().to_owned());
    assert_eq!(measured.iter().map(named).collect::<Vec<_>>(), modelled.iter().map(named).collect::<Vec<_>>());
    assert_eq!(measured.len(), 3 * 3 + 5 + 1 + 3 + 3);
    for (line, modelled) in measured.iter().zip(&modelled) {
        assert!(number(line, "seconds") > 0.0 && line["modelled"] == Value::Bool(false), "{line}");
        assert_eq!(modelled["modelled"], Value::Bool(true), "{modelled}");
        assert_eq!(number(line, "prompt_steps") + number(line, "decode_steps"), number(line, "steps"), "{line}");
        // In this table requests arrive by the clock, which decides which prompts are found in memory.
        if line["table"] != "chunk" {
            for field in ["requests", "steps", "drawn", "prompt_tokens_logical", "prompt_tokens_computed"] {
                assert_eq!(line[field], modelled[field], "{field}: {line}");
            }
        }
    }
    let computed = |table: &str, way: &str| {
        let line = measured.iter().find(|line| line["table"] == table && line["way"] == way);
        number(line.unwrap_or_else(|| panic!("{table}, {way}")), "prompt_tokens_computed")
    };
    assert_eq!(computed("mmlu", "ours"), 560.0);
    assert_eq!(computed("mmlu", "ours-unshared"), 4.0 * 500.0 + 60.0);
    assert_eq!(computed("relay", "ours"), 2048.0 + 36.0);
    assert_eq!(computed("chunk", "ours"), 1024.0);

    // About 30 prompts take a second, so latency is mostly queueing.
    let long = written(folder.path(), "long.csv", "1500,1\n");
    let rate = ["batches", "--shape", "llama3-8b", "--simulated", "h200", "--lengths", &long, "--table", "rate"];
    let search = ["--job", "system-64", "--way", "ours", "--span", "0.2", "--precision", "1.5", "--first-rate", "40"];
    let lines = bench(&[&rate[..], &search].concat());
    let fixed = bench(&[&rate[..], &["--job", "system-64", "--span", "0.2", "--rate", "50,100"]].concat());
    let rates: Vec<_> = fixed.iter().map(|line| (line["way"].as_str().unwrap(), number(line, "rate"))).collect();
    assert_eq!(rates, [("ours", 50.0), ("ours-flat-plan", 50.0), ("ours", 100.0), ("ours-flat-plan", 100.0)]);
    let (found, tried) = lines.split_last().unwrap();
    assert_eq!(found["tried"].as_array().unwrap().len(), tried.len());
    let sustained = tried.iter().filter(|line| number(line, "normalised_latency") <= 0.5);
    let fastest = sustained.map(|line| number(line, "rate")).fold(0.0, f64::max);
    assert_eq!(number(found, "sustained_rate"), fastest);
}

#[test]
fn a_failed_batch_does_not_stop_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(folder.path(), "tiny.json", TINY);
    let asked = ["batches", "--shape", "tiny", "--file", &file, "--table", "batchllm", "--requests", "4"];
    let run = |more: &[&str]| lab(&["bench", "--device", "cpu"]).args(asked).args(more).output().unwrap();
    // 2,300 tokens do not fit, nor 2,400; 2,100 do.
    let output = run(&["--way", "ours", "--job", "2000-200-x4,1000-1000-x4,four", "--kv-tokens", "2250"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let lines = lines(&String::from_utf8_lossy(&output.stdout));
    let [none, whole, nor] = &lines[..] else { panic!("{lines:?}") };
    for line in [none, nor] {
        assert!(line["error"].as_str().is_some_and(|error| error.contains("pages")), "{line}");
    }
    assert_eq!(number(whole, "drawn"), 400.0);

    let refused = |more: &[&str]| refused(&[&asked[..], more].concat());
    assert!(refused(&["--job", "x"]).contains("2000-200-x4"));
    assert!(refused(&["--way", "x"]).contains("fcfs"));
    assert!(refused(&["--table", "relay"]).contains("--lengths"));
    assert!(refused(&["--table", "chunk", "--span", "0"]).contains("above 0"));
    assert!(refused(&["--simulated", "h300"]).contains("h200"));
    let idle =
        [["--rate", "4"], ["--span", "9"], ["--first-rate", "9"], ["--precision", "2"], ["--lengths", "none.csv"]];
    for option in idle {
        let said = refused(&option);
        assert!(
            said.contains(&format!("{}: expected a table that uses it (", option[0]))
                && said.contains("found batchllm"),
            "{said}"
        );
    }
    assert!(
        refused(&["--questions", "none.json", "--table", "relay"])
            .contains("a table that uses it (mmlu), found batchllm, relay")
    );
    for rate in ["1e-30", "1e30"] {
        assert!(refused(&["--table", "chunk", "--rate", rate]).contains("--rate"), "{rate}");
    }
    assert!(refused(&["--job", "industry,x"]).contains("found x"));
}
