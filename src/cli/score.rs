//! The options of `offshoot score`.

use std::path::PathBuf;

use clap::Args;

use super::words::AGGREGATES;
use offshoot_args::LaunchArgs;
use offshoot_args::words::one_of;
use offshoot_eval::run::score::{FormChoice, ScoreTextsOptions};
use offshoot_launch::Devices;
use offshoot_search::settings::Aggregate;

#[derive(Debug, Args)]
pub struct ScoreArgs {
    /// Samples, one JSON object per line (a JSON list, CSV, Parquet and .gz too): a question, and a text or a list of
    /// texts. Or the folder of a run, whose samples get their scores in place
    pub samples: PathBuf,
    /// Folder of the reward model (default: the task's scorer)
    #[arg(long, value_name = "DIR")]
    pub scorer: Option<PathBuf>,
    /// How it reads texts: the name of a form (last-token, step-tag, step-lines, ...) or a file with one (default: the
    /// task's, scorer.json in its folder, or the form of its class)
    #[arg(long, value_name = "NAME_OR_FILE", value_parser = FormChoice::named)]
    pub scorer_form: Option<FormChoice>,
    /// The question as the scorer is told it: a template over a line's fields, or an item's with --task, such as
    /// "Question: {{question}}"; or the field that has it, a text or a chat (default: the task's, else question,
    /// problem, prompt, messages, instruction or query)
    #[arg(long, value_name = "TEMPLATE_OR_FIELD")]
    pub question: Option<String>,
    /// Task file about whose items the texts are; lines name them by their ids
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// Change the items, the prompt or the scorer of the task file: items.path=test.jsonl
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Field of the item's id (default: id, task_id, question_id, custom_id or unique_id)
    #[arg(long, value_name = "FIELD")]
    pub id: Option<String>,
    /// Field of the text, or of a list of texts (default: text, completion, response, output, samples or completions)
    #[arg(long, value_name = "FIELD")]
    pub text: Option<String>,
    /// The text that ends a step (default: the task's method's, or the line end)
    #[arg(long, value_name = "TEXT")]
    pub delimiter: Option<String>,
    /// What makes one score of those of a text's steps (default: the task's method's, or the form's)
    #[arg(long, value_name = "HOW", value_parser = one_of(AGGREGATES))]
    pub aggregate: Option<Aggregate>,
    /// File for the lines with their scores, of JSON lines (default: SAMPLES with _scored.jsonl behind its name). One
    /// that is there is kept as OUT.before
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write the fields NAME_scores, NAME_score and NAME_score_error, in place of scores, score and score_error
    #[arg(long = "as", value_name = "NAME")]
    pub name: Option<String>,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub engine: LaunchArgs,
}

impl ScoreArgs {
    pub fn on(self, devices: Devices) -> ScoreTextsOptions {
        ScoreTextsOptions {
            samples: self.samples,
            scorer: self.scorer,
            form: self.scorer_form,
            question: self.question,
            task: self.task,
            set: self.set,
            id: self.id,
            text: self.text,
            delimiter: self.delimiter,
            aggregate: self.aggregate,
            out: self.out,
            name: self.name,
            json: self.json,
            engine: self.engine.on(devices),
        }
    }
}
