//! Turns a task file into prompts in tokens, and checks the whole run before a model is loaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::{EngineFacts, SamplingParams, Stop};
use crate::error::{Error, Result};
use crate::eval::task::choose::OfferedAnswer;
use crate::eval::task::scaffold::{PLAIN_NAME, is_plain_name};
use crate::eval::task::{Choose, Method, TaskPrompt};
use crate::eval::task::{Item, Overrides, Sampling, Task};
use crate::figures::count;
use crate::ids::TokenId;
use crate::kv::PromptTree;
use crate::model::ModelFolder;
use crate::model::check::{Facts, facts};
use crate::search::choose::{Neutral, OfferedChoice};
use crate::tokenizer::{AddSpecial, LevelTokens, SharedEncoder, Tokenizer};

use super::assess::RunJudge;
use super::drive::question_of;
use super::{RunOptions, worker};
use crate::launch::{Demand, Launch, ModelSource, OutputTokens, check_path};

/// The most samples of one item: far above any practical number, and well below what memory holds.
const MOST_SAMPLES: u32 = 1_000_000;

/// A run with its prompts in tokens, ready for the engine.
pub struct PreparedRun {
    pub task: Task,
    pub model: PathBuf,
    pub folder: ModelFolder,
    pub facts: Facts,
    pub tokenizer: Arc<Tokenizer>,
    /// The task's sampling section in the engine's terms.
    pub params: SamplingParams,
    pub stop: Stop,
    /// `None`: nothing is judged, or nothing is run.
    pub judging: Option<RunJudge>,
    /// In the order in which they are run: by tokens, so that prompts which share a prefix follow each other.
    pub prompts: Vec<ItemPrompt>,
}

/// One item and its prompt.
pub struct ItemPrompt {
    pub item: Item,
    pub text: String,
    pub levels: LevelTokens,
    /// The offered answers, for the method `choose`. The prompt then ends before the first token that a choice could
    /// change.
    pub choices: Vec<OfferedChoice>,
}

/// A task and its prompts in tokens. Of the model's folder only configuration and tokenizer have been read.
pub struct RenderedTask {
    pub task: Task,
    pub model: PathBuf,
    pub folder: ModelFolder,
    pub tokenizer: Arc<Tokenizer>,
    pub params: SamplingParams,
    pub stop: Stop,
    /// In the order of the items.
    pub prompts: Vec<ItemPrompt>,
}

impl RenderedTask {
    /// The first `limit` items of the task in `path`.
    pub fn new(path: &Path, overrides: &Overrides, limit: Option<usize>) -> Result<Self> {
        let (task, model, folder) = open(path, overrides)?;
        Self::of(task, model, folder, limit)
    }

    fn of(task: Task, model: PathBuf, folder: ModelFolder, limit: Option<usize>) -> Result<Self> {
        if limit == Some(0) {
            return Err(Error::value("--limit", "a number from 1 up", "0"));
        }
        let tokenizer = Arc::new(Tokenizer::load(&model)?);
        let vocab = folder.config.vocab;
        let (params, stop) = how_to_sample(&task.sampling);
        params.check(vocab).and_then(|()| stop.check(vocab)).map_err(|error| in_task_file(&task.path, error))?;
        let mut prompts = Vec::new();
        let mut encoder = SharedEncoder::new(&tokenizer);
        let mut asking = SharedEncoder::new(&tokenizer);
        for item in task.items(limit)? {
            check_question(&task, &item, &mut asking, &folder)?;
            prompts.push(ItemPrompt::new(&task, item, &mut encoder, &folder)?);
        }
        if prompts.is_empty() {
            return Err(Error::field(task.items_path(), "items", "at least one item", "none"));
        }
        Ok(Self { task, model, folder, tokenizer, params, stop, prompts })
    }
}

impl PreparedRun {
    pub fn new(path: &Path, options: &RunOptions) -> Result<Self> {
        let overrides = Overrides {
            set: options.set.clone(),
            samples: options.samples,
            seed: options.seed,
            model: options.model.clone(),
        };
        options.budget.check()?;
        let (task, model, folder) = open(path, &overrides)?;
        check_name(&task, options)?;
        let facts = facts(&folder)?;
        let RenderedTask { task, model, folder, tokenizer, params, stop, prompts } =
            RenderedTask::of(task, model, folder, options.limit)?;
        let prompts = in_token_order(prompts);
        let items = prompts.iter().map(|prompt: &ItemPrompt| &prompt.item);
        let judging =
            if options.dry_run { None } else { RunJudge::open(&task, items, options.isolation, options.judges)? };
        let prepared = Self { judging, task, model, folder, facts, tokenizer, params, stop, prompts };
        let (all, distinct) = (prepared.prompt_tokens(), prepared.distinct_tokens());
        log::info!("prepared {} prompts: {all} tokens, {distinct} of them distinct", prepared.prompts.len());
        Ok(prepared)
    }

    /// Tokens of the prefix tree of all prompts: each shared run counted once.
    pub fn distinct_tokens(&self) -> usize {
        let tree = PromptTree::new(self.prompts.as_slice());
        usize::try_from(tree.distinct_tokens()).expect("no more than the tokens in memory")
    }

    /// The most KV tokens that the run can use: all prompts, and the samples of `in_flight` items at full length, each
    /// in pages of its own.
    fn most_kv_tokens(&self, in_flight: usize, page_tokens: usize) -> usize {
        let longest = self.own_tokens() + 2 * page_tokens;
        let samples = in_flight * self.task.method.samples() as usize * longest;
        self.prompt_tokens() + 2 * page_tokens * self.prompts.len() + samples
    }

    /// The order for the engine of this run. It has no bound on KV memory where the method generates prompts during the
    /// search.
    pub fn launch(&self, options: &RunOptions) -> Launch<'_> {
        let tokens = |branches, page_tokens| match self.task.method.asks() {
            true => usize::MAX,
            false => self.most_kv_tokens(worker::in_flight(self, branches), page_tokens),
        };
        let samples = self.prompts.len() * self.task.method.samples() as usize;
        Launch {
            model: ModelSource::folder_of(&self.folder, self.facts.weights),
            tokenizer: Some(self.tokenizer.clone()),
            device: options.device,
            budget: options.budget,
            planner: options.plan.unwrap_or_default(),
            demand: Demand::new(samples, tokens),
        }
    }

    /// Refuses the run before it starts where its longest path does not fit in KV memory even alone. The longest path
    /// is a prompt with the most tokens of one sample, or with the longest offered answer.
    ///
    /// `done`: whether the item of an index is finished already.
    pub fn check_paths(&self, facts: &EngineFacts, done: impl Fn(usize) -> bool) -> Result<()> {
        let path = |prompt: &ItemPrompt| {
            let given = prompt.tokens().len();
            let drawn = prompt.choices.iter().map(|choice| choice.tokens.len()).max().unwrap_or(self.own_tokens());
            (given, drawn.min(facts.context - given))
        };
        let left = self.prompts.iter().filter(|prompt| !done(prompt.item.index));
        let longest = left.max_by_key(|prompt| {
            let (given, drawn) = path(prompt);
            facts.path_pages(given, drawn)
        });
        let Some(longest) = longest else { return Ok(()) };
        let (given, drawn) = path(longest);
        check_path(facts, || format!("the prompt of item `{}`", longest.item.id), given, drawn)
    }

    /// What the samples of each of `prompts` may draw.
    pub fn draws(&self, prompts: &[ItemPrompt]) -> Vec<OutputTokens> {
        let (samples, is_exact) = (u64::from(self.task.method.samples()), self.stop.is_exact());
        let most = |prompt: &ItemPrompt| self.own_tokens().min(self.folder.config.context - prompt.tokens().len());
        prompts.iter().map(|prompt| OutputTokens { most: samples * most(prompt) as u64, is_exact }).collect()
    }

    /// Most tokens that one sample adds to its prompt.
    pub fn own_tokens(&self) -> usize {
        (self.task.sampling.max_tokens as usize).min(self.folder.config.context)
    }

    /// Tokens of all prompts, each counted in full.
    pub fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens().len()).sum()
    }
}

impl ItemPrompt {
    fn new(task: &Task, item: Item, encoder: &mut SharedEncoder, model: &ModelFolder) -> Result<Self> {
        let prompt = task.prompt(&item)?;
        task.method.check_item(&item)?;
        let text = prompt.text(encoder.tokenizer())?;
        let (levels, choices) = match &task.method {
            Method::Choose(choose) => offered(choose, &prompt, &item, encoder)?,
            _ => (prompt.encode_shared(encoder)?, Vec::new()),
        };
        let longest = choices.iter().map(|choice| choice.tokens.len()).max();
        check_fits(model, || about("the prompt", task, &item), &levels.tokens, longest)?;
        Ok(Self { item, text, levels, choices })
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.levels.tokens
    }
}

impl AsRef<[TokenId]> for ItemPrompt {
    fn as_ref(&self) -> &[TokenId] {
        self.tokens()
    }
}

/// Prompts that share a prefix follow each other; equal ones keep the order of the items.
fn in_token_order(prompts: Vec<ItemPrompt>) -> Vec<ItemPrompt> {
    let tree = PromptTree::new(prompts.as_slice());
    let mut prompts: Vec<Option<ItemPrompt>> = prompts.into_iter().map(Some).collect();
    let next = |prompt: u32| prompts[prompt as usize].take().expect("each prompt has one place in the order");
    tree.sorted().iter().map(|sorted| sorted.prompt).map(next).collect()
}

fn about(what: &str, task: &Task, item: &Item) -> String {
    format!("{what} of item `{}` of {}", item.id, task.items_path().display())
}

/// Whether the model can read a prompt and what follows it: a sample's first token, or continuations of so many tokens
/// at most.
fn check_fits(
    model: &ModelFolder,
    what: impl Fn() -> String,
    tokens: &[TokenId],
    longest: Option<usize>,
) -> Result<()> {
    let (context, vocab) = (model.config.context, model.config.vocab);
    let needed = tokens.len() + longest.unwrap_or(1);
    if needed > context {
        return Err(Error::ContextTooLong { what: what(), tokens: longest.map_or(tokens.len(), |_| needed), context });
    }
    let Some(token) = tokens.iter().find(|token| token.ix() >= vocab) else { return Ok(()) };
    let expected = format!("tokens below the model's vocabulary of {vocab} (config.json)");
    Err(Error::field(&model.path, "tokenizer", expected, format!("token {token} in {}", what())))
}

/// Renders the question of the method's scorer, if it has one, for an empty solution of `item`: an error in it would
/// occur for every solution.
fn check_question(task: &Task, item: &Item, encoder: &mut SharedEncoder, model: &ModelFolder) -> Result<()> {
    let Some(verdicts) = task.method.verdicts() else { return Ok(()) };
    let question = question_of(verdicts, item, "", encoder)?;
    let longest = question.words.iter().map(Vec::len).max();
    check_fits(model, || about("the scorer's prompt", task, item), &question.prompt, longest)
}

/// The answers that are offered for an item, in tokens, and the tokens of the prompt before them.
fn offered(
    choose: &Choose,
    prompt: &TaskPrompt,
    item: &Item,
    encoder: &mut SharedEncoder,
) -> Result<(LevelTokens, Vec<OfferedChoice>)> {
    let offers = choose.offers(item)?;
    let texts: Vec<String> = offers.iter().map(|offer| offer.text.clone()).collect();
    let encoded = prompt.encode_choices_shared(encoder, &texts)?;
    let mut neutral = match &choose.neutral {
        Some(text) => {
            let encoded = encoder.encode_choices(std::slice::from_ref(text), &texts, AddSpecial::Yes)?;
            let prompt = encoded.prompt.tokens;
            encoded.continuations.into_iter().map(|tokens| Neutral { prompt: prompt.clone(), tokens }).collect()
        }
        None => Vec::new(),
    }
    .into_iter();
    let choice =
        |(OfferedAnswer { label, bytes, .. }, tokens)| OfferedChoice { label, bytes, tokens, neutral: neutral.next() };
    let choices = offers.into_iter().zip(encoded.continuations).map(choice).collect();
    Ok((encoded.prompt, choices))
}

/// A task and the model that it is for.
fn open(path: &Path, overrides: &Overrides) -> Result<(Task, PathBuf, ModelFolder)> {
    let task = Task::load(path, overrides)?;
    let samples = task.method.samples();
    if samples > MOST_SAMPLES {
        let expected = format!("at most {}", count(MOST_SAMPLES.into()));
        let field = format!("method.{}.samples", task.method.name());
        return Err(Error::field(&task.path, field, expected, samples.to_string()));
    }
    let Some(model) = task.model.clone() else {
        let expected = "a model folder here or by --model";
        return Err(Error::field(path, "model", expected, "nothing (the key is missing)"));
    };
    let folder = ModelFolder::open(&model)?;
    Ok((task, model, folder))
}

/// The checks on a task that only a run needs.
fn check_name(task: &Task, options: &RunOptions) -> Result<()> {
    if options.out.is_none() && !is_plain_name(&task.name) {
        let expected = format!("{PLAIN_NAME}, for it names the folder of results (or give --out)");
        return Err(Error::field(&task.path, "name", expected, format!("\"{}\"", task.name)));
    }
    Ok(())
}

/// An error of the engine about a parameter, with the file and the key of the parameter.
fn in_task_file(path: &Path, error: Error) -> Error {
    let Error::Value { what, expected, found } = error else { return error };
    let key = match what.as_str() {
        "stop tokens" => "stop_token_ids",
        "stop strings" => "stop",
        same => same,
    };
    Error::field(path, format!("sampling.{key}"), expected, found)
}

/// A task's sampling section in the engine's terms.
fn how_to_sample(sampling: &Sampling) -> (SamplingParams, Stop) {
    let params = SamplingParams {
        temperature: sampling.temperature,
        top_k: sampling.top_k,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        frequency_penalty: sampling.frequency_penalty,
        presence_penalty: sampling.presence_penalty,
        logit_bias: sampling.logit_bias.iter().map(|&(id, bias)| (TokenId(id), bias)).collect(),
        top_logprobs: sampling.logprobs.map(|most| most as usize),
    };
    let stop = Stop {
        max_tokens: sampling.max_tokens as usize,
        min_tokens: sampling.min_tokens as usize,
        strings: sampling.stop.clone(),
        tokens: sampling.stop_token_ids.iter().map(|&id| TokenId(id)).collect(),
        ignore_eos: sampling.ignore_eos,
        include_stop: sampling.include_stop,
    };
    (params, stop)
}
