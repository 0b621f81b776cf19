//! The options of `offshoot tree`.

use std::path::PathBuf;

use clap::Args;

use offshoot_eval::run::attention::AttentionOptions;
use offshoot_eval::view::ViewOptions;
use offshoot_launch::DeviceChoice;

#[derive(Debug, Args)]
pub struct TreeArgs {
    /// Folder of a run's results
    pub run: PathBuf,
    /// Only this item: its id, or its number among the task's items, from 0
    #[arg(long, value_name = "ID|N")]
    pub item: Option<String>,
    /// Write one page that holds everything, for any browser, without a network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a drawing for Graphviz
    #[arg(long, value_name = "FILE")]
    pub dot: Option<PathBuf>,
    /// Write a picture of the run's tree: its levels, and what each costs with and without sharing (of all items)
    #[arg(long, value_name = "FILE", conflicts_with = "item")]
    pub svg: Option<PathBuf>,
    /// Write the trees for programs
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// First compute the share of each sample's attention on each level of the prompt and on its own text (mean over
    /// its tokens, layers and heads): the model of a run with --trees reads the samples' tokens again, on --device.
    /// Written to RUN/attention.jsonl, printed as a table (with --item, one line per sample), and shown with the
    /// samples. At most 7 levels of the prompt
    #[arg(long)]
    pub attention: bool,
    /// The run's model folder for --attention, if it has moved
    #[arg(long, value_name = "DIR", requires = "attention")]
    pub model: Option<PathBuf>,
}

impl TreeArgs {
    /// The options of the attention to compute, if requested, and of the output to show, if any.
    pub fn on(self, device: DeviceChoice) -> (Option<AttentionOptions>, Option<ViewOptions>) {
        let Self { run, item, html, dot, json, svg, attention, model } = self;
        let writes = [&html, &dot, &json, &svg].iter().any(|file| file.is_some());
        let computed = AttentionOptions { run: run.clone(), item: item.clone(), model, device };
        let shown = ViewOptions { run, item, html, dot, json, svg };
        (attention.then_some(computed), (writes || !attention).then_some(shown))
    }
}
