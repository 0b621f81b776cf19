//! Finished samples as an Arrow table, by Arrow's C data interface: a row a sample, without a Python object for each.
//! What the samples are is the generation's matter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offshoot::{Error, Finish, FinishReason, TokenId};
use offshoot_engine::{Drawn, LogprobsMode, TokenRecord};
use offshoot_eval::records::table::{Bits, Column, Data, Fields, Kind, Table};
use offshoot_launch::SampleId;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::exception;
use crate::events;
use crate::params::word;
use crate::tables;

/// Samples as they finish; a table in the order of prompts and samples.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Samples {
    samples: Mutex<Vec<(SampleId, Finish)>>,
    /// Whose log-probabilities the samples of each prompt show.
    modes: Vec<LogprobsMode>,
}

impl Samples {
    fn lock(&self) -> MutexGuard<'_, Vec<(SampleId, Finish)>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, sample: SampleId, finish: Finish) {
        self.lock().push((sample, finish));
    }

    /// The columns `prompt` and `index` (numbers from 0), `text`, `token_ids`, `logprobs` (of each token),
    /// `cumulative_logprob`, `finish_reason` and `stop_reason` (the stop string, or the stop token's id as text); and
    /// lists of what was recorded of each token beside these, if anything was: `kept_counts`, `kept_lowest`,
    /// `kept_ids`, `entropies`, `confidences` and `forced`. All lists of a sample have an entry for each token, null
    /// where it is not recorded.
    fn table(&self) -> offshoot::Result<(Fields, Table)> {
        let mut samples = self.lock();
        samples.sort_by_key(|(id, _)| (id.prompt, id.sample));
        let (mut ids, mut id_ends, mut logprobs, mut logprob_ends) = (Vec::new(), vec![0], Vec::new(), vec![0]);
        let mode = |id: &SampleId| self.modes.get(id.prompt).copied().unwrap_or_default();
        for (id, finish) in samples.iter() {
            ids.extend(finish.sampled_ids().iter().map(|&TokenId(token)| token));
            logprobs.extend(finish.sampled_records().map(|record| record.logprob_by(mode(id))));
            id_ends.push(end(ids.len())?);
            logprob_ends.push(end(logprobs.len())?);
        }
        let stop = |finish: &Finish| match &finish.reason {
            FinishReason::StopString(text) => Some(text.clone()),
            FinishReason::StopToken(token) => Some(token.0.to_string()),
            _ => None,
        };
        let number =
            |of: fn(&SampleId) -> usize| Column::of(Data::U32(samples.iter().map(|(id, _)| of(id) as u32).collect()));
        let sums = samples.iter().map(|(id, finish)| finish.logprob_by(mode(id))).collect();
        let items = |data: Data| Box::new(Column::of(data));
        let list = |of: Kind| Kind::List(Box::new(of));
        let reasons = samples.iter().map(|(_, finish)| Some(events::finish_reason(&finish.reason)));
        let mut columns = vec![
            ("prompt", Kind::U32, number(|id| id.prompt)),
            ("index", Kind::U32, number(|id| id.sample)),
            ("text", Kind::Text, Column::of_texts(samples.iter().map(|(_, finish)| Some(&finish.text)))?),
            ("token_ids", list(Kind::U32), Column::of(Data::List(id_ends, items(Data::U32(ids))))),
            ("logprobs", list(Kind::F32), Column::of(Data::List(logprob_ends, Box::new(numbers(logprobs, Data::F32))))),
            ("cumulative_logprob", Kind::F64, numbers(sums, Data::F64)),
            ("finish_reason", Kind::Text, Column::of_texts(reasons)?),
            ("stop_reason", Kind::Text, Column::of_texts(samples.iter().map(|(_, finish)| stop(finish)))?),
        ];
        columns.extend(record_columns(&samples)?);
        let rows = samples.len();
        let (fields, columns) = columns.into_iter().map(|(name, kind, column)| ((name, kind), (name, column))).unzip();
        Ok((fields, Table { rows, columns }))
    }
}

/// A column with its name and kind.
type Named = (&'static str, Kind, Column);

/// A column of numbers, null where there is none.
fn numbers<T: Default>(values: Vec<Option<T>>, data: fn(Vec<T>) -> Data) -> Column {
    let mut present = Bits::default();
    values.iter().for_each(|value| present.push(value.is_some()));
    Column { present, data: data(values.into_iter().map(Option::unwrap_or_default).collect()) }
}

/// A list for each sample, with an entry for each sampled token, null where `of` has none; null in place of a list
/// without any entry. `None` if no sample has one.
fn lists<T>(
    samples: &[(SampleId, Finish)],
    of: impl Fn(TokenRecord<'_>) -> Option<T>,
    data: impl Fn(Vec<Option<T>>) -> offshoot::Result<Column>,
) -> offshoot::Result<Option<Column>> {
    let (mut present, mut all, mut ends) = (Bits::default(), Vec::new(), vec![0]);
    for (_, finish) in samples {
        let begin = all.len();
        all.extend(finish.sampled_records().map(&of));
        let is_list = all.len() == begin || all[begin..].iter().any(Option::is_some);
        if !is_list {
            all.truncate(begin);
        }
        present.push(is_list);
        ends.push(end(all.len())?);
    }
    if all.is_empty() {
        return Ok(None);
    }
    Ok(Some(Column { present, data: Data::List(ends, Box::new(data(all)?)) }))
}

/// The columns of what was recorded beside log-probabilities.
fn record_columns(samples: &[(SampleId, Finish)]) -> offshoot::Result<Vec<Named>> {
    let list = |of: Kind| Kind::List(Box::new(of));
    let has_ids = samples
        .iter()
        .flat_map(|(_, finish)| finish.sampled_records())
        .any(|record| record.drawn.is_some_and(|drawn| drawn.ids.is_some()));
    let counts = lists(samples, |record| Some(record.drawn?.kept), |all| Ok(numbers(all, Data::U32)))?;
    let lowest = lists(samples, |record| Some(record.drawn?.lowest), |all| Ok(numbers(all, Data::F32)))?;
    let entropies = lists(samples, |record| record.entropy, |all| Ok(numbers(all, Data::F32)))?;
    let confidences = lists(samples, |record| record.confidence, |all| Ok(numbers(all, Data::F32)))?;
    let flags = |all: Vec<Option<bool>>| {
        let mut bits = Bits::default();
        all.into_iter().for_each(|forced| bits.push(forced.unwrap_or(false)));
        Ok(Column::of(Data::Bool(bits)))
    };
    let forced = lists(samples, |record| record.forced.then_some(true), flags)?;
    let ids = |drawn: &Drawn| drawn.ids.as_ref().map(|ids| ids.iter().map(|id| id.0).collect::<Vec<u32>>());
    let sets = |all: Vec<Option<Option<Vec<u32>>>>| {
        let (mut present, mut items, mut ends) = (Bits::default(), Vec::new(), vec![0]);
        for set in all.into_iter().map(Option::flatten) {
            present.push(set.is_some());
            items.extend(set.unwrap_or_default());
            ends.push(end(items.len())?);
        }
        Ok(Column { present, data: Data::List(ends, Box::new(Column::of(Data::U32(items)))) })
    };
    let ids = if has_ids { lists(samples, |record| record.drawn.map(ids), sets)? } else { None };
    let named = [
        ("kept_counts", list(Kind::U32), counts),
        ("kept_lowest", list(Kind::F32), lowest),
        ("kept_ids", list(list(Kind::U32)), ids),
        ("entropies", list(Kind::F32), entropies),
        ("confidences", list(Kind::F32), confidences),
        ("forced", list(Kind::Bool), forced),
    ];
    Ok(named.into_iter().filter_map(|(name, kind, column)| Some((name, kind, column?))).collect())
}

fn end(of: usize) -> offshoot::Result<i32> {
    i32::try_from(of).map_err(|_| Error::Internal("samples have more tokens than a table's list".to_string()))
}

#[pymethods]
impl Samples {
    /// `modes`: whose log-probabilities the samples of each prompt show.
    #[new]
    fn new(modes: Vec<String>) -> PyResult<Self> {
        let mode = |name: &String| word("logprobs_mode", &LogprobsMode::WORDS, name);
        Ok(Samples { samples: Mutex::default(), modes: modes.iter().map(mode).collect::<PyResult<_>>()? })
    }

    fn __len__(&self) -> usize {
        self.lock().len()
    }

    /// Arrow's stream of the samples so far, as `pyarrow.table` and others ask for it.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets the producer keep its own columns.
        drop(requested_schema);
        let (fields, table) = py.detach(|| self.table()).map_err(exception)?;
        tables::stream(py, vec![Arc::new(table)], fields)
    }
}
