//! A scorer as Python holds it: a reward model with its form and tokenizer. It scores trees of answers, and answers
//! what a server's `/pooling`, `/classify` and `/score` are asked.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use offshoot::{Error, Result};
use offshoot_core::ids::NodeId;
use offshoot_launch::ScorerFolder;
use offshoot_model::{ModelConfig, ModelRole};
use offshoot_openai::protocol::{PoolingModel, ScorerValues};
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
use crate::pooling::{AskedModel, ValueOptions, engine_facts, metrics_json};
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
}

/// A form from JSON: a built-in one's name, or one.
pub fn form_of(form: &str) -> PyResult<FormChoice> {
    serde_json::from_str(form).map_err(|error| PyValueError::new_err(format!("form: {error}")))
}

/// What the model in a folder is for: "generator", "scorer" or "embedder". What is wrong with it is said where it is
/// opened.
#[pyfunction]
pub fn model_role(model: PathBuf) -> &'static str {
    match ModelRole::of(&model) {
        Ok(ModelRole::Scorer) => "scorer",
        Ok(ModelRole::Embedder) => "embedder",
        Ok(ModelRole::Generator) | Err(_) => "generator",
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
        let options =
            ValueOptions { device, weights, memory, gpu_memory, kv_memory, max_branches, context, deterministic };
        let options = options.engine()?;
        let launched = py.detach(|| -> Result<_> {
            set_threads(threads)?;
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
        let (dict, identity) = (engine_facts(py, model.engine())?, model.identity());
        dict.set_item("name", &identity.name)?;
        dict.set_item("form", &identity.form)?;
        dict.set_item("digest", &identity.digest)?;
        dict.set_item("values_steps", model.form().values_steps())?;
        let is_probability = model.scale() == Scale::Probability;
        dict.set_item("scale", if is_probability { "probability" } else { "logit" })?;
        dict.set_item("not_cuda", &self.not_cuda)?;
        dict.set_item("seconds_loading", self.seconds_loading)?;
        Ok(dict)
    }

    /// Counters since the start, as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        metrics_json(py, self.model()?.engine())
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
        let asked = AskedModel {
            engine: model.engine(),
            tokenizer: model.tokenizer(),
            config: &self.config,
            model: PoolingModel::Scorer(&self.values, model.form()),
        };
        asked.answer(py, endpoint, body)
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
