//! Parquet files of records, with the columns that their fields have, as a data set on the Hub has them.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use arrow_json::ReaderBuilder;
use arrow_json::reader::infer_json_schema;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde_json::Value;

/// Writes `records`, at least one, to `path`, whose folder is made.
pub fn write_parquet(path: &Path, records: &[Value]) {
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    let (schema, _) = infer_json_schema(Cursor::new(&lines), None).expect("the records have columns");
    let reader = ReaderBuilder::new(Arc::new(schema.clone())).build(Cursor::new(&lines)).expect("a schema");
    fs::create_dir_all(path.parent().expect("a file has a folder")).expect("writable");
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let file = File::create(path).expect("writable");
    let mut writer = ArrowWriter::try_new(file, Arc::new(schema), Some(properties)).expect("a schema of Parquet");
    for batch in reader {
        writer.write(&batch.expect("the records have these columns")).expect("writable");
    }
    writer.close().expect("writable");
}
