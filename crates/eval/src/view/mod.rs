//! `offshoot tree`: shows the searches of a run, for people and programs. Reads a run's folder and writes its trees as
//! text, as one self-contained page, as JSON, for Graphviz, or its levels as a picture. It looks only at files: no
//! model is loaded and nothing is sampled.

mod ends;
mod folder;
mod levels;
mod outline;
mod page;
mod shown;
mod totals;

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::out;
use offshoot_core::out::files::{check_output, write_whole};
use offshoot_search::tree::Trace;

pub use ends::{SampleEnd, ends};
pub use folder::{RecordedItem, lines, read, recorded};
pub use shown::{ShownItem, ShownNode, ShownRun};
pub use totals::RunTotals;

/// The options of `offshoot tree`.
#[derive(Clone, Debug, Default)]
pub struct ViewOptions {
    /// The folder of its results.
    pub run: PathBuf,
    /// An item's id, or its number among the task's items.
    pub item: Option<String>,
    pub html: Option<PathBuf>,
    pub dot: Option<PathBuf>,
    pub json: Option<PathBuf>,
    /// File for a drawing of the levels of all items, made from the run's summary.
    pub svg: Option<PathBuf>,
}

/// Writes the requested files; prints the trees if there are none.
pub fn show(options: &ViewOptions) -> Result<()> {
    let files = [&options.svg, &options.html, &options.json, &options.dot];
    files.into_iter().flatten().try_for_each(|path| check_output(path))?;
    if !options.run.is_dir() {
        return Err(Error::value(
            "the run",
            "a folder of results",
            format!("{}, which is none", options.run.display()),
        ));
    }
    if let Some(path) = &options.svg {
        write(path, &levels::svg(&options.run)?)?;
        out::line(format_args!("wrote {}", path.display()))?;
        if options.html.is_none() && options.json.is_none() && options.dot.is_none() {
            return Ok(());
        }
    }
    let run = read(&options.run, options.item.as_deref())?;
    let mut written = Vec::new();
    if let Some(path) = &options.html {
        write(path, &page::html(&run)?)?;
        written.push(path);
    }
    if let Some(path) = &options.json {
        write(path, &to_json(&run)?)?;
        written.push(path);
    }
    if let Some(path) = &options.dot {
        write(path, &Trace::to_dot(run.items.iter().map(|item| &item.trace)))?;
        written.push(path);
    }
    if written.is_empty() {
        return out::text(outline::text(&run, options.item.is_some()));
    }
    let nodes: usize = run.items.iter().map(|item| item.trace.nodes.len()).sum();
    for path in written {
        out::line(format_args!("wrote {} ({} items, {nodes} nodes)", path.display(), run.items.len()))?;
    }
    Ok(())
}

/// What a page calls a tree without a name.
const NAMELESS: &str = "Sampling tree";

/// One tree as a page that needs no other file.
pub fn html_of(trace: Trace) -> Result<String> {
    let name = if trace.item.is_empty() { NAMELESS.to_string() } else { trace.item.clone() };
    let facts = Map::from_iter([("id".to_string(), json!(name))]);
    let item = ShownItem::new(facts, Vec::new(), trace, Vec::new());
    page::html(&ShownRun::new(name, vec![item], None))
}

/// `{"format": "offshoot-trees-1", "run", "totals", "items": [...]}`: the totals of all items, which share prompts, as
/// [`RunTotals`]; an item is its line of `items.jsonl` with `notes` (about missing data), `kv_bytes_per_token`, its
/// `totals`, `answer` (the node chosen) and `nodes`, each a [`ShownNode`].
pub fn to_json(run: &ShownRun) -> Result<String> {
    let trees = json!({ "format": "offshoot-trees-1", "run": run.name, "totals": run.totals, "items": run.items });
    json::text("a tree", &trees).map(|text| text + "\n")
}

fn write(path: &Path, text: &str) -> Result<()> {
    write_whole(path, |file| file.write_all(text.as_bytes()))
}
