//! Reads a job from a task file, a file of OpenAI Batch requests, or rows of prompts, together with its model. Only the
//! model's config.json, its tokenizer, and the headers of its weights, if they are there, are read.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::job::{PlannedJob, PromptSamples};
use super::options::PlanOptions;
use super::plan_model::PlanModel;
use super::rows;
use super::rows::{as_u32, expected};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::counted;
use offshoot_core::input::whole;
use offshoot_core::setting::{LIMIT, MODEL, SAMPLES, SET, Setting};
use offshoot_eval::run::RenderedTask;
use offshoot_eval::task::{Method, Overrides};
use offshoot_launch::{ScorerOptions, SecondFolder};
use offshoot_lines::open;
use offshoot_openai::batch;

/// Reads the input and the model named by `options`.
pub fn read(options: &PlanOptions) -> Result<(PlanModel, PlannedJob)> {
    let path = &options.input;
    if path.extension().is_some_and(|extension| extension == "json") {
        return of_task(options);
    }
    if let Some(option) = options.for_tasks_alone() {
        return Err(Error::value(option, "a task file (.json)", path.display().to_string()));
    }
    let Some(model) = &options.model else {
        return Err(Error::value(MODEL, "a model folder or a config.json, for prompts without a task", "nothing"));
    };
    let model = PlanModel::open(model, options.dtype, options.budget.weights)?;
    let bytes = whole(path, open(path)?)?;
    let mut job = match holds_requests(&bytes) {
        true => of_requests(options, &model)?,
        false => rows::read(path, &bytes, &model, options.output_tokens)?,
    };
    job.scorer = options.scorer.as_ref().map(ScorerOptions::open_values).transpose()?;
    job.judged_by(options.judge.clone(), &model.path);
    Ok((model, job))
}

/// Whether the first line that is a JSON object is a Batch request. Invalid lines are left to the reader of request
/// files.
fn holds_requests(bytes: &[u8]) -> bool {
    let lines = rows::texts(bytes).map(|(_, text)| serde_json::from_slice::<Map<String, Value>>(text));
    let first = lines.flatten().next();
    first.is_some_and(|first| ["custom_id", "url", "body"].iter().any(|key| first.contains_key(*key)))
}

/// The prompts of a task, as `offshoot run` renders them.
fn of_task(options: &PlanOptions) -> Result<(PlanModel, PlannedJob)> {
    let (set, model) = (options.set.clone(), options.model.clone());
    let overrides = Overrides { set, samples: options.samples, model, adapter: None };
    let rendered = RenderedTask::new(&options.input, &overrides, options.limit)?;
    let (prompts, RenderedTask { task, folder, .. }) = (rendered.encode_all()?, &rendered);
    let mut job = PlannedJob::default();
    for prompt in &prompts {
        if prompt.tokens().is_empty() {
            return Err(Error::value(format!("the prompt of item `{}`", prompt.item.id), "at least one token", "none"));
        }
        job.prompts.push(prompt.tokens().iter().copied());
        let longest = prompt.choices.iter().map(|choice| choice.tokens.len()).max();
        job.per_prompt.push(match longest {
            Some(longest) => PromptSamples { samples: as_u32(prompt.choices.len()), tokens: as_u32(longest).max(1) },
            None => PromptSamples {
                samples: task.method.samples(),
                tokens: expected(
                    task.sampling.max_tokens,
                    options.output_tokens,
                    folder.config.context,
                    prompt.tokens().len(),
                ),
            },
        });
    }
    let scorer = task.scorer_options(options.scorer.as_ref()).map(|scorer| scorer.open()).transpose()?;
    job.scorer = scorer.map(|scorer| SecondFolder::Scorer(Arc::new(scorer)));
    if let (Some(asked), None) = (&options.scorer, &job.scorer) {
        let (name, path) = (task.method.name(), asked.path.display());
        job.notes.push(format!("{name}: the method asks for no `reward`, and the scorer {path} is not loaded"));
    }
    job.judged_by(task.judge_folder_options(options.judge.as_ref(), &rendered.model), &rendered.model);
    if let (Some(asked), true) = (&options.judge, task.verdicts().iter().all(Option::is_none)) {
        let (name, path) = (task.method.name(), asked.path.display());
        job.notes.push(format!("{name}: neither the method nor `grade` asks a judge, and {path} is not loaded"));
    }
    if job.judge.is_none() && task.verdicts().iter().any(Option::is_some) {
        let what = "its questions and answers are not counted (a dry run of the task says how many there are)";
        job.notes.push(format!("a judge is asked about samples: {what}"));
    }
    if task.method.asks() {
        let what = "prompts generated during the search are unknown and not counted";
        job.notes.push(format!("{}: {what}", task.method.name()));
    }
    if let Some(form) = &task.sampling.form {
        let form = form.described();
        job.notes.push(format!("samples have a form ({form}): they may be shorter, and their masks are not counted"));
    }
    if matches!(task.method, Method::Choose(_)) {
        job.notes.push("choose: every choice counts as a sample as long as the item's longest".to_string());
    }
    Ok((PlanModel::of_folder(folder.clone(), options.dtype, options.budget.weights)?, job))
}

fn of_requests(options: &PlanOptions, model: &PlanModel) -> Result<PlannedJob> {
    let tokenizer = model.tokenizer()?;
    let (asked, refused) = batch::read_prompts(&options.input, &tokenizer, &model.config)?;
    let mut job = PlannedJob::default();
    for prompt in asked {
        let tokens =
            expected(as_u32(prompt.most_tokens), options.output_tokens, model.config.context, prompt.tokens.len());
        job.per_prompt.push(PromptSamples { samples: as_u32(prompt.samples), tokens });
        job.prompts.push(prompt.tokens);
    }
    let Some(first) = refused.first() else { return Ok(job) };
    if job.per_prompt.is_empty() {
        return Err(Error::format(&options.input, format!("no request can be answered, the first: {}", first.message)));
    }
    let lines = counted(refused.len() as u64, "line");
    job.notes.push(format!("{lines} left out that cannot be answered, the first: {}", first.message));
    Ok(job)
}

impl PlanOptions {
    /// A given option that applies only to task files.
    fn for_tasks_alone(&self) -> Option<Setting> {
        let given = [(LIMIT, self.limit.is_some()), (SAMPLES, self.samples.is_some()), (SET, !self.set.is_empty())];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}
