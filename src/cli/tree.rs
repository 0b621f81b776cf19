//! The options of `offshoot tree`.

use std::path::PathBuf;

use clap::Args;

use crate::eval::view::ViewOptions;

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
}

impl From<TreeArgs> for ViewOptions {
    fn from(args: TreeArgs) -> Self {
        Self { run: args.run, item: args.item, html: args.html, dot: args.dot, json: args.json, svg: args.svg }
    }
}
