//! `offshoot plan` as a user meets it: the built binary on small files, without a GPU and without weights.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn demo() -> String {
    repository().join("tasks/models/demo").display().to_string()
}

/// A folder with a model that is nothing but a config.json, in Llama-3-8B's shape: 128 KiB of keys and values a token.
struct Desk(TempDir);

impl Desk {
    fn new() -> Self {
        let desk = Desk(TempDir::new().unwrap());
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "torch_dtype": "bfloat16",
            "bos_token_id": 128_000, "eos_token_id": 128_001, "tie_word_embeddings": false, "hidden_act": "silu"
        });
        desk.put("config.json", config.to_string());
        desk
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.0.path().join(name), content).unwrap();
    }

    fn rows(&self, rows: &[Value]) {
        self.put("rows.jsonl", rows.iter().map(|row| format!("{row}\n")).collect::<String>());
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        offshoot(self.0.path(), arguments)
    }

    /// What the plan of rows.jsonl says, as JSON.
    fn plan(&self, more: &[&str]) -> Value {
        let output = self.run(&[&["plan", "rows.jsonl", "--model", "config.json", "--json"], more].concat());
        read_json(&output)
    }

    /// The one sentence with which it fails.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("offshoot: ") && said.trim_end().lines().count() == 1, "{said}");
        assert!(output.stdout.is_empty());
        said
    }
}

fn offshoot(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_offshoot"));
    command.current_dir(folder).env_remove("RUST_LOG").env("CUDA_VISIBLE_DEVICES", "");
    command.args(arguments).output().expect("the binary starts")
}

fn read_json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// 20 problems behind a few-shot prompt.
fn problems(samples: u32) -> Vec<Value> {
    let problem =
        json!({"prompt_tokens": 2900, "shared": [["few-shot", 2400]], "samples": samples, "output_tokens": 256});
    vec![problem; 20]
}

#[test]
fn a_tree_that_fits_in_parts_is_planned_in_waves() {
    let desk = Desk::new();
    desk.rows(&problems(128));
    // Of pages of 32 tokens, 4 MiB each, the trunk takes 75, a problem 16 and each of its samples 9, but for one in
    // which the first goes on that the problem has begun: 32,976 MiB for seven.
    let plan = desk.plan(&["--kv-memory", "34000", "--predict", "never"]);
    assert_eq!((&plan["job"]["prompts"], &plan["job"]["samples"]), (&json!(20), &json!(2560)));
    assert_eq!(plan["job"]["distinct_prompt_tokens"], 2400 + 20 * 500);
    let waves: Vec<u64> =
        plan["waves"].as_array().unwrap().iter().map(|wave| wave["prompts"].as_u64().unwrap()).collect();
    assert_eq!(waves, [7, 7, 6]);
    let pool = plan["pool"]["pages"].as_u64().unwrap() * plan["pool"]["page_bytes"].as_u64().unwrap();
    for wave in plan["waves"].as_array().unwrap() {
        assert!(wave["kv_bytes"].as_u64().unwrap() <= pool, "{wave}");
    }
    assert_eq!(
        plan["levels"][0],
        json!({"nodes": 1, "tokens": 2400, "tokens_unshared": 2400 * 2560, "has_deeper": false})
    );
    assert_eq!(
        plan["levels"][1],
        json!({"nodes": 20, "tokens": 10_000, "tokens_unshared": 500 * 2560, "has_deeper": false})
    );
    let one = desk.plan(&["--predict", "never"]);
    assert_eq!(one["waves"].as_array().unwrap().len(), 1, "with the whole memory of an H200 everything fits");
    let page =
        desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--kv-memory", "34000", "--predict", "never"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("3 of 7 + 7 + 6 prompts"), "{page}");
}

#[test]
fn prompts_keep_the_window_in_layers_that_have_one() {
    let desk = Desk::new();
    desk.rows(&vec![json!({"prompt_tokens": 4000, "output_tokens": 33}); 20]);
    let waves = |layers: [&str; 2]| -> Vec<u64> {
        let config = json!({
            "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128_256,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "eos_token_id": 128_001,
            "tie_word_embeddings": false, "use_sliding_window": true, "sliding_window": 128,
            "layer_types": layers.iter().cycle().take(32).collect::<Vec<_>>()
        });
        desk.put("config.json", config.to_string());
        let plan = desk.plan(&["--kv-memory", "2000", "--predict", "never"]);
        assert_eq!(plan["model"]["kv_bytes_per_token"], 128 << 10);
        plan["waves"].as_array().unwrap().iter().map(|wave| wave["prompts"].as_u64().unwrap()).collect()
    };
    // Pages of 32 tokens, 4 MiB each: 125 for a prompt and one for its sample.
    assert_eq!(waves(["full_attention"; 2]), [3, 3, 3, 3, 3, 3, 2]);
    // 2 MiB in each of two groups: 126 in the one, and in the other 4 for the window and one for the sample.
    assert_eq!(waves(["sliding_attention", "full_attention"]), [7, 7, 6]);
}

#[test]
fn fp8_keys_and_values_take_half_where_the_device_reads_them() {
    let desk = Desk::new();
    desk.rows(&problems(128));
    let plan = |more: &[&str]| desk.plan(&[more, &["--kv-memory", "34000", "--predict", "never"]].concat());
    let (model, fp8) = (plan(&[]), plan(&["--kv-dtype", "fp8"]));
    let bytes = |plan: &Value| plan["model"]["kv_bytes_per_token"].as_u64().unwrap();
    assert_eq!((bytes(&model), bytes(&fp8)), (128 << 10, 64 << 10));
    let pages = |plan: &Value| plan["pool"]["pages"].as_u64().unwrap();
    assert_eq!(pages(&fp8), 2 * pages(&model));
    let waves = |plan: &Value| plan["waves"].as_array().unwrap().len();
    assert_eq!((waves(&model), waves(&fp8)), (3, 2));
    let read = |plan: &Value, by: &str| plan["decode_step"][by].as_u64().unwrap();
    assert_eq!(read(&fp8, "rows"), 2 * 7 * 128, "twice the rows of a step");
    // f32 keys and values are rounded, and no smaller for it.
    assert_eq!(bytes(&plan(&["--dtype", "f32", "--kv-dtype", "fp8"])), 256 << 10);
    let cpu = ["--device-profile", "cpu", "--kv-memory", "8000", "--predict", "never", "--kv-dtype", "fp8"];
    assert_eq!(bytes(&desk.plan(&cpu)), 128 << 10);
}

/// Latents and their rotated parts, on every device and of any width.
#[test]
fn fp8_latents_take_half() {
    let desk = Desk::new();
    desk.rows(&problems(8));
    let config = |rope: u64| {
        json!({
            "model_type": "minicpm3", "hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16,
            "intermediate_size": 10_944, "vocab_size": 128_256, "max_position_embeddings": 8192, "kv_lora_rank": 512,
            "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": rope, "v_head_dim": 128,
            "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "tie_word_embeddings": false
        })
    };
    for (rope, profile) in [(64, "h200"), (32, "h200"), (64, "cpu")] {
        desk.put("config.json", config(rope).to_string());
        let plan = |kv: &str| {
            let device = ["--device-profile", profile, "--kv-memory", "8000", "--latent-copies", "0"];
            let plan = desk.plan(&[&device[..], &["--predict", "never", "--kv-dtype", kv]].concat());
            let number = |of: &str, what: &str| plan[of][what].as_u64().unwrap();
            (number("model", "kv_bytes_per_token"), number("pool", "pages"))
        };
        let (latents, [model, fp8]) = (27 * (512 + rope), ["model", "fp8"].map(plan));
        assert_eq!((model.0, fp8.0), (2 * latents, latents), "{profile}, a rotated part of {rope}");
        assert!(fp8.1.abs_diff(2 * model.1) <= 1, "{profile}, a rotated part of {rope}: {model:?}, {fp8:?}");
    }
}

/// On the CPU a format takes what it stores; a GPU multiplies int4, and Hopper FP8, and makes other formats dense.
#[test]
fn weights_take_what_the_device_makes_of_them() {
    let desk = Desk::new();
    desk.rows(&problems(8));
    let cpu = ["--device-profile", "cpu", "--kv-memory", "8000"];
    let weights = |more: &[&str]| {
        desk.plan(&[more, &["--predict", "never"]].concat())["model"]["weight_bytes"].as_u64().unwrap() as f64
    };
    let dense = weights(&cpu);
    assert_eq!(dense, weights(&[]));
    let share = |more: &[&str]| weights(&[&cpu, more].concat()) / dense;
    // All but the embedding table (6.5 % of the bytes): half, or 4 bits and a scale of 32 for 32 inputs.
    for (format, least, most) in [("fp8", 0.53, 0.54), ("int8", 0.53, 0.54), ("int4", 0.36, 0.38)] {
        let share = share(&["--weights", format]);
        assert!((least..most).contains(&share), "{format}: {share}");
    }
    // The default device is an H200. Of int4 the output layer, int8 elsewhere, is dense there.
    assert_eq!(weights(&["--weights", "fp8"]) / dense, share(&["--weights", "fp8"]));
    let more = weights(&["--weights", "int4"]) / dense - share(&["--weights", "int4"]);
    assert!((0.032..0.033).contains(&more), "half of 6.5 %: {more}");
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "config.json", "--weights", "int8"]);
    assert!(said.contains("--weights") && said.contains("--device-profile cpu") && said.contains("int8"), "{said}");
    let unrounded = ["plan", "rows.jsonl", "--model", "config.json", "--weights", "fp8", "--activations", "bf16"];
    let said = desk.refused(&unrounded);
    assert!(said.contains("--weights") && said.contains("--device-profile cpu"), "a GPU rounds them: {said}");
    let mut published: Value = serde_json::from_str(&desk.read("config.json")).unwrap();
    published["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    desk.put("config.json", published.to_string());
    assert_eq!(weights(&[]) / dense, share(&[]), "a GPU of Hopper keeps FP8");
    // Each output has the scales of its blocks in memory: 32 bits for 128 inputs.
    assert!((0.57..0.59).contains(&share(&[])), "{}", share(&[]));
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "config.json", "--weights", "int8"]);
    assert!(said.contains("--weights int8") && said.contains("fp8"), "{said}");
    let mut awq = |group: u32| {
        published["quantization_config"] =
            json!({"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": true, "version": "gemm"});
        desk.put("config.json", published.to_string());
        weights(&[])
    };
    // All but the embedding table and the output layer: 4 bits, and a scale and a zero point of 40 for 128 inputs.
    let in_codes = awq(128) / dense;
    assert!((0.36..0.38).contains(&in_codes), "{in_codes}");
    assert_eq!(awq(16), dense, "no kernel takes groups of 16");
}

#[test]
fn samples_of_one_prompt_that_do_not_fit_at_once_are_divided() {
    let desk = Desk::new();
    desk.rows(&[json!({"prompt_tokens": 160, "samples": 100, "output_tokens": 160})]);
    // 5 pages of 4 MiB for the prompt and for each sample: 40 MiB hold the prompt and a sample, 100 MiB four.
    for (mib, most) in [("40", 1), ("100", 4)] {
        let plan = desk.plan(&["--kv-memory", mib, "--predict", "never"]);
        let samples: Vec<u64> =
            plan["waves"].as_array().unwrap().iter().map(|wave| wave["samples"].as_u64().unwrap()).collect();
        assert_eq!((samples.iter().sum::<u64>(), samples.iter().max()), (100, Some(&most)));
    }
    let page = desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--kv-memory", "100", "--predict", "never"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("25 of 4 + 4 + 4 + 4 + 4 + 4 + 4 + 4 + ... samples\n"), "{page}");
}

#[test]
fn levels_that_are_not_told_apart_are_counted_with_the_last() {
    let desk = Desk::new();
    let chain = |prompts: usize| -> Vec<Value> { (1..=prompts).map(|n| json!({"tokens": vec![5; n]})).collect() };
    let last = |prompts: usize| {
        desk.rows(&chain(prompts));
        let page = desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--predict", "never"]);
        let levels = desk.plan(&["--predict", "never"])["levels"].clone();
        (String::from_utf8(page.stdout).unwrap(), levels[7].clone())
    };
    let (page, level) = last(8);
    assert!(page.contains("\ndepth 8      1 node: "), "{page}");
    assert_eq!((&level["nodes"], &level["has_deeper"]), (&json!(1), &json!(false)));
    let (page, level) = last(11);
    assert!(page.contains("\nfrom depth 8 4 nodes: "), "{page}");
    assert_eq!((&level["nodes"], &level["has_deeper"]), (&json!(4), &json!(true)));
}

#[test]
fn weights_that_no_run_would_load_are_not_planned_for() {
    let desk = Desk::new();
    desk.rows(&problems(1));
    let plan = |desk: &Desk| desk.run(&["plan", "rows.jsonl", "--model", ".", "--predict", "never"]);
    assert!(plan(&desk).status.success(), "a folder without weights is planned for");
    desk.put("model.safetensors.index.json", json!({"weight_map": {"model.norm.weight": "a.safetensors"}}).to_string());
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "."]);
    assert!(said.contains("weight_map.model.embed_tokens.weight") && said.contains("found nothing"), "{said}");
    desk.put("model.safetensors", b"no tensors");
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "."]);
    assert!(said.contains("model.safetensors"), "{said}");
}

#[test]
fn a_path_that_fits_nowhere_is_refused_with_both_sizes() {
    let desk = Desk::new();
    desk.rows(&[json!({"prompt_tokens": 100}), json!({"prompt_tokens": 1000, "output_tokens": 24})]);
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "config.json", "--kv-memory", "100"]);
    for part in ["--kv-memory", "128 MiB", "1,000 tokens", "100 MiB"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // What is barely enough is enough.
    let plan = desk.plan(&["--kv-memory", "128"]);
    assert_eq!(plan["predictions"][2]["prompt_tokens_computed"], 1100);
}

#[test]
fn each_policy_computes_what_its_sharing_allows() {
    let desk = Desk::new();
    // Two documents of 1,000 tokens with four questions each, behind 200 tokens of instructions; one prompt twice.
    let mut rows = Vec::new();
    for question in 0..4 {
        for document in ["a", "b"] {
            let shared = json!([["instructions", 200], [document, 1000]]);
            rows.push(json!({"id": question, "prompt_tokens": 1250, "shared": shared, "output_tokens": 8}));
        }
    }
    rows.push(json!({"tokens": [9, 8, 7, 6], "output_tokens": 8}));
    rows.push(json!({"tokens": [9, 8, 7, 6], "output_tokens": 8}));
    desk.rows(&rows);
    let plan = desk.plan(&[]);
    let sharing = |ix: usize| plan["sharing"][ix]["tokens_computed"].as_u64().unwrap();
    assert_eq!(sharing(0), 8 * 1250 + 8);
    assert_eq!(sharing(1), 200 + 2 * 1000 + 8 * 50 + 8 + 200 % 32 + 6 * (1200 % 32), "whole pages of 32 are found");
    assert_eq!(sharing(2), 2 * 1200 + 8 * 50 + 4, "a group a document");
    assert_eq!(sharing(3), 200 + 2 * 1000 + 8 * 50 + 4);
    let predictions = plan["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 3);
    for prediction in predictions {
        assert_eq!(prediction["drawn"], 80, "{}", prediction["policy"]);
        assert!(prediction["seconds"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(predictions[1]["prompt_tokens_computed"], sharing(2));
    assert_eq!(predictions[2]["prompt_tokens_computed"], sharing(3));
    assert_eq!(desk.plan(&[]), plan, "nothing depends on this machine's speed");
}

#[test]
fn a_task_is_planned_as_it_runs() {
    let desk = Desk::new();
    let out = desk.0.path().join("out").display().to_string();
    let change = ["--limit", "3", "--samples", "4", "--set", "sampling.max_tokens=12"];
    let task = "tasks/words-vote.json";
    let plan = [&["plan", task, "--json"], &change[..]].concat();
    let plan = read_json(&offshoot(&repository(), &plan));
    let run = [&["run", task, "--out", &out, "--device", "cpu"], &change[..]].concat();
    let ran = offshoot(&repository(), &run);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let summary: Value = serde_json::from_str(&desk.read("out/summary.json")).unwrap();
    let metrics = &summary["engine"];
    assert_eq!(plan["job"]["distinct_prompt_tokens"], metrics["prompt_tokens_computed"], "{summary}");
    assert_eq!(plan["sharing"][0]["tokens_asked"], metrics["prompt_tokens_logical"], "{summary}");
}

#[test]
fn batch_requests_are_planned_and_refused_ones_named() {
    let desk = Desk::new();
    let request =
        |id: &str, body: Value| json!({"custom_id": id, "method": "POST", "url": "/v1/completions", "body": body});
    let text = "Question: Mia has 3 pens and buys 4 more. How many pens does Mia have now?\nAnswer:";
    let bad = request("c", json!({"prompt": "x", "n": "many"}));
    desk.rows(&[
        request("a", json!({"prompt": text, "n": 3, "max_tokens": 9})),
        request("b", json!({"prompt": [text, text], "max_tokens": 5})),
        bad.clone(),
    ]);
    let plan = read_json(&desk.run(&["plan", "rows.jsonl", "--model", &demo(), "--json"]));
    assert_eq!((&plan["job"]["prompts"], &plan["job"]["samples"]), (&json!(3), &json!(5)));
    assert_eq!(plan["job"]["drawn_tokens"], 3 * 9 + 2 * 5);
    assert_eq!(plan["job"]["nodes"], 1);
    let note = plan["notes"][0].as_str().unwrap();
    assert!(note.contains("1 line") && note.contains("(request \"c\")") && note.contains("the first: `n`"), "{note}");
    desk.put("rows.jsonl", format!("[\n{}\n", request("a", json!({"prompt": text}))));
    let plan = read_json(&desk.run(&["plan", "rows.jsonl", "--model", &demo(), "--json"]));
    assert_eq!(
        (&plan["job"]["prompts"], &plan["job"]["drawn_tokens"]),
        (&json!(1), &json!(16)),
        "a broken line is left out"
    );
    desk.rows(&[bad]);
    assert!(desk.refused(&["plan", "rows.jsonl", "--model", &demo()]).contains("`n`"));
}

#[test]
fn rows_may_be_texts_blank_lines_and_a_byte_order_mark() {
    let desk = Desk::new();
    desk.put(
        "rows.jsonl",
        "\u{feff}{\"prompt\": \"Tom has 5 pens.\", \"max_tokens\": 40}\r\n\n  \n{\"prompt\": \"Tom has 6 pens.\"}",
    );
    let arguments = ["plan", "rows.jsonl", "--model", &demo(), "--output-tokens", "20", "--json"];
    let plan = read_json(&desk.run(&arguments));
    assert_eq!((&plan["job"]["prompts"], &plan["job"]["drawn_tokens"]), (&json!(2), &json!(40)));
    assert!(plan["job"]["nodes"].as_u64().unwrap() > 2, "they begin alike");
}

#[test]
fn what_is_wrong_with_a_row_is_said_with_its_line_and_field() {
    let desk = Desk::new();
    let cases = [
        ("{\"prompt_tokens\": 5}\n{\"prompt_tokens\": 0}", "line 2: `prompt_tokens`: expected a whole number from 1"),
        ("{\"prompt_tokens\": \"5\"}", "found \"5\""),
        ("{\"prompt_tokens\": 5, \"samples\": 0}", "line 1: `samples`"),
        ("{\"prompt_tokens\": 5, \"samples\": 1.5}", "found 1.5"),
        (
            "{\"prompt_tokens\": 5, \"tokens\": [1]}",
            "one of prompt, tokens and prompt_tokens, found tokens and prompt_tokens",
        ),
        (
            "{\"tokens\": [1], \"max_tokens\": 4, \"output_tokens\": 5}",
            "`output_tokens`: expected at most max_tokens, 4, found 5",
        ),
        ("{\"samples\": 5}", "line 1: expected one of prompt, tokens and prompt_tokens, found none"),
        ("{\"prompt_tokens\": 5, \"sample\": 1}", "`sample`: expected no such field"),
        ("{\"tokens\": []}", "`tokens`: expected at least one token"),
        ("{\"tokens\": [1, -1]}", "`tokens`: expected a list of token ids below 128256"),
        ("{\"tokens\": [128256]}", "below 128256"),
        ("{\"tokens\": [1], \"shared\": [[\"a\", 1]]}", "`shared`: expected prompt_tokens beside it"),
        (
            "{\"prompt_tokens\": 5, \"shared\": [[\"a\", 6]]}",
            "`prompt_tokens`: expected at least the 6 tokens of `shared`",
        ),
        ("{\"prompt_tokens\": 5, \"shared\": [[\"a\"]]}", "`shared`: expected a list of [name, number of tokens]"),
        (
            "{\"prompt_tokens\": 8192}",
            "line 1: the prompt with the first sampled token has 8193 tokens; the model's context is 8192",
        ),
        ("[1, 2]", "line 1: expected a JSON object, found [1,2]"),
        ("{\"prompt_tokens\": 5", "line 1, column"),
        ("\n\n", "expected at least one prompt, found none"),
        ("{\"prompt\": \"text\"}", "expected a folder with a tokenizer"),
    ];
    for (rows, expected) in cases {
        desk.put("rows.jsonl", rows);
        let said = desk.refused(&["plan", "rows.jsonl", "--model", "config.json"]);
        assert!(said.contains(expected), "{rows}\n{said}");
    }
}

#[test]
fn what_is_wrong_with_the_options_is_one_sentence() {
    let desk = Desk::new();
    desk.rows(&[json!({"prompt_tokens": 5})]);
    let cases: [(&[&str], &str); 8] = [
        (&["plan", "rows.jsonl"], "--model"),
        (&["plan", "none.jsonl", "--model", "config.json"], "none.jsonl"),
        (&["plan", "none.json"], "none.json"),
        (&["plan", "rows.jsonl", "--model", "nowhere"], "nowhere"),
        (&["plan", "rows.jsonl", "--model", "config.json", "--device-profile", "h300"], "h300"),
        (&["plan", "rows.jsonl", "--model", "config.json", "--limit", "3"], "--limit"),
        (&["plan", "rows.jsonl", "--model", "config.json", "--kv-memory", "0"], "--kv-memory"),
        (&["plan", "rows.jsonl", "--model", "config.json", "--svg", "no/such/folder.svg"], "no/such/folder.svg"),
    ];
    for (arguments, expected) in cases {
        let said = desk.refused(arguments);
        assert!(said.contains(expected), "{arguments:?}\n{said}");
    }
    desk.put("small.json", small_device());
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "config.json", "--device-profile", "small.json"]);
    assert!(said.contains("15.0 GiB, the size of the weights") && said.contains("954 MiB"), "{said}");
}

/// The H200's profile, with a memory of 1 GB.
fn small_device() -> String {
    let path = repository().join("crates/sim/src/h200.json");
    let mut profile: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    profile["memory_bytes"] = json!(1e9);
    profile.to_string()
}

#[test]
fn every_node_is_explained() {
    let desk = Desk::new();
    desk.rows(&problems(8));
    let plan = desk.plan(&["--explain", "--predict", "never"]);
    let nodes = plan["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 21);
    let trunk = &nodes[0];
    assert_eq!((&trunk["depth"], &trunk["tokens"], &trunk["rows"]), (&json!(0), &json!(2400), &json!(160)));
    assert_eq!((&trunk["fate"], &nodes[20]["fate"]), (&json!("shared"), &json!("shared")));
    let token = 128u64 << 10;
    assert_eq!((&trunk["bytes_read"], &trunk["bytes_flat"]), (&json!(2400 * token), &json!(2400 * 160 * token)));
    // What nodes do not explain the samples' own tokens do: 128 of each, by its row.
    for (of_nodes, of_step) in [("bytes_read", "balanced"), ("bytes_flat", "flat")] {
        let nodes: u64 = nodes.iter().map(|node| node[of_nodes].as_u64().unwrap()).sum();
        assert_eq!(plan["decode_step"][of_step].as_u64().unwrap(), nodes + 160 * 128 * token);
    }
    let page = desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--explain", "--predict", "never"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("\n0..2,400: 2,400 tokens, 20 prompts from 1 on; read once for 160 rows"), "{page}");
    assert!(page.contains("\n  2,400..2,900: 500 tokens, prompt 1; read once for 8 rows"), "{page}");
    assert!(trunk["shared_ns"].as_f64() < trunk["folded_ns"].as_f64(), "why it is shared: {trunk}");

    desk.rows(&problems(1)[..1]);
    let page = desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--explain", "--predict", "never"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert!(page.contains("read by its one row"), "{page}");
}

#[test]
fn short_runs_are_folded_and_that_is_said() {
    let desk = Desk::new();
    let row = json!({"prompt_tokens": 900, "shared": [["one token", 1]], "output_tokens": 4});
    desk.rows(&vec![row; 3]);
    let plan = desk.plan(&["--explain", "--predict", "never"]);
    assert_eq!(plan["nodes"][0]["fate"], "folded");
    assert_eq!(plan["nodes"][0]["bytes_read"], plan["nodes"][0]["bytes_flat"]);
    let node = &plan["nodes"][0];
    assert!(node["folded_ns"].as_f64() <= node["shared_ns"].as_f64(), "why it is folded: {node}");
}

#[test]
fn the_drawing_is_a_well_formed_picture_of_the_job() {
    let desk = Desk::new();
    let named = json!({"prompt_tokens": 300, "shared": [["<&>", 200]], "samples": 2, "output_tokens": 40});
    desk.rows(&vec![named; 30]);
    fs::rename(desk.0.path().join("rows.jsonl"), desk.0.path().join("<rows> & more.jsonl")).unwrap();
    let arguments = ["plan", "<rows> & more.jsonl", "--model", "config.json", "--svg", "plan.svg"];
    assert!(desk.run(&arguments).status.success());
    let text = desk.read("plan.svg");
    let drawing = roxmltree::Document::parse(&text).expect("well-formed XML");
    assert_eq!(drawing.root_element().tag_name().name(), "svg");
    let words: Vec<&str> =
        drawing.descendants().filter(|node| node.has_tag_name("text")).filter_map(|n| n.text()).collect();
    assert!(words.iter().any(|words| words.starts_with("<rows> & more.jsonl: 30 prompts, 60 samples")), "{words:?}");
    for policy in ["first come", "single level", "all levels"] {
        assert!(words.iter().any(|words| words.starts_with(policy)), "{words:?}");
    }
    // A rectangle for the trunk, for each prompt and for each prompt's samples, beside the page and the legend's two.
    assert_eq!(drawing.descendants().filter(|node| node.has_tag_name("rect")).count(), 1 + 30 + 30 + 3);
    let inside = |node: &roxmltree::Node| {
        let number = |name: &str| node.attribute(name).map_or(0.0, |text| text.parse::<f64>().expect("a number"));
        number("x") >= 0.0 && number("x") + number("width") <= 1000.0 && number("height") >= 0.0
    };
    assert!(drawing.descendants().filter(|node| node.has_tag_name("rect")).all(|node| inside(&node)));
}

#[test]
fn a_device_that_nobody_named_is_not_taken_for_this_machines() {
    let desk = Desk::new();
    desk.rows(&problems(2));
    desk.put("lengths.csv", "300,20\n");
    let plan = ["plan", "rows.jsonl", "--model", "config.json", "--predict", "never"];
    let replay = ["plan", "--replay", "lengths.csv", "--model", "config.json", "--policy", "ours"];
    let note = "estimated for the default profile h200, but this machine has no GPU; --device-profile names another";
    for arguments in [&plan[..], &replay] {
        let page = |more: &[&str]| String::from_utf8(desk.run(&[arguments, more].concat()).stdout).unwrap();
        assert!(page(&[]).contains(note), "{}", page(&[]));
        assert!(read_json(&desk.run(&[arguments, &["--json"]].concat()))["notes"].to_string().contains(note));
        assert!(!page(&["--device-profile", "h200"]).contains("note"));
    }
}

#[test]
fn a_trace_is_replayed_by_each_policy() {
    let desk = Desk::new();
    desk.put("lengths.csv", "300,20\n500,10\n100,30\n");
    let replay = ["plan", "--replay", "lengths.csv", "--model", "config.json"];
    let replayed = read_json(&desk.run(&[&replay[..], &["--json"]].concat()));
    assert_eq!(replayed["requests"], 3);
    let policies = replayed["policies"].as_array().unwrap();
    let names: Vec<&Value> = policies.iter().map(|policy| &policy["policy"]).collect();
    assert_eq!(names, ["fcfs", "batchllm", "ours"]);
    for policy in policies {
        assert_eq!((&policy["drawn"], &policy["prompt_tokens_computed"]), (&json!(60), &json!(900)));
    }
    let one = desk.run(&[&replay[..], &["--policy", "ours", "--requests", "2", "--rate", "5"]].concat());
    let page = String::from_utf8(one.stdout).unwrap();
    assert!(page.contains("2 requests") && page.contains("30 tokens sampled") && !page.contains("fcfs"), "{page}");
    let said = desk.refused(&["plan", "--replay", "none.csv", "--model", "config.json"]);
    assert!(said.contains("none.csv"), "{said}");
    for wrong in [&["--limit", "3"][..], &["--svg", "x.svg"], &["--policy", "theirs"]] {
        assert_eq!(desk.run(&[&replay[..], wrong].concat()).status.code(), Some(2));
    }
}

#[test]
fn branches_at_once_are_bounded_for_all_policies() {
    let desk = Desk::new();
    desk.rows(&[json!({"prompt_tokens": 320, "samples": 24, "output_tokens": 40})]);
    let plan = desk.plan(&["--max-branches", "8", "--predict", "always"]);
    for prediction in plan["predictions"].as_array().unwrap() {
        assert!(prediction["most_running"].as_u64().unwrap() <= 8, "{prediction}");
        assert_eq!(prediction["branches"], 8);
        // All of a prompt's samples have begun before the cool-down, however its policy counts requests.
        let (seconds, warm) = (&prediction["seconds"], &prediction["seconds_before_cool_down"]);
        let share = warm.as_f64().unwrap() / seconds.as_f64().unwrap();
        assert!((0.5..0.9).contains(&share), "the last third of the samples begins after two thirds: {prediction}");
    }
    desk.rows(&[json!({"prompt_tokens": 320, "samples": 300, "output_tokens": 4})]);
    let plan = desk.plan(&["--predict", "always"]);
    let branches: Vec<&Value> = plan["predictions"].as_array().unwrap().iter().map(|it| &it["branches"]).collect();
    assert_eq!(branches, [256, 300, 300]);
}

#[test]
fn input_is_neither_read_twice_nor_written_over() {
    let desk = Desk::new();
    let request =
        r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "m", "prompt": "Tom"}}"#;
    desk.put("requests.jsonl", format!("{request}\n"));
    let piped =
        format!("cat requests.jsonl | '{}' plan /dev/stdin --model '{}'", env!("CARGO_BIN_EXE_offshoot"), demo());
    let output = Command::new("sh").args(["-c", &piped]).current_dir(desk.0.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let said = desk.refused(&["plan", "requests.jsonl", "--model", &demo(), "--svg", "requests.jsonl"]);
    assert!(said.contains("--svg"), "{said}");
    assert_eq!(desk.read("requests.jsonl").trim_end(), request);
}

#[test]
fn what_belongs_to_a_trace_is_refused_for_a_job() {
    let desk = Desk::new();
    desk.rows(&problems(1));
    for option in [["--rate", "5"], ["--requests", "1"], ["--policy", "fcfs"]] {
        let output = desk.run(&[&["plan", "rows.jsonl", "--model", "config.json"], &option[..]].concat());
        assert_eq!(output.status.code(), Some(2), "{option:?}");
    }
    desk.put("lengths.csv", "10,5\n20,5\n");
    let output = desk.run(&["plan", "--replay", "lengths.csv", "--model", "config.json", "--rate", "1e-30"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("1e-30"), "{said}");
}

#[test]
fn keys_and_values_are_what_the_engine_holds_of_them() {
    let desk = Desk::new();
    let tree = |tokens: u32, shared: Value, samples: u32, drawn: u32| {
        json!({"prompt_tokens": tokens, "shared": shared, "samples": samples,
               "output_tokens": drawn})
    };
    let jobs = [
        vec![json!({"tokens": [5], "output_tokens": 1})],
        vec![json!({"tokens": [5], "samples": 3, "output_tokens": 2})],
        vec![json!({"tokens": [5, 6, 7], "output_tokens": 40}); 4],
        (1..5).map(|n| json!({"tokens": [n, 6], "output_tokens": 2})).collect(),
        vec![tree(64, json!([]), 5, 33)],
        vec![tree(65, json!([]), 5, 1)],
        vec![tree(40, json!([["a", 30]]), 2, 4); 3],
        vec![
            tree(40, json!([["a", 40]]), 1, 9),
            tree(70, json!([["a", 40], ["b", 10]]), 2, 9),
            tree(90, json!([["a", 40], ["b", 10]]), 3, 9),
        ],
    ];
    for rows in jobs {
        desk.rows(&rows);
        let plan = desk.plan(&[]);
        let held = &plan["predictions"][2];
        assert_eq!(plan["kv_bytes"], held["kv_bytes_peak"], "{rows:?}");
        assert_eq!(plan["kv_bytes_unshared"], held["kv_bytes_peak_unshared"], "{rows:?}");
        assert_eq!(plan["waves"][0]["kv_bytes"], plan["kv_bytes"], "{rows:?}");
    }
}

#[test]
fn a_job_of_next_to_nothing_reads_well() {
    let desk = Desk::new();
    let page = |rows: &[Value]| {
        desk.rows(rows);
        let output = desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--explain"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let one = page(&[json!({"tokens": [5], "output_tokens": 1})]);
    for part in [
        "prompts      1 token, 1 of them distinct, in 1 node\n",
        "samples      1 token, the limit or the expected length of each\n",
        "kv held      4.00 MiB for all at once; 4.00 MiB without sharing: 1.0 x\n",
        "kv read      there is no decode step: every sample ends with its first token\n",
        "1 step of 1 token, 1 prompt token computed",
        "each node; there is no decode step:\n0..1: 1 token, prompt 1; no row of the step is beneath it\n",
    ] {
        assert!(one.contains(part), "{part:?} is not in: {one}");
    }
    assert!(!one.contains("0.00 s"), "times are in a unit that shows them: {one}");
    let equal = page(&vec![json!({"tokens": [5, 6, 7], "output_tokens": 2}); 4]);
    let folded = "folded into the nodes below (4 rows), which is faster than reading it separately: read for each of \
                  them, 1.50 MiB";
    assert!(equal.contains(folded) && !equal.contains("saves 0"), "{equal}");
    let different: Vec<Value> = (1..5).map(|n| json!({"tokens": [n, 6], "output_tokens": 2})).collect();
    assert_eq!(page(&different).matches("; read by its one row\n").count(), 4);
}

#[test]
fn a_device_is_no_option_and_threads_change_nothing() {
    let desk = Desk::new();
    desk.rows(&problems(2));
    let said = desk.refused(&["plan", "rows.jsonl", "--model", "config.json", "--device", "cuda"]);
    assert!(said.contains("--device: expected --device-profile instead") && said.contains("found cuda"), "{said}");
    assert_eq!(desk.plan(&["--threads", "1"]), desk.plan(&[]));
}

#[test]
fn a_job_is_cut_into_parts_between_its_documents() {
    let desk = Desk::new();
    // 8 documents of 100 tokens, 8 questions of 10 about each, one after the other about other documents.
    let row = |number: u32| {
        let document = (0..100).map(|at| 1000 * (number % 8) + at);
        let tokens: Vec<u32> = document.chain((0..10).map(|at| 10_000 + 10 * number + at)).collect();
        json!({"tokens": tokens, "max_tokens": 5})
    };
    desk.rows(&(0..64).map(row).collect::<Vec<_>>());
    let parts = &desk.plan(&["--predict", "never", "--parts", "4"])["parts"];
    let part = json!({"prompts": 16, "prompt_tokens": 2 * 100 + 16 * 10, "output_tokens": 80, "work": 440});
    let expected = json!({
        "parts": [part, part, part, part], "tokens_of_one_process": 1440, "tokens_computed": 1440, "tokens_twice": 0,
        "batch": 32, "tokens_in_batches": 2 * (800 + 320)
    });
    assert_eq!(*parts, expected);
    let output = desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--predict", "never", "--parts", "3"]);
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "parts        3: ",
        "batches of 32 in order of arrival, each by itself: 2,240 prompt tokens computed: 1.556 x",
        "part 3       ",
    ] {
        assert!(said.contains(line), "{line} is not in: {said}");
    }
    assert!(desk.refused(&["plan", "rows.jsonl", "--model", "config.json", "--parts", "0"]).contains("--parts"));
}

/// The states of Qwen3.5-9B's shape, in a narrower model: 24 of 32 layers have them.
#[test]
fn a_plan_says_what_states_take_and_how_many_branches_that_leaves() {
    let desk = Desk::new();
    let config = json!({
        "model_type": "qwen3_5_text", "hidden_size": 128, "num_hidden_layers": 32, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 256, "vocab_size": 1024,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "torch_dtype": "bfloat16"
    });
    desk.put("config.json", config.to_string());
    desk.rows(&problems(128));
    let state = 24 * 4 * (32 * 128 * 128 + 4 * (2 * 16 * 128 + 32 * 128));
    let plan = desk.plan(&["--kv-memory", "34000", "--predict", "never"]);
    // Pages have half of the memory at least, a branch has two states.
    let states = (17_000u64 << 20) / state;
    assert_eq!(plan["states"], json!({"states": states, "state_bytes": state}));
    assert_eq!(plan["branches"], states / 2);
    // Of bf16 the matrices take half, the convolution's inputs as much.
    let half = state - 24 * 2 * 32 * 128 * 128;
    let plan = desk.plan(&["--kv-memory", "34000", "--predict", "never", "--state-dtype", "bf16"]);
    let states = (17_000u64 << 20) / half;
    assert_eq!(plan["states"], json!({"states": states, "state_bytes": half}));
    assert_eq!(plan["branches"], states / 2);
    let page =
        desk.run(&["plan", "rows.jsonl", "--model", "config.json", "--kv-memory", "34000", "--predict", "never"]);
    let (page, said) = (String::from_utf8(page.stdout).unwrap(), String::from_utf8(page.stderr).unwrap());
    assert!(page.lines().any(|line| line.starts_with("states ") && line.contains("333 of 51.0 MiB")), "{page}");
    assert!(said.contains("166 of") && said.contains("branches run at once: memory holds 333 states"), "{said}");
    let too_little = ["plan", "rows.jsonl", "--model", "config.json", "--kv-memory", "100"];
    // Where a machine is slow, lines on the progress of loading come before the sentence.
    let refused = desk.run(&too_little);
    let said = String::from_utf8(refused.stderr).unwrap();
    let said = said.lines().last().unwrap_or_default();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for part in ["--kv-memory", "204 MiB, for the states of one branch", "100 MiB, in which no branch fits"] {
        assert!(said.contains(part), "{said}");
    }
}
