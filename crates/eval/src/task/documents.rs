//! Documents with several questions: reads text files as records, and a separate file of questions that names the
//! documents. `items` combines them to items.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::records::{Format, RecordPlace};
use crate::source::values::{TaskPath, Texts};
use crate::source::{Place, read_text};
use crate::task::file_format::{FileFormat, TEXTS};
use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_core::json;
use offshoot_core::json::describe;
use offshoot_core::json::names;
use offshoot_core::sorting::sort_by_number;

type FieldMap = Map<String, Value>;

/// Whether the path is a folder, but not of Parquet files, or has the extension of a text file.
pub(crate) fn is_texts(path: &Path) -> bool {
    is_text(path) || (path.is_dir() && Format::of(path).is_none())
}

fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|end| TEXTS.iter().any(|text| end.eq_ignore_ascii_case(text)))
}

/// The text file `path`, or the text files directly in the folder `path`, sorted by name: for each its id, which is the
/// file's name without extension, and the fields `id`, `name` (with extension) and `document` (the text).
pub(crate) fn texts(path: &Path) -> Result<Vec<(String, FieldMap)>> {
    let text = |file: PathBuf| {
        let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let (id, name) = (part(file.file_stem()), part(file.file_name()));
        let fields = [("id", id.clone()), ("name", name), ("document", read_text(&file)?)];
        Ok((id, fields.map(|(key, text)| (key.to_string(), Value::String(text))).into_iter().collect()))
    };
    let (files, others) = text_files(path)?;
    if others > 0 {
        log::warn!("{}: {others} entries that are no .txt or .md files are left out", path.display());
    }
    files.into_iter().map(text).collect()
}

/// The text file `path`, or those directly in the folder `path`, sorted by name; and the number of other entries in it.
pub(crate) fn text_files(path: &Path) -> Result<(Vec<PathBuf>, usize)> {
    if !path.is_dir() {
        return Ok((vec![path.to_path_buf()], 0));
    }
    let (folder, mut found, mut others) = (path, Vec::new(), 0);
    for path in input::entries(folder)? {
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        match is_text(&path) && path.is_file() {
            true if !is_hidden => found.push(path),
            false if !is_hidden => others += 1,
            _ => {}
        }
    }
    if found.is_empty() {
        return Err(Error::format(
            folder,
            format!("no .txt or .md file in this folder; it contains {others} other entries"),
        ));
    }
    Ok((found, others))
}

/// Where a document's questions are.
#[derive(Debug)]
pub(crate) enum Questions {
    /// In this field of the document, a list.
    Listed(String),
    /// In a separate file; `document` is the field that names the document. `None`: all questions are for every
    /// document.
    Apart { path: PathBuf, format: FileFormat, document: Option<String> },
}

/// The task file's key `items.questions`.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(extend("x-expected" = "the name of a field, or an object with `path`"))]
pub(crate) enum QuestionSettings {
    /// The document's field that lists its questions: objects, or texts, which become the field `question`.
    Field(String),
    File(QuestionFileSettings),
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct QuestionFileSettings {
    /// The file of questions.
    path: TaskPath,
    /// The question's field with the id or file name of its document (default: every question is asked about every
    /// document).
    document: Option<String>,
    /// Of the file (default: by its name).
    format: Option<Format>,
    /// The names of the columns of a CSV file without a header.
    columns: Option<Texts>,
}

impl Questions {
    /// `place`: of the key `items.questions`.
    pub fn new(place: &Place<'_>, settings: QuestionSettings) -> Result<Questions> {
        match settings {
            QuestionSettings::Field(field) => Ok(Questions::Listed(field)),
            QuestionSettings::File(file) => {
                let path = place.source.resolve(file.path.0);
                let format = FileFormat::new(place, &path, file.format, file.columns)?;
                Ok(Questions::Apart { path, format, document: file.document })
            }
        }
    }

    /// Reads the questions, if they are in a separate file.
    pub fn asked(&self) -> Result<Option<QuestionSet>> {
        match self {
            Questions::Listed(_) => Ok(None),
            Questions::Apart { path, format, document } => {
                QuestionSet::new(path, document.as_deref(), format.records(path)?).map(Some)
            }
        }
    }
}

/// The questions of a separate file.
pub(crate) enum QuestionSet {
    /// For every document.
    Each(Vec<FieldMap>),
    Named(NamedQuestions),
}

/// For the documents that they name.
pub(crate) struct NamedQuestions {
    path: PathBuf,
    /// The field with the document's name, which is removed from the item.
    field: String,
    /// The questions by the document's name, in the file's order: number in the file, place, and fields.
    waiting: HashMap<String, Vec<(usize, RecordPlace, FieldMap)>>,
    documents: usize,
    unasked: usize,
}

impl QuestionSet {
    /// `field`: the field that names a question's document.
    pub fn new(
        path: &Path,
        field: Option<&str>,
        questions: impl Iterator<Item = Result<(RecordPlace, FieldMap)>>,
    ) -> Result<Self> {
        let Some(field) = field else {
            return Ok(QuestionSet::Each(questions.map(|question| Ok(question?.1)).collect::<Result<_>>()?));
        };
        let mut waiting: HashMap<_, Vec<_>> = HashMap::new();
        for (ix, question) in questions.enumerate() {
            let (place, mut fields) = question?;
            let value = fields.shift_remove(field);
            let document = json::id(value.as_ref()).ok_or_else(|| {
                let found = value.as_ref().map_or_else(|| format!("the fields {}", names(&fields)), describe);
                Error::field(path, field, format!("the name of a document at {place}"), found)
            })?;
            waiting.entry(document).or_default().push((ix, place, fields));
        }
        Ok(QuestionSet::Named(NamedQuestions {
            path: path.to_path_buf(),
            field: field.to_string(),
            waiting,
            documents: 0,
            unasked: 0,
        }))
    }

    /// The questions of a document with any of these names, in the file's order.
    pub fn of<'n>(&mut self, known_as: impl Iterator<Item = &'n str>) -> Vec<FieldMap> {
        match self {
            QuestionSet::Each(questions) => questions.clone(),
            QuestionSet::Named(named) => {
                let mut own: Vec<_> = known_as.filter_map(|name| named.waiting.remove(name)).flatten().collect();
                named.documents += 1;
                named.unasked += usize::from(own.is_empty());
                sort_by_number(&mut own, |&(ix, ..)| ix as u64);
                own.into_iter().map(|(_, _, fields)| fields).collect()
            }
        }
    }

    /// Call it after the last document of `documents`; the error names the first question about a missing document.
    pub fn finish(self, documents: &Path) -> Result<()> {
        let QuestionSet::Named(named) = self else { return Ok(()) };
        let lost = named.waiting.iter().flat_map(|(name, questions)| questions.iter().map(move |q| (q.0, q.1, name)));
        if let Some((_, place, name)) = lost.min_by_key(|&(ix, ..)| ix) {
            let expected = format!("a document of {} at {place}", documents.display());
            return Err(Error::field(&named.path, named.field, expected, format!("\"{}\"", name.escape_debug())));
        }
        if named.unasked > 0 {
            let (unasked, all) = (named.unasked, named.documents);
            log::warn!(
                "{}: {unasked} of {all} documents have no question in {}",
                documents.display(),
                named.path.display()
            );
        }
        Ok(())
    }
}
