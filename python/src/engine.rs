//! An engine as Python holds it: a loaded model with its tokenizer. Starts engines, begins generations, scores
//! continuations, changes weights, pauses and sleeps. One engine serves all threads of a process.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use offshoot::{DeviceChoice, Devices, Error, Finish, Hear, Planner, Result};
use offshoot_core::ids::{AdapterVersion, BranchId};
use offshoot_engine::{
    AdapterLimits, AdapterSource, EngineHandle, Event, Extend, LoadedAdapter, PauseMode, Priority, RootOptions,
    Weights, WeightsUpdate,
};
use offshoot_launch::{
    BeginOptions, ChoicesRequest, EngineBudget, EngineOptions, Generator, PrefixFolder, Release, ScorerOptions,
    SecondFolder, UpdateFolder,
};
use offshoot_model::{Sleep, SleepTags, TensorSource, UpdateScope, WeightChoice};
use offshoot_text::Tokenizer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{OrRaise, exception};
use crate::events::NativeFinish;
use crate::forms::NativeForm;
use crate::generation::{Generation, OwnedRequest, Request};
use crate::params::{Sampling, token_ids, word};
use crate::process::{self, OfProcess};
use crate::scorer::{NativeScorer, form_of};
use crate::tensors::Tensors;
pub use crate::tokenizer::Context;
use crate::tokenizer::NativeTokenizer;

/// Longest wait without looking for Ctrl-C.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// A loaded model.
#[pyclass(frozen, module = "offshoot._offshoot")]
pub struct Engine {
    /// `None`: closed.
    handle: OfProcess<Mutex<Option<EngineHandle>>>,
    tokenizer: Arc<Tokenizer>,
    /// The scorer beside it, until it is taken.
    scorer: Mutex<Option<NativeScorer>>,
    not_cuda: Option<String>,
    seconds_loading: f64,
}

impl Engine {
    /// The engine's handle, in the process that started it and as long as it is open.
    pub fn handle(&self) -> PyResult<EngineHandle> {
        let handle = self.handle.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        handle.clone().ok_or_else(|| PyRuntimeError::new_err("the engine is closed"))
    }

    /// The engine's handle, for what samples or scores; an error while memory or weights are missing.
    pub fn ready(&self) -> PyResult<EngineHandle> {
        let handle = self.handle()?;
        check_ready(&handle)?;
        Ok(handle)
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    fn load(&self, py: Python<'_>, name: &str, source: AdapterSource) -> PyResult<u64> {
        let handle = self.handle()?;
        py.detach(|| handle.load_adapter(name, source)).map(|loaded| loaded.version.0).or_raise()
    }
}

/// Fails where what samples or scores would wait for memory or weights for ever.
pub fn check_ready(engine: &EngineHandle) -> PyResult<()> {
    let status = engine.status();
    let lacking = if status.asleep.any() {
        "the LLM sleeps: call wake_up() before it samples"
    } else if status.lacks_weights {
        "the LLM has no weights since it slept or an update failed: call load_weights() with all of them before it \
         samples"
    } else {
        return Ok(());
    };
    Err(PyRuntimeError::new_err(lacking))
}

/// A sample that is scored again: its prompt, its tokens, how it is sampled, and the version of its adapter.
type DrawnSample = (Vec<u32>, Vec<u32>, Py<Sampling>, Option<u64>);

/// A value of an enum by its name on the command line.
pub fn named<T: serde::de::DeserializeOwned>(what: &str, word: &str) -> PyResult<T> {
    let value = serde_json::Value::String(word.to_owned());
    serde_json::from_value(value).map_err(|error| PyValueError::new_err(format!("{what}: {error}")))
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (
        model, *, device="auto", devices=None, tensor_parallel=1, plan="balanced", kv_dtype=None, state_dtype=None,
        weights=None, activations=None, memory=None, gpu_memory=None, kv_memory=None, swap_memory=None,
        max_branches=None, context=None, deterministic=false, return_routed_experts=false, prefix_store=None,
        prefix_store_size=20.0, threads=None, max_loras=0, max_lora_rank=16, scorer=None, scorer_form=None,
        scorer_memory=None, latent_copies=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        model: PathBuf,
        device: &str,
        devices: Option<&str>,
        tensor_parallel: usize,
        plan: &str,
        kv_dtype: Option<&str>,
        state_dtype: Option<&str>,
        weights: Option<&str>,
        activations: Option<&str>,
        memory: Option<f64>,
        gpu_memory: Option<f64>,
        kv_memory: Option<usize>,
        swap_memory: Option<usize>,
        max_branches: Option<usize>,
        context: Option<usize>,
        deterministic: bool,
        return_routed_experts: bool,
        prefix_store: Option<PathBuf>,
        prefix_store_size: f64,
        threads: Option<usize>,
        max_loras: usize,
        max_lora_rank: usize,
        scorer: Option<PathBuf>,
        scorer_form: Option<&str>,
        scorer_memory: Option<f64>,
        latent_copies: Option<usize>,
    ) -> PyResult<Engine> {
        process::check()?;
        let devices: Devices = match devices {
            Some(several) => several.parse().or_raise()?,
            None => device.parse::<DeviceChoice>().or_raise()?.into(),
        };
        let devices = if tensor_parallel > 1 { devices.together(tensor_parallel).or_raise()? } else { devices };
        let planner: Planner = named("plan", plan)?;
        let budget = EngineBudget {
            max_branches,
            context,
            step_rows: None,
            pool_bytes: kv_memory.map(|mib| mib.saturating_mul(1 << 20)),
            latent_copies: latent_copies.map(|mib| mib.saturating_mul(1 << 20)),
            memory,
            gpu_memory,
            swap_bytes: swap_memory.map(|mib| mib.saturating_mul(1 << 20)),
            deterministic,
            keeps_routes: return_routed_experts,
            adapters: AdapterLimits { most: max_loras, rank: max_lora_rank },
            kv: kv_dtype.map(|kv| named("kv_dtype", kv)).transpose()?.unwrap_or_default(),
            states: state_dtype.map(|dtype| named("state_dtype", dtype)).transpose()?.unwrap_or_default(),
            weights: WeightChoice {
                weights: weights.map(|format| named("weights", format)).transpose()?,
                activations: activations.map(|format| named("activations", format)).transpose()?.unwrap_or_default(),
            },
        };
        let most_bytes = (prefix_store_size * f64::from(1 << 30)) as u64;
        let prefix_store = prefix_store.map(|path| PrefixFolder::new(path, most_bytes));
        let form = scorer_form.map(form_of).transpose()?;
        let scorer = scorer.map(|path| ScorerOptions { path, form, memory: scorer_memory });
        let launched = py.detach(|| -> Result<_> {
            set_threads(threads)?;
            let options = EngineOptions { devices, budget, plan: Some(planner), prefix_store };
            let folder = scorer.as_ref().map(ScorerOptions::open).transpose()?.map(Arc::new);
            let (launched, tokenizer) = options.open_beside(&model, folder.clone().map(SecondFolder::Scorer))?;
            let scorer = launched.scorer().cloned().zip(folder);
            let scorer = scorer.map(|(model, folder)| NativeScorer::of(model, &folder, launched.seconds_loading));
            Ok((launched, tokenizer, scorer.transpose()?))
        });
        let (launched, tokenizer, scorer) = launched.or_raise()?;
        Ok(Engine {
            handle: OfProcess::new(Mutex::new(Some(launched.engine))),
            tokenizer,
            scorer: Mutex::new(scorer),
            not_cuda: launched.not_cuda.map(|why| why.to_string()),
            seconds_loading: launched.seconds_loading,
        })
    }

    /// The scorer beside it. It is returned once: whoever has it closes it.
    fn scorer(&self) -> PyResult<NativeScorer> {
        let scorer = self.scorer.lock().unwrap_or_else(PoisonError::into_inner).take();
        scorer.ok_or_else(|| PyRuntimeError::new_err("the engine has no scorer beside it"))
    }

    #[getter(tokenizer)]
    fn shared_tokenizer(&self) -> NativeTokenizer {
        NativeTokenizer::of(self.tokenizer.clone())
    }

    /// What never changes: context, vocab, bos, eos, device, batch_invariant, and so on.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let handle = self.handle()?;
        let facts = handle.facts();
        let dict = PyDict::new(py);
        dict.set_item("context", facts.context)?;
        dict.set_item("vocab", facts.vocab)?;
        dict.set_item("bos", facts.bos.map(|token| token.0))?;
        dict.set_item("eos", facts.eos.iter().map(|token| token.0).collect::<Vec<_>>())?;
        dict.set_item("device", &facts.device)?;
        dict.set_item("batch_invariant", facts.batch_invariant)?;
        dict.set_item("page_tokens", facts.page_tokens)?;
        dict.set_item("kv_bytes_per_token", facts.kv_bytes_per_token)?;
        dict.set_item("kv_bytes", facts.pool_pages * facts.page_bytes)?;
        dict.set_item("max_branches", facts.max_branches)?;
        dict.set_item("replicas", facts.replicas)?;
        dict.set_item("not_cuda", &self.not_cuda)?;
        dict.set_item("seconds_loading", self.seconds_loading)?;
        Ok(dict)
    }

    /// Counters since the start and what is held now, as JSON.
    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let handle = self.handle()?;
        let (metrics, live) = py.detach(|| Ok((handle.metrics()?, handle.live()?))).map_err(exception)?;
        let not_json =
            |error: serde_json::Error| exception(Error::Internal(format!("the counters are not JSON: {error}")));
        let mut value = serde_json::to_value(&metrics).map_err(not_json)?;
        let pages = live.pages;
        value["running"] = live.running.into();
        value["waiting"] = live.waiting.into();
        value["branches"] = live.branches.into();
        value["pages"] = serde_json::json!({
            "total": pages.total, "held": pages.held, "pinned": pages.pinned, "cached": pages.cached,
            "free": pages.free,
        });
        Ok(value.to_string())
    }

    /// Gives up cached prefixes that nothing holds; whether none are held.
    fn evict(&self, py: Python<'_>) -> PyResult<bool> {
        let handle = self.handle()?;
        py.detach(|| handle.evict()).or_raise()
    }

    /// Changes the weights to these tensors, all or nothing, and returns the new version and its label. The tensors
    /// are given up in any case.
    #[pyo3(signature = (tensors, *, label=None))]
    fn update_weights(&self, py: Python<'_>, tensors: &Tensors, label: Option<String>) -> PyResult<(u64, String)> {
        let handle = self.handle()?;
        let mut update = WeightsUpdate::new(Arc::new(tensors.take()), UpdateScope::Changed);
        update.label = label;
        py.detach(|| handle.update_weights(update)).map(said).or_raise()
    }

    /// Changes the weights to those of the safetensors files in a folder, all or only those that have changed, and
    /// returns the names of its tensors.
    #[pyo3(signature = (folder, *, label=None))]
    fn update_weights_from(&self, py: Python<'_>, folder: PathBuf, label: Option<String>) -> PyResult<Vec<String>> {
        let handle = self.handle()?;
        let changed = || -> Result<Vec<String>> {
            let form = handle.weight_form().ok_or_else(|| Error::Internal("the engine has no weights".to_owned()))?;
            // What is in force afterwards has no identity: no prefixes of it are kept on disk.
            let update = UpdateFolder::open(&folder, UpdateScope::Changed, &form)?;
            let names = update.tensors().names().into_iter().map(str::to_owned).collect();
            handle.update_weights(update.into_update(label, false))?;
            Ok(names)
        };
        py.detach(changed).or_raise()
    }

    /// Loads the adapter in a folder under a name, in place of one that has it; its version.
    fn load_adapter(&self, py: Python<'_>, name: &str, folder: PathBuf) -> PyResult<u64> {
        self.load(py, name, AdapterSource::Folder(folder))
    }

    /// Loads an adapter of these tensors, which are given up in any case. `config`: the fields of adapter_config.json,
    /// as JSON.
    fn load_adapter_tensors(&self, py: Python<'_>, name: &str, config: &str, tensors: &Tensors) -> PyResult<u64> {
        let tensors = Arc::new(tensors.take());
        let config = serde_json::from_str(config);
        let config = config.map_err(|error| PyValueError::new_err(format!("config: expected JSON, found {error}")))?;
        self.load(py, name, AdapterSource::Tensors { config, tensors })
    }

    /// Removes an adapter.
    fn unload_adapter(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let handle = self.handle()?;
        py.detach(|| handle.unload_adapter(name)).or_raise()
    }

    /// The adapters that are loaded: name, version, rank, and the folder that each was read from.
    fn adapters(&self) -> PyResult<Vec<(String, u64, usize, String)>> {
        let shown = |LoadedAdapter { name, version, rank, folder, .. }: LoadedAdapter| {
            let path = folder.map_or_else(|| "tensors in memory".to_owned(), |folder| folder.display().to_string());
            (name, version.0, rank, path)
        };
        Ok(self.handle()?.adapters().into_iter().map(shown).collect())
    }

    /// The version of the weights in force, and its label.
    fn weights(&self) -> PyResult<(u64, String)> {
        Ok(said(self.handle()?.weights()))
    }

    /// Names the weights in force.
    fn set_label(&self, py: Python<'_>, label: String) -> PyResult<()> {
        let handle = self.handle()?;
        py.detach(|| handle.set_label(label)).map(drop).or_raise()
    }

    /// Pauses: what is in progress ends with what it has (abort), goes on to its end (wait) or stands still (keep).
    fn pause(&self, py: Python<'_>, mode: &str) -> PyResult<()> {
        let (handle, mode) = (self.handle()?, word("mode", &PauseMode::WORDS, mode)?);
        py.detach(|| handle.pause(mode)).or_raise()
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        let handle = self.handle()?;
        py.detach(|| handle.resume()).or_raise()
    }

    fn is_paused(&self) -> PyResult<bool> {
        Ok(self.handle()?.is_paused())
    }

    /// Pauses, and gives memory back: what a sleep of this level gives back of what the tags name; all of it without
    /// tags.
    #[pyo3(signature = (level, mode, tags=None))]
    fn sleep(&self, py: Python<'_>, level: usize, mode: &str, tags: Option<Vec<String>>) -> PyResult<()> {
        let (handle, mode) = (self.handle()?, word("mode", &PauseMode::WORDS, mode)?);
        let levels = Sleep::LEVELS;
        let Some(&whole) = levels.get(level) else {
            let error = Error::value("level", format!("at most {}", levels.len() - 1), level.to_string());
            return Err(exception(error));
        };
        let sleep = sleep_tags(tags)?.map_or(whole, |tags| whole.only(tags.parts));
        py.detach(|| handle.sleep(sleep, mode)).or_raise()
    }

    /// Takes memory again that the tags name, or all; with the last part of it, what waits is begun. Whether something
    /// sleeps still.
    #[pyo3(signature = (tags=None))]
    fn wake(&self, py: Python<'_>, tags: Option<Vec<String>>) -> PyResult<bool> {
        let (handle, tags) = (self.handle()?, sleep_tags(tags)?);
        py.detach(|| handle.wake_by(tags)).or_raise()
    }

    /// Whether the memory of weights, and that of keys and values, was given back.
    fn asleep(&self) -> PyResult<(bool, bool)> {
        let asleep = self.handle()?.status().asleep;
        Ok((asleep.weights, asleep.kv))
    }

    /// Ends the engine once nothing uses it any more.
    fn close(&self, py: Python<'_>) {
        let Ok(handle) = self.handle.get() else { return };
        let closed = handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle waits for the step in progress.
        py.detach(|| drop(closed));
    }

    /// Refuses a form that cannot be compiled, or that no text of the model has. `argument`: what an error calls it.
    fn check_form(&self, py: Python<'_>, form: &NativeForm, argument: &str) -> PyResult<()> {
        let handle = self.handle()?;
        let compiled = py.detach(|| handle.compile_form(&form.0));
        compiled.map(drop).map_err(|error| {
            exception(match error {
                Error::Value { expected, found, .. } => Error::value(argument, expected, found),
                other => other,
            })
        })
    }

    /// Begins to sample prompts. `stream`: whether tokens are heard of, too.
    #[pyo3(signature = (requests, *, stream=false))]
    fn generate(&self, py: Python<'_>, requests: Vec<Py<Request>>, stream: bool) -> PyResult<Generation> {
        let handle = self.ready()?;
        let requests = requests.into_iter().map(OwnedRequest::new).collect();
        Ok(py.detach(|| Generation::new(&handle, requests, stream)))
    }

    /// Scores samples as if they were drawn again, all in one batch.
    fn rescore(&self, py: Python<'_>, samples: Vec<DrawnSample>) -> PyResult<Vec<Py<NativeFinish>>> {
        let handle = self.ready()?;
        let mut scored = Scored { handle: &handle, branches: Vec::with_capacity(samples.len()) };
        let mut extends = Vec::with_capacity(samples.len());
        for (prompt, tokens, sampling, adapter) in samples {
            let place = RootOptions { adapter: adapter.map(AdapterVersion), ..RootOptions::default() };
            let branch = handle.root_with(token_ids(prompt), place).or_raise()?;
            scored.branches.push(branch);
            let Sampling { params, stop, .. } = sampling.get();
            extends.push(Extend::given_as_sampled(branch, token_ids(tokens), params, stop));
        }
        let mut receiver = handle.receiver(Hear::Finishes);
        receiver.start(extends).or_raise()?;
        let mut finishes: HashMap<BranchId, Finish> = HashMap::new();
        loop {
            match py.detach(|| receiver.poll(PATIENCE)) {
                Poll::Ready(None) => break,
                Poll::Ready(Some(Event::Finished { id, finish })) => drop(finishes.insert(id, finish)),
                Poll::Ready(Some(Event::Failed { error, .. })) => return Err(exception(error)),
                Poll::Ready(Some(Event::Tokens { .. })) | Poll::Pending => {}
            }
            py.check_signals()?;
        }
        let finish = |branch: &BranchId| {
            let finish = finishes.get(branch);
            let finish = finish.ok_or_else(|| exception(Error::Internal("a score is missing".to_owned())))?;
            NativeFinish::new(py, finish)
        };
        scored.branches.iter().map(finish).collect()
    }

    /// Scores continuations of contexts, all in one batch: a finish for each continuation of each context, with `tops`
    /// of the likeliest tokens in each token's place. `adapter`: the version of the one that all are computed with.
    #[pyo3(signature = (contexts, tops, adapter=None))]
    fn score(
        &self,
        py: Python<'_>,
        contexts: Vec<Py<Context>>,
        tops: usize,
        adapter: Option<u64>,
    ) -> PyResult<Vec<Vec<Py<NativeFinish>>>> {
        let options = BeginOptions { adapter: adapter.map(AdapterVersion), ..BeginOptions::default() };
        let mut generator = Generator::new(self.ready()?, Hear::Finishes, Release::EachPrompt);
        let mut finishes: Vec<Vec<Option<Finish>>> =
            contexts.iter().map(|context| context.get().continuations.iter().map(|_| None).collect()).collect();
        let mut begun = 0;
        loop {
            // Without the interpreter's lock; back for Ctrl-C at times.
            let is_done = py.detach(|| -> Result<bool> {
                while begun < contexts.len() && !generator.has_enough() {
                    let Context { tokens: context, continuations } = contexts[begun].get();
                    let request = ChoicesRequest { context, continuations, tops, priority: Priority::default() };
                    generator.begin_choices(begun, &request, options.clone())?;
                    begun += 1;
                }
                match generator.poll(PATIENCE) {
                    Poll::Ready(None) => Ok(begun == contexts.len()),
                    Poll::Ready(Some(Event::Finished { id, finish })) => {
                        finishes[id.prompt][id.sample] = Some(finish);
                        Ok(false)
                    }
                    Poll::Ready(Some(Event::Failed { error, .. })) => Err(error),
                    Poll::Ready(Some(Event::Tokens { .. })) | Poll::Pending => Ok(false),
                }
            });
            if is_done.or_raise()? {
                break;
            }
            py.check_signals()?;
        }
        let whole = |finish: Option<Finish>| {
            let finish = finish.ok_or_else(|| exception(Error::Internal("a score is missing".to_owned())))?;
            NativeFinish::new(py, &finish)
        };
        finishes.into_iter().map(|finishes| finishes.into_iter().map(whole).collect()).collect()
    }
}

/// A version of weights and its label, for Python.
fn said(weights: Weights) -> (u64, String) {
    (weights.version.0, weights.label)
}

/// What these tags name; `None`: there are none.
fn sleep_tags(tags: Option<Vec<String>>) -> PyResult<Option<SleepTags>> {
    tags.map(|tags| SleepTags::of(tags.iter().map(String::as_str))).transpose().or_raise()
}

/// Branches of given tokens that are scored, released at the end.
struct Scored<'h> {
    handle: &'h EngineHandle,
    branches: Vec<BranchId>,
}

impl Drop for Scored<'_> {
    fn drop(&mut self) {
        self.handle.prune(&self.branches);
    }
}

/// Sets the number of threads of the process, once.
pub fn set_threads(threads: Option<usize>) -> Result<()> {
    let Some(threads) = threads else { return Ok(()) };
    if threads == 0 {
        return Err(Error::value("threads", "a number from 1 up", "0"));
    }
    let built = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    match built {
        Ok(()) => Ok(()),
        Err(_) if rayon::current_num_threads() == threads => Ok(()),
        Err(_) => {
            let expected = format!("{}, as this process began with", rayon::current_num_threads());
            Err(Error::value("threads", expected, threads.to_string()))
        }
    }
}
