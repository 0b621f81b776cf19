//! The format of a file that a task names, by its `format` or its name, and its `columns`.

use std::path::Path;

use crate::records::{FORMATS, Format};
use crate::source::Place;
use crate::source::values::Texts;
use offshoot_core::error::Result;
use offshoot_core::json::listed;

/// Extensions of text files.
pub(crate) const TEXTS: [&str; 2] = ["txt", "md"];

pub(crate) const NO_COLUMNS: &str = "no column names, which only a CSV file without a header needs";

/// `place`: of the object that names the file.
pub(crate) fn columns_of(place: &Place<'_>, columns: Option<Texts>, format: Format) -> Result<Option<Vec<String>>> {
    match columns.is_some() && format != Format::Csv {
        true => Err(place.key("columns").wrong(NO_COLUMNS)),
        false => Ok(columns.map(|columns| columns.0)),
    }
}

/// `place`: of the object that names the file.
pub(crate) fn format_of(place: &Place<'_>, path: &Path, named: Option<Format>) -> Result<Format> {
    named.or_else(|| Format::of(path)).ok_or_else(|| {
        let known = listed(&FORMATS.map(|(name, _)| name));
        let is_items = place.field() == "items";
        let texts = if is_items { format!(", a folder, a text file ({})", listed(&TEXTS)) } else { String::new() };
        let expected = format!("a file that ends in one of {known} (or .gz behind them){texts}, or `format` beside it");
        place.key("path").wrong_as(expected, path.display().to_string())
    })
}
