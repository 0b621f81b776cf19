//! Reads a run's folder for the views: `items.jsonl`, `samples.jsonl`, and `trees/N.json` if the run wrote them.
//! Otherwise a tree is rebuilt from the prompt and its samples, with a note on what is missing. An incomplete line of a
//! killed run is skipped.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::shown::{ShownItem, ShownRun};
use super::totals::SummaryTotals;
use crate::journal::{AttentionFile, settle};
use offshoot_core::error::{Error, Result};
use offshoot_core::setting::{ITEM, RESUME, TREES};
use offshoot_core::sorting::sort_by_number;
use offshoot_engine::{ForkKind, finish_fields};
use offshoot_search::tree::{NodeState, Trace, TraceNode};

const UNFINISHED: &str = "The run ended before this item did: only what is on disk is shown.";

/// Lines of a JSON lines file, each an object.
pub type JsonObjects = Vec<Map<String, Value>>;

/// The recorded data of one item.
pub struct RecordedItem {
    /// Its line of `items.jsonl`; only an id if the item is not finished.
    pub facts: Map<String, Value>,
    /// Its lines of `samples.jsonl`, by index.
    pub samples: JsonObjects,
    /// Its tree and the tree's file, if the run wrote one.
    pub tree: Option<(PathBuf, Trace)>,
}

impl RecordedItem {
    pub fn id(&self) -> String {
        id_of(&self.facts)
    }
}

/// Reads the searches of a run: all items, or only the item `wanted`.
pub fn read(folder: &Path, wanted: Option<&str>) -> Result<ShownRun> {
    let name = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let name =
        name.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned());
    let items = recorded(folder, wanted)?;
    let attention = AttentionFile::read(folder)?;
    let items = items.into_iter().map(|item| show(item, &attention)).collect();
    let summary = if wanted.is_none() { SummaryTotals::read(folder) } else { None };
    Ok(ShownRun::new(name, items, summary.as_ref()))
}

/// All items of a run, or the item `wanted`, sorted by index.
///
/// # Errors
///
/// The folder holds no results; no sample of the run is there yet; `wanted` is none of its items.
pub fn recorded(folder: &Path, wanted: Option<&str>) -> Result<Vec<RecordedItem>> {
    settle(folder)?;
    let lacks = |name: &str| matches!(folder.join(name).try_exists(), Ok(false));
    let none_ended =
        || Error::format(folder, format!("no item has ended yet; `offshoot run {RESUME}` continues the run"));
    if lacks("items.jsonl") && lacks("samples.jsonl") {
        return Err(match lacks("manifest.json") {
            true => Error::format(folder, "is no folder of results: it has no items.jsonl"),
            false => none_ended(),
        });
    }
    let mut items = lines(&folder.join("items.jsonl"))?;
    let mut samples: HashMap<String, JsonObjects> = HashMap::new();
    let mut unfinished = Vec::new();
    for sample in lines(&folder.join("samples.jsonl"))? {
        let id = id_of(&sample);
        if !samples.contains_key(&id) {
            unfinished.push(id.clone());
        }
        samples.entry(id).or_default().push(sample);
    }
    sort_by_number(&mut items, |item| index_of(item).map_or(u64::MAX, |index| index as u64));
    let finished: HashSet<String> = items.iter().map(id_of).collect();
    unfinished.retain(|id| !finished.contains(id));
    items.extend(unfinished.into_iter().map(|id| Map::from_iter([("id".to_string(), Value::String(id))])));
    if items.is_empty() {
        return Err(none_ended());
    }
    if let Some(wanted) = wanted {
        keep(&mut items, wanted, folder)?;
    }
    let with_samples = |facts: Map<String, Value>| {
        let mut samples = samples.remove(&id_of(&facts)).unwrap_or_default();
        sort_by_number(&mut samples, |sample| index_of(sample).map_or(0, |index| 1 + index as u64));
        // A sample that was scored after it was sampled has two lines until the run is complete: the last one counts.
        samples.reverse();
        samples.dedup_by(|one, other| index_of(one).is_some() && index_of(one) == index_of(other));
        samples.reverse();
        let file = index_of(&facts).map(|index| folder.join(format!("trees/{index}.json")));
        let tree = file.filter(|file| file.exists()).map(|file| Trace::read(&file).map(|trace| (file, trace)));
        Ok(RecordedItem { facts, samples, tree: tree.transpose()? })
    };
    items.into_iter().map(with_samples).collect()
}

/// Keeps only the item with the id `wanted`, or else with that index.
fn keep(items: &mut JsonObjects, wanted: &str, folder: &Path) -> Result<()> {
    let by_id = items.iter().position(|item| id_of(item) == wanted);
    let by_index = || {
        let number = wanted.parse().ok();
        items.iter().position(|item| number.is_some() && index_of(item) == number)
    };
    let Some(at) = by_id.or_else(by_index) else {
        let some: Vec<String> = items.iter().take(3).map(id_of).collect();
        let expected = format!("an item of {}, by id ({}, ...) or number", folder.display(), some.join(", "));
        return Err(Error::value(ITEM, expected, wanted));
    };
    *items = vec![items.swap_remove(at)];
    Ok(())
}

fn show(item: RecordedItem, attention: &AttentionFile) -> ShownItem {
    let RecordedItem { facts: item, mut samples, tree } = item;
    let mut notes = Vec::new();
    if index_of(&item).is_none() {
        notes.push(UNFINISHED.to_string());
    }
    samples.iter_mut().for_each(|sample| attention.add_to(sample));
    let trace = match tree {
        Some((_, trace)) => trace,
        None => {
            notes.push(format!(
                "The run wrote no tree (offshoot run {TREES}): this one is put together from its samples, without the \
                 prompt's text, pruned branches and bytes."
            ));
            if let Some(cancelled) = item.get("cancelled").and_then(Value::as_u64).filter(|&cancelled| cancelled > 0) {
                notes.push(format!("{cancelled} more samples were stopped early and are not on disk."));
            }
            rebuilt(&item, &samples)
        }
    };
    ShownItem::new(item, notes, trace, samples)
}

/// Rebuilds a tree from a prompt and its samples.
fn rebuilt(item: &Map<String, Value>, samples: &JsonObjects) -> Trace {
    let count = |of: &Map<String, Value>, key: &str| of.get(key).and_then(Value::as_u64).unwrap_or(0);
    let root = TraceNode {
        id: 0,
        parent: None,
        kind: ForkKind::Sample,
        ordinal: 0,
        state: NodeState::Closed,
        asks: false,
        finish: None,
        score: None,
        visits: None,
        tokens: count(item, "prompt_tokens") as usize,
        logprob: None,
        text: String::new(),
        token_ids: None,
        top: Vec::new(),
    };
    let child = |(before, sample): (usize, &Map<String, Value>)| TraceNode {
        id: before + 1,
        parent: Some(0),
        ordinal: count(sample, "index"),
        finish: finish_fields::of(sample).ok(),
        score: sample.get("score").and_then(Value::as_f64),
        tokens: count(sample, "tokens") as usize,
        logprob: sample.get("logprob").and_then(Value::as_f64),
        text: sample.get("text").and_then(Value::as_str).unwrap_or_default().to_string(),
        ..root.clone()
    };
    let children: Vec<TraceNode> = samples.iter().enumerate().map(child).collect();
    let nodes = [root].into_iter().chain(children).collect();
    Trace { item: id_of(item), kv_bytes_per_token: None, level_ends: None, nodes }
}

/// An id as text; it may be a string or a number.
fn id_of(line: &Map<String, Value>) -> String {
    match line.get("id") {
        Some(Value::String(id)) => id.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

fn index_of(line: &Map<String, Value>) -> Option<usize> {
    usize::try_from(line.get("index")?.as_u64()?).ok()
}

/// The objects of a JSON lines file. The last line may be incomplete if the run was killed.
pub fn lines(path: &Path) -> Result<JsonObjects> {
    let bytes = fs::read(path).map_err(Error::io(path, "read"))?;
    let mut lines = Vec::new();
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice(line) {
            Ok(line) => lines.push(line),
            Err(error) if error.is_eof() => log::warn!("{}: line {} is cut", path.display(), number + 1),
            Err(error) => {
                return Err(Error::format(path, format!("line {}: not a JSON object: {error}", number + 1)));
            }
        }
    }
    Ok(lines)
}
