//! Few-shot examples from a separate file: which records, and how each is rendered. The file may differ between items
//! (a subject's own examples), so its path is a template, too.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::records::{FORMATS, Format, records};
use crate::source::Place;
use crate::source::values::{TaskPath, Texts};
use crate::task::items::Item;
use crate::task::template::{Template, TextSettings};
use offshoot_core::error::{Error, Result};
use offshoot_core::json::listed;

/// A level of worked examples from a file.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct ShotSettings {
    /// A template of the file's path, because each item may have its own examples.
    path: TaskPath,
    /// Whether the path is relative to the folder of the items' file, not of the task file.
    #[serde(default)]
    beside_items: bool,
    /// A template of one example, over the fields of its record.
    #[schemars(extend("x-expected" = "a template of one example"))]
    template: TextSettings,
    /// Only this many records, from the first (default: all).
    #[schemars(range(min = 1))]
    count: Option<u32>,
    /// Of the file (default: by its name).
    format: Option<Format>,
    /// The names of the columns of a CSV file without a header.
    columns: Option<Texts>,
}

/// A level of worked examples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shots {
    task: PathBuf,
    folder: PathBuf,
    path: Template,
    template: Template,
    /// The number of records, from the first; `None`: all.
    count: Option<usize>,
    format: Option<Format>,
    columns: Option<Vec<String>>,
    at: String,
}

/// The folder of the items' file; of a folder of items, that folder.
fn folder_of_items(place: &Place<'_>) -> Result<PathBuf> {
    let items = place.source.root().key("items");
    let path = items.value().and_then(|value| value.as_str().or_else(|| value.get("path")?.as_str()));
    let Some(path) = path else {
        return Err(place.key("beside_items").wrong_as("`items` with a path", "a list of items"));
    };
    let path = place.source.resolve(path);
    match path.is_dir() {
        true => Ok(path),
        false => Ok(path.parent().map_or_else(PathBuf::new, Path::to_path_buf)),
    }
}

impl Shots {
    /// `place`: of the key `shots`.
    pub fn new(place: &Place<'_>, settings: ShotSettings) -> Result<Shots> {
        Ok(Shots {
            task: place.source.path.clone(),
            folder: if settings.beside_items { folder_of_items(place)? } else { place.source.resolve("") },
            path: Template::new(&place.key("path"), settings.path.0)?,
            template: Template::read(&place.key("template"), settings.template)?,
            count: settings.count.map(|count| count as usize),
            format: settings.format,
            columns: settings.columns.map(|columns| columns.0),
            at: place.field().to_string(),
        })
    }

    /// The examples for this item, concatenated.
    pub fn render(&self, item: &Item) -> Result<String> {
        self.write(&self.path(item)?)
    }

    /// The file with the examples for this item.
    pub fn path(&self, item: &Item) -> Result<PathBuf> {
        Ok(self.folder.join(self.path.render(&item.id, &item.fields)?))
    }

    fn write(&self, path: &Path) -> Result<String> {
        let wrong = |expected: String, found: String| Error::field(&self.task, &self.at, expected, found);
        let Some(format) = self.format.or_else(|| Format::of(path)) else {
            let known = listed(&FORMATS.map(|(name, _)| name));
            let expected = format!("a file that ends in one of {known} (or .gz behind them), or `format` beside it");
            return Err(wrong(expected, path.display().to_string()));
        };
        let columns = self.columns.as_deref().filter(|_| format == Format::Csv);
        let mut text = String::new();
        let mut found = 0;
        for record in records(path, format, columns)?.take(self.count.unwrap_or(usize::MAX)) {
            let (place, fields): (_, Map<String, Value>) = record?;
            text.push_str(&self.template.render(&format!("{place} of {}", path.display()), &fields)?);
            found += 1;
        }
        match self.count.filter(|&count| found < count) {
            Some(count) => Err(wrong(format!("{count} examples in {}", path.display()), found.to_string())),
            None => Ok(text),
        }
    }
}
