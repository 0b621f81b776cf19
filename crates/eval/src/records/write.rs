//! Writes results as Parquet, a row group at a time. `table` has their columns, `parquet` the format.

use std::io::{BufRead, Write};
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
