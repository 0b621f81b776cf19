//! Few-shot examples from a separate file: which records, and how each is rendered. The file may differ between items
//! (a subject's own examples), so its path is a template, too.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::eval::records::{FORMATS, Format, records};
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::items::Item;
use crate::eval::task::template::Template;
use crate::json::listed;

/// `{"shots": {"path": …, "template": …, "count": …, "format": …, "columns": …}}`, a level of a prompt.
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

const KEYS: [&str; 5] = ["path", "template", "count", "format", "columns"];

impl Shots {
    pub fn read(source: &TaskSource, at: String, value: &Value) -> Result<Shots> {
        let section = TaskSection::open(source, at.clone(), value, &KEYS)?;
        let path = section.need("path", "a template of a path, relative to the task file")?;
        let template = section.need("template", "a template of one example")?;
        let known = || format!("one of {}", listed(&FORMATS.map(|(name, _)| name)));
        let format =
            section.text("format")?.map(|name| Format::named(name).ok_or_else(|| section.wrong("format", known())));
        Ok(Shots {
            task: source.path.clone(),
            folder: source.resolve(""),
            path: Template::read(source, section.field("path"), path)?,
            template: Template::read(source, section.field("template"), template)?,
            count: section.count("count", 1)?.map(|count| count as usize),
            format: format.transpose()?,
            columns: section.get("columns").map(|_| section.texts("columns")).transpose()?,
            at,
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
