//! Finished samples as an Arrow table, by Arrow's C data interface: a row a sample, without a Python object for each.
//! What the samples are is the generation's matter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::builder::{Float32Builder, ListBuilder, StringBuilder, UInt32Builder};
use arrow_array::{ArrayRef, Float64Array, RecordBatch, UInt32Array};
use offshoot::Error;
use offshoot::engine::{Finish, FinishReason};
use offshoot::ids::TokenId;
use offshoot::launch::SampleId;
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
    fn batch(&self) -> offshoot::Result<RecordBatch> {
        let mut samples = self.lock();
        samples.sort_by_key(|(id, _)| (id.prompt, id.sample));
        let (mut texts, mut reasons, mut stops) = (StringBuilder::new(), StringBuilder::new(), StringBuilder::new());
        let mut ids = ListBuilder::new(UInt32Builder::new());
        let mut logprobs = ListBuilder::new(Float32Builder::new());
        for (_, finish) in samples.iter() {
            let stop = finish.stop_token.as_ref();
            let tokens = finish.tokens.iter().copied().chain(stop.map(|stop| stop.token));
            ids.append_value(tokens.map(|TokenId(token)| Some(token)));
            let each = finish.logprobs.iter().copied().chain(stop.map(|stop| stop.logprob));
            logprobs.append_value(each.map(Some));
            texts.append_value(&finish.text);
            reasons.append_value(events::finish_reason(&finish.reason));
            stops.append_option(match &finish.reason {
                FinishReason::StopString(text) => Some(text.clone()),
                FinishReason::StopToken(token) => Some(token.0.to_string()),
                _ => None,
            });
        }
        let number =
            |of: fn(&SampleId) -> usize| UInt32Array::from_iter_values(samples.iter().map(|(id, _)| of(id) as u32));
        let columns: [(&str, ArrayRef); 8] = [
            ("prompt", Arc::new(number(|id| id.prompt))),
            ("index", Arc::new(number(|id| id.sample))),
            ("text", Arc::new(texts.finish())),
            ("token_ids", Arc::new(ids.finish())),
            ("logprobs", Arc::new(logprobs.finish())),
            (
                "cumulative_logprob",
                Arc::new(Float64Array::from_iter_values(samples.iter().map(|(_, finish)| finish.logprob))),
            ),
            ("finish_reason", Arc::new(reasons.finish())),
            ("stop_reason", Arc::new(stops.finish())),
        ];
        RecordBatch::try_from_iter(columns)
            .map_err(|error| Error::Internal(format!("samples do not fit a table: {error}")))
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
        let batch = py.detach(|| self.batch()).map_err(exception)?;
        let schema = batch.schema();
        tables::stream(py, vec![batch], schema)
    }
}
