//! The options of `offshoot vote`.

use std::path::PathBuf;

use clap::Args;

use super::words::{AGGREGATES, RULES, SCALES};
use offshoot_args::words::one_of;
use offshoot_args::{each_once, whole};
use offshoot_eval::run::vote::VoteOptions;
use offshoot_eval::run::vote_scores::{ReplayOptions, Scale, VoteBy};
use offshoot_search::settings::Aggregate;

#[derive(Debug, Args)]
pub struct VoteArgs {
    /// Samples, one JSON object per line (a JSON list, CSV, Parquet and .gz too): an item's id, and a text or a list of
    /// texts
    pub samples: PathBuf,
    /// Task file whose items, answer and grade are used (default: the lines' own fields)
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// How answers are found and graded, as in a task file: answer.regex='#### (.*)', grade.exact.field=answer. Without
    /// a rule for answers, whole texts vote
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Field of the item's id (default: id, task_id, question_id, custom_id or unique_id)
    #[arg(long, value_name = "FIELD")]
    pub id: Option<String>,
    /// Field of the text, or of a list of texts (default: text, completion, response, output, samples or
    /// completions)
    #[arg(long, value_name = "FIELD")]
    pub text: Option<String>,
    /// File for the votes: by its ending JSON lines (.jsonl), a JSON list (.json), CSV (.csv), TSV (.tsv) or Parquet
    /// (.parquet) (default: SAMPLES_votes.jsonl). One that is there is kept as OUT.before
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The k of pass@k and maj@k (default: powers of two, from 100 samples on 1, 10 and 100; and the number of samples)
    #[arg(long, value_name = "K", value_delimiter = ',', value_parser = whole::<u32>(1..))]
    pub k: Option<Vec<u32>>,
    /// Field of the samples' scores: a number for each text, or a list of its steps' (search-and-learn's files have
    /// `scores`). They choose among the first 1, 2, 4, ... samples, too
    #[arg(long, value_name = "FIELD")]
    pub scores: Option<String>,
    /// What makes one score of those of a text's steps
    #[arg(long, value_name = "HOW", requires = "scores", default_value = "last", value_parser = one_of(AGGREGATES))]
    pub aggregate: Aggregate,
    /// What the scores are, for the weighted vote
    #[arg(long, value_name = "SCALE", requires = "scores")]
    #[arg(default_value = "probability", value_parser = one_of(SCALES))]
    pub scale: Scale,
    /// What chooses an item's answer: the largest sum of scores, the best score or the most votes
    #[arg(long, value_name = "RULE", requires = "scores", default_value = "weighted", value_parser = one_of(RULES))]
    pub by: VoteBy,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

impl From<VoteArgs> for VoteOptions {
    fn from(args: VoteArgs) -> Self {
        let VoteArgs { samples, task, set, id, text, out, k, scores, aggregate, scale, by, json } = args;
        let scores = scores.map(|field| ReplayOptions { field, aggregate, scale, by });
        Self { samples, task, set, id, text, out, k: k.map(each_once), scores, json }
    }
}
