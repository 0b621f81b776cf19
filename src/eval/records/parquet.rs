//! Parquet files as JSON lines, one a row, so that all that reads JSON lines reads Parquet: lists and structs become
//! lists and objects, nulls stay, times become ISO texts, bytes become text or else base64. Strangers write such files:
//! they are read on threads that are bounded in memory and time, a few rows at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayAccessor};
use arrow_json::writer::{LineDelimited, NullableEncoder, WriterBuilder};
use arrow_json::{Encoder, EncoderFactory, EncoderOptions};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};

use crate::bounded::{Bounds, Stopped, bounded_and_kept};
use crate::error::{Error, Result};
use crate::figures::{self, shortened};

/// Memory for reading a file: at least this, and so many times its length, because a page is unpacked whole.
const LEAST_BYTES: usize = 512 << 20;
const TIMES_LENGTH: usize = 16;
/// CPU time for a few rows.
const MOST_TIME: Duration = Duration::from_secs(60);
/// Rows are read in batches of at most this many, and of about so many bytes. A text that many rows have is stored once
/// in the file and once for each row in a batch.
const BATCH_ROWS: u64 = 16;
const BATCH_BYTES: u64 = 1 << 20;
/// A file may have this many rows, and one more for each of its bytes: rows without content take none.
const FREE_ROWS: u64 = 1 << 18;

/// The rows of Parquet files, one after the other, as JSON lines.
pub(super) struct RowLines {
    ahead: VecDeque<PathBuf>,
    file: Option<OpenFile>,
    /// Lines, of which those before `at` have been read.
    text: Vec<u8>,
    at: usize,
}

/// A file with its rows not read yet.
struct OpenFile {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
    /// Memory that reading may take, and how much of it the reader holds.
    most: usize,
    kept: usize,
    rows_left: u64,
}

impl RowLines {
    /// Opens the first file at once, so that what is no Parquet is refused here.
    pub fn open(files: Vec<PathBuf>) -> Result<RowLines> {
        let mut lines = RowLines { ahead: files.into(), file: None, text: Vec::new(), at: 0 };
        lines.file = lines.ahead.pop_front().map(|path| OpenFile::open(&path)).transpose()?;
        Ok(lines)
    }

    /// Replaces the text that was read by the next rows; none are left if it is then empty.
    fn refill(&mut self) -> Result<()> {
        (self.at, self.text) = (0, Vec::new());
        loop {
            match self.file.take() {
                Some(file) => {
                    if let Some((file, text)) = file.next_rows()? {
                        (self.file, self.text) = (Some(file), text);
                        return Ok(());
                    }
                }
                None => match self.ahead.pop_front() {
                    Some(path) => self.file = Some(OpenFile::open(&path)?),
                    None => return Ok(()),
                },
            }
        }
    }
}

impl BufRead for RowLines {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.text.len() {
            // Nothing is read after what failed.
            self.refill().inspect_err(|_| self.ahead.clear()).map_err(io::Error::other)?;
        }
        Ok(&self.text[self.at..])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
    }
}

impl Read for RowLines {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

impl OpenFile {
    fn open(path: &Path) -> Result<OpenFile> {
        let facts = std::fs::metadata(path).map_err(Error::io(path, "open"))?;
        if !facts.is_file() {
            return Err(Error::format(path, "expected a Parquet file, found a folder, pipe or device"));
        }
        let file = File::open(path).map_err(Error::io(path, "open"))?;
        let length = usize::try_from(facts.len()).unwrap_or(usize::MAX);
        let most = LEAST_BYTES.saturating_add(length.saturating_mul(TIMES_LENGTH));
        let bounds = Bounds { bytes: most, cpu: MOST_TIME };
        let (reader, kept) = whole(path, bounded_and_kept(bounds, move || reader(file)))?;
        let kept = usize::try_from(kept).unwrap_or(0);
        Ok(OpenFile { path: path.to_path_buf(), reader, most, kept, rows_left: FREE_ROWS + facts.len() })
    }

    /// The next rows as lines; `None` after the last.
    fn next_rows(self) -> Result<Option<(OpenFile, Vec<u8>)>> {
        let OpenFile { path, mut reader, most, kept, rows_left } = self;
        let bounds = Bounds { bytes: most.saturating_sub(kept), cpu: MOST_TIME };
        let read = bounded_and_kept(bounds, move || match reader.next() {
            None => Ok(None),
            Some(batch) => {
                let batch = batch?;
                let mut text = Vec::new();
                let options =
                    WriterBuilder::new().with_explicit_nulls(true).with_encoder_factory(Arc::new(BytesAsText));
                options.build::<_, LineDelimited>(&mut text).write(&batch)?;
                Ok::<_, ArrowError>(Some((reader, batch.num_rows() as u64, text)))
            }
        });
        let (next, more) = whole(&path, read)?;
        let Some((reader, rows, text)) = next else { return Ok(None) };
        let Some(rows_left) = rows_left.checked_sub(rows) else {
            let most = FREE_ROWS + std::fs::metadata(&path).map_or(0, |facts| facts.len());
            return Err(Error::format(&path, format!("expected at most {} rows, found more", figures::count(most))));
        };
        // The text is not the reader's.
        let held = kept.saturating_add_signed(more).saturating_sub(text.capacity());
        Ok(Some((OpenFile { path, reader, most, kept: held, rows_left }, text)))
    }
}

/// What bounded work has read, and what it keeps.
fn whole<T, E: ToString>(path: &Path, read: Result<(Result<T, E>, isize), Stopped>) -> Result<(T, isize)> {
    /// The most letters of a library's message.
    const MOST: usize = 300;
    let not_read = |why: String| {
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        Error::format(path, format!("not Parquet that can be read: {}", shortened(why, MOST)))
    };
    match read {
        Ok((Ok(value), kept)) => Ok((value, kept)),
        Ok((Err(error), _)) => Err(not_read(error.to_string())),
        Err(stopped) => Err(not_read(stopped.to_string())),
    }
}

fn reader(file: File) -> Result<ParquetRecordBatchReader, parquet::errors::ParquetError> {
    // The types of Parquet alone: what else a writer's Arrow types say (dictionaries, views) makes no other JSON.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&file, options.clone())?;
    let fields: Fields = metadata.schema().fields().iter().map(in_utc).collect();
    let schema = Arc::new(Schema::new(fields));
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options.with_schema(schema))?;
    let groups = metadata.metadata().row_groups().iter();
    let sizes = groups.map(|group| [group.total_byte_size(), group.num_rows()].map(|size| size.max(0) as u64));
    let [bytes, rows] = sizes.fold([0u64; 2], |[a, b], [c, d]| [a.saturating_add(c), b.saturating_add(d)]);
    let of_row = (bytes / rows.max(1)).max(1);
    let batch = (BATCH_BYTES / of_row).clamp(1, BATCH_ROWS) as usize;
    ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata).with_batch_size(batch).build()
}

/// The same field with `+00:00` for the time zone `UTC`, by which times can be written without a table of time zones.
fn in_utc(field: &FieldRef) -> FieldRef {
    let kind = match field.data_type() {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some("+00:00".into())),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(in_utc).collect()),
        DataType::List(inner) => DataType::List(in_utc(inner)),
        DataType::Map(inner, sorted) => DataType::Map(in_utc(inner), *sorted),
        _ => return field.clone(),
    };
    Arc::new(Field::new(field.name(), kind, field.is_nullable()))
}

/// Writes bytes as text where they are UTF-8 (older writers do not mark texts), else as base64.
#[derive(Debug)]
struct BytesAsText;

struct BytesEncoder<B>(B);

impl<'a, B: ArrayAccessor<Item = &'a [u8]>> Encoder for BytesEncoder<B> {
    fn encode(&mut self, row: usize, out: &mut Vec<u8>) {
        let bytes = self.0.value(row);
        let text = std::str::from_utf8(bytes).map_or_else(|_| STANDARD.encode(bytes), str::to_string);
        serde_json::to_writer(out, &text).expect("a text is JSON, and memory takes it");
    }
}

impl EncoderFactory for BytesAsText {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Binary => Box::new(BytesEncoder(array.as_binary::<i32>())),
            DataType::FixedSizeBinary(_) => Box::new(BytesEncoder(array.as_fixed_size_binary())),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::RecordBatch;
    use arrow_array::types::Int32Type;
    use arrow_array::{
        ArrayRef, BinaryArray, Decimal128Array, DictionaryArray, Float64Array, Int64Array, ListArray, NullArray,
        StringArray, StructArray, TimestampMicrosecondArray, UInt64Array,
    };
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;
    use serde_json::{Value, json};

    use super::*;

    fn columns() -> RecordBatch {
        let steps = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
        let (a, b): (ArrayRef, ArrayRef) =
            (Arc::new(StringArray::from(vec!["x", "y\n\"z\"", "é"])), Arc::new(Int64Array::from(vec![1, 2, 3])));
        let fields = |name: &str, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
        let parts = StructArray::from(vec![(fields("a", &a), a.clone()), (fields("b", &b), b.clone())]);
        let bytes: Vec<Option<&[u8]>> = vec![Some(b"plain"), Some(b"\xff\x00"), None];
        let times = || TimestampMicrosecondArray::from(vec![Some(1_692_576_000_000_000), None, Some(1_500_000)]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("text", a),
            ("steps", Arc::new(steps)),
            ("parts", Arc::new(parts)),
            ("bytes", Arc::new(BinaryArray::from(bytes))),
            ("large", Arc::new(UInt64Array::from(vec![u64::MAX, 0, 1]))),
            ("real", Arc::new(Float64Array::from(vec![0.1, f64::NAN, -3.0]))),
            ("exact", Arc::new(Decimal128Array::from(vec![12345, -1, 0]).with_precision_and_scale(30, 2).unwrap())),
            ("local", Arc::new(times())),
            ("utc", Arc::new(times().with_timezone("UTC"))),
            ("zone", Arc::new(times().with_timezone("Europe/Berlin"))),
            ("kind", Arc::new(DictionaryArray::<Int32Type>::from_iter([Some("p"), None, Some("p")]))),
            ("nothing", Arc::new(NullArray::new(3))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
            .unwrap()
    }

    fn write(path: &Path, batch: &RecordBatch, compression: Compression) {
        let properties = WriterProperties::builder().set_compression(compression).build();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
    }

    fn rows(files: Vec<PathBuf>) -> Result<Vec<Value>> {
        let lines = crate::lines::Lines::of(Path::new("x"), Box::new(RowLines::open(files)?), 1 << 20);
        lines.map(|line| Ok(serde_json::from_slice(&line?.bytes).expect("a row is JSON"))).collect()
    }

    #[test]
    fn rows_are_the_objects_that_json_lines_would_have() {
        let folder = tempfile::tempdir().unwrap();
        let expected = [
            json!({"text": "x", "steps": [1, null], "parts": {"a": "x", "b": 1}, "bytes": "plain", "large": u64::MAX,
                "real": 0.1, "exact": 123.45, "local": "2023-08-21T00:00:00", "utc": "2023-08-21T00:00:00Z",
                "zone": "2023-08-21T00:00:00Z", "kind": "p", "nothing": null}),
            json!({"text": "y\n\"z\"", "steps": null, "parts": {"a": "y\n\"z\"", "b": 2}, "bytes": "/wA=", "large": 0,
                "real": null, "exact": -0.01, "local": null, "utc": null, "zone": null, "kind": null, "nothing": null}),
            json!({"text": "é", "steps": [], "parts": {"a": "é", "b": 3}, "bytes": null, "large": 1, "real": -3.0,
                "exact": 0.0, "local": "1970-01-01T00:00:01.500", "utc": "1970-01-01T00:00:01.500Z",
                "zone": "1970-01-01T00:00:01.500Z", "kind": "p", "nothing": null}),
        ];
        let codecs = [
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::GZIP(Default::default()),
            Compression::LZ4_RAW,
            Compression::ZSTD(ZstdLevel::default()),
        ];
        for codec in codecs {
            let path = folder.path().join("x.parquet");
            write(&path, &columns(), codec);
            assert_eq!(rows(vec![path.clone(), path]).unwrap(), [&expected[..], &expected[..]].concat(), "{codec:?}");
        }
    }

    #[test]
    fn what_is_no_parquet_is_refused_in_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        write(&path, &columns(), Compression::SNAPPY);
        let whole = std::fs::read(&path).unwrap();
        for bytes in [&b""[..], b"{\"a\": 1}\n", &whole[..whole.len() / 2], &whole[whole.len() / 2..]] {
            std::fs::write(&path, bytes).unwrap();
            let error = rows(vec![path.clone()]).unwrap_err().to_string();
            assert!(error.contains("x.parquet: not Parquet") && !error.contains('\n'), "{error}");
        }
        assert!(rows(vec![folder.path().to_path_buf()]).unwrap_err().to_string().contains("found a folder"));
    }

    #[test]
    fn rows_without_content_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let rows_of = FREE_ROWS as usize + (64 << 10);
        let column: ArrayRef = Arc::new(Int64Array::new_null(rows_of));
        let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]).unwrap();
        write(&path, &batch, Compression::SNAPPY);
        let error = rows(vec![path]).unwrap_err().to_string();
        assert!(error.contains("expected at most") && error.contains("rows, found more"), "{error}");
    }

    #[test]
    fn a_text_that_all_rows_share_is_not_held_for_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.parquet");
        let document = "word ".repeat(200_000);
        let column: ArrayRef = Arc::new(StringArray::from_iter_values((0..700).map(|_| &document)));
        write(&path, &RecordBatch::try_from_iter([("document", column)]).unwrap(), Compression::SNAPPY);
        let mut lines = RowLines::open(vec![path]).unwrap();
        let mut text = 0;
        while let Some(bytes) = Some(lines.fill_buf().unwrap().len()).filter(|bytes| *bytes > 0) {
            (text, lines.at) = (text + bytes, lines.at + bytes);
            let file = lines.file.as_ref().expect("it is open while rows are left");
            assert!(file.kept < 100 << 20, "{} bytes are held", file.kept);
        }
        assert!(text > 700 * document.len());
    }
}
