//! Writes results as Parquet, a row group at a time, or as rows of text (CSV, TSV). `table` has their columns,
//! `parquet` the format.

use std::io::{self, BufRead, Write};
use std::path::Path;

use serde_json::Value;

use super::parquet::Writer;
use super::table::{BATCH, Fields, RecordKind, Table, columns, push_record, tables};
use offshoot_core::error::{Error, Result};

/// Records of a row group: what a reader unpacks at once.
const ROW_GROUP: usize = 16 * BATCH;

/// Writes the records of JSON lines as Parquet, compressed by zstd. `path` names the lines in errors.
pub fn write_parquet(kind: RecordKind, path: &Path, lines: Box<dyn BufRead>, out: &mut dyn Write) -> Result<()> {
    let failed = |error| Error::io(path, "write as Parquet")(error);
    let mut writer = Writer::new(out, kind.fields()).map_err(failed)?;
    let mut in_group = 0;
    for table in tables(kind, path, lines) {
        let table = table?;
        writer.write(&table).map_err(failed)?;
        in_group += table.rows;
        if in_group >= ROW_GROUP {
            writer.end_group().map_err(failed)?;
            in_group = 0;
        }
    }
    writer.finish().map_err(failed)
}

/// Writes `records` as rows with a header and `between` their fields: a comma for CSV (RFC 4180), a tab for TSV. A
/// value that is missing or null is an empty field, an empty text a quoted one; lists and structs are JSON.
pub fn write_rows(
    kind: RecordKind,
    records: &[Value],
    between: char,
    out: &mut (impl Write + ?Sized),
) -> io::Result<()> {
    let names: Vec<&str> = kind.fields().into_iter().map(|(name, _)| name).collect();
    let separator = between.to_string();
    writeln!(out, "{}", names.join(&separator))?;
    for record in records {
        let cells: Vec<String> = names.iter().map(|name| row_field(&record[name], between)).collect();
        writeln!(out, "{}", cells.join(&separator))?;
    }
    Ok(())
}

fn row_field(value: &Value, between: char) -> String {
    let text = match value {
        Value::Null => return String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.is_empty() || text.contains(['"', '\n', '\r', between]) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// Writes `records` as Parquet with columns of these kinds.
pub fn write_records(fields: Fields, records: Vec<Value>, out: &mut dyn Write) -> Result<()> {
    let failed = |error| Error::io(Path::new("records"), "write as Parquet")(error);
    let mut columns = columns(&fields);
    let rows = records.len();
    for record in records {
        push_record(&mut columns, record)?;
    }
    let mut writer = Writer::new(out, fields).map_err(failed)?;
    writer.write(&Table { rows, columns }).and_then(|()| writer.finish()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Format, records};
    use serde_json::json;

    #[test]
    fn votes_as_csv_are_read_back() {
        let votes = [
            json!({"id": "a,b", "question": "say \"7\"\nor 8", "reference": "7", "prediction": "7", "correct": true,
                   "chosen": 0, "votes": [["7", 2], ["8", 1]], "samples": 3, "samples_correct": 2}),
            json!({"id": "c", "question": "", "reference": null, "prediction": null, "correct": null, "chosen": null,
                   "tied": [0, 2], "votes": [], "samples": 1, "samples_correct": null}),
        ];
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("v.csv");
        let mut bytes = Vec::new();
        write_rows(RecordKind::Vote, &votes, ',', &mut bytes).expect("memory takes any bytes");
        assert!(bytes.ends_with(b"\nc,\"\",,,,,\"[0,2]\",[],1,\n"), "{}", String::from_utf8_lossy(&bytes));
        std::fs::write(&path, &bytes).expect("the temporary folder is writable");
        let read: Vec<_> =
            records(&path, Format::Csv, None).expect("CSV").map(|record| record.expect("a row").1).collect();
        assert_eq!(read.len(), 2);
        for (name, text) in [("id", "a,b"), ("question", "say \"7\"\nor 8"), ("correct", "true"), ("chosen", "0")] {
            assert_eq!(read[0][name], text);
        }
        assert_eq!(read[0]["votes"], "[[\"7\",2],[\"8\",1]]");
        bytes.clear();
        write_rows(RecordKind::Vote, &votes, '\t', &mut bytes).expect("memory takes any bytes");
        let text = String::from_utf8(bytes).expect("UTF-8");
        assert!(text.starts_with("id\tquestion\treference\t"), "{text}");
        assert!(text.contains("\na,b\t\"say \"\"7\"\"\nor 8\"\t7\t7\ttrue\t0\t"), "{text}");
    }
}
