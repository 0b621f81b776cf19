//! Reads the records of an items file one by one: JSON lines, a JSON list or CSV, gzipped or not, whatever the line
//! ends, with or without a byte order mark; or Parquet, a file or a folder of them as the Hugging Face Hub stores it.
//! JSON is read as Python writes it (see `json`); numbers that serde_json cannot hold become strings of their digits.
//! Each record has its place in the file, for error messages. `table` and `write` have the other
//! direction: results in columns, and as Parquet.

mod dataset;
mod parquet;
pub mod table;
pub mod write;

use std::fmt;
use std::io::BufRead;
use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use offshoot_core::error::{Error, Result};
use offshoot_core::input::{MOST_OF_RECORD, not_text, whole_text};
use offshoot_core::json;
use offshoot_core::json::RawJson;
use offshoot_lines::{Line, Lines, open};

pub(crate) use dataset::{SplitChoice, files as parquet_files};

/// The fields that may contain test data as JSON. Such a field is kept as JSON text if a [`Value`] would change a
/// number or a surrogate in it.
const TEST_DATA: [&str; 3] = ["input_output", "base_input", "plus_input"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("enum" = FORMATS.map(|(name, _)| name)))]
pub(crate) enum Format {
    #[serde(rename = "jsonl", alias = "ndjson")]
    JsonLines,
    #[serde(rename = "json")]
    JsonList,
    #[serde(rename = "csv")]
    Csv,
    #[serde(rename = "parquet")]
    Parquet,
}

pub(crate) const FORMATS: [(&str, Format); 5] = [
    ("jsonl", Format::JsonLines),
    ("ndjson", Format::JsonLines),
    ("json", Format::JsonList),
    ("csv", Format::Csv),
    ("parquet", Format::Parquet),
];

impl Format {
    pub fn named(name: &str) -> Option<Format> {
        FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// The format by the file's extension, ignoring a final `.gz`; Parquet for a folder of such files.
    pub fn of(path: &Path) -> Option<Format> {
        if path.is_dir() {
            return dataset::is_dataset(path).then_some(Format::Parquet);
        }
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        Format::named(name.trim_end_matches(".gz").rsplit_once('.')?.1)
    }
}

/// The place of a record in its file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordPlace {
    Line(usize),
    Entry(usize),
    Row(usize),
}

impl fmt::Display for RecordPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecordPlace::Line(n) => write!(f, "line {n}"),
            RecordPlace::Entry(n) => write!(f, "entry {n}"),
            RecordPlace::Row(n) => write!(f, "row {n}"),
        }
    }
}

pub(crate) type FileRecord = (RecordPlace, Map<String, Value>);

/// Records in order, each with its text.
pub(crate) type RecordsWithTexts = Box<dyn Iterator<Item = Result<(FileRecord, RawJson)>>>;

/// The records of `path` in order. `columns` names those of a CSV file without a header.
pub(crate) fn records(
    path: &Path,
    format: Format,
    columns: Option<&[String]>,
) -> Result<Box<dyn Iterator<Item = Result<FileRecord>>>> {
    Ok(match format {
        Format::JsonLines => Box::new(JsonLines::new(path, RecordLines::of_text(open(path)?))),
        Format::JsonList => Box::new(json_list(path, &whole_text(path, open(path)?)?)?.into_iter().map(Ok)),
        Format::Csv => Box::new(csv(path, &whole_text(path, open(path)?)?, columns)?.into_iter().map(Ok)),
        Format::Parquet => Box::new(rows(path, &SplitChoice::default())?),
    })
}

/// The rows of the Parquet file, or of the folder or pattern of such files, at `path`.
pub(crate) fn rows(path: &Path, choice: &SplitChoice) -> Result<impl Iterator<Item = Result<FileRecord>> + use<>> {
    Ok(JsonLines::new(path, RecordLines::of_rows(path, choice)?))
}

/// The rows of the Parquet file at `path` as JSON lines.
pub fn parquet_lines(path: &Path) -> Result<impl BufRead + use<>> {
    parquet::RowLines::open(vec![path.to_path_buf()])
}

/// JSON lines: those of a file, or the rows of Parquet as such.
pub(crate) struct RecordLines {
    pub reader: Box<dyn BufRead>,
    place: fn(usize) -> RecordPlace,
}

impl RecordLines {
    /// Opens `path`, which is Parquet if its name says so.
    pub fn open(path: &Path) -> Result<RecordLines> {
        match Format::of(path) {
            Some(Format::Parquet) => RecordLines::of_rows(path, &SplitChoice::default()),
            _ => open(path).map(RecordLines::of_text),
        }
    }

    fn of_text(reader: Box<dyn BufRead>) -> RecordLines {
        RecordLines { reader, place: RecordPlace::Line }
    }

    fn of_rows(path: &Path, choice: &SplitChoice) -> Result<RecordLines> {
        let rows = parquet::RowLines::open(parquet_files(path, choice)?)?;
        Ok(RecordLines { reader: Box::new(rows), place: RecordPlace::Row })
    }
}

/// The records of JSON lines, each with its original text.
pub(crate) fn lines_and_texts(
    path: &Path,
    lines: RecordLines,
) -> impl Iterator<Item = Result<(FileRecord, RawJson)>> + use<> {
    let mut lines = JsonLines::new(path, lines);
    std::iter::from_fn(move || {
        let line = lines.lines.next()?;
        Some(line.and_then(|line| Ok((lines.parse(&line)?, RawJson::part(lines.text(&line)?)))))
    })
}

/// The records of `path` in order, each with its text as a JSON object: its own, or that of a CSV row's fields.
pub(crate) fn records_and_texts(path: &Path, format: Format) -> Result<RecordsWithTexts> {
    let parsed = "it was read as a list of objects";
    Ok(match format {
        Format::JsonLines | Format::Parquet => Box::new(lines_and_texts(path, RecordLines::open(path)?)),
        Format::JsonList => {
            let text = whole_text(path, open(path)?)?;
            let records = json_list(path, &text)?;
            let texts = RawJson::parse(&text).expect(parsed).list().expect(parsed);
            Box::new(records.into_iter().zip(texts).map(Ok))
        }
        Format::Csv => Box::new(records(path, format, None)?.map(|record| {
            let (place, fields) = record?;
            let text = serde_json::to_string(&fields).expect("fields are JSON");
            Ok(((place, fields), RawJson::part(&text)))
        })),
    })
}

struct JsonLines {
    lines: Lines,
    /// Gives the place of the line with a number.
    place: fn(usize) -> RecordPlace,
}

impl Iterator for JsonLines {
    type Item = Result<FileRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.lines.next()?.and_then(|line| self.parse(&line)))
    }
}

impl JsonLines {
    fn new(path: &Path, RecordLines { reader, place }: RecordLines) -> Self {
        JsonLines { lines: Lines::of(path, reader, MOST_OF_RECORD), place }
    }

    fn text<'l>(&self, line: &'l Line) -> Result<&'l str> {
        let place = (self.place)(line.number);
        if let Some(too_long) = line.too_long {
            return Err(Error::format(self.lines.path(), format!("{place}: {}", too_long.why())));
        }
        std::str::from_utf8(&line.bytes).map_err(|error| {
            let at = error.valid_up_to();
            let what = not_text(&line.bytes, at);
            Error::format(self.lines.path(), format!("{place}, byte {}: {what}", at + 1))
        })
    }

    fn parse(&self, line: &Line) -> Result<FileRecord> {
        let (place, text) = ((self.place)(line.number), self.text(line)?);
        match json::read_with_digits(text) {
            Ok(Value::Object(map)) => Ok((place, with_test_data(text, map))),
            Ok(_) => Err(Error::format(self.lines.path(), format!("{place}: not a JSON object"))),
            // serde_json's line number refers to the bytes it was given, here always one line, so it is removed.
            Err(e) => {
                let what = e.to_string();
                let what = what.split(" at line ").next().unwrap_or(&what).to_string();
                Err(Error::format(self.lines.path(), format!("{place}, column {}: not JSON: {what}", e.column())))
            }
        }
    }
}

fn json_list(path: &Path, text: &str) -> Result<Vec<FileRecord>> {
    let list: Vec<Value> = json::read_with_digits(text).map_err(|e| {
        Error::format(
            path,
            format!("not a JSON list of items (for one object per line, set \"format\": \"jsonl\"): {e}"),
        )
    })?;
    let mut records = inline(path, list)?;
    if records.iter().any(|(_, fields)| has_test_data(fields)) {
        let texts = RawJson::parse(text).expect("it was read as values").list();
        for ((_, fields), text) in records.iter_mut().zip(texts.expect("it was read as a list")) {
            *fields = with_test_data(text.as_str(), std::mem::take(fields));
        }
    }
    Ok(records)
}

fn has_test_data(fields: &Map<String, Value>) -> bool {
    TEST_DATA.iter().any(|name| fields.get(*name).is_some_and(is_compound))
}

fn is_compound(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

/// `fields`, with test data that a [`Value`] cannot hold replaced by its JSON text from the record's `text`.
fn with_test_data(text: &str, mut fields: Map<String, Value>) -> Map<String, Value> {
    if has_test_data(&fields) {
        let parts = RawJson::parse(text).expect("it was read as a value").object().expect("it was read as an object");
        for name in TEST_DATA {
            if let (Some(value), Some(raw)) = (fields.get_mut(name), parts.get(name))
                && is_compound(value)
                && !raw.is_held_by_value()
            {
                *value = Value::String(raw.as_str().to_string());
            }
        }
    }
    fields
}

/// The records in a list of JSON values.
pub(crate) fn inline(path: &Path, list: Vec<Value>) -> Result<Vec<FileRecord>> {
    let object = |(ix, value)| match value {
        Value::Object(map) => Ok((RecordPlace::Entry(ix + 1), map)),
        _ => Err(Error::format(path, format!("{}: not a JSON object", RecordPlace::Entry(ix + 1)))),
    };
    list.into_iter().enumerate().map(object).collect()
}

fn csv(path: &Path, text: &str, columns: Option<&[String]>) -> Result<Vec<FileRecord>> {
    let mut rows = csv_rows(text)
        .map_err(|line| Error::format(path, format!("line {line}: a quoted field does not end")))?
        .into_iter();
    let names = match columns {
        Some(names) => names.to_vec(),
        None => rows.next().map(|(_, names)| names).ok_or_else(|| Error::format(path, "no header line"))?,
    };
    let record = |(line, row): (usize, Vec<String>)| {
        if row.len() != names.len() {
            let what = format!("line {line}: expected {} fields, found {}", names.len(), row.len());
            return Err(Error::format(path, what));
        }
        let fields = names.iter().cloned().zip(row.into_iter().map(Value::String));
        Ok((RecordPlace::Line(line), fields.collect()))
    };
    rows.map(record).collect()
}

/// The rows of a CSV text (RFC 4180: quoted fields may contain commas, line ends and doubled quotes) with the line on
/// which each begins; blank lines are skipped. The error is the line on which an unclosed quoted field begins.
fn csv_rows(text: &str) -> Result<Vec<(usize, Vec<String>)>, usize> {
    let (mut rows, mut row, mut field) = (Vec::new(), Vec::new(), String::new());
    let (mut line, mut row_line, mut quoted_since) = (1, 1, None);
    let mut chars = text.chars().peekable();
    loop {
        let c = chars.next();
        match (c, quoted_since) {
            (None, Some(since)) => return Err(since),
            (Some('"'), Some(_)) if chars.peek() == Some(&'"') => field.push(chars.next().expect("just peeked")),
            (Some('"'), Some(_)) => quoted_since = None,
            (Some('\r'), _) if chars.peek() == Some(&'\n') => {}
            (Some(c), Some(_)) => field.push(c),
            (Some('"'), None) if field.is_empty() => quoted_since = Some(line),
            (Some(','), None) => row.push(std::mem::take(&mut field)),
            (Some('\n') | None, None) => {
                if !(row.is_empty() && field.is_empty()) {
                    row.push(std::mem::take(&mut field));
                    rows.push((row_line, std::mem::take(&mut row)));
                }
                row_line = line + 1;
            }
            (Some(c), None) => field.push(c),
        }
        match c {
            Some('\n') => line += 1,
            Some(_) => {}
            None => return Ok(rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_line_ends_and_blank_lines() {
        let text = "a,b\r\n\"x, \"\"y\"\"\nz\",2\r\n\r\n,\n3,\"\"";
        let rows = csv_rows(text).unwrap();
        let cells: Vec<Vec<&str>> = rows.iter().map(|(_, r)| r.iter().map(String::as_str).collect()).collect();
        assert_eq!(cells, [vec!["a", "b"], vec!["x, \"y\"\nz", "2"], vec!["", ""], vec!["3", ""]]);
        assert_eq!(rows.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 2, 5, 6]);
        assert_eq!(csv_rows("a\n\"b"), Err(2));
    }
}
