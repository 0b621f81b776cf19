//! Records of results as Arrow tables of other libraries, by Arrow's C data interface: what pyarrow, pandas or polars
//! read is this module's own memory, not a copy.

use std::io::{BufRead, BufReader, Cursor};
use std::path::PathBuf;

use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::SchemaRef;
use offshoot::Error;
use offshoot::eval::records::arrow::{RecordKind, batches};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::errors::OrRaise;

/// The records of a file of results, or of JSON lines in memory, as batches of Arrow.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Records {
    kind: RecordKind,
    batches: Vec<RecordBatch>,
}

#[pymethods]
impl Records {
    /// `kind`: sample, item or vote. Either the `path` of a file or its `lines`.
    #[new]
    #[pyo3(signature = (kind, *, path=None, lines=None))]
    fn new(py: Python<'_>, kind: &str, path: Option<PathBuf>, lines: Option<String>) -> PyResult<Records> {
        let kind = match kind {
            "sample" => RecordKind::Sample,
            "item" => RecordKind::Item,
            "vote" => RecordKind::Vote,
            other => return Err(PyValueError::new_err(format!("kind: expected sample, item or vote, found {other}"))),
        };
        let read = py.detach(|| -> offshoot::Result<Vec<RecordBatch>> {
            let (path, lines): (PathBuf, Box<dyn BufRead>) = match (path, lines) {
                (Some(path), _) => {
                    let file = std::fs::File::open(&path).map_err(Error::io(&path, "open"))?;
                    (path, Box::new(BufReader::new(file)))
                }
                (None, lines) => (PathBuf::from("records"), Box::new(Cursor::new(lines.unwrap_or_default()))),
            };
            batches(kind, &path, lines).collect()
        });
        Ok(Records { kind, batches: read.or_raise()? })
    }

    /// Arrow's stream of these records, as `pyarrow.table` and others ask for it.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets the producer keep its own columns.
        drop(requested_schema);
        stream(py, self.batches.clone(), self.kind.schema())
    }
}

/// Arrow's stream of batches, which shares their memory.
pub fn stream(py: Python<'_>, batches: Vec<RecordBatch>, schema: SchemaRef) -> PyResult<Bound<'_, PyCapsule>> {
    let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
}
