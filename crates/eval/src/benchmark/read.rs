//! Problem files: JSON lines, a JSON list or CSV, gzipped or not, Parquet, or APPS's own folder of folders. The sibling
//! modules interpret the records.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::benchmark::fields::{JsonRecord, Wrong};
use crate::benchmark::format::{BenchmarkFormat, expected_marks};
use crate::records;
use crate::records::{FileRecord, Format, RecordPlace};
use crate::source::read_text;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_core::json;
use offshoot_core::json::describe;
use offshoot_core::json::names;
use offshoot_judge::problem::Problem;

/// One record of a problem file.
#[derive(Debug)]
pub struct BenchmarkRecord {
    pub id: String,
    /// `None`: the record has no tests, as some of APPS.
    pub problem: Result<Option<Problem>, Malformed>,
    pub fields: Map<String, Value>,
}

/// Why no candidate of a problem can be judged: its record is no valid problem, or its own tests fail. Its `Debug` text
/// is part of the fingerprint of a scoring's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    pub why: String,
}

/// Iterates over the records of a problem file; all have the same format.
pub struct Entries {
    path: PathBuf,
    records: Box<dyn Iterator<Item = Result<FileRecord>>>,
    format: Option<BenchmarkFormat>,
}

/// Opens a problem file. Without a format, it is recognised by the first record's fields.
pub fn read(path: &Path, format: Option<BenchmarkFormat>) -> Result<Entries> {
    let records = match Format::of(path) {
        None if path.is_dir() => Box::new(apps_folders(path)?),
        known => records::records(path, known.unwrap_or(Format::JsonLines), None)?,
    };
    Ok(Entries { path: path.to_path_buf(), records, format })
}

impl Entries {
    /// The format of the records read so far.
    pub fn format(&self) -> Option<BenchmarkFormat> {
        self.format
    }

    fn entry(&mut self, (place, fields): FileRecord) -> Result<BenchmarkRecord> {
        let format = match self.format.or_else(|| BenchmarkFormat::recognise(&fields)) {
            Some(format) => *self.format.insert(format),
            None => {
                let found = format!("the fields {}", names(&fields));
                return Err(Error::value(format!("{}, {place}", self.path.display()), expected_marks(), found));
            }
        };
        let at_place = |wrong: Wrong| {
            Error::field(&self.path, wrong.field, format!("{}, at {place}", wrong.expected), wrong.found)
        };
        format.fits(&fields).map_err(at_place)?;
        let id = id_of(format, &fields).map_err(at_place)?;
        let problem =
            format.problem_with_tests(&id, JsonRecord(&fields)).map_err(|Wrong { field, expected, found }| Malformed {
                why: format!("`{field}`: expected {expected}, at {place}, found {found}"),
            });
        Ok(BenchmarkRecord { id, problem, fields })
    }
}

impl Iterator for Entries {
    type Item = Result<BenchmarkRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = self.records.next()?;
        Some(record.and_then(|record| self.entry(record)))
    }
}

fn id_of(format: BenchmarkFormat, fields: &Map<String, Value>) -> Result<String, Wrong> {
    let found = fields.get(format.id_field());
    json::id(found).ok_or_else(|| Wrong {
        field: format.id_field().to_string(),
        expected: "an id, a text or a number".to_string(),
        found: found.map_or("nothing (the field is missing)".to_string(), describe),
    })
}

/// APPS as its authors ship it: one folder per problem; the name of the folder is the id.
fn apps_folders(path: &Path) -> Result<impl Iterator<Item = Result<FileRecord>> + use<>> {
    let mut folders = input::entries(path)?;
    folders.retain(|folder| folder.join("question.txt").is_file());
    if folders.is_empty() {
        return Err(Error::format(path, "expected APPS's folders, each with a question.txt, found none"));
    }
    Ok(folders.into_iter().enumerate().map(|(ix, folder)| Ok((RecordPlace::Entry(ix + 1), apps_folder(&folder)?))))
}

fn apps_folder(folder: &Path) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    fields.insert("problem_id".to_string(), Value::String(name));
    for (field, file) in [
        ("question", "question.txt"),
        ("input_output", "input_output.json"),
        ("solutions", "solutions.json"),
        ("starter_code", "starter_code.py"),
    ] {
        let file = folder.join(file);
        if file.is_file() {
            fields.insert(field.to_string(), Value::String(read_text(&file)?));
        }
    }
    Ok(fields)
}
