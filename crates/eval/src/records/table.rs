//! Records of results in columns, as Arrow lays them out in memory: the lines of `samples.jsonl`, of `items.jsonl` and
//! of votes, in columns whose types are the same for every run. Python hands them on as they are; `write` writes them
//! as Parquet. What the fields mean is up to those that write the lines.

use std::io::BufRead;
use std::path::Path;

use serde::Serialize;
use serde_json::{Map, Value};

use offshoot_core::error::{Error, Result};
use offshoot_core::input::MOST_OF_RECORD;
use offshoot_core::json;
use offshoot_lines::Lines;

/// The records of a file of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A record of `samples.jsonl`.
    Sample,
    /// A record of `items.jsonl`.
    Item,
    /// A record of what `offshoot vote` writes.
    Vote,
    /// A record of what `offshoot vote` writes of samples with scores.
    ScoredVote,
}

/// Records of a batch that is read or written.
pub(super) const BATCH: usize = 1024;

/// What a column holds; any value of it may be null.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Bool,
    I64,
    U32,
    F32,
    F64,
    Text,
    List(Box<Kind>),
    Struct(Fields),
}

/// Names and what they hold.
pub type Fields = Vec<(&'static str, Kind)>;

impl RecordKind {
    /// The columns. Votes, alternatives and judgements are structs; `scores` has a list for each sample, its steps' or
    /// of its only value; what is a text or a number, as `stop` is, is a text.
    pub fn fields(self) -> Fields {
        use Kind::{Bool, F64, I64, Struct, Text};
        match self {
            RecordKind::Sample => vec![
                ("id", Text),
                ("index", I64),
                ("text", Text),
                ("tokens", I64),
                ("finish", Text),
                ("stop", Text),
                ("logprob", F64),
                ("answer", Text),
                ("correct", Bool),
                (
                    "judged",
                    Struct(vec![
                        ("verdict", Text),
                        ("message", Text),
                        ("tests_passed", I64),
                        ("tests", I64),
                        ("seconds", F64),
                        ("cpu_seconds", F64),
                        ("peak_bytes", I64),
                        ("score", F64),
                        ("error", Text),
                    ]),
                ),
                ("logprobs", list(Struct(token_record()))),
                ("ending", Struct(token_record())),
                (
                    "confidence",
                    Struct(vec![("window", I64), ("mean", F64), ("tail", F64), ("bottom", F64), ("lowest", F64)]),
                ),
                ("score", F64),
                ("step_scores", list(F64)),
                ("part_scores", list(F64)),
                ("score_tokens", I64),
                ("verdict", Text),
                ("score_error", Text),
                ("error", Text),
            ],
            RecordKind::Item => vec![
                ("id", Text),
                ("index", I64),
                ("question", Text),
                ("reference", Text),
                ("answer", Text),
                ("prediction", Text),
                ("correct", Bool),
                ("chosen", I64),
                ("tied", list(I64)),
                ("votes", list(Struct(vec![("answer", Text), ("votes", I64)]))),
                ("weights", list(Struct(vec![("answer", Text), ("weight", F64)]))),
                ("samples", I64),
                ("samples_correct", I64),
                ("cancelled", I64),
                ("cancelled_tokens", I64),
                ("stragglers", list(Struct(vec![("index", I64), ("node", I64), ("tokens", I64), ("kept", Bool)]))),
                ("prompt_tokens", I64),
                ("sampled_tokens", I64),
                ("search_tokens", I64),
                ("search_prompt_tokens", I64),
                (
                    "scorer",
                    Struct(vec![
                        ("scale", Text),
                        ("texts", I64),
                        ("unscored", I64),
                        ("first_error", Text),
                        ("tokens", I64),
                    ]),
                ),
                ("failed", Struct(vec![("branches", I64), ("first", Text)])),
                ("bar", F64),
                (
                    "choices",
                    list(Struct(vec![
                        ("choice", Text),
                        ("logprob", F64),
                        ("neutral", F64),
                        ("tokens", I64),
                        ("score", F64),
                    ])),
                ),
                ("completions", list(Text)),
                ("scores", list(list(F64))),
                ("pred", Text),
                ("error", Text),
                ("skipped", Bool),
            ],
            // Those of an item that follow from its samples' texts.
            RecordKind::Vote => {
                let (of_search, until) = (["index", "answer", "weights"], "cancelled");
                let of_item = RecordKind::Item.fields().into_iter().take_while(|(name, _)| *name != until);
                of_item.filter(|(name, _)| !of_search.contains(name)).collect()
            }
            RecordKind::ScoredVote => {
                let pick = vec![("k", I64), ("best", Text), ("weighted", Text), ("majority", Text)];
                let weights = ("weights", list(Struct(vec![("answer", Text), ("weight", F64)])));
                RecordKind::Vote.fields().into_iter().chain([weights, ("first", list(Struct(pick)))]).collect()
            }
        }
    }
}

/// What is recorded of a token.
fn token_record() -> Fields {
    use Kind::{Bool, F32, Struct, U32};
    let drawn = vec![("logprob", F32), ("kept", U32), ("lowest", F32), ("ids", list(U32))];
    vec![
        ("token", U32),
        ("logprob", F32),
        ("rank", U32),
        ("top", list(Struct(vec![("token", U32), ("logprob", F32)]))),
        ("drawn", Struct(drawn)),
        ("entropy", F32),
        ("confidence", F32),
        ("forced", Bool),
    ]
}

fn list(of: Kind) -> Kind {
    Kind::List(Box::new(of))
}

/// Bits, the lowest of a byte first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    bytes: Vec<u8>,
    len: usize,
    zeros: usize,
}

impl Bits {
    pub fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        *self.bytes.last_mut().expect("there is room for the bit") |= u8::from(bit) << (self.len % 8);
        self.len += 1;
        self.zeros += usize::from(!bit);
    }

    pub fn get(&self, index: usize) -> bool {
        self.bytes[index / 8] >> (index % 8) & 1 == 1
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn zeros(&self) -> usize {
        self.zeros
    }
}

/// Values of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Which values are there; the others have a place in `data` all the same, but for a list's items.
    pub present: Bits,
    pub data: Data,
}

/// The values of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    Bool(Bits),
    I64(Vec<i64>),
    U32(Vec<u32>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    /// Where each text begins in the bytes, and the last one's end.
    Text(Vec<i32>, Vec<u8>),
    /// Likewise in the items.
    List(Vec<i32>, Box<Column>),
    Struct(Vec<(&'static str, Column)>),
}

/// Records in columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub rows: usize,
    pub columns: Vec<(&'static str, Column)>,
}

impl Column {
    pub fn new(kind: &Kind) -> Column {
        let data = match kind {
            Kind::Bool => Data::Bool(Bits::default()),
            Kind::I64 => Data::I64(Vec::new()),
            Kind::U32 => Data::U32(Vec::new()),
            Kind::F32 => Data::F32(Vec::new()),
            Kind::F64 => Data::F64(Vec::new()),
            Kind::Text => Data::Text(vec![0], Vec::new()),
            Kind::List(of) => Data::List(vec![0], Box::new(Column::new(of))),
            Kind::Struct(fields) => Data::Struct(columns(fields)),
        };
        Column { present: Bits::default(), data }
    }

    /// A column without nulls.
    pub fn of(data: Data) -> Column {
        let mut column = Column { present: Bits::default(), data };
        (0..column.data.len()).for_each(|_| column.present.push(true));
        column
    }

    /// A column of whole numbers, some of which may be null.
    pub fn of_optional(values: impl IntoIterator<Item = Option<i64>>) -> Column {
        let (mut present, mut numbers) = (Bits::default(), Vec::new());
        for value in values {
            present.push(value.is_some());
            numbers.push(value.unwrap_or_default());
        }
        Column { present, data: Data::I64(numbers) }
    }

    /// A column of truth values.
    pub fn of_bools(values: impl IntoIterator<Item = bool>) -> Column {
        let mut bits = Bits::default();
        values.into_iter().for_each(|value| bits.push(value));
        Column::of(Data::Bool(bits))
    }

    /// A column of texts.
    pub fn of_texts<T: AsRef<str>>(texts: impl IntoIterator<Item = Option<T>>) -> Result<Column> {
        let mut column = Column::new(&Kind::Text);
        for text in texts {
            match text {
                Some(text) => column.push_text(text.as_ref())?,
                None => column.push_null()?,
            }
        }
        Ok(column)
    }

    fn push_null(&mut self) -> Result<()> {
        self.present.push(false);
        match &mut self.data {
            Data::Bool(values) => values.push(false),
            Data::I64(values) => values.push(0),
            Data::U32(values) => values.push(0),
            Data::F32(values) => values.push(0.0),
            Data::F64(values) => values.push(0.0),
            Data::Text(ends, bytes) => ends.push(end(bytes.len())?),
            Data::List(ends, items) => ends.push(end(items.data.len())?),
            Data::Struct(fields) => fields.iter_mut().try_for_each(|(_, field)| field.push_null())?,
        }
        Ok(())
    }

    fn push_text(&mut self, text: &str) -> Result<()> {
        let Data::Text(ends, bytes) = &mut self.data else { return Err(unlike(&self.data, text)) };
        bytes.extend(text.as_bytes());
        ends.push(end(bytes.len())?);
        self.present.push(true);
        Ok(())
    }

    /// Adds a value of JSON: a tuple to a struct as its fields, one value to a list as its only item, what is no text
    /// to texts as its JSON. Fields without a column are left out.
    fn push(&mut self, value: Value) -> Result<()> {
        match (&mut self.data, value) {
            (_, Value::Null) => return self.push_null(),
            (Data::Struct(fields), Value::Object(mut object)) => push_fields(fields, &mut object)?,
            (Data::Struct(fields), Value::Array(tuple)) => {
                let mut values = tuple.into_iter();
                fields.iter_mut().try_for_each(|(_, field)| field.push(values.next().unwrap_or(Value::Null)))?;
            }
            (Data::List(ends, items), value) => {
                match value {
                    Value::Array(values) => values.into_iter().try_for_each(|value| items.push(value))?,
                    value => items.push(value)?,
                }
                ends.push(end(items.data.len())?);
            }
            (Data::Text(..), Value::String(text)) => return self.push_text(&text),
            (Data::Text(..), value) => return self.push_text(&value.to_string()),
            (Data::Bool(values), Value::Bool(value)) => values.push(value),
            (data, value) => {
                let number = match &value {
                    Value::Number(number) => Some(number.clone()),
                    Value::String(text) => text.parse().ok(),
                    _ => None,
                };
                let whole = number.as_ref().and_then(|number| {
                    number.as_i64().or_else(|| {
                        number.as_f64().map(f64::trunc).filter(|real| real.abs() < 1e15).map(|real| real as i64)
                    })
                });
                let real = number.as_ref().and_then(serde_json::Number::as_f64);
                match (&mut *data, whole, real) {
                    (Data::I64(values), Some(whole), _) => values.push(whole),
                    (Data::U32(values), Some(whole), _) if u32::try_from(whole).is_ok() => values.push(whole as u32),
                    (Data::F32(values), _, Some(real)) => values.push(real as f32),
                    (Data::F64(values), _, Some(real)) => values.push(real),
                    _ => return Err(unlike(data, &value.to_string())),
                }
            }
        }
        self.present.push(true);
        Ok(())
    }
}

impl Data {
    /// How many values there are, nulls among them. Structs know it by their columns.
    pub fn len(&self) -> usize {
        match self {
            Data::Bool(values) => values.len,
            Data::I64(values) => values.len(),
            Data::U32(values) => values.len(),
            Data::F32(values) => values.len(),
            Data::F64(values) => values.len(),
            Data::Text(ends, _) | Data::List(ends, _) => ends.len() - 1,
            Data::Struct(fields) => fields.first().map_or(0, |(_, field)| field.data.len()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn name(&self) -> &'static str {
        match self {
            Data::Bool(_) => "a truth value",
            Data::I64(_) => "a whole number of 64 bits",
            Data::U32(_) => "a number from 0 to 4294967295",
            Data::F32(_) | Data::F64(_) => "a number",
            Data::Text(..) => "a text",
            Data::List(..) => "a list",
            Data::Struct(_) => "an object",
        }
    }
}

pub(super) fn columns(fields: &Fields) -> Vec<(&'static str, Column)> {
    fields.iter().map(|(name, kind)| (*name, Column::new(kind))).collect()
}

fn push_fields(fields: &mut [(&'static str, Column)], object: &mut Map<String, Value>) -> Result<()> {
    for (name, field) in fields {
        field.push(object.remove(*name).unwrap_or(Value::Null))?;
    }
    Ok(())
}

pub(super) fn push_record(columns: &mut [(&'static str, Column)], record: Value) -> Result<()> {
    match record {
        Value::Object(mut object) => push_fields(columns, &mut object),
        other => Err(Error::Internal(format!("a result is no object: {other}"))),
    }
}

fn end(of: usize) -> Result<i32> {
    i32::try_from(of).map_err(|_| Error::Internal("texts or lists of 1024 results have more than 2 GiB".to_string()))
}

fn unlike(data: &Data, found: &str) -> Error {
    Error::Internal(format!("results are not as their columns: expected {}, found {found}", data.name()))
}

/// These records in columns.
pub fn table<T: Serialize>(kind: RecordKind, records: &[T]) -> Result<Table> {
    let mut columns = columns(&kind.fields());
    for record in records {
        push_record(&mut columns, json::value("a result", record)?)?;
    }
    Ok(Table { rows: records.len(), columns })
}

/// The records of JSON lines, a batch at a time. `path` names them in errors.
pub fn tables(kind: RecordKind, path: &Path, lines: Box<dyn BufRead>) -> impl Iterator<Item = Result<Table>> + use<> {
    let path = path.to_path_buf();
    let mut lines = Lines::of(&path, lines, MOST_OF_RECORD);
    std::iter::from_fn(move || {
        let record = |line: offshoot_lines::Line| match (&line.too_long, serde_json::from_slice::<Value>(&line.bytes)) {
            (None, Ok(record)) => Ok(record),
            (Some(too_long), _) => Err(Error::format(&path, format!("line {}: {}", line.number, too_long.why()))),
            (None, Err(error)) => Err(Error::format(&path, format!("line {}: not JSON: {error}", line.number))),
        };
        let records: Result<Vec<Value>> = lines.by_ref().take(BATCH).map(|line| line.and_then(record)).collect();
        match records {
            Ok(records) if records.is_empty() => None,
            records => Some(records.and_then(|records| table(kind, &records))),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use serde_json::json;

    use super::*;
    use crate::records::write::write_parquet;
    use crate::records::{SplitChoice, rows};

    /// The records written as Parquet and read again.
    fn again(kind: RecordKind, records: &[Value]) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("x.parquet");
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        let mut file = std::fs::File::create(&path).expect("writable");
        write_parquet(kind, Path::new("x.jsonl"), Box::new(Cursor::new(lines)), &mut file).expect("written");
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
            "judged": judged, "error": "why",
            "logprobs": [{"token": 7, "logprob": -0.5, "rank": 1, "top": [[7, -0.5], [8, -1.5]],
                    "drawn": {"logprob": -0.25, "kept": 2, "lowest": 1.5, "ids": [7, 8]}, "entropy": 0.75},
                {"token": 8, "logprob": -1.0, "top": [],
                    "drawn": {"logprob": -0.125, "kept": 2000, "lowest": -0.5}, "forced": true}],
            "ending": {"token": 1, "logprob": -2.0, "top": [], "confidence": 4.5},
            "confidence": {"window": 16, "mean": 4.5, "tail": 4.25, "bottom": 3.0, "lowest": 2.75}});
        let mut expected = [plain.clone(), scored.clone()];
        expected[0]["stop"] = json!("13");
        expected[1]["logprobs"][0]["top"] = json!([{"token": 7, "logprob": -0.5}, {"token": 8, "logprob": -1.5}]);
        // Where nothing is recorded there is null.
        expected[1]["logprobs"][1]["rank"] = Value::Null;
        expected[1]["logprobs"][1]["entropy"] = Value::Null;
        expected[1]["logprobs"][0]["forced"] = Value::Null;
        expected[1]["logprobs"][0]["confidence"] = Value::Null;
        expected[1]["logprobs"][1]["confidence"] = Value::Null;
        expected[1]["logprobs"][1]["drawn"]["ids"] = Value::Null;
        (expected[1]["judged"]["score"], expected[1]["judged"]["error"]) = (Value::Null, Value::Null);
        let none = Value::Null;
        expected[1]["ending"] = json!({"token": 1, "logprob": -2.0, "rank": none, "top": [], "drawn": none,
            "entropy": none, "confidence": 4.5, "forced": none});
        assert_eq!(again(RecordKind::Sample, &[plain, scored]), expected);
    }

    /// What a judge, which is a model, answers is JSON of any shape: a text in a column.
    #[test]
    fn verdicts_are_texts() {
        let said = json!({"reasoning": "so", "score": 7});
        let sample =
            json!({"id": "a", "index": 0, "score": 0.7, "verdict": said, "judged": {"score": 0.5, "verdict": [1]}});
        let read = again(RecordKind::Sample, &[sample]).remove(0);
        assert_eq!((&read["score"], &read["verdict"]), (&json!(0.7), &json!(said.to_string())));
        assert_eq!((&read["judged"]["score"], &read["judged"]["verdict"]), (&json!(0.5), &json!("[1]")));
    }

    #[test]
    fn items_of_all_methods_have_one_schema() {
        let voted = json!({"id": "a", "index": 0, "question": "q", "votes": [["5", 3], ["6", 3]], "chosen": 2,
            "tied": [2, 4], "correct": false, "bar": 12.5, "scores": [0.5, 1.0],
            "failed": {"branches": 1, "first": "why"}});
        let searched = json!({"id": "b", "completions": ["x", "y"], "scores": [[0.5], [0.25, 1.0]], "pred": "x"});
        let chosen = json!({"id": "c", "choices": [{"choice": "A", "logprob": -1.5, "tokens": 1, "score": -1.5}]});
        let failed = json!({"id": "d", "index": 3, "question": "q", "error": "why", "skipped": true});
        let mut expected = [voted.clone(), searched.clone(), chosen.clone(), failed.clone()];
        expected[0]["votes"] = json!([{"answer": "5", "votes": 3}, {"answer": "6", "votes": 3}]);
        expected[0]["scores"] = json!([[0.5], [1.0]]);
        expected[2]["choices"][0]["neutral"] = Value::Null;
        assert_eq!(again(RecordKind::Item, &[voted, searched, chosen, failed]), expected);
    }

    #[test]
    fn records_come_in_batches_of_one_schema() {
        let line = |n: usize| format!("{}\n", json!({"id": n.to_string(), "index": n, "more": [n]}));
        let lines: String = (0..2 * BATCH + 1).map(line).collect();
        let read = tables(RecordKind::Sample, Path::new("x.jsonl"), Box::new(Cursor::new(lines)));
        let read: Vec<Table> = read.collect::<Result<_>>().expect("records");
        assert_eq!(read.iter().map(|table| table.rows).collect::<Vec<_>>(), [BATCH, BATCH, 1]);
        let kinds = RecordKind::Sample.fields();
        assert!(
            read.iter().all(|table| table
                .columns
                .iter()
                .map(|(name, _)| *name)
                .eq(kinds.iter().map(|(name, _)| *name)))
        );
        assert_eq!(table::<Value>(RecordKind::Vote, &[]).expect("no records").rows, 0);
        let broken = tables(RecordKind::Item, Path::new("x.jsonl"), Box::new(Cursor::new("{}\n{\n"))).next();
        let error = broken.expect("a batch").expect_err("broken").to_string();
        assert!(error.contains("x.jsonl: line 2: not JSON"), "{error}");
    }
}
