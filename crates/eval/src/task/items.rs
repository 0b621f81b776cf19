//! The items of a task: the records they come from, their ids, and the expansion of documents into one item per
//! question. Fields are kept as JSON; `prompt` and `grade` read them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::records;
use crate::records::{FileRecord, Format, RecordPlace, SplitChoice};
use crate::source::Place;
use crate::source::values::{TaskPath, Texts};
use crate::task::candidate::ItemTests;
use crate::task::documents;
use crate::task::documents::{QuestionSet, QuestionSettings, Questions};
use crate::task::file_format::{FileFormat, NO_COLUMNS};
use crate::task::grade::ExpectedAnswer;
use crate::task::matched;
use crate::task::matched::NamePattern;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;
use offshoot_core::json::describe;
use offshoot_core::json::names;
use offshoot_verdict::Verdict;

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
    /// Whether its samples are graded, by a reference, by tests or by a judge.
    pub fn is_graded(&self) -> bool {
        self.standard.is_some()
    }

    /// The right answer, for the results. `None`: the task has no grader.
    pub fn reference(&self) -> Option<String> {
        match &self.standard {
            Some(Standard::Reference(reference)) => Some(reference.shown()),
            Some(Standard::Tests(_) | Standard::Verdict(_)) | None => None,
        }
    }

    /// The tests for its samples, if they are programs.
    pub fn tests(&self) -> Option<&Arc<ItemTests>> {
        match &self.standard {
            Some(Standard::Tests(tests)) => Some(tests),
            Some(Standard::Reference(_) | Standard::Verdict(_)) | None => None,
        }
    }

    /// What a judge is asked about its samples, if one grades them.
    pub fn graded_by(&self) -> Option<&Arc<Verdict>> {
        match &self.standard {
            Some(Standard::Verdict(verdict)) => Some(verdict),
            Some(Standard::Reference(_) | Standard::Tests(_)) | None => None,
        }
    }
}

/// How an item's samples are graded.
#[derive(Clone, Debug)]
pub(crate) enum Standard {
    Reference(ExpectedAnswer),
    Tests(Arc<ItemTests>),
    /// What a judge is asked.
    Verdict(Arc<Verdict>),
}

/// The task file's key `items`.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "a path, a list of items, or an object with `path`"))]
pub(crate) enum ItemSettings {
    /// A file of items: JSON lines, a JSON list or CSV, gzipped or not, or Parquet, also a folder of Parquet files; or
    /// documents: a folder of .txt and .md files, or one such file.
    Path(TaskPath),
    /// The items themselves, named by their field `id` where all have one.
    Inline(Vec<Value>),
    File(Box<ItemFileSettings>),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct ItemFileSettings {
    /// The file of items, or documents; one `*` in the file's name stands for several files.
    path: TaskPath,
    /// The field with each item's id (default: items are numbered; documents go by their file's name).
    id: Option<String>,
    /// Of the file (default: by its name).
    format: Option<Format>,
    /// The names of the columns of a CSV file without a header.
    columns: Option<Texts>,
    /// Of a folder of Parquet files with several: the split (`test`).
    split: Option<String>,
    /// Of a folder of Parquet files with several: the subset, as the Hub calls it (`main`).
    subset: Option<String>,
    /// The field that gets the text for which the `*` of `path` stands.
    matched: Option<String>,
    /// With `matched`: the form of the files' names, with one `*`. Then `path` may also be one such file, or a folder
    /// of them.
    #[schemars(extend("x-expected" = "a file's name with one `*`"))]
    names: Option<String>,
    /// The questions about documents. Each becomes an item `document/0`, `document/1` …, with the document's fields and
    /// its own.
    questions: Option<QuestionSettings>,
    /// Items left out at the beginning.
    #[serde(default)]
    skip: u32,
    /// The most items.
    #[schemars(range(min = 1))]
    limit: Option<u32>,
}

/// Where the items of a task come from.
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
    File(FileFormat),
    /// A Parquet file, or a folder or pattern of them.
    Parquet(SplitChoice),
    /// Every file that matches the path, which contains a star, or whose name matches `names`; `star` is the field for
    /// the text matched by the star.
    Files {
        format: FileFormat,
        star: String,
        names: Option<NamePattern>,
    },
}

impl ItemsFrom {
    fn of_records(format: FileFormat, choice: SplitChoice) -> ItemsFrom {
        match format.format {
            Format::Parquet => ItemsFrom::Parquet(choice),
            _ => ItemsFrom::File(format),
        }
    }
}

/// A record, and its id if the task names no field for it.
struct RecordWithId {
    record: FileRecord,
    id: Option<String>,
}

impl ItemSource {
    /// Whether the items are questions from a file of their own, which may come without answers.
    pub fn has_own_questions(&self) -> bool {
        matches!(self.questions, Some(Questions::Apart { .. }))
    }

    /// `place`: of the key `items`.
    pub fn new(place: &Place<'_>, settings: ItemSettings) -> Result<ItemSource> {
        match settings {
            ItemSettings::Path(path) => {
                let path = place.source.resolve(path.0);
                let from = match documents::is_texts(&path) {
                    true => ItemsFrom::Texts,
                    false => ItemsFrom::of_records(FileFormat::new(place, &path, None, None)?, SplitChoice::default()),
                };
                Ok(ItemSource { path, from, id: None, questions: None, skip: 0, limit: None })
            }
            ItemSettings::Inline(list) => {
                let named = !list.is_empty() && list.iter().all(|item| item.get("id").is_some());
                let (path, id) = (place.source.path.clone(), named.then(|| "id".to_string()));
                Ok(ItemSource { path, from: ItemsFrom::Inline(list), id, questions: None, skip: 0, limit: None })
            }
            ItemSettings::File(file) => Self::of_file(place, *file),
        }
    }

    fn of_file(place: &Place<'_>, file: ItemFileSettings) -> Result<ItemSource> {
        let path = place.source.resolve(file.path.0);
        let is_texts = file.format.is_none() && documents::is_texts(&path);
        let names = match file.names {
            None => None,
            Some(_) if file.matched.is_none() => {
                return Err(place.key("names").wrong("nothing, for there is no `matched` beside it"));
            }
            Some(name) => match NamePattern::of(&name) {
                None => return Err(place.key("names").wrong("a file's name with one `*`")),
                Some(pattern) => Some((name, pattern)),
            },
        };
        let choice = SplitChoice { subset: file.subset, split: file.split };
        let chosen =
            [("split", &choice.split), ("subset", &choice.subset)].into_iter().find(|(_, name)| name.is_some());
        let from = match file.matched {
            None if is_texts && file.columns.is_some() => return Err(place.key("columns").wrong(NO_COLUMNS)),
            None if is_texts => ItemsFrom::Texts,
            star => {
                // Of files in a folder, their names tell the format.
                let named = names.as_ref().map_or(path.as_path(), |(name, _)| Path::new(name));
                let format = FileFormat::new(place, named, file.format, file.columns)?;
                let names = names.map(|(_, pattern)| pattern);
                match star {
                    Some(star) => ItemsFrom::Files { format, star, names },
                    None => ItemsFrom::of_records(format, choice.clone()),
                }
            }
        };
        if let Some((key, _)) = chosen.filter(|_| !matches!(from, ItemsFrom::Parquet(_))) {
            return Err(place.key(key).wrong("nothing, for only a folder of Parquet files has splits and subsets"));
        }
        let questions = file.questions.map(|settings| Questions::new(&place.key("questions"), settings)).transpose()?;
        let limit = file.limit.map(|most| most as usize);
        Ok(ItemSource { path, from, id: file.id, questions, skip: file.skip as usize, limit })
    }

    /// The items files, if the path is a folder or a pattern.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        match &self.from {
            ItemsFrom::Texts => Ok(documents::text_files(&self.path)?.0),
            ItemsFrom::Files { names, .. } => {
                Ok(matched::files(&self.path, names.as_ref())?.into_iter().map(|(_, path)| path).collect())
            }
            ItemsFrom::Parquet(choice) => records::parquet_files(&self.path, choice),
            ItemsFrom::Inline(_) | ItemsFrom::File(_) => Ok(Vec::new()),
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
            ItemsFrom::File(format) => Ok(Box::new(format.records(&self.path)?.map(plain))),
            ItemsFrom::Parquet(choice) => Ok(Box::new(records::rows(&self.path, choice)?.map(plain))),
            ItemsFrom::Files { format, star, names } => {
                let mut all: Vec<Result<RecordWithId>> = Vec::new();
                for (name, path) in matched::files(&self.path, names.as_ref())? {
                    for (ix, record) in format.records(&path)?.enumerate() {
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
        let value = fields.get(name);
        json::id(value).ok_or_else(|| {
            let found = value.map_or_else(|| format!("the fields {}", names(fields)), describe);
            Error::field(&self.path, name, format!("an id, a string or a number, at {place}"), found)
        })
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
