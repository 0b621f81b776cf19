//! Templates and model folders of strangers: what would take a machine's memory or time, or read files outside of its
//! folder, ends with one sentence.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};

use crate::runs::{offshoot, refuses, repository, run, run_into, task_folder};
use crate::watched::{CommandEnd, watched};

/// Templates that would not end, or not within any memory.
const ENDLESS: [&str; 14] = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{% for b in range(99999) %}xxxxxxxx{% endfor %}{% endfor %}",
    "{{ '%999999999s' | format('x') }}",
    "{{ '{:>999999999}'.format('x') }}",
    "{{ 'a\nb' | indent(999999999) }}",
    "{{ [1] | batch(999999999, 0) | list }}",
    "{{ [1] | slice(999999999, 0) | list }}",
    "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s='xxxxxxxx') %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s='xx') %}{% for a in range(60) %}{% set n.s = n.s.replace('x', n.s) %}{% endfor %}{{ n.s }}",
    "{% set n = namespace(s=[1, 2]) %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | sum }}",
    "{{ 'a'.replace('', 'b' * 99999999).replace('', 'b' * 99999999) }}",
    "{% set n = namespace(l=[]) %}{% for a in range(99999) %}{% set n.l = [n.l] %}{% endfor %}{{ n.l }}",
    // Shown, such a list asks for memory at each level, and so does its end.
    "{% set n = namespace(l=[]) %}{% for a in range(90000) %}{% set n.l = [n.l] %}{% endfor %}\
     {{ n.l == [1] }}{{ n.l | string }}",
];

fn demo() -> std::path::PathBuf {
    repository().join("tasks/models/demo")
}

/// A copy of the demo model's folder with links to its files but for those `without`.
fn model_without(folder: &Path, without: &[&str]) {
    fs::create_dir(folder).expect("made");
    for entry in fs::read_dir(demo()).expect("the demo model is there").map(|entry| entry.expect("readable")) {
        let name = entry.file_name();
        if entry.path().is_file() && !without.iter().any(|left_out| *left_out == name) {
            symlink(entry.path(), folder.join(name)).expect("a link");
        }
    }
}

/// An index that says that all tensors of the model in `folder` are in the file `shard`.
pub fn shard_index(folder: &Path, shard: &str) -> String {
    let bytes = fs::read(folder.join("model.safetensors")).expect("readable");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header]).expect("JSON");
    let names = header.as_object().expect("an object").keys().filter(|name| *name != "__metadata__");
    let map: serde_json::Map<String, Value> = names.map(|name| (name.clone(), json!(shard))).collect();
    json!({"weight_map": map}).to_string()
}

fn object(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("readable")).expect("JSON")
}

fn dry_run(folder: &Path) -> CommandEnd {
    watched(offshoot(folder, &["run", "task.json", "--dry-run", "--threads", "1"]))
}

/// It ends with exit code 2, one sentence that has all of `words`, and little more memory than `usual`.
fn assert_ends(end: &CommandEnd, usual: u64, words: &[&str], what: &str) {
    assert_eq!(end.status.code(), Some(2), "{what}: {}", end.errors);
    assert!(!end.stopped, "{what}: {}", end.errors);
    assert!(words.iter().all(|word| end.errors.contains(word)), "{what}: {}", end.errors);
    assert_eq!(end.errors.trim_end().lines().count(), 1, "{what}: {}", end.errors);
    let more = end.peak_bytes.saturating_sub(usual) >> 20;
    assert!(more <= 100, "{what}: {more} MiB more than usual");
}

#[test]
fn templates_of_tasks_end() {
    let usual = dry_run(task_folder(|_| ()).path());
    assert!(usual.status.success(), "{}", usual.errors);
    for template in ENDLESS {
        let folder = task_folder(|task| task["prompt"]["item"] = json!(format!("{{{{question}}}}{template}")));
        assert_ends(&dry_run(folder.path()), usual.peak_bytes, &["prompt.item"], template);
    }
}

#[test]
fn chat_templates_end() {
    let folder = task_folder(|task| {
        task["model"] = json!("model");
        task["prompt"] = json!({"chat": {"messages": [{"role": "user", "content": "{{question}}"}]}});
    });
    model_without(&folder.path().join("model"), &["chat_template.jinja"]);
    let template = folder.path().join("model/chat_template.jinja");
    fs::write(&template, "{{ messages[0].content }}").expect("written");
    let usual = dry_run(folder.path());
    assert!(usual.status.success(), "{}", usual.errors);
    for text in ENDLESS {
        fs::write(&template, text).expect("written");
        assert_ends(&dry_run(folder.path()), usual.peak_bytes, &["chat_template.jinja"], text);
    }
}

#[test]
fn tokenizers_that_break_their_library_are_errors() {
    let folder = task_folder(|task| task["model"] = json!("model"));
    model_without(&folder.path().join("model"), &["tokenizer.json"]);
    let (path, whole) = (folder.path().join("model/tokenizer.json"), object(&demo().join("tokenizer.json")));
    let usual = dry_run(task_folder(|_| ()).path());
    let id = |id: u64| {
        let mut json = whole.clone();
        json["model"]["vocab"]["offshoot"] = json!(id);
        json.to_string()
    };
    let text = whole.to_string();
    for (damaged, what) in [
        (id(2_147_483_647), "an id of 2^31-1"),
        (id(4_294_967_295), "an id of 2^32-1"),
        (text.replacen("\"BPE\"", "NaN", 1), "a type of NaN"),
        (text.replacen("\"BPE\"", "\"Unigram\"", 1), "another type"),
        ("[".repeat(100_000), "brackets"),
    ] {
        fs::write(&path, damaged).expect("written");
        assert_ends(&dry_run(folder.path()), usual.peak_bytes, &["tokenizer"], what);
    }
}

/// Parts that a text sets off.
#[test]
fn tokenizers_that_break_on_a_text_are_errors() {
    let folder = task_folder(|task| {
        task["model"] = json!("model");
        task["prompt"]["item"] = json!(format!("{}! {{{{question}}}}", "z".repeat(60)));
    });
    model_without(&folder.path().join("model"), &["tokenizer.json"]);
    let whole = object(&demo().join("tokenizer.json"));
    let usual = dry_run(task_folder(|_| ()).path());
    let doubling = json!({"type": "Replace", "pattern": {"String": "z"}, "content": "zz"});
    let pattern = json!({"type": "Split", "pattern": {"Regex": "(z+)+$"}, "behavior": "Isolated", "invert": false});
    let before = |first: Value, then: &Value| json!({"type": "Sequence", "pretokenizers": [first, then]});
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let all_bytes = json!({"type": "Sequence", "pretokenizers": vec![bytes; 40]});
    let twice = json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let twice = json!({"type": "TemplateProcessing", "single": twice, "pair": [], "special_tokens": {}});
    let is_refused = "lengthen a text at most 64 times";
    for (key, value, said, what) in [
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": vec![doubling; 40]}),
            is_refused,
            "each z is doubled 40 times",
        ),
        ("pre_tokenizer", all_bytes, is_refused, "each byte is doubled 40 times"),
        (
            "post_processor",
            json!({"type": "Sequence", "processors": vec![twice; 40]}),
            is_refused,
            "all tokens are doubled 40 times",
        ),
        (
            "pre_tokenizer",
            before(pattern, &whole["pre_tokenizer"]),
            "the tokenizer cannot encode this text",
            "a pattern that tries all ways",
        ),
    ] {
        let mut strange = whole.clone();
        strange[key] = value;
        fs::write(folder.path().join("model/tokenizer.json"), strange.to_string()).expect("written");
        assert_ends(&dry_run(folder.path()), usual.peak_bytes, &[said], what);
    }
}

/// A decoder is applied to each token once, when the tokenizer is read: no token's text may be longer than a bound.
#[test]
fn tokenizers_that_lengthen_each_token_are_refused() {
    let folder = task_folder(|task| task["model"] = json!("model"));
    model_without(&folder.path().join("model"), &["tokenizer.json"]);
    let usual = dry_run(task_folder(|_| ()).path());
    let doubling = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    for times in [20, 60] {
        let mut strange = object(&demo().join("tokenizer.json"));
        strange["decoder"] = json!({"type": "Sequence", "decoders": vec![doubling.clone(); times]});
        fs::write(folder.path().join("model/tokenizer.json"), strange.to_string()).expect("written");
        assert_ends(&dry_run(folder.path()), usual.peak_bytes, &["tokenizer"], &format!("{times} doublings"));
    }
}

/// Devices have no end, and their lines neither.
#[test]
fn devices_are_no_input() {
    let folder = task_folder(|task| task["prompt"]["item"] = json!({"file": "/dev/zero"}));
    let usual = dry_run(task_folder(|_| ()).path());
    let model = demo().display().to_string();
    for arguments in [
        &["run", "/dev/zero", "--dry-run"][..],
        &["run", "task.json", "--dry-run"],
        &["batch", "/dev/zero", "--model", &model, "--out", "out.jsonl"],
        &["vote", "/dev/zero"],
        &["plan", "/dev/zero", "--model", &model],
        &["judge", "--problems", "/dev/zero", "--samples", "items.jsonl"],
    ] {
        let end = watched(offshoot(folder.path(), arguments));
        assert_ends(&end, usual.peak_bytes, &["/dev/zero", "found a device"], &arguments.join(" "));
    }
}

/// What is read whole, as lines are not, has a limit that no byte is read to find.
#[test]
fn inputs_that_are_read_whole_have_a_limit() {
    let folder = task_folder(|_| ());
    let usual = dry_run(folder.path());
    let model = demo().display().to_string();
    for name in ["long.json", "long.csv", "long.txt"] {
        let sparse = fs::File::create(folder.path().join(name)).expect("made");
        sparse.set_len(1 << 40).expect("a hole takes no disk");
    }
    for arguments in [
        &["vote", "long.json"][..],
        &["vote", "long.csv"],
        &["judge", "--problems", "long.json", "--samples", "items.jsonl"],
        &["plan", "long.txt", "--model", &model],
    ] {
        let end = watched(offshoot(folder.path(), arguments));
        assert_ends(&end, usual.peak_bytes, &["long.", "at most 512 MiB"], &arguments.join(" "));
    }
}

#[test]
fn a_config_without_an_end_is_an_error() {
    let folder = task_folder(|task| task["model"] = json!("model"));
    let usual = dry_run(task_folder(|_| ()).path());
    let model = folder.path().join("model");
    model_without(&model, &["config.json"]);
    symlink("/dev/zero", model.join("config.json")).expect("a link");
    assert_ends(&dry_run(folder.path()), usual.peak_bytes, &["config.json", "regular file"], "a device");
    fs::remove_file(model.join("config.json")).expect("there");
    let sparse = fs::File::create(model.join("config.json")).expect("made");
    sparse.set_len(1 << 40).expect("a hole takes no disk");
    assert_ends(&dry_run(folder.path()), usual.peak_bytes, &["config.json", "at most 512 MiB"], "a TiB of zeros");
}

#[test]
fn shards_are_files_of_the_folder() {
    let folder = task_folder(|task| task["model"] = json!("model"));
    let model = folder.path().join("model");
    model_without(&model, &["model.safetensors"]);
    let weights = demo().join("model.safetensors");
    symlink(&weights, model.join("one.safetensors")).expect("a link");
    symlink(&weights, folder.path().join("one.safetensors")).expect("a link");
    symlink(&weights, model.join("one.bin")).expect("a link");
    fs::create_dir(model.join("inner")).expect("made");
    symlink(&weights, model.join("inner/one.safetensors")).expect("a link");
    let index = |shard: &str| {
        fs::write(model.join("model.safetensors.index.json"), shard_index(&demo(), shard)).expect("written");
    };
    index("one.safetensors");
    run_into(folder.path(), "whole", &["--limit", "1"]);
    for shard in ["../one.safetensors", "inner/one.safetensors", weights.to_str().expect("text"), "one.bin", "..", ""] {
        index(shard);
        refuses(
            &run(folder.path(), &["run", "task.json", "--out", "no"]),
            &["index.json", "weight_map.", ".safetensors file"],
        );
    }
}

#[test]
fn a_text_far_beyond_the_context_is_refused_without_its_memory() {
    let folder = task_folder(|_| ());
    let usual = dry_run(folder.path());
    let long = "many pens and ".repeat(20 << 20 >> 4);
    fs::write(folder.path().join("items.jsonl"), format!("{}\n", json!({"id": 1, "question": long, "answer": "1"})))
        .expect("written");
    // The text itself is held a few times.
    let end = dry_run(folder.path());
    assert_ends(
        &end,
        usual.peak_bytes + 10 * long.len() as u64,
        &["the beginning", "item `1`", "context"],
        "a long text",
    );
}
