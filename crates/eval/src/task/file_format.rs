//! The format of a file that a task names, by its `format` or its name, and its `columns`.

use std::path::Path;

use crate::records::{FORMATS, FileRecord, Format, records};
use crate::source::Place;
use crate::source::values::Texts;
use offshoot_core::error::Result;
use offshoot_core::json::listed;

/// Extensions of text files.
pub(crate) const TEXTS: [&str; 2] = ["txt", "md"];

pub(crate) const NO_COLUMNS: &str = "no column names, which only a CSV file without a header needs";

/// How a file of records is read.
#[derive(Clone, Debug)]
pub(crate) struct FileFormat {
    pub format: Format,
    /// The names of the columns of a CSV file without a header.
    columns: Option<Vec<String>>,
}

impl FileFormat {
    /// `place`: of the object that names the file `path`, its format, if it is `named`, and its columns.
    pub fn new(place: &Place<'_>, path: &Path, named: Option<Format>, columns: Option<Texts>) -> Result<FileFormat> {
        let format = format_of(place, path, named)?;
        match columns.is_some() && format != Format::Csv {
            true => Err(place.key("columns").wrong(NO_COLUMNS)),
            false => Ok(FileFormat { format, columns: columns.map(|columns| columns.0) }),
        }
    }

    /// The records of `path` in order.
    pub fn records(&self, path: &Path) -> Result<Box<dyn Iterator<Item = Result<FileRecord>>>> {
        records(path, self.format, self.columns.as_deref())
    }
}

fn format_of(place: &Place<'_>, path: &Path, named: Option<Format>) -> Result<Format> {
    named.or_else(|| Format::of(path)).ok_or_else(|| {
        let known = listed(&FORMATS.map(|(name, _)| name));
        let is_items = place.field() == "items";
        let texts = if is_items { format!(", a folder, a text file ({})", listed(&TEXTS)) } else { String::new() };
        let expected = format!("a file that ends in one of {known} (or .gz behind them){texts}, or `format` beside it");
        place.key("path").wrong_as(expected, path.display().to_string())
    })
}
