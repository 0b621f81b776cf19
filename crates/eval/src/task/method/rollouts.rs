//! The settings of searches whose samples are rollouts that share prefixes (`tree_po`, `entropy_branching`).

use schemars::JsonSchema;
use serde::Deserialize;

use offshoot_search::settings::{EntropyBranching, TreePo};

#[derive(Deserialize, JsonSchema)]
pub(crate) struct TreePoSettings {
    /// The most samples of an item.
    #[schemars(range(min = 1))]
    samples: u32,
    /// The most tokens of a segment.
    #[serde(default = "segment")]
    #[schemars(range(min = 1))]
    segment: u32,
    /// The most samples that one becomes at the end of a segment, and that begin at the prompt.
    #[serde(default = "branches")]
    #[schemars(range(min = 1))]
    branches: u32,
    /// The most tokens that the samples of an item have together, shared ones counted once (default: no limit).
    #[schemars(range(min = 1))]
    tokens: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct EntropyBranchingSettings {
    /// Samples of an item that are drawn first.
    #[serde(default = "paths")]
    #[schemars(range(min = 1))]
    paths: u32,
    /// The tokens of each of these at which it is forked: those of highest entropy.
    #[serde(default = "forks")]
    #[schemars(range(min = 1))]
    forks: u32,
    /// Samples from each of these tokens.
    #[serde(default = "one")]
    #[schemars(range(min = 1))]
    branches: u32,
}

fn segment() -> u32 {
    64
}

fn branches() -> u32 {
    2
}

fn paths() -> u32 {
    4
}

fn forks() -> u32 {
    3
}

fn one() -> u32 {
    1
}

/// The settings of `tree_po`.
pub(crate) fn tree_po(settings: TreePoSettings) -> TreePo {
    let TreePoSettings { samples, segment, branches, tokens } = settings;
    TreePo { samples, segment: segment as usize, branches, tokens: tokens.map_or(usize::MAX, |most| most as usize) }
}

/// The settings of `entropy_branching`.
pub(crate) fn entropy_branching(settings: EntropyBranchingSettings) -> EntropyBranching {
    let EntropyBranchingSettings { paths, forks, branches } = settings;
    EntropyBranching { paths, forks, branches }
}
