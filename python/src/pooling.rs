//! Answers what a server's `/pooling`, `/classify`, `/score` and `/v1/embeddings` are asked, of a scorer or an embedder
//! in this process.

use std::collections::HashMap;
use std::task::Poll;

use offshoot::{DeviceChoice, Error, Hear};
use offshoot_core::ids::BranchId;
use offshoot_engine::{EngineHandle, Event, Extend, LogprobsMode, Priority};
use offshoot_launch::{EngineBudget, EngineOptions};
use offshoot_model::{ModelConfig, WeightChoice};
use offshoot_openai::protocol::{
    AnyName, PoolingEndpoint, PoolingHead, PoolingModel, PoolingRequest, ProtocolLimits, Reasoning, Refusal,
    RequestReader, TextValues,
};
use offshoot_text::Tokenizer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value};

use crate::engine::{PATIENCE, named};
use crate::errors::{OrRaise, exception};

/// The arguments of a model that computes values, as the engine has them.
pub struct ValueOptions<'a> {
    pub device: &'a str,
    pub weights: Option<&'a str>,
    pub memory: Option<f64>,
    pub gpu_memory: Option<f64>,
    /// In MiB.
    pub kv_memory: Option<usize>,
    pub max_branches: Option<usize>,
    pub context: Option<usize>,
    pub deterministic: bool,
}

impl ValueOptions<'_> {
    pub fn engine(self) -> PyResult<EngineOptions> {
        let weights = self.weights.map(|format| named("weights", format)).transpose()?;
        let budget = EngineBudget {
            max_branches: self.max_branches,
            context: self.context,
            pool_bytes: self.kv_memory.map(|mib| mib.saturating_mul(1 << 20)),
            memory: self.memory,
            gpu_memory: self.gpu_memory,
            deterministic: self.deterministic,
            weights: WeightChoice { weights, ..WeightChoice::default() },
            ..EngineBudget::default()
        };
        let devices = self.device.parse::<DeviceChoice>().or_raise()?.into();
        Ok(EngineOptions { devices, budget, ..EngineOptions::default() })
    }
}

/// A model that computes values, as it is asked for them.
pub struct AskedModel<'a> {
    pub engine: &'a EngineHandle,
    pub tokenizer: &'a Tokenizer,
    pub config: &'a ModelConfig,
    pub model: PoolingModel<'a>,
}

impl AskedModel<'_> {
    /// Answers a request. `endpoint`: a server's path; `body`: JSON. The tokens of each text, and the answer as JSON.
    pub fn answer(&self, py: Python<'_>, endpoint: &str, body: &str) -> PyResult<(Vec<Vec<u32>>, String)> {
        let endpoint = PoolingEndpoint::ALL.into_iter().find(|known| known.paths().contains(&endpoint));
        let endpoint = endpoint.ok_or_else(|| PyValueError::new_err("no such path"))?;
        let body: Map<String, Value> =
            serde_json::from_str(body).map_err(|error| PyValueError::new_err(format!("request: {error}")))?;
        let request = py.detach(|| self.read(endpoint, &body))?;
        let values = values(py, self.engine, &request)?;
        let head = PoolingHead { id: String::new(), created: 0 };
        let answer = py.detach(|| request.answer(self.model, &values, &head)).map_err(refused)?;
        let tokens = request.texts.iter().map(|text| text.tokens.iter().map(|token| token.0).collect()).collect();
        Ok((tokens, String::from_utf8(answer).expect("JSON is UTF-8")))
    }

    fn read(&self, endpoint: PoolingEndpoint, body: &Map<String, Value>) -> PyResult<PoolingRequest> {
        let limits = ProtocolLimits::BATCH;
        let reader = RequestReader {
            tokenizer: self.tokenizer,
            config: self.config,
            model: "",
            names: &AnyName,
            seed: 0,
            limits: &limits,
            reasoning: Reasoning::Keep,
            logprobs_mode: LogprobsMode::default(),
            priority: Priority::default(),
            keeps_routes: false,
        };
        reader.read_pooling(endpoint, body, self.model).map_err(refused)
    }
}

/// The sentence of a refusal. What a request has wrong, a caller has given.
fn refused(refusal: Refusal) -> PyErr {
    match refusal.status() {
        500.. => PyRuntimeError::new_err(refusal.message),
        _ => PyValueError::new_err(refusal.message),
    }
}

/// What never changes of the engine of a model that computes values.
pub fn engine_facts<'py>(py: Python<'py>, engine: &EngineHandle) -> PyResult<Bound<'py, PyDict>> {
    let facts = engine.facts();
    let dict = PyDict::new(py);
    dict.set_item("context", facts.context)?;
    dict.set_item("vocab", facts.vocab)?;
    dict.set_item("bos", facts.bos.map(|token| token.0))?;
    dict.set_item("eos", facts.eos.iter().map(|token| token.0).collect::<Vec<_>>())?;
    dict.set_item("device", &facts.device)?;
    dict.set_item("values", facts.values)?;
    dict.set_item("max_branches", facts.max_branches)?;
    dict.set_item("kv_bytes", facts.pool_pages * facts.page_bytes)?;
    Ok(dict)
}

/// An engine's counters since its start, as JSON.
pub fn metrics_json(py: Python<'_>, engine: &EngineHandle) -> PyResult<String> {
    let metrics = py.detach(|| engine.metrics()).or_raise()?;
    serde_json::to_string(&metrics)
        .map_err(|error| exception(Error::Internal(format!("the counters are not JSON: {error}"))))
}

/// Branches of texts, released at the end.
struct Branches<'h> {
    engine: &'h EngineHandle,
    branches: Vec<BranchId>,
}

impl Drop for Branches<'_> {
    fn drop(&mut self) {
        self.engine.release(&self.branches);
    }
}

/// The values of a request's texts, all in one batch.
fn values(py: Python<'_>, engine: &EngineHandle, request: &PoolingRequest) -> PyResult<Vec<TextValues>> {
    let mut held = Branches { engine, branches: Vec::with_capacity(request.texts.len()) };
    let mut extends = Vec::with_capacity(request.texts.len());
    for text in &request.texts {
        let branch = engine.root(text.tokens.clone()).or_raise()?;
        held.branches.push(branch);
        extends.push(Extend::given_with_values(branch, Vec::new(), text.at.clone()));
    }
    let places: HashMap<_, _> = held.branches.iter().copied().zip(0..).collect();
    let mut values: Vec<Option<TextValues>> = request.texts.iter().map(|_| None).collect();
    let mut receiver = engine.receiver(Hear::Finishes);
    receiver.start(extends).or_raise()?;
    loop {
        match py.detach(|| receiver.poll(PATIENCE)) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(Event::Finished { id, finish })) => {
                let rows = finish.values.into_iter().map(|read| read.values).collect();
                let place: usize = places[&id];
                values[place] = Some(TextValues { rows, cached: 0 });
            }
            Poll::Ready(Some(Event::Failed { error, .. })) => return Err(exception(error)),
            Poll::Ready(Some(Event::Tokens { .. })) | Poll::Pending => {}
        }
        py.check_signals()?;
    }
    let missing = || exception(Error::Internal("values are missing".to_owned()));
    values.into_iter().map(|text| text.ok_or_else(missing)).collect()
}
