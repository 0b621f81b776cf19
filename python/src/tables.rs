//! Records of results as Arrow tables of other libraries, by Arrow's C data interface: what pyarrow, pandas or polars
//! read is this module's own memory, not a copy.

use std::io::{BufRead, BufReader, Cursor};
use std::path::PathBuf;
use std::sync::Arc;

use offshoot::Error;
use offshoot_eval::records::table::{Fields, RecordKind, Table, tables};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow::ArrowArrayStream;
use crate::errors::OrRaise;

/// The records of a file of results, or of JSON lines in memory, as batches of Arrow.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Records {
    kind: RecordKind,
    tables: Vec<Arc<Table>>,
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
        let read = py.detach(|| -> offshoot::Result<Vec<Arc<Table>>> {
            let (path, lines): (PathBuf, Box<dyn BufRead>) = match (path, lines) {
                (Some(path), _) => {
                    let file = std::fs::File::open(&path).map_err(Error::io(&path, "open"))?;
                    (path, Box::new(BufReader::new(file)))
                }
                (None, lines) => (PathBuf::from("records"), Box::new(Cursor::new(lines.unwrap_or_default()))),
            };
            tables(kind, &path, lines).map(|table| table.map(Arc::new)).collect()
        });
        Ok(Records { kind, tables: read.or_raise()? })
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
        stream(py, self.tables.clone(), self.kind.fields())
    }
}

/// Arrow's stream of tables, which shares their memory.
pub fn stream(py: Python<'_>, tables: Vec<Arc<Table>>, fields: Fields) -> PyResult<Bound<'_, PyCapsule>> {
    PyCapsule::new_with_value(py, ArrowArrayStream::new(fields, tables), c"arrow_array_stream")
}
