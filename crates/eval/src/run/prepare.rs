//! Reads a task file and checks the whole run before a model is loaded. `prompts` encodes its prompts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::task::scaffold::{PLAIN_NAME, is_plain_name};
use crate::task::{Item, JudgeChoice, Method, Overrides, OwnQuestion, Task};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{bytes, count};
use offshoot_core::hub;
use offshoot_core::ids::{AdapterVersion, TokenId};
use offshoot_core::out::{self, Stage};
use offshoot_engine::{AdapterLimits, AdapterSource, EngineFacts, EngineHandle, SamplingParams, Stop};
use offshoot_form::{FormCompiler, SampleForm};
use offshoot_model::check::{Facts, facts};
use offshoot_model::{Adapter, ModelFolder};
use offshoot_text::Tokenizer;

use super::assess::RunJudge;
use super::judge::JudgeModel;
use super::options::RunOptions;
use super::prompts::{
    ContextLimit, ItemPrompt, PromptEncoder, PromptText, every_item_counts, in_token_order, with_advice,
};
use super::scorer::RunScorer;
use offshoot_core::setting::{LIMIT, MODEL, OUT};
use offshoot_launch::{
    Demand, Launch, Launched, ModelSource, MoreTokens, OutputTokens, SecondFolder, beside_second, check_path,
};

/// Maximum samples of one item: far above any practical number, and low enough for memory.
const MOST_SAMPLES: u32 = 1_000_000;

/// What a run's adapter is called in its engine.
const ADAPTER: &str = "the task's";

/// Maximum number of threads. A waiting thread reserves addresses for its stack, but memory only for the pages it has
/// touched.
const MOST_THREADS: usize = 2048;

/// A run, checked as far as possible without a model in memory.
pub struct PreparedRun {
    pub task: Task,
    pub model: PathBuf,
    pub folder: ModelFolder,
    /// What all samples are drawn with, beside the model.
    pub adapter: Option<RunAdapter>,
    /// What scores solutions; `None`: the method asks for no scores, or nothing names a scorer.
    pub scorer: Option<RunScorer>,
    /// Who answers the questions of the task's verdicts; `None`: it has none.
    pub judge: Option<JudgeModel>,
    /// The one of both that is loaded beside the model.
    second: Option<SecondFolder>,
    pub facts: Facts,
    pub tokenizer: Arc<Tokenizer>,
    /// The task's sampling section in the engine's terms.
    pub params: SamplingParams,
    pub stop: Stop,
    /// `None`: the task has no judge, or it is a dry run.
    pub judging: Option<RunJudge>,
    pub items: Vec<Item>,
    /// By `Item::index`.
    pub texts: HashMap<usize, PromptText>,
    /// The longest sequence of its engine.
    pub context: ContextLimit,
    /// Whether items that exceed the context fail alone, when they are encoded.
    pub skip_too_long: bool,
}

/// The adapter of a run, which fits its model.
pub struct RunAdapter {
    pub path: PathBuf,
    /// The largest rank of its modules.
    pub rank: usize,
    read: Arc<Adapter>,
}

impl RunAdapter {
    fn open(path: &Path, folder: &ModelFolder) -> Result<Self> {
        let adapter = Adapter::open(path)?;
        adapter.check(&folder.config)?;
        Ok(RunAdapter { path: path.to_path_buf(), rank: adapter.rank(), read: Arc::new(adapter) })
    }
}

/// A task whose prompts are rendered as text. Only the model's configuration and tokenizer have been read.
pub struct RenderedTask {
    pub task: Task,
    pub model: PathBuf,
    pub folder: ModelFolder,
    pub tokenizer: Arc<Tokenizer>,
    pub params: SamplingParams,
    pub stop: Stop,
    pub items: Vec<Item>,
    /// By `Item::index`.
    pub texts: HashMap<usize, PromptText>,
}

impl RenderedTask {
    /// The first `limit` items of the task in `path`.
    pub fn new(path: &Path, overrides: &Overrides, limit: Option<usize>) -> Result<Self> {
        let (task, model, folder) = open(path, overrides)?;
        let is_own = matches!(task.judge.by, JudgeChoice::Own);
        Self::of(task, model, folder, limit, is_own)
    }

    /// `is_own`: whether the model is the judge, too.
    fn of(task: Task, model: PathBuf, folder: ModelFolder, limit: Option<usize>, is_own: bool) -> Result<Self> {
        if limit == Some(0) {
            return Err(Error::value(LIMIT, "a number from 1 up", "0"));
        }
        let tokenizer = Arc::new(Tokenizer::load(&model)?);
        let vocab = folder.config.vocab;
        let in_file = |error| in_task_file(&task.path, error);
        let (params, stop) = how_to_sample(&task, &tokenizer).map_err(in_file)?;
        let eos = &folder.config.eos;
        params.check(vocab).and_then(|()| stop.check_beside(&params, vocab, eos)).map_err(in_file)?;
        check_form(&task, &tokenizer, &folder)?;
        let items = task.items(limit)?;
        if items.is_empty() {
            return Err(Error::field(task.items_path(), "items", "at least one item", "none"));
        }
        let stage = Stage::new("prompts", items.len());
        let text = |item: &Item| {
            let text = PromptText::of(&task, item, &tokenizer, is_own)?;
            stage.step();
            Ok((item.index, text))
        };
        let texts: HashMap<usize, PromptText> = items.iter().map(text).collect::<Result<_>>()?;
        drop(stage);
        let mut keys = texts.values().map(|text| &text.key);
        let is_one = keys.next().is_some_and(|first| keys.all(|key| key == first));
        if is_one && items.len() > 1 && !matches!(task.method, Method::Choose(_)) {
            out::aside(format_args!(
                "note: all {} items have the same prompt, because the prompt of {} uses no field in which they differ \
                 ({{{{question}}}} is the item's field `question`)",
                items.len(),
                task.path.display()
            ));
        }
        if let Some(window) = task.unfilled_window() {
            let (window, most) = (count(window as u64), count(task.sampling.max_tokens.into()));
            out::aside(format_args!(
                "warning: no sample of {} ends by low confidence: `confidence.window` is {window} tokens, and \
                 `max_tokens` {most}",
                task.path.display()
            ));
        }
        Ok(Self { task, model, folder, tokenizer, params, stop, items, texts })
    }

    /// Encodes all prompts, in the order of the items. Those that cannot be encoded are left out with a warning.
    ///
    /// # Errors
    ///
    /// A prompt is too long, or no prompt can be encoded.
    pub fn encode_all(&self) -> Result<Vec<ItemPrompt<'_>>> {
        let context = ContextLimit::new(&self.folder, None);
        let is_own = matches!(self.task.judge.by, JudgeChoice::Own);
        let mut encoder = PromptEncoder::new(&self.task, &self.folder, &self.tokenizer, context, is_own);
        let stage = Stage::new("prompts in tokens", self.items.len());
        let (prompts, left_out) =
            sound(self.items.iter().map(|item| encoder.encode(item)).inspect(|_| stage.step()), false)
                .map_err(|error| every_item_counts(&self.task, error))?;
        left_out.iter().for_each(|error| log::warn!("left out: {error}"));
        Ok(prompts)
    }
}

impl PreparedRun {
    pub fn new(path: &Path, options: &RunOptions) -> Result<Self> {
        options.engine.budget.check()?;
        let (task, model, folder) = open(path, &options.overrides)?;
        let folder = folder.with(options.engine.budget.weights)?;
        check_name(&task, options)?;
        let adapter = task.adapter.as_deref().map(|path| RunAdapter::open(path, &folder)).transpose()?;
        let scorer = RunScorer::open(&task, options.scorer.as_ref())?;
        let judge = JudgeModel::open(&task, &options.asked_judge, &model)?;
        let is_own = judge.as_ref().is_some_and(JudgeModel::is_own);
        let folder_of_judge = judge.as_ref().and_then(JudgeModel::folder).cloned();
        let second = SecondFolder::one_of(scorer.as_ref().map(|scorer| scorer.folder.clone()), folder_of_judge)?;
        let facts = facts(&folder)?;
        let RenderedTask { task, model, folder, tokenizer, params, stop, items, texts } =
            RenderedTask::of(task, model, folder, options.limit, is_own)?;
        if let Some(judge) = &judge {
            judge.check(&task, &items[0], &tokenizer, &folder)?;
        }
        let context = ContextLimit::new(&folder, options.engine.budget.context);
        let skip_too_long = options.skip_too_long;
        PromptEncoder::new(&task, &folder, &tokenizer, context, is_own).check(&items, &texts, skip_too_long)?;
        let judging = match options.dry_run {
            true => None,
            false => RunJudge::open(&task, &items, &options.judge, options.out.as_slice(), options.judges)?,
        };
        let prepared = Self {
            judging,
            task,
            model,
            folder,
            adapter,
            scorer,
            judge,
            second,
            facts,
            tokenizer,
            params,
            stop,
            items,
            texts,
            context,
            skip_too_long,
        };
        let all: usize = prepared.texts.values().map(|text| text.bytes).sum();
        log::info!("prepared {} prompts: {} of text", prepared.items.len(), bytes(all as u64));
        Ok(prepared)
    }

    pub fn encoder(&self) -> PromptEncoder<'_> {
        PromptEncoder::new(&self.task, &self.folder, &self.tokenizer, self.context, self.is_own_judge())
    }

    /// Whether the run's own model answers the questions of its verdicts.
    fn is_own_judge(&self) -> bool {
        self.judge.as_ref().is_some_and(JudgeModel::is_own)
    }

    /// What the model is asked about solutions, in its own batch.
    pub fn own_question(&self) -> Option<OwnQuestion<'_>> {
        self.task.own_question(self.is_own_judge())
    }

    /// Whether a judge is asked, beside what the model is asked in its own batch.
    pub fn asks_judge(&self) -> bool {
        let [of_method, of_grade] = self.task.verdicts();
        of_grade.is_some() || (of_method.is_some() && self.own_question().is_none())
    }

    /// Whether a sample's line may be written again, with a score or a grade.
    pub fn writes_again(&self) -> bool {
        self.scores_late() || self.task.graded_by_judge().is_some()
    }

    /// Whether samples are recorded before they have their scores.
    pub fn scores_late(&self) -> bool {
        self.task.method.sample_scorer().is_some() && self.own_question().is_none()
    }

    /// Encodes all prompts; those that share a prefix follow each other. Also returns the errors of items that are left
    /// out.
    pub fn encode_all(&self) -> Result<(Vec<ItemPrompt<'_>>, Vec<Error>)> {
        let mut encoder = self.encoder();
        let stage = Stage::new("prompts in tokens", self.items.len());
        let encoded = self.items.iter().map(|item| encoder.encode(item)).inspect(|_| stage.step());
        let (prompts, left_out) = sound(encoded, self.skip_too_long).map_err(|error| with_advice(&self.task, error))?;
        Ok((in_token_order(prompts), left_out))
    }

    /// Maximum KV tokens that the run can use: all prompts, and the samples of `in_flight` items at full length, each
    /// in its own pages.
    fn most_kv_tokens(&self, in_flight: usize, page_tokens: usize) -> usize {
        let longest = self.own_tokens() + 2 * page_tokens;
        let samples = in_flight * self.task.method.samples() as usize * longest;
        let context = self.context.tokens;
        let prompts: usize = self.texts.values().map(|text| text.most_tokens().min(context)).sum();
        prompts + 2 * page_tokens * self.items.len() + samples
    }

    /// Most tokens of a prompt with one sample.
    fn longest_path(&self) -> usize {
        let longest = self.texts.values().map(PromptText::most_tokens).max().unwrap_or(0);
        (longest + self.own_tokens()).min(self.context.tokens)
    }

    /// Number of items worked on at once: enough to fill the engine's branches with their samples, and some more, so
    /// that a sample always waits to start.
    pub fn in_flight(&self, branches: usize) -> usize {
        let samples = self.task.method.samples_at_once() as usize;
        let full = branches.div_ceil(samples);
        (full + full.div_ceil(8)).min(self.items.len()).min(MOST_THREADS)
    }

    /// How samples behind this prompt are drawn: their form begins where their content does.
    pub fn params_behind(&self, prompt: &ItemPrompt<'_>) -> SamplingParams {
        let form = self.params.form.clone();
        let form = form.map(|form| SampleForm { begin: prompt.content.into(), ..form });
        SamplingParams { form, ..self.params.clone() }
    }

    /// The inputs for this run's engine. KV memory is unbounded if the method generates prompts during the search.
    pub fn launch(&self, options: &RunOptions) -> Launch<'_> {
        let asks = self.task.method.asks() || self.is_own_judge();
        let tokens = move |branches, page_tokens| match asks {
            true => usize::MAX,
            false => self.most_kv_tokens(self.in_flight(branches), page_tokens),
        };
        // Questions run beside the samples, and there are more of them.
        let samples = match self.asks_judge() && self.is_own_judge() {
            true => usize::MAX,
            false => self.items.len() * self.task.method.samples() as usize,
        };
        let model = ModelSource::folder_of(&self.folder, self.facts.dtype);
        let mut engine = options.engine.clone();
        if let Some(RunAdapter { rank, .. }) = self.adapter {
            engine.budget.adapters = AdapterLimits { most: 1, rank };
        }
        let demand = Demand::new(samples, tokens).with_longest(self.longest_path());
        engine.launch(model, Some(&self.tokenizer), demand).beside(self.second.clone())
    }

    /// Starts the engine of this run, with its adapter and the model beside it.
    pub fn start(&self, options: &RunOptions) -> Result<Launched> {
        let launched = self.launch(options).start()?;
        if let Some(RunAdapter { read, .. }) = &self.adapter {
            launched.engine.load_adapter(ADAPTER, AdapterSource::Read(read.clone()))?;
        }
        Ok(launched)
    }

    /// The adapter of this run in its engine.
    pub fn adapter_in(&self, engine: &EngineHandle) -> Result<Option<AdapterVersion>> {
        self.adapter.as_ref().map(|_| engine.adapter(ADAPTER).map(|adapter| adapter.version)).transpose()
    }

    /// Refuses the run if the prompt with the longest text, with one sample, does not fit into KV memory even alone.
    /// Others are checked when they are encoded.
    ///
    /// `done`: whether the item with this index is already finished.
    pub fn check_longest_path(&self, facts: &EngineFacts, done: impl Fn(usize) -> bool) -> Result<()> {
        let left = self.items.iter().filter(|item| !done(item.index));
        let Some(longest) = left.max_by_key(|item| self.texts[&item.index].bytes) else { return Ok(()) };
        // The number of bytes bounds the number of tokens, usually well enough.
        let most = self.texts[&longest.index].most_tokens();
        if most < facts.context
            && facts.path_pages(most, 1 + self.own_tokens().min(facts.context - most)) <= facts.pool_pages
        {
            return Ok(());
        }
        match self.encoder().encode(longest) {
            Ok(prompt) => self.check_path(facts, &prompt),
            Err(error) if error.is_too_long() && !self.skip_too_long => Err(with_advice(&self.task, error)),
            // It is the item's own error.
            Err(_) => Ok(()),
        }
    }

    /// Refuses a prompt that, with one sample of maximum length or the longest offered answer, does not fit into KV
    /// memory even alone.
    pub fn check_path(&self, facts: &EngineFacts, prompt: &ItemPrompt<'_>) -> Result<()> {
        let more = self.more_tokens(facts.context, prompt);
        let what = || format!("the prompt of item `{}`", prompt.item.id);
        let checked = check_path(facts, what, prompt.tokens().len(), more);
        match &self.second {
            Some(second) => checked.map_err(|error| beside_second(error, second.kind())),
            None => checked,
        }
    }

    /// Most tokens after a prompt, of one sample or of the longest offered answer.
    pub fn more_tokens(&self, context: usize, prompt: &ItemPrompt<'_>) -> MoreTokens {
        let fits = |tokens: usize| tokens.min(context - prompt.tokens().len());
        match prompt.choices.iter().map(|choice| choice.tokens.len()).max() {
            Some(longest) => MoreTokens::Scored(fits(longest)),
            None => MoreTokens::Sampled(fits(self.own_tokens())),
        }
    }

    /// The output tokens of the samples of one item.
    pub fn draws(&self) -> OutputTokens {
        let samples = u64::from(self.task.method.samples());
        let is_exact = self.stop.is_exact() && self.task.method.warm_up().is_none();
        OutputTokens { most: samples * self.own_tokens() as u64, is_exact }
    }

    /// Maximum tokens that one sample adds to its prompt.
    pub fn own_tokens(&self) -> usize {
        (self.task.sampling.max_tokens as usize).min(self.context.tokens)
    }
}

/// The prompts that were encoded, and the errors of the others.
///
/// # Errors
///
/// A prompt is too long, unless those are skipped; no prompt was encoded.
fn sound<'i>(
    encoded: impl Iterator<Item = Result<ItemPrompt<'i>>>,
    skip_too_long: bool,
) -> Result<(Vec<ItemPrompt<'i>>, Vec<Error>)> {
    let (mut prompts, mut left_out) = (Vec::new(), Vec::new());
    for prompt in encoded {
        match prompt {
            Ok(prompt) => prompts.push(prompt),
            Err(error) if error.is_too_long() && !skip_too_long => return Err(error),
            Err(error) => left_out.push(error),
        }
    }
    match left_out.pop_if(|_| prompts.is_empty()) {
        Some(error) => Err(error),
        None => Ok((prompts, left_out)),
    }
}

/// Opens a task and its model.
fn open(path: &Path, overrides: &Overrides) -> Result<(Task, PathBuf, ModelFolder)> {
    let task = Task::load(path, overrides)?;
    let samples = task.method.samples();
    if samples > MOST_SAMPLES {
        let expected = format!("at most {}", count(MOST_SAMPLES.into()));
        let field = format!("method.{}.samples", task.method.name());
        return Err(Error::field(&task.path, field, expected, samples.to_string()));
    }
    let Some(model) = task.model.clone() else {
        let expected = format!("a model folder here or by {MODEL}");
        return Err(Error::field(path, "model", expected, "nothing (the key is missing)"));
    };
    let typed = task.source.get("model").and_then(Value::as_str).filter(|_| overrides.model.is_none());
    if let Some(typed) = typed.filter(|_| !model.exists()) {
        return Err(Error::format(&model, hub::no_folder(Path::new(typed))));
    }
    let folder = ModelFolder::open(&model)?;
    Ok((task, model, folder))
}

/// The checks on a task that only a run needs.
fn check_name(task: &Task, options: &RunOptions) -> Result<()> {
    if options.out.is_none() && !is_plain_name(&task.name) {
        let expected = format!("{PLAIN_NAME}, because it names the folder of results (or give {OUT})");
        return Err(Error::field(&task.path, "name", expected, format!("\"{}\"", task.name)));
    }
    Ok(())
}

/// Refuses a form that the model's tokens cannot keep, before a model is loaded: the engine compiles it again.
fn check_form(task: &Task, tokenizer: &Arc<Tokenizer>, folder: &ModelFolder) -> Result<()> {
    let (Some(form), Some(settings)) = (&task.form, &task.sampling.form) else { return Ok(()) };
    let compiler = FormCompiler::new(tokenizer.clone(), folder.config.eos.clone(), folder.config.vocab);
    compiler.compile(form).map(drop).map_err(|error| match error {
        Error::Value { expected, found, .. } => Error::field(&task.path, settings.key(), expected, found),
        other => other,
    })
}

/// Adds the file and the key of the parameter to an engine's error about it.
fn in_task_file(path: &Path, error: Error) -> Error {
    let Error::Value { what, expected, found } = error else { return error };
    let key = match what.as_str() {
        "stop tokens" => "stop_token_ids",
        "stop strings" => "stop",
        same => same,
    };
    Error::field(path, format!("sampling.{key}"), expected, found)
}

/// A task's sampling section in the engine's terms. Its form begins at once: where it does behind a prompt is
/// [`PreparedRun::params_behind`]'s to say.
fn how_to_sample(task: &Task, tokenizer: &Tokenizer) -> Result<(SamplingParams, Stop)> {
    let sampling = &task.sampling;
    let bad_words: Vec<_> = sampling.bad_words.iter().map(|word| tokenizer.spellings(word)).collect::<Result<_>>()?;
    let params = SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        logit_bias: sampling.logit_bias.iter().map(|&(id, bias)| (TokenId(id), bias)).collect(),
        allowed: sampling.allowed_token_ids.as_ref().map(|ids| ids.iter().map(|&id| TokenId(id)).collect()),
        form: task.form.clone().map(SampleForm::shared),
        bad_words: bad_words.concat(),
        top_logprobs: sampling.logprobs.map(|most| most as usize),
        logprobs_mode: sampling.logprobs_mode(),
        records: sampling.records(),
        // Results have no place for them.
        routes: false,
    };
    let stop = Stop {
        max_tokens: sampling.max_tokens as usize,
        min_tokens: sampling.min_tokens as usize,
        strings: sampling.stop.clone(),
        tokens: sampling.stop_token_ids.iter().map(|&id| TokenId(id)).collect(),
        ignore_eos: sampling.ignore_eos,
        include_stop: sampling.include_stop,
        show_special: false,
        confidence: None,
    };
    Ok((params, stop))
}
