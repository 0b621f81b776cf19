//! Reads a chart file and the figures that it names. Paths are relative to the chart file. A recorded file has one JSON
//! object per line; other lines are skipped.
//!
//! | key | value |
//! |---|---|
//! | `title`, `notes` | text above the bars, and a list of lines below them |
//! | `unit` | of all values |
//! | `over` | name of the series by which the first one's values are divided; the ratio is printed next to its bars; optional |
//! | `groups` | list of `{label, detail, key}`: `key` is a list of values that pick a line in each series |
//! | `series` | list of `{name, file, where, key, value, as}`: the lines of `file` in which every field has the value that `where` gives; `key` names the fields that hold a group's key, `value` the field that is shown; `as` is `bar` (the default) or `mark` |

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::lines;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ChartFile {
    title: String,
    #[serde(default)]
    notes: Vec<String>,
    unit: String,
    over: Option<String>,
    groups: Vec<GroupFile>,
    series: Vec<SeriesFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupFile {
    label: String,
    detail: String,
    key: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesFile {
    name: String,
    file: PathBuf,
    #[serde(default, rename = "where")]
    conditions: Map<String, Value>,
    key: Vec<String>,
    value: String,
    #[serde(default, rename = "as")]
    shape: SeriesShape,
}

/// How a series is drawn: as bars, or as a mark across the other bars of its group (a bound, say).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeriesShape {
    #[default]
    Bar,
    Mark,
}

/// A chart with its figures.
#[derive(Clone, Debug)]
pub struct Chart {
    pub title: String,
    pub notes: Vec<String>,
    pub unit: String,
    /// The series that the first one is compared with.
    pub over: Option<usize>,
    pub groups: Vec<ChartGroup>,
    pub series: Vec<Series>,
}

#[derive(Clone, Debug)]
pub struct ChartGroup {
    pub label: String,
    pub detail: String,
}

#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    pub shape: SeriesShape,
    /// One for each group, none negative.
    pub values: Vec<f64>,
}

impl Chart {
    /// Reads a chart file and the recorded files that it names.
    ///
    /// # Errors
    ///
    /// A file cannot be read, is not of this form, or does not have exactly one line for each series and group.
    pub fn read(path: &Path) -> Result<Chart> {
        let text = lines::input_text(path)?;
        let file: ChartFile = serde_json::from_str(&text)
            .map_err(|error| Error::format(path, format!("it is not a chart file: {error}")))?;
        if file.groups.is_empty() || file.series.is_empty() {
            return Err(Error::format(path, "it is not a chart file: it needs at least one group and one series"));
        }
        let over = file.over.as_deref().map(|name| over(path, &file.series, name)).transpose()?;
        let series = file.series.into_iter().map(|series| read_series(path, series, &file.groups));
        let series = series.collect::<Result<Vec<_>>>()?;
        let groups =
            file.groups.into_iter().map(|group| ChartGroup { label: group.label, detail: group.detail }).collect();
        Ok(Chart { title: file.title, notes: file.notes, unit: file.unit, over, groups, series })
    }
}

fn over(path: &Path, series: &[SeriesFile], name: &str) -> Result<usize> {
    let found = series.iter().position(|series| series.name == name);
    found.ok_or_else(|| Error::field(path, "over", "the name of a series", name))
}

fn read_series(chart: &Path, series: SeriesFile, groups: &[GroupFile]) -> Result<Series> {
    let path = chart.parent().unwrap_or(Path::new("")).join(&series.file);
    let text = lines::input_text(&path)?;
    let objects = text.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Map<String, Value>> = objects
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::format(&path, format!("a line is not a JSON object: {error}")))?;
    let wanted =
        |line: &&Map<String, Value>| series.conditions.iter().all(|(name, value)| line.get(name) == Some(value));
    let lines: Vec<&Map<String, Value>> = lines.iter().filter(wanted).collect();
    let values = groups.iter().map(|group| value(&path, &series, &lines, group)).collect::<Result<_>>()?;
    Ok(Series { name: series.name, shape: series.shape, values })
}

fn value(path: &Path, series: &SeriesFile, lines: &[&Map<String, Value>], group: &GroupFile) -> Result<f64> {
    let is_it = |line: &&&Map<String, Value>| {
        series.key.len() == group.key.len()
            && series.key.iter().zip(&group.key).all(|(name, value)| line.get(name) == Some(value))
    };
    let found: Vec<_> = lines.iter().filter(is_it).collect();
    let [line] = found[..] else {
        let key = Value::Array(group.key.clone());
        let what = format!("{} for {key} of series `{}`", found.len(), series.name);
        return Err(Error::field(path, series.key.join(", "), "one line for each group", what));
    };
    let number = line.get(&series.value).and_then(Value::as_f64).filter(|value| *value >= 0.0);
    number.ok_or_else(|| {
        let found = line.get(&series.value).map_or("nothing".to_string(), Value::to_string);
        Error::field(path, &series.value, "a number that is not negative", found)
    })
}
