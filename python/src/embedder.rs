//! An embedder as Python holds it: a model whose values are the vectors of texts, as a server's `/v1/embeddings` and
//! `/pooling` have them.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use offshoot::Result;
use offshoot_engine::EngineHandle;
use offshoot_launch::{EmbedderFolder, Launched};
use offshoot_model::EmbedderPooling;
use offshoot_openai::batch::name_of_model;
use offshoot_openai::protocol::{EmbedderValues, PoolingModel};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::engine::set_threads;
use crate::errors::OrRaise;
use crate::pooling::{AskedModel, ValueOptions, engine_facts, metrics_json};
use crate::process::{self, OfProcess};
use crate::tokenizer::NativeTokenizer;

/// A loaded embedder.
#[pyclass(frozen, name = "Embedder", module = "offshoot._offshoot")]
pub struct NativeEmbedder {
    /// `None`: closed.
    engine: OfProcess<Mutex<Option<EngineHandle>>>,
    folder: EmbedderFolder,
    name: String,
    not_cuda: Option<String>,
    seconds_loading: f64,
}

impl NativeEmbedder {
    /// The engine, in the process that started it and as long as it is open.
    fn engine(&self) -> PyResult<EngineHandle> {
        let engine = self.engine.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        engine.clone().ok_or_else(|| PyRuntimeError::new_err("the model is closed"))
    }
}

#[pymethods]
impl NativeEmbedder {
    #[new]
    #[pyo3(signature = (
        model, *, device="auto", weights=None, memory=None, gpu_memory=None, kv_memory=None, max_branches=None,
        context=None, deterministic=false, threads=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        device: &str,
        weights: Option<&str>,
        memory: Option<f64>,
        gpu_memory: Option<f64>,
        kv_memory: Option<usize>,
        max_branches: Option<usize>,
        context: Option<usize>,
        deterministic: bool,
        threads: Option<usize>,
    ) -> PyResult<NativeEmbedder> {
        process::check()?;
        let options =
            ValueOptions { device, weights, memory, gpu_memory, kv_memory, max_branches, context, deterministic };
        let options = options.engine()?;
        let launched = py.detach(|| -> Result<_> {
            set_threads(threads)?;
            EmbedderFolder::open(&model, None)?.start(&options)
        });
        let (Launched { engine, not_cuda, seconds_loading, .. }, folder) = launched.or_raise()?;
        Ok(NativeEmbedder {
            engine: OfProcess::new(Mutex::new(Some(engine))),
            folder,
            name: name_of_model(&model),
            not_cuda: not_cuda.map(|why| why.to_string()),
            seconds_loading,
        })
    }

    #[getter]
    fn tokenizer(&self) -> NativeTokenizer {
        NativeTokenizer::of(self.folder.tokenizer().clone())
    }

    /// What never changes: context, device, the length of vectors, and so on.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = engine_facts(py, &self.engine()?)?;
        dict.set_item("name", &self.name)?;
        dict.set_item("normalises", self.folder.pooling().normalises)?;
        dict.set_item("seconds_loading", self.seconds_loading)?;
        dict.set_item("not_cuda", &self.not_cuda)?;
        Ok(dict)
    }

    /// Counters since the start, as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        metrics_json(py, &self.engine()?)
    }

    /// Answers what a server's path is asked: `endpoint` is its path, `body` the request as JSON. The tokens of each
    /// text, and the answer as JSON.
    fn answer(&self, py: Python<'_>, endpoint: &str, body: &str) -> PyResult<(Vec<Vec<u32>>, String)> {
        let EmbedderPooling { normalises } = self.folder.pooling();
        let asked = AskedModel {
            engine: &self.engine()?,
            tokenizer: self.folder.tokenizer(),
            config: self.folder.config(),
            model: PoolingModel::Embedder(EmbedderValues { normalises }),
        };
        asked.answer(py, endpoint, body)
    }

    fn close(&self, py: Python<'_>) {
        let Ok(engine) = self.engine.get() else { return };
        let closed = engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(closed));
    }
}
