//! Records of results as Arrow: the lines of `samples.jsonl`, of `items.jsonl` and of votes, in columns whose types are
//! the same for every run, and as Parquet. What the fields mean is up to those that write the lines.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_json::ReaderBuilder;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::lines::{Lines, MOST_OF_RECORD};

/// The records of a file of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Of `samples.jsonl`.
    Sample,
    /// Of `items.jsonl`.
    Item,
    /// Of what `offshoot vote` writes.
    Vote,
}

/// Records of a batch that is read or written.
const BATCH: usize = 1024;
/// Records of a row group: what a reader unpacks at once.
const ROW_GROUP: usize = 16 * BATCH;

impl RecordKind {
    /// The columns; every one may be null. Votes, alternatives and judgements are structs; `scores` has a list for each
    /// sample, its steps' or of its only value; what is a text or a number, as `stop` is, is a text.
    pub fn schema(self) -> SchemaRef {
        use DataType::{Boolean, Float32, Float64, Int64, UInt32, Utf8};
        let columns: Vec<(&str, DataType)> = match self {
            RecordKind::Sample => vec![
                ("id", Utf8),
                ("index", Int64),
                ("text", Utf8),
                ("tokens", Int64),
                ("finish", Utf8),
                ("stop", Utf8),
                ("logprob", Float64),
                ("answer", Utf8),
                ("correct", Boolean),
                (
                    "judged",
                    object(vec![
                        ("verdict", Utf8),
                        ("message", Utf8),
                        ("tests_passed", Int64),
                        ("tests", Int64),
                        ("seconds", Float64),
                        ("cpu_seconds", Float64),
                        ("peak_bytes", Int64),
                    ]),
                ),
                (
                    "logprobs",
                    list(object(vec![
                        ("token", UInt32),
                        ("logprob", Float32),
                        ("top", list(object(vec![("token", UInt32), ("logprob", Float32)]))),
                    ])),
                ),
                ("attention", list(Float32)),
                ("error", Utf8),
            ],
            RecordKind::Item => vec![
                ("id", Utf8),
                ("index", Int64),
                ("question", Utf8),
                ("reference", Utf8),
                ("answer", Utf8),
                ("prediction", Utf8),
                ("correct", Boolean),
                ("chosen", Int64),
                ("votes", votes()),
                ("samples", Int64),
                ("samples_correct", Int64),
                ("cancelled", Int64),
                ("cancelled_tokens", Int64),
                ("prompt_tokens", Int64),
                ("sampled_tokens", Int64),
                ("search_tokens", Int64),
                ("search_prompt_tokens", Int64),
                ("failed", object(vec![("branches", Int64), ("first", Utf8)])),
                (
                    "choices",
                    list(object(vec![
                        ("choice", Utf8),
                        ("logprob", Float64),
                        ("neutral", Float64),
                        ("tokens", Int64),
                        ("score", Float64),
                    ])),
                ),
                ("completions", list(Utf8)),
                ("scores", list(list(Float64))),
                ("pred", Utf8),
                ("error", Utf8),
            ],
            RecordKind::Vote => vec![
                ("id", Utf8),
                ("question", Utf8),
                ("reference", Utf8),
                ("prediction", Utf8),
                ("correct", Boolean),
                ("chosen", Int64),
                ("votes", votes()),
                ("samples", Int64),
                ("samples_correct", Int64),
            ],
        };
        Arc::new(Schema::new(fields(columns)))
    }
}

fn votes() -> DataType {
    list(object(vec![("answer", DataType::Utf8), ("votes", DataType::Int64)]))
}

fn fields(columns: Vec<(&str, DataType)>) -> Fields {
    columns.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect()
}

fn object(columns: Vec<(&str, DataType)>) -> DataType {
    DataType::Struct(fields(columns))
}

fn list(of: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", of, true)))
}

/// These records as one batch. Fields without a column are left out.
pub fn batch<T: Serialize>(kind: RecordKind, records: &[T]) -> Result<RecordBatch> {
    let schema = kind.schema();
    let columns = DataType::Struct(schema.fields().clone());
    let not_json = |error: serde_json::Error| Error::Internal(format!("a result is not JSON: {error}"));
    let mut rows = Vec::with_capacity(records.len());
    for record in records {
        rows.push(typed(serde_json::to_value(record).map_err(not_json)?, &columns));
    }
    let not_arrow = |error| Error::Internal(format!("results are not as their columns: {error}"));
    let mut decoder =
        ReaderBuilder::new(schema.clone()).with_coerce_primitive(true).build_decoder().map_err(not_arrow)?;
    decoder.serialize(&rows).map_err(not_arrow)?;
    Ok(decoder.flush().map_err(not_arrow)?.unwrap_or_else(|| RecordBatch::new_empty(schema)))
}

/// The value as its column takes it: a tuple as an object, one value as a list of it, what is no text as its JSON.
fn typed(value: Value, kind: &DataType) -> Value {
    match (kind, value) {
        (_, Value::Null) => Value::Null,
        (DataType::Struct(fields), Value::Object(mut object)) => {
            let of_field = |field: &Arc<Field>| {
                let value = object.remove(field.name())?;
                Some((field.name().clone(), typed(value, field.data_type())))
            };
            Value::Object(fields.iter().filter_map(of_field).collect::<Map<_, _>>())
        }
        (DataType::Struct(fields), Value::Array(tuple)) => {
            let of_field =
                |(field, value): (&Arc<Field>, Value)| (field.name().clone(), typed(value, field.data_type()));
            Value::Object(fields.iter().zip(tuple).map(of_field).collect::<Map<_, _>>())
        }
        (DataType::List(of), Value::Array(list)) => {
            list.into_iter().map(|value| typed(value, of.data_type())).collect()
        }
        (DataType::List(of), value) => Value::Array(vec![typed(value, of.data_type())]),
        (DataType::Utf8, value @ (Value::Array(_) | Value::Object(_))) => Value::String(value.to_string()),
        (_, value) => value,
    }
}

/// The records of JSON lines, a batch at a time. `path` names them in errors.
pub fn batches(
    kind: RecordKind,
    path: &Path,
    lines: Box<dyn BufRead>,
) -> impl Iterator<Item = Result<RecordBatch>> + use<> {
    let path = path.to_path_buf();
    let mut lines = Lines::of(&path, lines, MOST_OF_RECORD);
    std::iter::from_fn(move || {
        let record = |line: crate::lines::Line| match (&line.too_long, serde_json::from_slice::<Value>(&line.bytes)) {
            (None, Ok(record)) => Ok(record),
            (Some(too_long), _) => Err(Error::format(&path, format!("line {}: {}", line.number, too_long.why()))),
            (None, Err(error)) => Err(Error::format(&path, format!("line {}: not JSON: {error}", line.number))),
        };
        let records: Result<Vec<Value>> = lines.by_ref().take(BATCH).map(|line| line.and_then(record)).collect();
        match records {
            Ok(records) if records.is_empty() => None,
            records => Some(records.and_then(|records| batch(kind, &records))),
        }
    })
}

/// Writes the records of JSON lines as Parquet, compressed by zstd. `path` names the lines in errors.
pub fn write_parquet(kind: RecordKind, path: &Path, lines: Box<dyn BufRead>, out: impl Write + Send) -> Result<()> {
    let failed =
        |error: parquet::errors::ParquetError| Error::io(path, "write as Parquet")(std::io::Error::other(error));
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .build();
    let mut writer = ArrowWriter::try_new(out, kind.schema(), Some(properties)).map_err(failed)?;
    for batch in batches(kind, path, lines) {
        writer.write(&batch?).map_err(failed)?;
    }
    writer.close().map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use serde_json::json;

    use super::*;
    use crate::eval::records::{SplitChoice, rows};

    /// The records written as Parquet and read again.
    fn again(kind: RecordKind, records: &[Value]) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x.parquet");
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        let file = std::fs::File::create(&path).expect("writable");
        write_parquet(kind, Path::new("x.jsonl"), Box::new(Cursor::new(lines)), file).expect("written");
        let read = rows(&path, &SplitChoice::default()).expect("Parquet");
        read.map(|row| Value::Object(row.expect("a row").1.into_iter().filter(|(_, value)| !value.is_null()).collect()))
            .collect()
    }

    #[test]
    fn samples_keep_all_that_they_have() {
        let plain = json!({"id": "a", "index": 0, "text": "x\n", "tokens": 2, "finish": "stop_token", "stop": 13,
            "logprob": -0.123456789012345, "answer": "5", "correct": true});
        let judged = json!({"verdict": "AC", "message": "", "tests_passed": 3, "tests": 3, "seconds": 0.5,
            "cpu_seconds": 0.25, "peak_bytes": 1_u64 << 40});
        let scored = json!({"id": "b", "index": 1, "text": "", "tokens": 0, "finish": "length", "logprob": 0.0,
            "judged": judged, "attention": [0.5, 0.25], "error": "why",
            "logprobs": [{"token": 7, "logprob": -0.5, "top": [[7, -0.5], [8, -1.5]]},
                {"token": 8, "logprob": -1.0, "top": []}]});
        let mut expected = [plain.clone(), scored.clone()];
        expected[0]["stop"] = json!("13");
        expected[1]["logprobs"][0]["top"] = json!([{"token": 7, "logprob": -0.5}, {"token": 8, "logprob": -1.5}]);
        assert_eq!(again(RecordKind::Sample, &[plain, scored]), expected);
    }

    #[test]
    fn items_of_all_methods_have_one_schema() {
        let voted = json!({"id": "a", "index": 0, "question": "q", "votes": [["5", 3], ["6", 1]], "chosen": 2,
            "correct": false, "failed": {"branches": 1, "first": "why"}, "scores": [0.5, 1.0]});
        let searched = json!({"id": "b", "completions": ["x", "y"], "scores": [[0.5], [0.25, 1.0]], "pred": "x"});
        let chosen = json!({"id": "c", "choices": [{"choice": "A", "logprob": -1.5, "tokens": 1, "score": -1.5}]});
        let failed = json!({"id": "d", "index": 3, "error": "why"});
        let mut expected = [voted.clone(), searched.clone(), chosen.clone(), failed.clone()];
        expected[0]["votes"] = json!([{"answer": "5", "votes": 3}, {"answer": "6", "votes": 1}]);
        expected[0]["scores"] = json!([[0.5], [1.0]]);
        expected[2]["choices"][0]["neutral"] = Value::Null;
        assert_eq!(again(RecordKind::Item, &[voted, searched, chosen, failed]), expected);
    }

    #[test]
    fn records_come_in_batches_of_one_schema() {
        let line = |n: usize| format!("{}\n", json!({"id": n.to_string(), "index": n, "more": [n]}));
        let lines: String = (0..2 * BATCH + 1).map(line).collect();
        let read = batches(RecordKind::Sample, Path::new("x.jsonl"), Box::new(Cursor::new(lines)));
        let read: Vec<RecordBatch> = read.collect::<Result<_>>().expect("records");
        assert_eq!(read.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [BATCH, BATCH, 1]);
        assert!(read.iter().all(|batch| batch.schema() == RecordKind::Sample.schema()));
        assert_eq!(batch::<Value>(RecordKind::Vote, &[]).expect("no records").num_rows(), 0);
        let broken = batches(RecordKind::Item, Path::new("x.jsonl"), Box::new(Cursor::new("{}\n{\n"))).next();
        let error = broken.expect("a batch").expect_err("broken").to_string();
        assert!(error.contains("x.jsonl: line 2: not JSON"), "{error}");
    }
}
