//! `offshoot tree`: what it makes of a run's folder. The page is taken apart again: its data must be what went in,
//! whatever the texts of a model hold, and nothing but its own scripts may run.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use offshoot_core::figures::count;
use offshoot_eval::view;
use offshoot_eval::view::ViewOptions;
use offshoot_search::tree::Trace;
use serde_json::{Value, json};

use crate::runs;

/// Texts that would like to be more than text.
const HOSTILE: [&str; 8] = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "<img src=x onerror=alert(1)> & \" ' `${alert(1)}`",
    "]]> --> </SCRIPT >",
    "{{SCRIPTS}} {{NONCE}} {{DATA}}",
    "\u{0}\u{1b}[31mred\u{7} \u{202e}backwards \u{2028} \u{feff}",
    "\\u003c/script> \\\" \\",
    "😀 e\u{301} 日本語 \u{10ffff}",
];

fn node(id: usize, parent: Option<usize>, ordinal: u64, text: &str) -> Value {
    json!({"id": id, "parent": parent, "kind": "sample", "ordinal": ordinal, "state": "closed", "finish": "end_of_text",
           "score": 0.5, "tokens": 10, "logprob": -1.25, "text": text, "token_ids": [1, 2]})
}

fn write_lines(path: &Path, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path, text).expect("the temporary folder is writable");
}

/// A run of two items: the first with a tree of hostile texts, the second without a tree.
fn a_run(folder: &Path) {
    let mut nodes = vec![node(0, None, 0, HOSTILE[0])];
    nodes.extend(HOSTILE.iter().enumerate().map(|(i, text)| node(i + 1, Some(0), i as u64, text)));
    nodes.push(node(9, Some(8), 0, "deeper"));
    nodes[3]["state"] = json!("pruned");
    nodes[4]["kind"] = json!("value");
    fs::create_dir_all(folder.join("trees")).expect("writable");
    let tree = json!({"item": "</script>", "kv_bytes_per_token": 1024, "nodes": nodes});
    fs::write(folder.join("trees/0.json"), tree.to_string()).expect("writable");
    write_lines(
        &folder.join("items.jsonl"),
        &[
            json!({"id": "plain", "index": 1, "prediction": "5", "correct": false, "chosen": 2, "cancelled": 3,
                   "prompt_tokens": 20}),
            json!({"id": "</script>", "index": 0, "prediction": HOSTILE[0], "correct": true, "chosen": 1}),
        ],
    );
    write_lines(
        &folder.join("samples.jsonl"),
        &[
            json!({"id": "plain", "index": 2, "text": "It is 5.", "tokens": 4, "finish": {"stop_string": "\n"},
                   "logprob": -0.5, "answer": "5", "correct": false}),
            json!({"id": "</script>", "index": 1, "text": HOSTILE[1], "tokens": 10, "correct": true}),
            json!({"id": "plain", "index": 0, "text": "It is 6.", "tokens": 4, "finish": "length", "logprob": -2.5,
                   "answer": "6", "correct": true, "attention": [0.1, 0.254, 0.646]}),
        ],
    );
}

/// Where the page's scripts begin: (attributes, contents), as an HTML parser finds them.
fn scripts(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find("<script") {
        let (attributes, inside) = rest[at + 7..].split_once('>').expect("a tag ends");
        // A script ends at the first `</script`, in letters of either case, whatever it holds.
        let end = inside.to_ascii_lowercase().find("</script").expect("a script ends");
        found.push((attributes.to_string(), inside[..end].to_string()));
        rest = &inside[end..];
    }
    found
}

fn page_of(folder: &Path) -> String {
    let html = folder.join("out.html");
    let options = ViewOptions { run: folder.to_path_buf(), html: Some(html.clone()), ..ViewOptions::default() };
    view::show(&options).expect("the run is sound");
    fs::read_to_string(html).expect("written")
}

/// The block of data of this id.
fn data(page: &str, id: &str) -> Value {
    let scripts = scripts(page);
    let (_, text) = scripts.iter().find(|(attributes, _)| attributes.contains(&format!("id=\"{id}\""))).expect(id);
    serde_json::from_str(text).expect("a block of data is JSON")
}

#[test]
fn data_come_out_of_the_page_as_they_went_in() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    a_run(folder.path());
    let page = page_of(folder.path());
    let data = |id: &str| data(&page, id);
    let run = data("run");
    let ids: Vec<&str> =
        run["items"].as_array().expect("a list").iter().map(|i| i["id"].as_str().expect("id")).collect();
    assert_eq!(ids, ["</script>", "plain"], "by their number among the task's items");

    let item = data("item-0");
    let nodes = item["nodes"].as_array().expect("a list");
    assert_eq!(nodes.len(), HOSTILE.len() + 2);
    for (id, node) in nodes.iter().enumerate() {
        assert_eq!(node["id"], id);
    }
    for (node, text) in nodes[1..].iter().zip(HOSTILE) {
        assert_eq!(node["text"], text);
    }
    assert_eq!(nodes[0]["branches"], 8);
    assert_eq!(nodes[8]["branches"], 1);
    assert_eq!(
        (item["answer"].as_u64(), &nodes[2]["chosen"], &nodes[1]["chosen"]),
        (Some(2), &json!(true), &json!(false))
    );
    assert_eq!(nodes[2]["sample"], json!({"index": 1, "correct": true}));

    let rebuilt = data("item-1");
    assert_eq!(rebuilt["nodes"].as_array().expect("a list").len(), 3);
    assert_eq!((&rebuilt["nodes"][0]["tokens"], &rebuilt["nodes"][2]["ordinal"]), (&json!(20), &json!(2)));
    assert_eq!(rebuilt["answer"], 2);
    let notes = rebuilt["notes"].to_string();
    assert!(notes.contains("`trees`") && notes.contains("3 more samples"), "{notes}");
}

#[test]
fn no_text_breaks_out_and_nothing_is_fetched() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    a_run(folder.path());
    let page = page_of(folder.path());
    let scripts = scripts(&page);
    let programs: Vec<&(String, String)> =
        scripts.iter().filter(|(attributes, _)| !attributes.contains("json")).collect();
    assert_eq!(scripts.len() - programs.len(), 3, "a block for the run and one for each item");
    let policy = page.split_once("Content-Security-Policy").expect("the page has a policy").1;
    let nonce =
        policy.split_once("script-src 'nonce-").expect("scripts need a nonce").1.split('\'').next().expect("ends");
    assert!(policy.contains("default-src 'none'"));
    for (attributes, program) in &programs {
        assert_eq!(*attributes, format!(" nonce=\"{nonce}\""));
        assert!(!program.contains("alert("), "{program}");
        assert!(program.contains("use strict"));
    }
    // What is left without the data: the frame and the page's own style and scripts.
    let data = scripts.iter().filter(|(attributes, _)| attributes.contains("json"));
    let frame = data.fold(page.clone(), |page, (_, text)| page.replace(text, ""));
    for outside in ["src=", "href=", "onerror", "@import", "url(", "http://", "https://", "{{"] {
        assert!(!frame.contains(outside), "{outside}");
    }
    assert!(frame.contains("<title>"));
}

#[test]
fn a_cut_line_is_passed_over_and_a_broken_one_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    a_run(folder.path());
    let samples = folder.path().join("samples.jsonl");
    let whole = fs::read_to_string(&samples).expect("written");
    fs::write(&samples, format!("{whole}{{\"id\": \"new\", \"index\": 0, \"text\": \"sent\"}}\n{{\"id\": \"ne"))
        .expect("writable");
    let run = view::read(folder.path(), None).expect("a killed run can be looked at");
    let ids: Vec<&str> = run.items.iter().map(|item| item.id()).collect();
    assert_eq!(ids, ["</script>", "plain", "new"]);
    assert!(run.items[2].notes[0].contains("ended before"), "{:?}", run.items[2].notes);

    fs::write(&samples, format!("[1]\n{whole}")).expect("writable");
    let error = view::read(folder.path(), None).expect_err("a list is no sample").to_string();
    assert!(error.contains("samples.jsonl: line 1"), "{error}");
}

#[test]
fn a_folder_without_results_is_told_from_a_run_without_ended_items() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = || view::read(folder.path(), None).map(|run| run.items.len()).expect_err("nothing to show").to_string();
    assert!(said().contains("is no folder of results"), "{}", said());
    fs::write(folder.path().join("manifest.json"), "{}").expect("writable");
    let killed = "no item has ended yet; `offshoot run `resume`` continues the run";
    assert!(said().ends_with(killed), "{}", said());
    for name in ["items.jsonl", "samples.jsonl"] {
        fs::write(folder.path().join(name), "").expect("writable");
    }
    assert!(said().ends_with(killed), "{}", said());
}

#[test]
fn a_tree_file_that_is_no_tree_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let change = |at: usize, key: &str, value: Value| {
        a_run(folder.path());
        let path = folder.path().join("trees/0.json");
        let mut tree: Value = serde_json::from_str(&fs::read_to_string(&path).expect("written")).expect("JSON");
        tree["nodes"][at][key] = value;
        fs::write(&path, tree.to_string()).expect("writable");
        view::read(folder.path(), None).expect_err("not a tree").to_string()
    };
    assert!(change(9, "parent", json!(9)).contains("nodes[9].parent"), "a node is its own parent");
    assert!(change(2, "parent", Value::Null).contains("nodes[2].parent"), "a second root");
    assert!(change(0, "parent", json!(1)).contains("nodes[0].parent"), "the root has a parent");
    assert!(change(3, "id", json!(4)).contains("nodes[3].id"), "an id out of its place");
    assert!(change(3, "text", json!(4)).contains("trees/0.json"), "a text that is none");
}

#[test]
fn items_are_named_by_id_or_number() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    a_run(folder.path());
    let one = |wanted: &str| view::read(folder.path(), Some(wanted)).map(|run| run.items[0].id().to_string());
    assert_eq!(one("plain").expect("an id"), "plain");
    assert_eq!(one("0").expect("a number"), "</script>");
    let error = one("7").expect_err("two items").to_string();
    assert!(error.contains("`item`") && error.contains("plain"), "{error}");
}

#[test]
fn json_and_dot_hold_every_node() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    a_run(folder.path());
    let (json, dot) = (folder.path().join("out.json"), folder.path().join("out.dot"));
    let run = folder.path().to_path_buf();
    let options = ViewOptions { run, json: Some(json.clone()), dot: Some(dot.clone()), ..ViewOptions::default() };
    view::show(&options).expect("the run is sound");
    let trees: Value = serde_json::from_str(&fs::read_to_string(json).expect("written")).expect("JSON");
    assert_eq!(trees["format"], "offshoot-trees-1");
    assert_eq!(trees["items"][0]["nodes"][1]["text"], HOSTILE[0]);
    assert_eq!(trees["items"][1]["nodes"][1]["logprob"], -2.5);
    let dot = fs::read_to_string(dot).expect("written");
    for node in 0..10 {
        assert_eq!(dot.matches(&format!("t0n{node} [label=")).count(), 1, "{dot}");
    }
    assert_eq!(dot.matches(" -> t").count(), 9 + 2);
    assert!(!dot.contains('\u{1b}') && !dot.contains('\u{0}'));
}

#[test]
fn where_attention_fell_is_shown_where_it_was_recorded() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    a_run(folder.path());
    let shown = Command::new(env!("CARGO_BIN_EXE_offshoot")).arg("tree").arg(folder.path()).output().expect("starts");
    let text = String::from_utf8(shown.stdout).expect("text");
    let with: Vec<&str> = text.lines().filter(|line| line.contains("attention")).collect();
    assert!(matches!(with[..], [line] if line.contains(", right, attention 10 + 25 + 65 %] It is 6.")), "{text}");
}

#[test]
fn every_view_gives_the_summarys_totals() {
    // Six items below one text of examples: what they share is counted once.
    let folder = runs::task_folder(|task| task["method"]["sample"]["samples"] = json!(2));
    runs::run_into(folder.path(), "out", &["--device", "cpu", "--trees", "--max-tokens", "6"]);
    let out = folder.path().join("out");
    let summary: Value = serde_json::from_slice(&fs::read(out.join("summary.json")).expect("written")).expect("JSON");
    let sum = |key: &str| -> u64 {
        summary["levels"].as_array().expect("a list").iter().map(|level| level[key].as_u64().expect("a number")).sum()
    };
    let totals =
        json!({"tokens": sum("tokens"), "tokens_unshared": sum("tokens_unshared"), "kv_bytes": sum("kv_bytes")});
    assert!(sum("tokens_unshared") > 6 * sum("tokens"), "the examples are most of every prompt: {totals}");

    let (svg, json) = (out.join("out.svg"), out.join("out.json"));
    let options =
        ViewOptions { run: out.clone(), svg: Some(svg.clone()), json: Some(json.clone()), ..ViewOptions::default() };
    view::show(&options).expect("the run is sound");
    let trees: Value = serde_json::from_slice(&fs::read(json).expect("written")).expect("JSON");
    assert_eq!(trees["totals"], totals);
    let ratio = sum("tokens_unshared") as f64 / sum("tokens") as f64;
    let svg = fs::read_to_string(svg).expect("written");
    assert!(svg.contains(&format!(": {ratio:.1} times fewer.")), "{svg}");

    let of_page = || data(&page_of(&out), "run");
    let shown = |run: &Value, name: &str| -> String {
        let facts = run["facts"].as_array().expect("a list").iter();
        let text = facts.filter(|fact| fact[0] == name).map(|fact| fact[1].as_str().expect("a text").to_string());
        text.collect()
    };
    assert_eq!(of_page()["totals"], totals);
    assert!(shown(&of_page(), "without sharing").ends_with(&format!(" ({ratio:.1} ×)")), "{}", of_page());
    let text = runs::succeeds(runs::run(folder.path(), &["tree", "out"]));
    assert!(text.trim_end().ends_with(&format!(" without sharing ({ratio:.1} x)")), "{text}");

    // A killed run has no summary: its trees say what the items share. A run without trees has the summary alone.
    let (kept, aside) = (folder.path().join("summary.json"), folder.path().join("trees"));
    fs::rename(out.join("summary.json"), &kept).expect("writable");
    assert_eq!(of_page()["totals"], totals, "by the trees");
    fs::rename(out.join("trees"), &aside).expect("writable");
    assert_eq!(of_page()["totals"]["tokens"], Value::Null);
    assert_eq!(of_page()["totals"]["tokens_unshared"], totals["tokens_unshared"]);
    assert!(
        shown(&of_page(), "distinct tokens").starts_with("not kept")
            && !shown(&of_page(), "without sharing").contains('×')
    );
    fs::rename(&kept, out.join("summary.json")).expect("writable");
    assert_eq!(of_page()["totals"], totals, "by the summary");
}

#[test]
fn totals_of_a_search_hold_those_of_its_items() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let task = runs::repository().join("tasks/make24-tot.json").display().to_string();
    runs::succeeds(runs::run(folder.path(), &["run", &task, "--limit", "2", "--trees", "--out", "out"]));
    let out = folder.path().join("out");
    let (svg, json) = (out.join("out.svg"), out.join("out.json"));
    let options =
        ViewOptions { run: out.clone(), svg: Some(svg.clone()), json: Some(json.clone()), ..ViewOptions::default() };
    view::show(&options).expect("the run is sound");
    let trees: Value = serde_json::from_slice(&fs::read(json).expect("written")).expect("JSON");
    let totals = &trees["totals"];

    // A given token by all tokens before it in its context, a sampled one by itself.
    let (mut given, mut sampled) = (HashSet::new(), 0);
    for item in trees["items"].as_array().expect("a list") {
        let nodes = item["nodes"].as_array().expect("a list");
        let mut contexts: Vec<Vec<u64>> = Vec::new();
        for node in nodes {
            let above = node["parent"].as_u64().filter(|_| node["asks"] != true);
            let mut context = above.map_or_else(Vec::new, |above| contexts[above as usize].clone());
            for token in node["token_ids"].as_array().expect("a list") {
                context.push(token.as_u64().expect("an id"));
                match node["logprob"].is_null() {
                    true => drop(given.insert(context.clone())),
                    false => sampled += 1,
                }
            }
            contexts.push(context);
        }
        for key in ["tokens", "tokens_unshared", "kv_bytes"] {
            assert!(item["totals"][key].as_u64() <= totals[key].as_u64(), "{key}: {} of {totals}", item["totals"]);
        }
    }
    assert_eq!(totals["tokens"], given.len() + sampled);
    let run = data(&page_of(&out), "run");
    assert_eq!(&run["totals"], totals);
    for (listed, item) in
        run["items"].as_array().expect("a list").iter().zip(trees["items"].as_array().expect("a list"))
    {
        let own = &item["totals"];
        assert_eq!((&listed["distinct"], &listed["unshared"]), (&own["tokens"], &own["tokens_unshared"]));
    }
    let number = |key: &str| count(totals[key].as_u64().expect("a number"));
    let (tokens, unshared) = (number("tokens"), number("tokens_unshared"));
    let text = runs::succeeds(runs::run(folder.path(), &["tree", "out"]));
    assert!(text.contains(&format!("all items: {tokens} distinct tokens, {unshared} without sharing (")), "{text}");
    let svg = fs::read_to_string(svg).expect("written");
    assert!(svg.contains(&format!("All nodes of the trees: {tokens} tokens instead of {unshared}: ")), "{svg}");
    assert!(svg.contains("Prompts and samples: "), "{svg}");
}

#[test]
fn a_tree_alone_has_a_name_and_leaves_the_page_around_it_alone() {
    for (item, name) in [("", "Sampling tree"), ("mine", "mine")] {
        let trace = json!({"item": item, "kv_bytes_per_token": 1024, "nodes": [node(0, None, 0, "Q")]});
        let trace: Trace = serde_json::from_value(trace).expect("a trace");
        let page = view::html_of(trace).expect("a page");
        assert_eq!((&data(&page, "run")["items"][0]["id"], &data(&page, "item-0")["id"]), (&json!(name), &json!(name)));
        assert!(page.contains(&format!("<title>{name} ")), "{page}");
        assert_eq!(data(&page, "run")["totals"]["tokens"], 10);
        // `scrollIntoView` scrolls what is around a frame, too, and a frame that takes the focus takes the keys.
        assert!(!page.contains("scrollIntoView"));
        let (before, _) = page.rsplit_once(".focus()").expect("the outline of a page of its own has the focus");
        assert!(before.trim_end_matches(|c| c != '{').trim_end().ends_with("if (window.parent === window) {"));
    }
}
