//! Writes columns as Parquet: pages of plain values, packed by zstd, one a batch and column. What the columns are is up
//! to the callers.

use std::io::{self, Write};

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::thrift::{Thrift, write_varint};
use super::values::Levels;
use crate::records::table::{Bits, Column, Data, Fields, Kind, Table};

const ZSTD: i64 = 6;
const PLAIN: i64 = 0;
const RUNS: i64 = 3;

/// A Parquet file that is written, a row group at a time.
pub(crate) struct Writer<'w> {
    out: &'w mut dyn Write,
    at: u64,
    schema: Vec<Thrift>,
    columns: Vec<WrittenColumn>,
    rows: usize,
    rows_before: usize,
    groups: Vec<Thrift>,
}

/// A column, and its pages of the row group that is written.
struct WrittenColumn {
    path: Vec<String>,
    physical: i64,
    most: [i16; 2],
    pages: Vec<u8>,
    unpacked: usize,
    values: usize,
    page: Cells,
}

/// Levels and plain values of a page: truth values in `bools`, others in `plain`.
#[derive(Default)]
struct Cells {
    repetitions: Vec<i16>,
    definitions: Vec<i16>,
    bools: Bits,
    plain: Vec<u8>,
}

fn fields(fields: Vec<(i16, Thrift)>) -> Thrift {
    Thrift::Struct(fields)
}

fn int(value: usize) -> Thrift {
    Thrift::Int(value as i64)
}

fn long(value: usize) -> Thrift {
    Thrift::Long(value as i64)
}

fn text(text: &str) -> Thrift {
    Thrift::Bytes(text.as_bytes().to_vec())
}

impl<'w> Writer<'w> {
    pub fn new(out: &'w mut dyn Write, of: Fields) -> io::Result<Writer<'w>> {
        out.write_all(b"PAR1")?;
        let root = fields(vec![(4, text("schema")), (5, int(of.len()))]);
        let (mut schema, mut columns) = (vec![root], Vec::new());
        for (name, kind) in &of {
            describe(name, kind, &[], [0, 0], &mut schema, &mut columns);
        }
        Ok(Writer { out, at: 4, schema, columns, rows: 0, rows_before: 0, groups: Vec::new() })
    }

    /// Adds rows, one page of each column.
    pub fn write(&mut self, table: &Table) -> io::Result<()> {
        let mut first = 0;
        for (_, column) in &table.columns {
            let mut next = first;
            for row in 0..table.rows {
                next = first;
                shred(column, row, [0, 0], 0, &mut self.columns, &mut next);
            }
            first = next.max(first + leaves(column));
        }
        self.columns.iter_mut().for_each(WrittenColumn::end_page);
        self.rows += table.rows;
        Ok(())
    }

    /// Ends a row group: what comes next is in another.
    pub fn end_group(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let (begin, mut chunks, mut unpacked) = (self.at, Vec::new(), 0);
        for column in &mut self.columns {
            let pages = std::mem::take(&mut column.pages);
            self.out.write_all(&pages)?;
            let facts = fields(vec![
                (1, Thrift::Int(column.physical)),
                (2, Thrift::List(vec![Thrift::Int(PLAIN), Thrift::Int(RUNS)])),
                (3, Thrift::List(column.path.iter().map(|name| text(name)).collect())),
                (4, Thrift::Int(ZSTD)),
                (5, long(std::mem::take(&mut column.values))),
                (6, long(column.unpacked)),
                (7, long(pages.len())),
                (9, Thrift::Long(self.at as i64)),
            ]);
            unpacked += std::mem::take(&mut column.unpacked);
            chunks.push(fields(vec![(2, Thrift::Long(self.at as i64)), (3, facts)]));
            self.at += pages.len() as u64;
        }
        self.groups.push(fields(vec![
            (1, Thrift::List(chunks)),
            (2, long(unpacked)),
            (3, long(self.rows)),
            (5, Thrift::Long(begin as i64)),
            (6, Thrift::Long((self.at - begin) as i64)),
        ]));
        self.rows_before += std::mem::take(&mut self.rows);
        Ok(())
    }

    /// Ends the file.
    pub fn finish(mut self) -> io::Result<()> {
        self.end_group()?;
        let description = fields(vec![
            (1, Thrift::Int(2)),
            (2, Thrift::List(self.schema)),
            (3, long(self.rows_before)),
            (4, Thrift::List(self.groups)),
            (6, text(concat!("offshoot version ", env!("CARGO_PKG_VERSION")))),
        ]);
        let mut bytes = Vec::new();
        description.write(&mut bytes);
        let length = bytes.len() as u32;
        bytes.extend(length.to_le_bytes());
        bytes.extend(b"PAR1");
        self.out.write_all(&bytes)
    }
}

/// Describes a field, which may be null, and what is in it. `levels`: of the definition and the repetition outside.
fn describe(
    name: &str,
    kind: &Kind,
    outside: &[String],
    [definition, repetition]: [i16; 2],
    schema: &mut Vec<Thrift>,
    leaves: &mut Vec<WrittenColumn>,
) {
    const OPTIONAL: i64 = 1;
    const REPEATED: i64 = 2;
    let path = [outside, &[name.to_string()]].concat();
    let group = |children: usize, more: Vec<(i16, Thrift)>| {
        fields([vec![(3, Thrift::Int(OPTIONAL)), (4, text(name)), (5, int(children))], more].concat())
    };
    // The older annotation and the newer one.
    let annotated = |old: i64, new: i16, facts: Thrift| vec![(6, Thrift::Int(old)), (10, fields(vec![(new, facts)]))];
    let (physical, annotation) = match kind {
        Kind::Struct(of) => {
            schema.push(group(of.len(), Vec::new()));
            for (name, kind) in of {
                describe(name, kind, &path, [definition + 1, repetition], schema, leaves);
            }
            return;
        }
        Kind::List(of) => {
            schema.push(group(1, annotated(3, 3, fields(Vec::new()))));
            schema.push(fields(vec![(3, Thrift::Int(REPEATED)), (4, text("list")), (5, int(1))]));
            let inside = [&path[..], &["list".to_string()]].concat();
            describe("item", of, &inside, [definition + 2, repetition + 1], schema, leaves);
            return;
        }
        Kind::Bool => (0, Vec::new()),
        Kind::I64 => (2, Vec::new()),
        Kind::U32 => (1, annotated(13, 10, fields(vec![(1, Thrift::Byte(32)), (2, Thrift::Bool(false))]))),
        Kind::F32 => (4, Vec::new()),
        Kind::F64 => (5, Vec::new()),
        Kind::Text => (6, annotated(0, 1, fields(Vec::new()))),
    };
    let plain = vec![(1, Thrift::Int(physical)), (3, Thrift::Int(OPTIONAL)), (4, text(name))];
    schema.push(fields([plain, annotation].concat()));
    leaves.push(WrittenColumn {
        path,
        physical,
        most: [repetition, definition + 1],
        pages: Vec::new(),
        unpacked: 0,
        values: 0,
        page: Cells::default(),
    });
}

fn leaves(column: &Column) -> usize {
    match &column.data {
        Data::List(_, items) => leaves(items),
        Data::Struct(fields) => fields.iter().map(|(_, field)| leaves(field)).sum(),
        _ => 1,
    }
}

/// Adds the value at `index` to the leaves from `next` on, with the levels of what it is in: the repetition of where it
/// begins and of lists around it.
fn shred(
    column: &Column,
    index: usize,
    [begins, inside]: [i16; 2],
    level: i16,
    to: &mut [WrittenColumn],
    next: &mut usize,
) {
    if !column.present.get(index) {
        return nothing(column, begins, level, to, next);
    }
    match &column.data {
        Data::Struct(fields) => {
            fields.iter().for_each(|(_, field)| shred(field, index, [begins, inside], level + 1, to, next));
        }
        Data::List(ends, items) => {
            let (from, end) = (ends[index] as usize, ends[index + 1] as usize);
            if from == end {
                return nothing(items, begins, level + 1, to, next);
            }
            let first = *next;
            for item in from..end {
                *next = first;
                let begins = if item == from { begins } else { inside + 1 };
                shred(items, item, [begins, inside + 1], level + 2, to, next);
            }
        }
        data => {
            let page = &mut to[*next].page;
            page.repetitions.push(begins);
            page.definitions.push(level + 1);
            *next += 1;
            match data {
                Data::Bool(values) => page.bools.push(values.get(index)),
                Data::I64(values) => page.plain.extend(values[index].to_le_bytes()),
                Data::U32(values) => page.plain.extend(values[index].to_le_bytes()),
                Data::F32(values) => page.plain.extend(values[index].to_le_bytes()),
                Data::F64(values) => page.plain.extend(values[index].to_le_bytes()),
                Data::Text(ends, bytes) => {
                    let text = &bytes[ends[index] as usize..ends[index + 1] as usize];
                    page.plain.extend((text.len() as u32).to_le_bytes());
                    page.plain.extend(text);
                }
                Data::List(..) | Data::Struct(_) => unreachable!("these have arms of their own"),
            }
        }
    }
}

fn nothing(column: &Column, begins: i16, level: i16, to: &mut [WrittenColumn], next: &mut usize) {
    for leaf in &mut to[*next..*next + leaves(column)] {
        leaf.page.repetitions.push(begins);
        leaf.page.definitions.push(level);
        *next += 1;
    }
}

impl WrittenColumn {
    fn end_page(&mut self) {
        let page = std::mem::take(&mut self.page);
        let mut bytes = Vec::new();
        for (levels, most) in [&page.repetitions, &page.definitions].into_iter().zip(self.most) {
            if most > 0 {
                write_levels(&mut bytes, levels, most);
            }
        }
        bytes.extend(page.bools.bytes());
        bytes.extend(&page.plain);
        let packed = compress_to_vec(&bytes[..], CompressionLevel::Fastest);
        let count = page.definitions.len();
        let data = [(1, int(count)), (2, Thrift::Int(PLAIN)), (3, Thrift::Int(RUNS)), (4, Thrift::Int(RUNS))];
        let head = fields(vec![
            (1, Thrift::Int(0)),
            (2, int(bytes.len())),
            (3, int(packed.len())),
            (5, fields(data.to_vec())),
        ]);
        let before = self.pages.len();
        head.write(&mut self.pages);
        self.unpacked += self.pages.len() - before + bytes.len();
        self.pages.extend(packed);
        self.values += count;
    }
}

/// Levels in runs of the same, after their length.
fn write_levels(out: &mut Vec<u8>, levels: &[i16], most: i16) {
    debug_assert!(Levels::width(most) <= 8, "a level has one byte");
    let begin = out.len();
    out.extend([0; 4]);
    for run in levels.chunk_by(|one, other| one == other) {
        write_varint(out, (run.len() as u64) << 1);
        out.push(run[0] as u8);
    }
    let length = (out.len() - begin - 4) as u32;
    out[begin..begin + 4].copy_from_slice(&length.to_le_bytes());
}
