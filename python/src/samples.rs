//! Finished samples as an Arrow table, by Arrow's C data interface: a row a sample, without a Python object for each.
//! What the samples are is the generation's matter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use offshoot::{Error, Finish, FinishReason, TokenId};
use offshoot_eval::records::table::{Column, Data, Fields, Kind, Table};
use offshoot_launch::SampleId;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::exception;
use crate::events;
use crate::tables;

/// Samples as they finish; a table in the order of prompts and samples.
#[pyclass(frozen, module = "offshoot._offshoot")]
#[derive(Default)]
pub struct Samples(Mutex<Vec<(SampleId, Finish)>>);

impl Samples {
    fn lock(&self) -> MutexGuard<'_, Vec<(SampleId, Finish)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, sample: SampleId, finish: Finish) {
        self.lock().push((sample, finish));
    }

    /// The columns `prompt` and `index` (numbers from 0), `text`, `token_ids`, `logprobs` (of each token),
    /// `cumulative_logprob`, `finish_reason` and `stop_reason` (the stop string, or the stop token's id as text).
    fn table(&self) -> offshoot::Result<(Fields, Table)> {
        let mut samples = self.lock();
        samples.sort_by_key(|(id, _)| (id.prompt, id.sample));
        let (mut ids, mut id_ends, mut logprobs, mut logprob_ends) = (Vec::new(), vec![0], Vec::new(), vec![0]);
        let end = |of: usize| {
            i32::try_from(of).map_err(|_| Error::Internal("samples have more tokens than a table's list".to_string()))
        };
        for (_, finish) in samples.iter() {
            ids.extend(finish.sampled_ids().iter().map(|&TokenId(token)| token));
            logprobs.extend(finish.records().map(|record| record.logprob));
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
        let of_each = |(_, finish): &(SampleId, Finish)| finish.logprob;
        let items = |data: Data| Box::new(Column::of(data));
        let list = |of: Kind| Kind::List(Box::new(of));
        let reasons = samples.iter().map(|(_, finish)| Some(events::finish_reason(&finish.reason)));
        let columns = vec![
            ("prompt", Kind::U32, number(|id| id.prompt)),
            ("index", Kind::U32, number(|id| id.sample)),
            ("text", Kind::Text, Column::of_texts(samples.iter().map(|(_, finish)| Some(&finish.text)))?),
            ("token_ids", list(Kind::U32), Column::of(Data::List(id_ends, items(Data::U32(ids))))),
            ("logprobs", list(Kind::F32), Column::of(Data::List(logprob_ends, items(Data::F32(logprobs))))),
            ("cumulative_logprob", Kind::F64, Column::of(Data::F64(samples.iter().map(of_each).collect()))),
            ("finish_reason", Kind::Text, Column::of_texts(reasons)?),
            ("stop_reason", Kind::Text, Column::of_texts(samples.iter().map(|(_, finish)| stop(finish)))?),
        ];
        let rows = samples.len();
        let (fields, columns) = columns.into_iter().map(|(name, kind, column)| ((name, kind), (name, column))).unzip();
        Ok((fields, Table { rows, columns }))
    }
}

#[pymethods]
impl Samples {
    #[new]
    fn new() -> Self {
        Self::default()
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
