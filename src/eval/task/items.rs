//! The items of a task: the records they come from, their ids, and the expansion of documents into one item per
//! question. Fields are kept as JSON; `prompt` and `grade` read them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::eval::records;
use crate::eval::records::{FORMATS, FileRecord, Format, RecordPlace};
use crate::eval::source::{TaskSection, TaskSource};
use crate::eval::task::candidate::ItemTests;
use crate::eval::task::documents;
use crate::eval::task::documents::{QuestionSet, Questions, TEXTS};
use crate::eval::task::grade::ExpectedAnswer;
use crate::eval::task::matched;
use crate::json::names;
use crate::json::{describe, listed};

/// One problem of a task.
#[derive(Clone, Debug)]
pub struct Item {
    /// Unique in the task; random numbers and results are keyed by it.
    pub id: String,
    /// Index among all items of the file, from 0, regardless of `skip` and `limit`.
    pub index: usize,
    pub fields: Map<String, Value>,
    /// How its samples are graded; `None`: the task has no grader.
    pub(crate) standard: Option<Standard>,
}

impl Item {
    /// The right answer, for the results. `None`: the task has no grader.
    pub fn reference(&self) -> Option<String> {
        match &self.standard {
            Some(Standard::Reference(reference)) => Some(reference.shown()),
            Some(Standard::Tests(_)) | None => None,
        }
    }

    /// The tests for its samples, if the task has a judge.
    pub fn tests(&self) -> Option<&Arc<ItemTests>> {
        match &self.standard {
            Some(Standard::Tests(tests)) => Some(tests),
            Some(Standard::Reference(_)) | None => None,
        }
    }
}

/// How an item's samples are graded.
#[derive(Clone, Debug)]
pub(crate) enum Standard {
    Reference(ExpectedAnswer),
    Tests(Arc<ItemTests>),
}

/// The task file's key `items`.
#[derive(Debug)]
pub(crate) struct ItemSource {
    /// The items file; for inline items the task file itself.
    pub path: PathBuf,
    from: ItemsFrom,
    id: Option<String>,
    questions: Option<Questions>,
    skip: usize,
    limit: Option<usize>,
}

#[derive(Debug)]
enum ItemsFrom {
    Inline(Vec<Value>),
    /// A text file or a folder of them.
    Texts,
    File {
        format: Format,
        columns: Option<Vec<String>>,
    },
    /// Every file that matches the path, which contains a star; `star` is the field for the text matched by the star.
    Files {
        format: Format,
        columns: Option<Vec<String>>,
        star: String,
    },
}

/// A record, and its id if the task names no field for it.
struct RecordWithId {
    record: FileRecord,
    id: Option<String>,
}

const KEYS: [&str; 8] = ["path", "id", "format", "columns", "matched", "questions", "skip", "limit"];

impl ItemSource {
    pub fn read(source: &TaskSource, value: Option<&Value>) -> Result<ItemSource> {
        match value {
            Some(Value::String(path)) => {
                let path = source.resolve(path);
                let from = match documents::is_texts(&path) {
                    true => ItemsFrom::Texts,
                    false => ItemsFrom::File { format: format_of(source, "items", &path, None)?, columns: None },
                };
                Ok(ItemSource { path, from, id: None, questions: None, skip: 0, limit: None })
            }
            Some(Value::Array(list)) => {
                let (path, from) = (source.path.clone(), ItemsFrom::Inline(list.clone()));
                let named = !list.is_empty() && list.iter().all(|item| item.get("id").is_some());
                let id = named.then(|| "id".to_string());
                Ok(ItemSource { path, from, id, questions: None, skip: 0, limit: None })
            }
            Some(object @ Value::Object(_)) => Self::read_object(source, object),
            other => Err(source.wrong("items", "a path, a list of items, or an object with `path`", other)),
        }
    }

    fn read_object(source: &TaskSource, object: &Value) -> Result<ItemSource> {
        let section = TaskSection::open(source, "items".to_string(), object, &KEYS)?;
        section.need("path", "a path, relative to the task file")?;
        let path = source.resolve(section.text("path")?.expect("`need` found it"));
        let is_texts = section.get("format").is_none() && documents::is_texts(&path);
        let from = match section.text("matched")? {
            None if is_texts => {
                if section.get("columns").is_some() {
                    return Err(section.wrong("columns", NO_COLUMNS));
                }
                ItemsFrom::Texts
            }
            star => {
                let format = format_of(source, "items", &path, section.text("format")?)?;
                let columns = columns_of(&section, format)?;
                match star.map(str::to_string) {
                    Some(star) => ItemsFrom::Files { format, columns, star },
                    None => ItemsFrom::File { format, columns },
                }
            }
        };
        Ok(ItemSource {
            path,
            from,
            id: section.text("id")?.map(str::to_string),
            questions: section.get("questions").map(|value| Questions::read(source, value)).transpose()?,
            skip: section.count("skip", 0)?.unwrap_or(0) as usize,
            limit: section.count("limit", 1)?.map(|n| n as usize),
        })
    }

    /// The items files, if the path is a folder or a pattern.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        match &self.from {
            ItemsFrom::Texts => Ok(documents::text_files(&self.path)?.0),
            ItemsFrom::Files { .. } => Ok(matched::files(&self.path)?.into_iter().map(|(_, path)| path).collect()),
            ItemsFrom::Inline(_) | ItemsFrom::File { .. } => Ok(Vec::new()),
        }
    }

    /// The items in the file's order, limited by `limit` and the task file's own limit.
    pub fn load(&self, limit: Option<usize>) -> Result<Vec<Item>> {
        let most = limit.into_iter().chain(self.limit).min().unwrap_or(usize::MAX);
        let mut items = Vec::new();
        let mut places: HashMap<String, RecordPlace> = HashMap::new();
        let mut index = 0;
        let mut asked = self.questions.as_ref().map(Questions::asked).transpose()?.flatten();
        'file: for found in self.found()? {
            let RecordWithId { record: (place, fields), id } = found?;
            let id = id.map_or_else(|| self.id_of(&fields, place, index), Ok)?;
            if let Some(first) = places.insert(id.clone(), place) {
                return Err(Error::format(
                    &self.path,
                    format!("{place}: the id `{id}` occurs twice, first at {first}"),
                ));
            }
            for (id, fields) in self.expand(id, fields, place, asked.as_mut())? {
                match items.len() == most {
                    true if asked.is_none() => break 'file,
                    // The remaining documents are read, because questions may name them.
                    true => break,
                    false => {}
                }
                if index >= self.skip {
                    items.push(Item { id, index, fields, standard: None });
                }
                index += 1;
            }
        }
        if let Some(asked) = asked {
            asked.finish(&self.path)?;
        }
        if items.is_empty() {
            let skipped = if index > 0 { format!(" after skipping {}", self.skip) } else { String::new() };
            return Err(Error::format(&self.path, format!("no items{skipped}")));
        }
        Ok(items)
    }

    fn found(&self) -> Result<Box<dyn Iterator<Item = Result<RecordWithId>> + '_>> {
        let plain = |record: Result<FileRecord>| record.map(|record| RecordWithId { record, id: None });
        match &self.from {
            ItemsFrom::Inline(list) => {
                Ok(Box::new(records::inline(&self.path, list.clone())?.into_iter().map(Ok).map(plain)))
            }
            ItemsFrom::Texts => {
                let found = |(ix, (id, fields))| {
                    let id = self.id.is_none().then_some(id);
                    Ok(RecordWithId { record: (RecordPlace::Entry(ix + 1), fields), id })
                };
                Ok(Box::new(documents::texts(&self.path)?.into_iter().enumerate().map(found)))
            }
            ItemsFrom::File { format, columns } => {
                Ok(Box::new(records::records(&self.path, *format, columns.as_deref())?.map(plain)))
            }
            ItemsFrom::Files { format, columns, star } => {
                let mut all: Vec<Result<RecordWithId>> = Vec::new();
                for (name, path) in matched::files(&self.path)? {
                    for (ix, record) in records::records(&path, *format, columns.as_deref())?.enumerate() {
                        all.push(record.map(|(place, mut fields)| {
                            fields.insert(star.clone(), Value::String(name.clone()));
                            RecordWithId {
                                record: (place, fields),
                                id: self.id.is_none().then(|| format!("{name}/{ix}")),
                            }
                        }));
                    }
                }
                Ok(Box::new(all.into_iter()))
            }
        }
    }

    /// The id field's text; without an id field, the item's index.
    fn id_of(&self, fields: &Map<String, Value>, place: RecordPlace, index: usize) -> Result<String> {
        let Some(name) = &self.id else { return Ok(index.to_string()) };
        match fields.get(name) {
            Some(Value::String(id)) => Ok(id.clone()),
            Some(Value::Number(id)) => Ok(id.to_string()),
            other => {
                let found = other.map_or_else(|| format!("the fields {}", names(fields)), describe);
                Err(Error::field(&self.path, name, format!("an id, a string or a number, at {place}"), found))
            }
        }
    }

    /// Expands a document to one item per question, `document/0`, `document/1` …, each with the document's fields and
    /// the question's own (a question that is a string becomes the field `question`); other records are one item.
    /// `asked`: the questions, if they are in a separate file.
    fn expand(
        &self,
        id: String,
        fields: Map<String, Value>,
        place: RecordPlace,
        asked: Option<&mut QuestionSet>,
    ) -> Result<Vec<(String, Map<String, Value>)>> {
        if let Some(asked) = asked {
            let file = matches!(self.from, ItemsFrom::Texts).then(|| fields["name"].as_str()).flatten();
            let known_as = std::iter::once(id.as_str()).chain(file.filter(|&file| file != id));
            let pair = |(ix, own)| {
                let mut fields = fields.clone();
                fields.extend(own);
                (format!("{id}/{ix}"), fields)
            };
            return Ok(asked.of(known_as).into_iter().enumerate().map(pair).collect());
        }
        let Some(Questions::Listed(name)) = &self.questions else { return Ok(vec![(id, fields)]) };
        let mut document = fields;
        let wrong = |found| Error::field(&self.path, name, format!("a list of questions at {place}"), found);
        let questions = match document.shift_remove(name) {
            Some(Value::Array(questions)) => questions,
            Some(other) => return Err(wrong(describe(&other))),
            None => return Err(wrong(format!("the fields {}", names(&document)))),
        };
        let expanded = questions.into_iter().enumerate().map(|(ix, question)| {
            let mut fields = document.clone();
            match question {
                Value::Object(own) => fields.extend(own),
                Value::String(text) => drop(fields.insert("question".to_string(), Value::String(text))),
                other => return Err(wrong(format!("{} in it", describe(&other)))),
            }
            Ok((format!("{id}/{ix}"), fields))
        });
        expanded.collect()
    }
}

const NO_COLUMNS: &str = "no column names, which only a CSV file without a header needs";

pub(crate) fn columns_of(section: &TaskSection, format: Format) -> Result<Option<Vec<String>>> {
    let columns = section.get("columns").map(|_| section.texts("columns")).transpose()?;
    match columns.is_some() && format != Format::Csv {
        true => Err(section.wrong("columns", NO_COLUMNS)),
        false => Ok(columns),
    }
}

/// `at`: the dotted path of the object that names the file.
pub(crate) fn format_of(source: &TaskSource, at: &str, path: &std::path::Path, named: Option<&str>) -> Result<Format> {
    let known = listed(&FORMATS.map(|(name, _)| name));
    match named {
        Some(name) => Format::named(name).ok_or_else(|| {
            Error::field(&source.path, format!("{at}.format"), format!("one of {known}"), format!("\"{name}\""))
        }),
        None => Format::of(path).ok_or_else(|| {
            let texts =
                if at == "items" { format!(", a folder, a text file ({})", listed(&TEXTS)) } else { String::new() };
            let expected =
                format!("a file that ends in one of {known} (or .gz behind them){texts}, or `format` beside it");
            Error::field(&source.path, format!("{at}.path"), expected, path.display().to_string())
        }),
    }
}
