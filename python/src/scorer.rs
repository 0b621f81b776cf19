//! A scorer as Python holds it: a reward model with its form and tokenizer. It scores trees of answers, and answers
//! what a server's `/pooling`, `/classify` and `/score` are asked.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use offshoot::{DeviceChoice, Error, Hear, Result};
use offshoot_core::ids::{BranchId, NodeId};
use offshoot_engine::{EngineHandle, Event, Extend, LogprobsMode, Priority};
use offshoot_launch::{EngineBudget, EngineOptions, ScorerFolder};
use offshoot_model::{ModelConfig, ModelRole, WeightChoice};
use offshoot_openai::protocol::{
    AnyName, PoolingEndpoint, PoolingHead, PoolingModel, PoolingRequest, ProtocolLimits, Reasoning, Refusal,
    RequestReader, ScorerValues, TextValues,
};
use offshoot_score::{
    Aggregate, FormChoice, Scale, ScoredTree, ScorerConfig, ScorerModel, StepScores, TextScorer, TextScores,
};
use offshoot_text::Message;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value};

use crate::engine::{PATIENCE, named, set_threads};
use crate::errors::{OrRaise, exception};
use crate::process::{self, OfProcess};
use crate::tokenizer::NativeTokenizer;

/// A loaded scorer.
#[pyclass(frozen, name = "Scorer", module = "offshoot._offshoot")]
pub struct NativeScorer {
    /// `None`: closed.
    model: OfProcess<Mutex<Option<Arc<ScorerModel>>>>,
    values: ScorerValues,
    config: ModelConfig,
    not_cuda: Option<String>,
    seconds_loading: f64,
}

impl NativeScorer {
    /// The scorer, in the process that started it and as long as it is open.
    pub fn model(&self) -> PyResult<Arc<ScorerModel>> {
        let model = self.model.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        model.clone().ok_or_else(|| PyRuntimeError::new_err("the scorer is closed"))
    }

    /// A scorer in memory, whose folder this is.
    pub fn of(model: Arc<ScorerModel>, folder: &ScorerFolder, seconds_loading: f64) -> Result<NativeScorer> {
        let width = model.engine().facts().values.unwrap_or_default();
        let values = ScorerValues::new(model.form(), &ScorerConfig::read(folder.path())?, width);
        let model = OfProcess::new(Mutex::new(Some(model)));
        Ok(NativeScorer { model, values, config: folder.config().clone(), not_cuda: None, seconds_loading })
    }

    fn read(
        &self,
        model: &ScorerModel,
        endpoint: PoolingEndpoint,
        body: &Map<String, Value>,
    ) -> PyResult<PoolingRequest> {
        let limits = ProtocolLimits::BATCH;
        let reader = RequestReader {
            tokenizer: model.tokenizer(),
            config: &self.config,
            model: "",
            names: &AnyName,
            seed: 0,
            limits: &limits,
            reasoning: Reasoning::Keep,
            logprobs_mode: LogprobsMode::default(),
            priority: Priority::default(),
            keeps_routes: false,
        };
        reader.read_pooling(endpoint, body, self.pooling(model)).map_err(refused)
    }

    fn pooling<'a>(&'a self, model: &'a ScorerModel) -> PoolingModel<'a> {
        PoolingModel::Scorer(&self.values, model.form())
    }
}

/// A form from JSON: a built-in one's name, or one.
pub fn form_of(form: &str) -> PyResult<FormChoice> {
    serde_json::from_str(form).map_err(|error| PyValueError::new_err(format!("form: {error}")))
}

/// Whether the model in a folder is a scorer by its class. What is wrong with it is said where it is opened.
#[pyfunction]
pub fn is_scorer(model: PathBuf) -> bool {
    ModelRole::of(&model).is_ok_and(|role| role == ModelRole::Scorer)
}

/// The sentence of a refusal. What a request has wrong, a caller has given.
fn refused(refusal: Refusal) -> PyErr {
    match refusal.status() {
        500.. => PyRuntimeError::new_err(refusal.message),
        _ => PyValueError::new_err(refusal.message),
    }
}

/// The scores of an answer. `steps`: for each step as it was given, the score of its last part, None where it has none.
/// `scores`: those of all parts. `score`: the answer's, and `probability` the same as a number from 0 to 1; None where
/// there is none. `tokens`: of question and answer in the scorer's form. `error`: why there are no scores.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct AnswerScores {
    steps: Vec<Option<f64>>,
    scores: Vec<f64>,
    score: Option<f64>,
    probability: Option<f64>,
    tokens: usize,
    error: Option<String>,
}

impl AnswerScores {
    fn new(scored: Result<TextScores>, steps: usize, aggregate: Aggregate, scale: Scale) -> AnswerScores {
        match scored {
            Ok(TextScores { scores, tokens, .. }) => {
                let StepScores { scores: all } = &scores;
                let score = scores.aggregated(aggregate);
                AnswerScores {
                    steps: scores.by_step(steps),
                    scores: all.iter().map(|part| part.score).collect(),
                    score,
                    probability: score.map(|score| scale.probability(score)),
                    tokens,
                    error: None,
                }
            }
            Err(error) => AnswerScores {
                steps: vec![None; steps],
                scores: Vec::new(),
                score: None,
                probability: None,
                tokens: 0,
                error: Some(error.to_string()),
            },
        }
    }
}

/// The answers to one question on their way.
struct ScoredQuestion {
    tree: Box<dyn ScoredTree>,
    /// Number of steps of each answer.
    steps: Vec<usize>,
    answers: Vec<Option<AnswerScores>>,
}

#[pymethods]
impl NativeScorer {
    #[new]
    #[pyo3(signature = (
        model, *, form=None, device="auto", weights=None, memory=None, gpu_memory=None, kv_memory=None,
        max_branches=None, context=None, deterministic=false, threads=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        form: Option<&str>,
        device: &str,
        weights: Option<&str>,
        memory: Option<f64>,
        gpu_memory: Option<f64>,
        kv_memory: Option<usize>,
        max_branches: Option<usize>,
        context: Option<usize>,
        deterministic: bool,
        threads: Option<usize>,
    ) -> PyResult<NativeScorer> {
        process::check()?;
        let form = form.map(form_of).transpose()?;
        let weights = weights.map(|format| named("weights", format)).transpose()?;
        let budget = EngineBudget {
            max_branches,
            context,
            pool_bytes: kv_memory.map(|mib| mib.saturating_mul(1 << 20)),
            memory,
            gpu_memory,
            deterministic,
            weights: WeightChoice { weights, ..WeightChoice::default() },
            ..EngineBudget::default()
        };
        let devices = device.parse::<DeviceChoice>().or_raise()?.into();
        let launched = py.detach(|| -> Result<_> {
            set_threads(threads)?;
            let options = EngineOptions { devices, budget, ..EngineOptions::default() };
            let launched = options.open_scorer(&model, form.as_ref())?;
            let scorer = NativeScorer::of(launched.scorer, &launched.folder, launched.seconds_loading)?;
            Ok(NativeScorer { not_cuda: launched.not_cuda.map(|why| why.to_string()), ..scorer })
        });
        launched.or_raise()
    }

    #[getter]
    fn tokenizer(&self) -> PyResult<NativeTokenizer> {
        Ok(NativeTokenizer::of(self.model()?.tokenizer().clone()))
    }

    /// What never changes: context, device, values at a token, what scores are, and so on.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let model = self.model()?;
        let (facts, identity) = (model.engine().facts(), model.identity());
        let dict = PyDict::new(py);
        dict.set_item("name", &identity.name)?;
        dict.set_item("form", &identity.form)?;
        dict.set_item("digest", &identity.digest)?;
        dict.set_item("context", facts.context)?;
        dict.set_item("vocab", facts.vocab)?;
        dict.set_item("bos", facts.bos.map(|token| token.0))?;
        dict.set_item("eos", facts.eos.iter().map(|token| token.0).collect::<Vec<_>>())?;
        dict.set_item("device", &facts.device)?;
        dict.set_item("values", facts.values)?;
        dict.set_item("values_steps", model.form().values_steps())?;
        let is_probability = model.scale() == Scale::Probability;
        dict.set_item("scale", if is_probability { "probability" } else { "logit" })?;
        dict.set_item("max_branches", facts.max_branches)?;
        dict.set_item("kv_bytes", facts.pool_pages * facts.page_bytes)?;
        dict.set_item("not_cuda", &self.not_cuda)?;
        dict.set_item("seconds_loading", self.seconds_loading)?;
        Ok(dict)
    }

    /// Counters since the start, as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let model = self.model()?;
        let metrics = py.detach(|| model.engine().metrics()).or_raise()?;
        serde_json::to_string(&metrics)
            .map_err(|error| exception(Error::Internal(format!("the counters are not JSON: {error}"))))
    }

    /// The scores of answers, each a list of steps, to questions, each a conversation as JSON. Answers that begin alike
    /// are computed as far as they do once. `aggregate`: how steps become an answer's score; `None`: as the form says.
    #[pyo3(signature = (questions, answers, aggregate=None))]
    fn score(
        &self,
        py: Python<'_>,
        questions: Vec<String>,
        answers: Vec<Vec<Vec<String>>>,
        aggregate: Option<&str>,
    ) -> PyResult<Vec<Vec<AnswerScores>>> {
        let model = self.model()?;
        let aggregate = aggregate.map(|word| named("aggregate", word)).transpose()?;
        let aggregate = aggregate_of(aggregate, &model)?;
        let conversations = questions.iter().map(|question| conversation(question)).collect::<PyResult<Vec<_>>>()?;
        let begin = |(question, answers): (&Vec<Message>, Vec<Vec<String>>)| -> Result<ScoredQuestion> {
            let mut tree = model.begin(question)?;
            for (ix, steps) in answers.iter().enumerate() {
                tree.start(node(ix)?, None, steps)?;
            }
            let steps = answers.iter().map(Vec::len).collect();
            Ok(ScoredQuestion { tree, steps, answers: answers.iter().map(|_| None).collect() })
        };
        let begun = py.detach(|| conversations.iter().zip(answers).map(begin).collect::<Result<Vec<_>>>());
        let mut begun = begun.or_raise()?;
        for question in &mut begun {
            while question.tree.waiting() > 0 {
                if let Some((node, scored)) = py.detach(|| question.tree.poll(PATIENCE)) {
                    let ix = node.ix();
                    let scores = AnswerScores::new(scored, question.steps[ix], aggregate, model.scale());
                    question.answers[ix] = Some(scores);
                }
                py.check_signals()?;
            }
        }
        let missing = || exception(Error::Internal("a score is missing".to_owned()));
        let answers = |question: ScoredQuestion| -> PyResult<Vec<AnswerScores>> {
            question.answers.into_iter().map(|one| one.ok_or_else(missing)).collect()
        };
        begun.into_iter().map(answers).collect()
    }

    /// Answers what a server's path is asked: `endpoint` is its path, `body` the request as JSON. The tokens of each
    /// text, and the answer as JSON.
    fn answer(&self, py: Python<'_>, endpoint: &str, body: &str) -> PyResult<(Vec<Vec<u32>>, String)> {
        let model = self.model()?;
        let endpoint = PoolingEndpoint::ALL.into_iter().find(|known| known.paths().contains(&endpoint));
        let endpoint = endpoint.ok_or_else(|| PyValueError::new_err("no such path"))?;
        let body: Map<String, Value> =
            serde_json::from_str(body).map_err(|error| PyValueError::new_err(format!("request: {error}")))?;
        let request = py.detach(|| self.read(&model, endpoint, &body))?;
        let values = values(py, model.engine(), &request)?;
        let head = PoolingHead { id: String::new(), created: 0 };
        let answer = py.detach(|| request.answer(self.pooling(&model), &values, &head)).map_err(refused)?;
        let tokens = request.texts.iter().map(|text| text.tokens.iter().map(|token| token.0).collect()).collect();
        Ok((tokens, String::from_utf8(answer).expect("JSON is UTF-8")))
    }

    fn close(&self, py: Python<'_>) {
        let Ok(model) = self.model.get() else { return };
        let closed = model.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(closed));
    }
}

/// The node that stands for an answer.
fn node(ix: usize) -> Result<NodeId> {
    let too_many = |_| Error::value("answers to a question", format!("at most {}", u32::MAX), ix.to_string());
    u32::try_from(ix).map(NodeId).map_err(too_many)
}

/// How one score is made of those of steps: as asked for, or else as the scorer's form says.
pub fn aggregate_of(asked: Option<Aggregate>, model: &ScorerModel) -> PyResult<Aggregate> {
    let aggregate = asked.unwrap_or(model.aggregate());
    if !aggregate.fits(model.scale()) {
        let expected = "expected last, min or mean, as the scorer's scores are logits";
        return Err(PyValueError::new_err(format!("aggregate: {expected}, found product")));
    }
    Ok(aggregate)
}

/// A conversation from JSON.
pub fn conversation(question: &str) -> PyResult<Vec<Message>> {
    let wrong = |error: serde_json::Error| PyValueError::new_err(format!("question: {error}"));
    let turns: Vec<Map<String, Value>> = serde_json::from_str(question).map_err(wrong)?;
    Ok(turns.into_iter().map(Message::of).collect())
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
