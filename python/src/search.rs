//! Searches with Python's callables: the library's own drivers, one thread a prompt, whose texts are assessed, proposed
//! and valued by functions of Python while the engine decodes. An exception of a callable ends the search and is raised
//! where the search was called.

use std::cell::RefCell;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};

use offshoot::search::{
    Aggregate, AnswerSettings, Appraisal, Assess, Assessment, AssessmentRequest, BestBy, BestOfN, Decided,
    EntropyBranching, Evaluate, Generate, Mcts, ModelScores, OnScorerError, Outcome, ParticleSearch, Proposal,
    RolloutScoring, RolloutTrie, SampleScoring, SamplingOverrides, Scorer, SearchJob, StepSearch, StepSettings,
    Stepper, Texts, ThoughtSearch, ThoughtSelect, ThoughtTraversal, TreePo, TrieBuilder, ValueBy, best_by_scorer,
    best_of_n, dvts, entropy_branching, mcts, particle_gibbs, sample, self_consistency, step_beam, tree_of_thought,
    tree_po, vote_by_scorer,
};
use offshoot::{Error, Prompt, SamplingTree, TokenId};
use offshoot_engine::{EngineHandle, GroupEnd};
use offshoot_score::ScorerModel;
use offshoot_text::reasoning::ContentStart;
use offshoot_text::{AddSpecial, Message, Tokenizer};
use pyo3::exceptions::{PyBaseException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::{Engine, PATIENCE};
use crate::errors::{OrRaise, exception};
use crate::params::{self, Sampling};
use crate::rollouts::NativeTrie;
use crate::scorer::{NativeScorer, aggregate_of, conversation};

/// Prompts searched at once: their drivers mostly wait.
const SEARCHES_AT_ONCE: usize = 256;
/// Stack of a driver's thread.
const STACK_BYTES: usize = 1 << 20;

/// An outcome as JSON, and its samples as a trie where they are asked for.
type SearchResult = (Value, Option<RolloutTrie>);

/// A search method with its settings.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Method {
    /// `delimiter` and `aggregate`: of the steps of samples that a scorer reads; `None`: as its form says.
    Vote {
        n: usize,
        stop_when: Decided,
        delimiter: String,
        aggregate: Option<Aggregate>,
    },
    /// `by`: `None`: a Python callable or a scorer scores the samples.
    BestOfN {
        n: usize,
        by: Option<BestBy>,
        stop_when_passed: bool,
        delimiter: String,
        aggregate: Option<Aggregate>,
    },
    Sample {
        n: usize,
    },
    TreeOfThoughts(Thoughts),
    /// `scored`: a Python callable values the steps; otherwise their mean probability does.
    BeamSearch {
        settings: StepSearch,
        scored: bool,
    },
    Dvts {
        settings: StepSearch,
        scored: bool,
    },
    Particles {
        settings: ParticleSearch,
        scored: bool,
    },
    Mcts(Mcts),
    TreePo(TreePo),
    EntropyBranching(EntropyBranching),
}

impl Method {
    /// How one score is to be made of those of steps; `None`: as the scorer's form says.
    fn aggregate(&self) -> Option<Aggregate> {
        match self {
            Method::Vote { aggregate, .. } | Method::BestOfN { aggregate, .. } => *aggregate,
            Method::BeamSearch { settings, .. } | Method::Dvts { settings, .. } => Some(settings.aggregate),
            Method::Particles { settings, .. } => Some(settings.aggregate),
            Method::Mcts(_)
            | Method::Sample { .. }
            | Method::TreeOfThoughts(_)
            | Method::TreePo(_)
            | Method::EntropyBranching(_) => Some(Aggregate::Last),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Thoughts {
    steps: u32,
    breadth: u32,
    /// Thoughts sampled after each path, or lists of thoughts written by the model.
    thoughts: u32,
    words: Vec<(String, f64)>,
    value_samples: u32,
    select: ThoughtSelect,
    /// Depth-first with this threshold and number of visits; `None`: breadth-first.
    depth_first: Option<(f64, u32)>,
    /// Paths that are answered by further samples; `None`: paths are the answers.
    answers: Option<u32>,
    answer_tokens: Option<u32>,
    thought_tokens: Option<u32>,
    thought_stop: Option<Vec<String>>,
}

/// The first exception of a callable, and the flag that ends all searches once there is one.
#[derive(Default)]
struct Failure {
    exception: Mutex<Option<PyErr>>,
    ended: AtomicBool,
}

impl Failure {
    /// Keeps the exception for the caller; the search ends with the error returned.
    fn raise(&self, error: PyErr) -> Error {
        self.exception.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.ended.store(true, Ordering::Relaxed);
        Error::Interrupted
    }

    fn take(&self) -> Option<PyErr> {
        self.exception.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What Python gives to a search: functions of a prompt's index and more.
#[derive(Default)]
struct Callables {
    /// (index, text) -> [`Assessed`].
    assess: Option<Py<PyAny>>,
    grades: bool,
    /// (index, thoughts) -> a prompt or a list of thoughts.
    propose: Option<Py<PyAny>>,
    /// (index, thoughts) -> a prompt or a number.
    value: Option<Py<PyAny>>,
    /// (index, text) -> the thought in a sampled text or in a line that the model wrote, or None.
    thought: Option<Py<PyAny>>,
    /// (index, thought) -> whether it ends its path.
    ends: Option<Py<PyAny>>,
    /// (index, thoughts) -> a key of the state, or None.
    state: Option<Py<PyAny>>,
}

/// Assesses the texts of one prompt by Python's callable, each once.
struct PythonAssess<'a> {
    index: usize,
    callables: &'a Callables,
    failure: &'a Failure,
    known: RefCell<HashMap<String, Assessment>>,
}

/// What the callable of `assess` returns.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Assessed(Assessment);

#[pymethods]
impl Assessed {
    #[new]
    fn new(answer: Option<String>, correct: Option<bool>, score: Option<f64>) -> Assessed {
        Assessed(Assessment { answer, correct, score, detail: None })
    }
}

impl PythonAssess<'_> {
    fn call(&self, text: &str) -> PyResult<Assessment> {
        let Some(assess) = &self.callables.assess else { return Ok(Assessment::default()) };
        Python::attach(|py| {
            let assessed = assess.call1(py, (self.index, text))?;
            Ok(assessed.bind(py).cast::<Assessed>()?.get().0.clone())
        })
    }
}

impl Assess for PythonAssess<'_> {
    fn grades(&self) -> bool {
        self.callables.grades
    }

    fn assess(&self, text: &str, request: &mut dyn FnMut() -> AssessmentRequest) -> Option<Assessment> {
        if let Some(known) = self.known.borrow().get(text) {
            return Some(known.clone());
        }
        match self.call(text) {
            Ok(assessment) => {
                self.known.borrow_mut().insert(text.to_owned(), assessment.clone());
                Some(assessment)
            }
            Err(error) => {
                request().reply(Err(self.failure.raise(error)));
                None
            }
        }
    }
}

/// The texts of a tree of thoughts by Python's callables.
struct PythonTexts<'a> {
    index: usize,
    callables: &'a Callables,
    failure: &'a Failure,
    tokenizer: &'a Tokenizer,
}

/// Which callable a question is.
#[derive(Debug)]
enum Question {
    Propose,
    Value,
}

/// What a callable answers: a prompt for the model, or the result itself.
enum Answered<T> {
    Prompt(String),
    Known(T),
}

impl PythonTexts<'_> {
    fn call<T>(
        &self,
        callable: Option<&Py<PyAny>>,
        thoughts: &[String],
        expected: &str,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> offshoot::Result<Answered<T>> {
        let called = Python::attach(|py| {
            let callable = callable.ok_or_else(|| PyTypeError::new_err(format!("{expected}: no callable")))?;
            let result = callable.bind(py).call1((self.index, thoughts.to_vec()))?;
            if let Ok(prompt) = result.extract::<String>() {
                return Ok(Answered::Prompt(prompt));
            }
            match read(&result) {
                Ok(known) => Ok(Answered::Known(known)),
                Err(_) => Err(PyTypeError::new_err(format!("expected {expected}, found {}", result.repr()?))),
            }
        });
        called.map_err(|error| self.failure.raise(error))
    }

    fn prompt(&self, text: String) -> offshoot::Result<Prompt> {
        let tokens = self.tokenizer.encode(&text, AddSpecial::Yes)?;
        Ok(Prompt { text, tokens })
    }
}

impl Texts for PythonTexts<'_> {
    type Question = Question;

    fn ask(&self, question: &Question, _: &[String]) -> offshoot::Result<Prompt> {
        Err(Error::Internal(format!("{question:?} is asked of its callable")))
    }

    fn ask_about_answer(&self, question: &Question, _: &[String], _: &str) -> offshoot::Result<Prompt> {
        Err(Error::Internal(format!("{question:?} has no question about answers")))
    }

    fn ask_for_choice(&self, question: &Question, _: &[&[String]]) -> offshoot::Result<Prompt> {
        Err(Error::Internal(format!("{question:?} has no ballots")))
    }

    fn propose(&self, _: &Question, thoughts: &[String]) -> offshoot::Result<Proposal> {
        let expected = "of `propose` a prompt or a list of thoughts";
        match self.call(self.callables.propose.as_ref(), thoughts, expected, |list| list.extract())? {
            Answered::Prompt(text) => self.prompt(text).map(Proposal::Ask),
            Answered::Known(thoughts) => Ok(Proposal::Thoughts(thoughts)),
        }
    }

    fn appraise(&self, _: &Question, thoughts: &[String]) -> offshoot::Result<Appraisal> {
        let expected = "of `value` a number or a prompt";
        match self.call(self.callables.value.as_ref(), thoughts, expected, |value| value.extract())? {
            Answered::Prompt(text) => self.prompt(text).map(Appraisal::Ask),
            Answered::Known(value) => Ok(Appraisal::Value(value)),
        }
    }

    fn thought(&self, text: &str) -> Option<String> {
        if let Some(thought) = &self.callables.thought {
            let called = Python::attach(|py| thought.call1(py, (self.index, text))?.extract(py));
            return called.map_err(|error: PyErr| self.failure.raise(error)).unwrap_or(None);
        }
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    fn ends(&self, thought: &str) -> bool {
        let Some(ends) = &self.callables.ends else { return false };
        let called = Python::attach(|py| ends.call1(py, (self.index, thought))?.is_truthy(py));
        called.map_err(|error| self.failure.raise(error)).unwrap_or(true)
    }

    fn state(&self, thoughts: &[String]) -> offshoot::Result<Option<String>> {
        let Some(state) = &self.callables.state else { return Ok(None) };
        let called = Python::attach(|py| state.call1(py, (self.index, thoughts.to_vec()))?.extract(py));
        called.map_err(|error: PyErr| self.failure.raise(error))
    }

    fn continuation(&self, text: &str) -> offshoot::Result<Vec<TokenId>> {
        self.tokenizer.encode(text, AddSpecial::No)
    }
}

/// What all searches of one call share.
struct Searches<'a> {
    engine: EngineHandle,
    tokenizer: &'a Tokenizer,
    method: Method,
    sampling: Sampling,
    seed: u64,
    callables: Callables,
    failure: Failure,
    /// When a group of samples ends before all have finished.
    group_end: Option<GroupEnd>,
    /// Whether samples are returned as tries, too.
    rollouts: bool,
    /// A reward model that values texts in place of callables.
    scorer: Option<Arc<ScorerModel>>,
    /// How the scores of a sample's steps become its own.
    aggregate: Aggregate,
}

/// A prompt with the name that its random numbers follow from, and the question that a scorer is told, a conversation
/// as JSON; None: the prompt's text.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct SearchPrompt {
    prompt: Prompt,
    name: String,
    question: Vec<Message>,
}

#[pymethods]
impl SearchPrompt {
    #[new]
    #[pyo3(signature = (token_ids, text, name, question=None))]
    fn new(token_ids: Vec<u32>, text: String, name: String, question: Option<&str>) -> PyResult<SearchPrompt> {
        let question = question.map_or_else(|| Ok(vec![Message::user(&text)]), conversation)?;
        Ok(SearchPrompt { prompt: Prompt { text, tokens: params::token_ids(token_ids) }, name, question })
    }
}

/// What became of each prompt, in their order: its outcome as JSON with its samples, or its exception; None if it was
/// not finished. `rollouts`: its samples as a trie, where they are asked for. `ended_by`: what ended all searches: the
/// exception of a callable, or that of Ctrl-C.
#[pyclass(frozen, get_all, module = "offshoot._offshoot")]
pub struct Found {
    outcomes: Vec<Option<Py<PyAny>>>,
    rollouts: Vec<Option<Py<NativeTrie>>>,
    ended_by: Option<Py<PyBaseException>>,
}

/// Searches prompts by one method, several at once. `done` is called with the number of finished prompts at times.
#[pyfunction]
#[pyo3(signature = (
    engine, method, prompts, sampling, seed, *, assess=None, grades=false, propose=None, value=None, thought=None,
    ends=None, state=None, done=None, min_finished=None, rollouts=false, scorer=None,
))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub fn search(
    py: Python<'_>,
    engine: &Engine,
    method: &str,
    prompts: Vec<Py<SearchPrompt>>,
    sampling: &Sampling,
    seed: u64,
    assess: Option<Py<PyAny>>,
    grades: bool,
    propose: Option<Py<PyAny>>,
    value: Option<Py<PyAny>>,
    thought: Option<Py<PyAny>>,
    ends: Option<Py<PyAny>>,
    state: Option<Py<PyAny>>,
    done: Option<Py<PyAny>>,
    min_finished: Option<NonZeroUsize>,
    rollouts: bool,
    scorer: Option<&NativeScorer>,
) -> PyResult<Found> {
    let method: Method =
        serde_json::from_str(method).map_err(|error| PyValueError::new_err(format!("method: {error}")))?;
    let scorer = scorer.map(NativeScorer::model).transpose()?;
    let asked = method.aggregate();
    let aggregate = scorer.as_ref().map_or(Ok(asked.unwrap_or_default()), |model| aggregate_of(asked, model))?;
    let searches = Searches {
        engine: engine.ready()?,
        tokenizer: engine.tokenizer(),
        method,
        sampling: sampling.clone(),
        seed,
        callables: Callables { assess, grades, propose, value, thought, ends, state },
        failure: Failure::default(),
        group_end: min_finished.map(GroupEnd::new),
        rollouts,
        scorer,
        aggregate,
    };
    let outcomes = py.detach(|| searches.run(&prompts, done.as_ref())).or_raise()?;
    let object = |outcome: offshoot::Result<SearchResult>| match outcome {
        Ok((outcome, trie)) => {
            let trie = trie.map(|trie| Py::new(py, NativeTrie::new(trie))).transpose()?;
            Ok((Some(outcome.to_string().into_pyobject(py)?.into_any().unbind()), trie))
        }
        Err(Error::Interrupted) => Ok((None, None)),
        Err(error) => Ok((Some(exception(error).into_value(py).into_any()), None)),
    };
    let found = outcomes.into_iter().map(object).collect::<PyResult<Vec<_>>>()?;
    let (outcomes, rollouts) = found.into_iter().unzip();
    Ok(Found { outcomes, rollouts, ended_by: searches.failure.take().map(|raised| raised.into_value(py)) })
}

impl Searches<'_> {
    /// Runs all searches; called without the interpreter's lock. Looks for Ctrl-C while they run.
    fn run(
        &self,
        prompts: &[Py<SearchPrompt>],
        done: Option<&Py<PyAny>>,
    ) -> offshoot::Result<Vec<offshoot::Result<SearchResult>>> {
        let next = AtomicUsize::new(0);
        let (sender, receiver) = channel();
        let mut outcomes: Vec<Option<offshoot::Result<SearchResult>>> = prompts.iter().map(|_| None).collect();
        std::thread::scope(|scope| {
            for _ in 0..prompts.len().min(SEARCHES_AT_ONCE) {
                let (next, sender) = (&next, sender.clone());
                let work = move || {
                    while !self.failure.ended.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(prompt) = prompts.get(index) else { break };
                        // The receiver lives until all threads have ended.
                        drop(sender.send((index, self.search(index, prompt.get()))));
                    }
                };
                let named = std::thread::Builder::new().name("search".to_owned()).stack_size(STACK_BYTES);
                named.spawn_scoped(scope, work).map_err(|error| {
                    self.failure.ended.store(true, Ordering::Relaxed);
                    Error::Internal(format!("a thread does not start: {error}"))
                })?;
            }
            drop(sender);
            let mut finished = 0;
            loop {
                match receiver.recv_timeout(PATIENCE) {
                    Ok((index, outcome)) => {
                        outcomes[index] = Some(outcome);
                        finished += 1;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
                let looked = Python::attach(|py| {
                    py.check_signals()?;
                    done.map_or(Ok(()), |done| done.call1(py, (finished,)).map(drop))
                });
                if let Err(error) = looked {
                    // All drivers see the flag within their patience.
                    let _: Error = self.failure.raise(error);
                }
            }
        })?;
        let ended = |outcome: Option<_>| outcome.unwrap_or(Err(Error::Interrupted));
        Ok(outcomes.into_iter().map(ended).collect())
    }

    fn search(&self, index: usize, prompt: &SearchPrompt) -> offshoot::Result<SearchResult> {
        let SearchPrompt { prompt, name, question } = prompt;
        let mut tree = SamplingTree::new(self.engine.clone(), prompt.clone())?.seed(self.seed).named(name);
        let assess =
            PythonAssess { index, callables: &self.callables, failure: &self.failure, known: RefCell::default() };
        let Sampling { params, stop, .. } = &self.sampling.beginning(|| ContentStart::of(&prompt.text, None, None));
        let job = SearchJob { group_end: self.group_end, ..SearchJob::new(params, stop) };
        let mut job = job.assessed_by(assess).interrupted_by(&self.failure.ended);
        let scorer = self
            .scorer
            .as_ref()
            .map(|model| Ok(Scorer::Model(Box::new(ModelScores::new(&**model, question, OnScorerError::Unscored)?))));
        let outcome = self.drive(index, &mut tree, scorer.transpose()?, &mut job)?;
        let not_json = |error: serde_json::Error| Error::Internal(format!("an outcome is not JSON: {error}"));
        let mut value = serde_json::to_value(&outcome).map_err(not_json)?;
        value["samples"] = serde_json::to_value(&outcome.samples).map_err(not_json)?;
        value["spent"] = json!({ "sampled": tree.spent().drawn, "given": tree.spent().given });
        value["nodes"] = tree.nodes().count().into();
        let trie = self.rollouts.then(|| {
            let mut builder = TrieBuilder::new();
            builder.tree(&tree, index as u64, &job.leaves, params.logprobs_mode)?;
            Ok::<_, Error>(builder.build())
        });
        Ok((value, trie.transpose()?))
    }

    /// `scorer`: what values the texts of this prompt in place of callables.
    fn drive(
        &self,
        index: usize,
        tree: &mut SamplingTree,
        scorer: Option<Scorer<'_>>,
        job: &mut SearchJob<'_>,
    ) -> offshoot::Result<Outcome> {
        let root = tree.root();
        match &self.method {
            Method::Vote { n, stop_when, delimiter, .. } => match scorer {
                None => self_consistency(tree, root, *n, *stop_when, job),
                Some(mut scorer) => {
                    let how = SampleScoring { delimiter: delimiter.clone(), aggregate: self.aggregate };
                    vote_by_scorer(tree, root, *n, &mut scorer, &how, job)
                }
            },
            &Method::BestOfN { n, by: Some(by), stop_when_passed, .. } => {
                best_of_n(tree, root, &BestOfN { samples: n, by, stop_when_passed }, job)
            }
            Method::BestOfN { n, by: None, delimiter, .. } => {
                let how = SampleScoring { delimiter: delimiter.clone(), aggregate: self.aggregate };
                best_by_scorer(tree, root, *n, &mut scorer.unwrap_or(Scorer::Grade), &how, job)
            }
            &Method::Sample { n } => sample(tree, root, n, job),
            Method::TreeOfThoughts(thoughts) => {
                let texts = PythonTexts {
                    index,
                    callables: &self.callables,
                    failure: &self.failure,
                    tokenizer: self.tokenizer,
                };
                tree_of_thought(tree, &thoughts.settings(self.callables.propose.is_some()), &texts, None, job)
            }
            Method::BeamSearch { settings, scored } => {
                self.stepping(&settings.steps, *scored, scorer, |stepper| step_beam(tree, root, settings, stepper, job))
            }
            Method::Dvts { settings, scored } => {
                self.stepping(&settings.steps, *scored, scorer, |stepper| dvts(tree, root, settings, stepper, job))
            }
            Method::Particles { settings, scored } => self.stepping(&settings.steps, *scored, scorer, |stepper| {
                particle_gibbs(tree, root, settings, stepper, job)
            }),
            Method::Mcts(settings) => {
                let scored = settings.scoring != RolloutScoring::Agreement;
                self.stepping(&settings.steps, scored, scorer, |stepper| mcts(tree, root, settings, stepper, job))
            }
            Method::TreePo(how) => tree_po(tree, root, how, &|context, tokens| self.decode(context, tokens), job),
            Method::EntropyBranching(how) => {
                entropy_branching(tree, root, how, &|context, tokens| self.decode(context, tokens), job)
            }
        }
    }

    fn decode(&self, context: &[TokenId], tokens: &[TokenId]) -> String {
        self.tokenizer.stream(context).text_of(tokens)
    }

    fn stepping(
        &self,
        steps: &StepSettings,
        scored: bool,
        scorer: Option<Scorer<'_>>,
        search: impl FnOnce(&mut Stepper<'_>) -> offshoot::Result<Outcome>,
    ) -> offshoot::Result<Outcome> {
        let decode = |context: &[TokenId], tokens: &[TokenId]| self.decode(context, tokens);
        let own = if scored { Scorer::Grade } else { Scorer::MeanLogprob };
        let scorer = scorer.unwrap_or(own);
        search(&mut Stepper::new(steps, &decode, scorer))
    }
}

impl Thoughts {
    fn settings(&self, proposes: bool) -> ThoughtSearch<Question> {
        let thought =
            SamplingOverrides { temperature: None, max_tokens: self.thought_tokens, stop: self.thought_stop.clone() };
        let judged = SamplingOverrides::default();
        ThoughtSearch {
            steps: self.steps,
            breadth: self.breadth,
            generate: match proposes {
                true => Generate::Propose { question: Question::Propose, lists: self.thoughts, drawing: judged },
                false => Generate::Sample { thoughts: self.thoughts, drawing: thought },
            },
            evaluate: Evaluate::Value {
                question: Question::Value,
                last: None,
                words: self.words.clone(),
                by: match self.value_samples {
                    0 => ValueBy::Probability,
                    samples => ValueBy::Samples { samples, drawing: SamplingOverrides::default() },
                },
            },
            select: self.select,
            search: self
                .depth_first
                .map_or(ThoughtTraversal::Bfs, |(threshold, visits)| ThoughtTraversal::Dfs { threshold, visits }),
            answer: self.answers.map(|best| AnswerSettings {
                best: Some(best),
                drawing: SamplingOverrides { max_tokens: self.answer_tokens, ..SamplingOverrides::default() },
            }),
        }
    }
}
