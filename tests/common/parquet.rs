//! Parquet files of records, with the columns that their fields have, as a data set on the Hub has them.

use std::fs::{self, File};
use std::path::Path;

use offshoot_eval::records::table::Kind;
use offshoot_eval::records::write::write_records;
use serde_json::Value;

/// Writes `records`, at least one, to `path`, whose folder is made.
pub fn write_parquet(path: &Path, records: &[Value]) {
    fs::create_dir_all(path.parent().expect("a file has a folder")).expect("writable");
    let kind = records.iter().fold(None, |kind, record| merged(kind, kind_of(record)));
    let Some(Kind::Struct(fields)) = kind else { panic!("the records have columns") };
    let mut file = File::create(path).expect("writable");
    write_records(fields, records.to_vec(), &mut file).expect("the records have these columns");
}

/// What a column of such values holds; `None` if it may be anything.
fn kind_of(value: &Value) -> Option<Kind> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(_) => Kind::Bool,
        Value::Number(number) if number.is_f64() => Kind::F64,
        Value::Number(_) => Kind::I64,
        Value::String(_) => Kind::Text,
        Value::Array(list) => {
            let of = list.iter().fold(None, |kind, item| merged(kind, kind_of(item)));
            Kind::List(Box::new(of.unwrap_or(Kind::Text)))
        }
        Value::Object(object) => {
            let of_field = |(name, value): (&String, &Value)| Some((&*name.clone().leak(), kind_of(value)?));
            Kind::Struct(object.iter().filter_map(of_field).collect())
        }
    })
}

fn merged(one: Option<Kind>, other: Option<Kind>) -> Option<Kind> {
    match (one, other) {
        (Some(Kind::Struct(mut fields)), Some(Kind::Struct(more))) => {
            for (name, kind) in more {
                match fields.iter_mut().find(|(of, _)| *of == name) {
                    Some((_, known)) => *known = merged(Some(known.clone()), Some(kind)).expect("both are known"),
                    None => fields.push((name, kind)),
                }
            }
            Some(Kind::Struct(fields))
        }
        (Some(Kind::List(one)), Some(Kind::List(other))) => {
            Some(Kind::List(Box::new(merged(Some(*one), Some(*other)).expect("both are known"))))
        }
        (Some(Kind::I64), Some(Kind::F64)) => Some(Kind::F64),
        (None, known) => known,
        (known, _) => known,
    }
}
