//! What a Parquet file says about itself at its end: the tree of its fields, with the levels by which lists and nulls
//! are stored, and where the pages of each column lie. Reading these is left to `pages`.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::thrift::Thrift;
use super::why::{Why, why};

/// Most bytes of the description of a file: it takes many times as much memory once it is read.
const MOST_DESCRIPTION: u64 = 16 << 20;
/// Most fields inside each other.
const MOST_DEPTH: usize = 64;

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Bool,
    /// Values of this many bytes each: little-endian numbers, times of 12 bytes (INT96), or byte strings.
    Fixed(usize),
    Bytes,
}

/// What values mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Logical {
    Null,
    Bool,
    /// A signed integer of this many bits.
    Signed(u8),
    Unsigned(u8),
    Half,
    Float,
    Double,
    Text,
    Bytes,
    /// A decimal with this many digits after the point, stored as a number.
    Decimal(u32),
    /// A decimal with this many digits after the point, stored as big-endian bytes.
    DecimalBytes(u32),
    Date,
    /// Since midnight, with so many of its unit a second.
    Time(i64),
    /// Since 1970, with so many of its unit a second; in UTC or where it was written.
    Timestamp(i64, bool),
    /// Nanoseconds of a day and the day, as Impala wrote times.
    DayAndNanos,
    /// Months, days and milliseconds.
    Interval,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    /// The column's number.
    Value(usize),
    /// Names and fields; there if the definition level of its first column is at least this.
    Struct(Vec<(String, Tree)>, i16),
    /// Items begin where the repetition level is `repeats`; there are any from definition level `has_items`.
    List { item: Box<Tree>, is_there: i16, has_items: i16, repeats: i16 },
    /// Keys and values, likewise.
    Map { key: Box<Tree>, value: Box<Tree>, is_there: i16, has_items: i16, repeats: i16 },
}

/// A field and what is in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tree {
    pub node: Node,
    /// The first of its columns and the one after the last.
    pub columns: (usize, usize),
}

/// A column, whatever the row group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaf {
    pub name: String,
    pub physical: Physical,
    pub logical: Logical,
    pub most_definition: i16,
    pub most_repetition: i16,
}

/// The pages of a column in a row group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Chunk {
    pub codec: i64,
    pub begin: u64,
    pub end: u64,
    pub values: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowGroup {
    pub rows: u64,
    pub chunks: Vec<Chunk>,
}

/// A file's description.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Description {
    pub fields: Vec<(String, Tree)>,
    pub leaves: Vec<Leaf>,
    pub groups: Vec<RowGroup>,
}

impl Description {
    pub fn read(file: &mut File, length: u64) -> Result<Description, Why> {
        let failed = |error: std::io::Error| Why(error.to_string());
        let mut end = [0; 8];
        if length < 12 {
            return why("it is too short");
        }
        file.seek(SeekFrom::Start(length - 8)).and_then(|_| file.read_exact(&mut end)).map_err(failed)?;
        match &end[4..] {
            b"PAR1" => {}
            b"PARE" => return why("it is encrypted"),
            _ => return why("it does not end in PAR1"),
        }
        let described = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
        if described > length - 12 {
            return why(format!("its description would have {described} bytes, of {length} in all"));
        }
        if described > MOST_DESCRIPTION {
            return why(format!("its description has {described} bytes, more than {MOST_DESCRIPTION}"));
        }
        let mut bytes = vec![0; described as usize];
        file.seek(SeekFrom::Start(length - 8 - described)).and_then(|_| file.read_exact(&mut bytes)).map_err(failed)?;
        let Some((value, _)) = Thrift::read(&bytes)? else { return why("its description ends early") };
        Description::of(&value, length)
    }

    fn of(value: &Thrift, length: u64) -> Result<Description, Why> {
        let mut elements = value.list(2).iter();
        let root = elements.next().ok_or_else(|| Why("it has no columns".to_string()))?;
        let mut leaves = Vec::new();
        let mut walk = Walk { elements, leaves: &mut leaves };
        let mut fields = Vec::new();
        for _ in 0..root.size(5).unwrap_or(0) {
            fields.extend(walk.field(FieldLevels::default(), 0)?);
        }
        let group = |group: &Thrift| -> Result<RowGroup, Why> {
            let chunks: Vec<Chunk> =
                group.list(1).iter().map(|chunk| Chunk::of(chunk, length)).collect::<Result<_, _>>()?;
            if chunks.len() != leaves.len() {
                return why(format!("a row group has {} columns, expected {}", chunks.len(), leaves.len()));
            }
            Ok(RowGroup { rows: group.size(3).unwrap_or(0), chunks })
        };
        let groups = value.list(4).iter().map(group).collect::<Result<_, _>>()?;
        Ok(Description { fields, leaves, groups })
    }
}

impl Chunk {
    fn of(chunk: &Thrift, length: u64) -> Result<Chunk, Why> {
        let Some(facts) = chunk.field(3) else { return why("a column is not described, as if it were encrypted") };
        let begin = match (facts.size(11), facts.size(9)) {
            (Some(dictionary), Some(data)) if dictionary > 0 => dictionary.min(data),
            (_, Some(data)) => data,
            _ => return why("a column has no place"),
        };
        let end = begin.saturating_add(facts.size(7).unwrap_or(0)).min(length);
        Ok(Chunk { codec: facts.int(4).unwrap_or(0), begin, end, values: facts.size(5).unwrap_or(0) })
    }
}

/// The levels of a field that is there: those of null or empty outer ones are lower.
#[derive(Clone, Copy, Default)]
struct FieldLevels {
    definition: i16,
    repetition: i16,
}

impl FieldLevels {
    fn optional(self) -> FieldLevels {
        FieldLevels { definition: self.definition + 1, ..self }
    }

    fn repeated(self) -> FieldLevels {
        FieldLevels { definition: self.definition + 1, repetition: self.repetition + 1 }
    }
}

const OPTIONAL: i64 = 1;
const REPEATED: i64 = 2;

/// The elements of the schema, which come depth-first.
struct Walk<'w> {
    elements: std::slice::Iter<'w, Thrift>,
    leaves: &'w mut Vec<Leaf>,
}

impl<'w> Walk<'w> {
    /// The next field, inside one with `levels`; `None` if it has no columns.
    fn field(&mut self, levels: FieldLevels, depth: usize) -> Result<Option<(String, Tree)>, Why> {
        let element = self.next(depth)?;
        let name = element.text(4).unwrap_or_default();
        let tree = match element.int(3) {
            // Not in a list: a list of its own, which is always there.
            Some(REPEATED) => self.list(levels.definition, levels.repeated(), depth, |walk, levels| {
                walk.inside(element, levels, depth)
            })?,
            Some(OPTIONAL) => self.inside(element, levels.optional(), depth)?,
            _ => self.inside(element, levels, depth)?,
        };
        Ok(tree.map(|tree| (name, tree)))
    }

    fn next(&mut self, depth: usize) -> Result<&'w Thrift, Why> {
        if depth > MOST_DEPTH {
            return why(format!("it has fields inside more than {MOST_DEPTH} others"));
        }
        self.elements.next().ok_or_else(|| Why("its columns are described in part".to_string()))
    }

    /// A list whose items, with `levels`, are what `item` reads.
    fn list(
        &mut self,
        is_there: i16,
        levels: FieldLevels,
        depth: usize,
        item: impl FnOnce(&mut Self, FieldLevels) -> Result<Option<Tree>, Why>,
    ) -> Result<Option<Tree>, Why> {
        debug_assert!(depth <= MOST_DEPTH);
        let Some(item) = item(self, levels)? else { return Ok(None) };
        let columns = item.columns;
        let (has_items, repeats) = (levels.definition, levels.repetition);
        Ok(Some(Tree { node: Node::List { item: Box::new(item), is_there, has_items, repeats }, columns }))
    }

    /// What is in `element`, which has `levels` where it is there.
    fn inside(&mut self, element: &'w Thrift, levels: FieldLevels, depth: usize) -> Result<Option<Tree>, Why> {
        if is_group(element) {
            return match kind_of_group(element) {
                Group::List => self.annotated_list(element, levels, depth),
                Group::Map => self.map(element, levels, depth),
                Group::Struct => self.fields(element, levels, depth),
            };
        }
        let column = self.leaves.len();
        let (physical, logical) = types(element)?;
        self.leaves.push(Leaf {
            name: element.text(4).unwrap_or_default(),
            physical,
            logical,
            most_definition: levels.definition,
            most_repetition: levels.repetition,
        });
        Ok(Some(Tree { node: Node::Value(column), columns: (column, column + 1) }))
    }

    fn fields(&mut self, element: &Thrift, levels: FieldLevels, depth: usize) -> Result<Option<Tree>, Why> {
        let (mut fields, first) = (Vec::new(), self.leaves.len());
        for _ in 0..element.size(5).unwrap_or(0) {
            fields.extend(self.field(levels, depth + 1)?);
        }
        let columns = (first, self.leaves.len());
        Ok((!fields.is_empty()).then_some(Tree { node: Node::Struct(fields, levels.definition), columns }))
    }

    /// A list in one of the forms that writers have had: its only field is repeated and either is the item or has it as
    /// its only field.
    fn annotated_list(&mut self, element: &'w Thrift, levels: FieldLevels, depth: usize) -> Result<Option<Tree>, Why> {
        let name = element.text(4).unwrap_or_default();
        let repeated = self.next(depth + 1)?;
        if element.size(5) != Some(1) || repeated.int(3) != Some(REPEATED) {
            return why(format!("`{name}` is no list: expected one repeated field in it"));
        }
        self.list(levels.definition, levels.repeated(), depth, |walk, levels| {
            let only_field = walk.elements.as_slice().first();
            let is_item = !is_group(repeated)
                || repeated.size(5) != Some(1)
                || (!matches!(kind_of_group(repeated), Group::List)
                    && only_field.and_then(|field| field.int(3)) != Some(REPEATED)
                    && repeated.text(4).is_some_and(|of| of == "array" || of == format!("{name}_tuple")));
            if is_item {
                return walk.inside(repeated, levels, depth + 1);
            }
            Ok(walk.field(levels, depth + 2)?.map(|(_, item)| item))
        })
    }

    fn map(&mut self, element: &Thrift, levels: FieldLevels, depth: usize) -> Result<Option<Tree>, Why> {
        let no_map = || {
            Why(format!(
                "`{}` is no map: expected one repeated field in it, of a key and a value",
                element.text(4).unwrap_or_default()
            ))
        };
        let pair = self.next(depth + 1)?;
        if element.size(5) != Some(1) || pair.int(3) != Some(REPEATED) || !matches!(pair.size(5), Some(1 | 2)) {
            return Err(no_map());
        }
        let inner = levels.repeated();
        let (_, key) = self.field(inner, depth + 2)?.ok_or_else(no_map)?;
        let (is_there, has_items, repeats) = (levels.definition, inner.definition, inner.repetition);
        if pair.size(5) == Some(1) {
            // Keys alone are a list.
            let columns = key.columns;
            let node = Node::List { item: Box::new(key), is_there, has_items, repeats };
            return Ok(Some(Tree { node, columns }));
        }
        let (_, value) = self.field(inner, depth + 2)?.ok_or_else(no_map)?;
        let columns = (key.columns.0, value.columns.1);
        let node = Node::Map { key: Box::new(key), value: Box::new(value), is_there, has_items, repeats };
        Ok(Some(Tree { node, columns }))
    }
}

fn is_group(element: &Thrift) -> bool {
    element.int(1).is_none()
}

enum Group {
    Struct,
    List,
    Map,
}

fn kind_of_group(element: &Thrift) -> Group {
    let logical = |number| element.field(10).is_some_and(|kind| kind.field(number).is_some());
    match element.int(6) {
        _ if logical(3) => Group::List,
        _ if logical(2) => Group::Map,
        Some(3) => Group::List,
        Some(1 | 2) => Group::Map,
        _ => Group::Struct,
    }
}

/// How the values of a column are stored and what they mean.
fn types(element: &Thrift) -> Result<(Physical, Logical), Why> {
    let name = element.text(4).unwrap_or_default();
    let length = element.size(2).unwrap_or(0);
    let stored = element.int(1).unwrap_or(-1);
    let physical = match stored {
        0 => Physical::Bool,
        1 | 4 => Physical::Fixed(4),
        2 | 5 => Physical::Fixed(8),
        3 => Physical::Fixed(12),
        6 => Physical::Bytes,
        // Pages have at most so many bytes.
        7 if (1..=i32::MAX as u64).contains(&length) => Physical::Fixed(length as usize),
        7 => return why(format!("`{name}` has values of {length} bytes")),
        other => return why(format!("`{name}` is of type {other}, which Parquet does not have")),
    };
    let known = match Annotation::of(element) {
        Annotation::Null => Some(Logical::Null),
        annotation => match (stored, annotation) {
            (0, _) => Some(Logical::Bool),
            (1, Annotation::None) => Some(Logical::Signed(32)),
            (1, Annotation::Integer(bits @ (8 | 16 | 32), true)) => Some(Logical::Signed(bits)),
            (1, Annotation::Integer(bits @ (8 | 16 | 32), false)) => Some(Logical::Unsigned(bits)),
            (1 | 2, Annotation::Decimal(scale)) => Some(Logical::Decimal(scale)),
            (1, Annotation::Date) => Some(Logical::Date),
            (1, Annotation::Time(1_000)) => Some(Logical::Time(1_000)),
            (2, Annotation::None | Annotation::Integer(64, true)) => Some(Logical::Signed(64)),
            (2, Annotation::Integer(64, false)) => Some(Logical::Unsigned(64)),
            (2, Annotation::Time(unit @ (1_000_000 | 1_000_000_000))) => Some(Logical::Time(unit)),
            (2, Annotation::Timestamp(unit, in_utc)) => Some(Logical::Timestamp(unit, in_utc)),
            (3, _) => Some(Logical::DayAndNanos),
            (4, _) => Some(Logical::Float),
            (5, _) => Some(Logical::Double),
            (6, Annotation::Text) => Some(Logical::Text),
            (6, Annotation::None | Annotation::Other) => Some(Logical::Bytes),
            (6 | 7, Annotation::Decimal(scale)) => Some(Logical::DecimalBytes(scale)),
            (7, Annotation::Half) if length == 2 => Some(Logical::Half),
            (7, Annotation::Interval) if length == 12 => Some(Logical::Interval),
            (7, Annotation::Half | Annotation::Interval) => None,
            (7, _) => Some(Logical::Bytes),
            _ => None,
        },
    };
    match known {
        Some(logical) => Ok((physical, logical)),
        None => why(format!("`{name}` has a type that is not known: it is stored as {stored}")),
    }
}

/// What a column's values are said to mean, by the newer or the older of the two ways.
#[derive(Clone, Copy)]
enum Annotation {
    None,
    Null,
    Integer(u8, bool),
    Decimal(u32),
    Date,
    Time(i64),
    Timestamp(i64, bool),
    Text,
    Half,
    Interval,
    Other,
}

impl Annotation {
    fn of(element: &Thrift) -> Annotation {
        let scale = |of: &Thrift, number| of.size(number).and_then(|scale| u32::try_from(scale).ok()).unwrap_or(0);
        if let Some(Thrift::Struct(kinds)) = element.field(10)
            && let Some((kind, facts)) = kinds.first()
        {
            let unit = || match facts.field(2) {
                Some(unit) if unit.field(1).is_some() => 1_000,
                Some(unit) if unit.field(2).is_some() => 1_000_000,
                _ => 1_000_000_000,
            };
            return match kind {
                1 | 12 => Annotation::Text,
                5 => Annotation::Decimal(scale(facts, 1)),
                6 => Annotation::Date,
                7 => Annotation::Time(unit()),
                8 => Annotation::Timestamp(unit(), facts.bool(1) == Some(true)),
                10 => Annotation::Integer(facts.int(1).unwrap_or(0) as u8, facts.bool(2) == Some(true)),
                11 => Annotation::Null,
                15 => Annotation::Half,
                _ => Annotation::Other,
            };
        }
        match element.int(6) {
            None => Annotation::None,
            Some(0 | 19) => Annotation::Text,
            Some(5) => Annotation::Decimal(scale(element, 7)),
            Some(6) => Annotation::Date,
            Some(7) => Annotation::Time(1_000),
            Some(8) => Annotation::Time(1_000_000),
            Some(9) => Annotation::Timestamp(1_000, true),
            Some(10) => Annotation::Timestamp(1_000_000, true),
            Some(unsigned @ 11..=14) => Annotation::Integer(8 << (unsigned - 11), false),
            Some(signed @ 15..=18) => Annotation::Integer(8 << (signed - 15), true),
            Some(21) => Annotation::Interval,
            _ => Annotation::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUIRED: i64 = 0;
    const LIST: Option<i64> = Some(3);

    fn group(name: &str, repetition: i64, children: i64, converted: Option<i64>) -> Thrift {
        let fields = [(3, repetition), (5, children)].map(|(field, value)| (field, Thrift::Int(value)));
        let converted = converted.map(|kind| (6, Thrift::Int(kind)));
        let name = (4, Thrift::Bytes(name.as_bytes().to_vec()));
        Thrift::Struct(fields.into_iter().chain([name]).chain(converted).collect())
    }

    fn int32(name: &str, repetition: i64) -> Thrift {
        let name = (4, Thrift::Bytes(name.as_bytes().to_vec()));
        Thrift::Struct(vec![(1, Thrift::Int(1)), (3, Thrift::Int(repetition)), name])
    }

    /// The only field of a schema of these elements, with lists as `[]`, structs as `{}` and values as their levels.
    fn shape(elements: Vec<Thrift>) -> Result<String, Why> {
        fn of(tree: &Tree, leaves: &[Leaf]) -> String {
            match &tree.node {
                Node::Value(column) => {
                    format!("{}/{}", leaves[*column].most_definition, leaves[*column].most_repetition)
                }
                Node::Struct(fields, _) => {
                    let fields: Vec<String> =
                        fields.iter().map(|(name, tree)| format!("{name}: {}", of(tree, leaves))).collect();
                    format!("{{{}}}", fields.join(", "))
                }
                Node::List { item, .. } => format!("[{}]", of(item, leaves)),
                Node::Map { key, value, .. } => format!("<{}, {}>", of(key, leaves), of(value, leaves)),
            }
        }
        let elements = [vec![group("schema", REQUIRED, 1, None)], elements].concat();
        let description = Description::of(&Thrift::Struct(vec![(2, Thrift::List(elements))]), 0)?;
        Ok(description.fields.iter().map(|(_, tree)| of(tree, &description.leaves)).collect())
    }

    #[test]
    fn lists_are_known_in_the_forms_that_writers_have_had() {
        let list = |children: Vec<Thrift>| [vec![group("l", OPTIONAL, 1, LIST)], children].concat();
        for (elements, expected) in [
            (list(vec![group("list", REPEATED, 1, None), int32("element", OPTIONAL)]), "[3/1]"),
            // The repeated field is the item: it is no group, has several fields, or a name that says so.
            (list(vec![int32("element", REPEATED)]), "[2/1]"),
            (
                list(vec![group("element", REPEATED, 2, None), int32("a", REQUIRED), int32("b", OPTIONAL)]),
                "[{a: 2/1, b: 3/1}]",
            ),
            (list(vec![group("array", REPEATED, 1, None), int32("a", REQUIRED)]), "[{a: 2/1}]"),
            (list(vec![group("l_tuple", REPEATED, 1, None), int32("a", REQUIRED)]), "[{a: 2/1}]"),
            (list(vec![group("array", REPEATED, 1, LIST), int32("array", REPEATED)]), "[[3/2]]"),
            (list(vec![group("array", REPEATED, 1, None), int32("a", REPEATED)]), "[[3/2]]"),
            // In no list.
            (vec![int32("r", REPEATED)], "[1/1]"),
            (vec![group("r", REPEATED, 1, None), int32("a", OPTIONAL)], "[{a: 2/1}]"),
            (
                vec![
                    group("m", OPTIONAL, 1, Some(1)),
                    group("map", REPEATED, 2, Some(2)),
                    int32("key", REQUIRED),
                    int32("value", OPTIONAL),
                ],
                "<2/1, 3/1>",
            ),
        ] {
            assert_eq!(shape(elements).expect(expected), expected);
        }
    }

    #[test]
    fn schemas_that_do_not_fit_are_refused() {
        let deep: Vec<Thrift> = (0..100).map(|_| group("g", OPTIONAL, 1, None)).collect();
        for (elements, words) in [
            (vec![], "described in part"),
            (vec![group("l", OPTIONAL, 1, LIST), int32("a", OPTIONAL)], "`l` is no list"),
            (vec![group("m", OPTIONAL, 1, Some(1)), int32("a", REPEATED)], "`m` is no map"),
            (deep, "inside more than"),
        ] {
            let Why(said) = shape(elements).expect_err(words);
            assert!(said.contains(words), "{said}");
        }
    }
}
