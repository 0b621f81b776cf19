//! A run's trees as one page that needs nothing else: no network, no other file. The page's data stand in it as JSON
//! that no text can end early; its scripts read them, one item when it is looked at.

use std::fmt::Write;

use serde_json::{Value, json};

use super::shown::{ShownItem, ShownRun};
use super::totals::RunTotals;
use offshoot_core::error::Result;
use offshoot_core::figures::{bytes, count, counted, percent, times};
use offshoot_core::json;
use offshoot_core::setting::TREES;

const FRAME: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPTS: [&str; 4] =
    [include_str!("model.js"), include_str!("outline.js"), include_str!("detail.js"), include_str!("page.js")];

/// Facts of an item that the list of items shows.
const LISTED: [&str; 4] = ["id", "index", "prediction", "correct"];

/// The page. `{{NAME}}` in the frame is a placeholder for one of its parts; each is inserted once, so that no part can
/// name another.
pub fn html(run: &ShownRun) -> Result<String> {
    let items: Vec<Value> = run.items.iter().map(listed).collect();
    let mut data =
        block("run", &json!({ "run": run.name, "totals": run.totals, "facts": facts(run), "items": items }))?;
    for (number, item) in run.items.iter().enumerate() {
        data += &block(&format!("item-{number}"), item)?;
    }
    // Only scripts with this nonce run. It is a hash of all data, so no text in the data can contain it.
    let nonce = blake3::hash(data.as_bytes()).to_hex().to_string();
    let mut scripts = String::new();
    for script in SCRIPTS {
        writeln!(scripts, "<script nonce=\"{nonce}\">\n{script}</script>").expect("writing to a string cannot fail");
    }
    let mut page = String::with_capacity(data.len() + (64 << 10));
    let mut rest = FRAME;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("the frame closes every placeholder");
        page += before;
        match name {
            "NONCE" => page += &nonce,
            "TITLE" => page += &escaped(&run.name),
            "STYLE" => page += STYLE,
            "DATA" => page += &data,
            "SCRIPTS" => page += &scripts,
            other => unreachable!("the frame names `{other}`, which is no part of the page"),
        }
        rest = after;
    }
    Ok(page + rest)
}

/// The facts of the run above the list of its items, with their names. Here, so that they look as in the summary.
fn facts(run: &ShownRun) -> Vec<(&'static str, String)> {
    let nodes: usize = run.items.iter().map(|item| item.trace.nodes.len()).sum();
    let mut facts = vec![("items", count(run.items.len() as u64)), ("nodes", count(nodes as u64))];
    let graded: Vec<bool> = run.items.iter().filter_map(|item| item.facts.get("correct")?.as_bool()).collect();
    if !graded.is_empty() {
        let (right, all) = (graded.iter().filter(|&&right| right).count() as u64, graded.len() as u64);
        facts.push(("right", format!("{} of {} ({})", count(right), count(all), percent(right as f64 / all as f64))));
    }
    if let Some((accuracy, tied @ 1..)) = run.accuracy {
        facts.push(("accuracy", format!("{}, {} tied", percent(accuracy), counted(tied as u64, "item"))));
    }
    let RunTotals { tokens, tokens_unshared, kv_bytes } = run.totals;
    let ratio = tokens.map_or(String::new(), |tokens| format!(" ({} ×)", times(tokens, tokens_unshared)));
    let distinct = tokens.map_or_else(|| format!("not kept: {TREES} records what items share"), count);
    facts.extend([("distinct tokens", distinct), ("without sharing", format!("{}{ratio}", count(tokens_unshared)))]);
    facts.extend(kv_bytes.map(|of_all| ("keys and values", bytes(of_all))));
    facts
}

/// An item's entry in the list of items.
fn listed(item: &ShownItem) -> Value {
    let RunTotals { tokens, tokens_unshared, .. } = item.totals();
    let mut listed = json!({
        "nodes": item.trace.nodes.len(),
        "distinct": tokens,
        "unshared": tokens_unshared,
        "kv_bytes_per_token": item.trace.kv_bytes_per_token,
    });
    for key in LISTED {
        listed[key] = item.facts.get(key).cloned().unwrap_or(Value::Null);
    }
    listed
}

/// A block of data. In JSON, `<` occurs only in strings and can be escaped there, so that neither `</script>` nor
/// `<!--` occurs.
fn block(id: &str, value: &impl serde::Serialize) -> Result<String> {
    let text = json::text("a tree", value)?.replace('<', "\\u003c");
    Ok(format!("<script type=\"application/json\" id=\"{id}\">{text}</script>\n"))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
