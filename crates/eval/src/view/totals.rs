//! The totals of a run over all its items, one definition for every view: the levels that the run's summary counted. Of
//! a run without a summary they are counted from its trees, if these have the tokens by which items share prompts.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::shown::ShownItem;
use crate::report::LevelUse;
use offshoot_core::error::Error;
use offshoot_kv::DistinctTokens;

/// Tokens of prompts and samples, and their keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RunTotals {
    /// Tokens, each shared prefix counted once, whichever items share it. `None`: the run kept no trees, so nothing
    /// tells what its items share.
    pub tokens: Option<u64>,
    /// Tokens if every sample had a copy of its prompt.
    pub tokens_unshared: u64,
    /// Bytes of the keys and values of `tokens`. `None`: unknown.
    pub kv_bytes: Option<u64>,
}

/// What the views read of `summary.json`.
#[derive(Debug, Deserialize)]
pub struct SummaryTotals {
    #[serde(default)]
    levels: Vec<LevelUse>,
    #[serde(default)]
    accuracy: Option<SummaryAccuracy>,
    /// Items whose answers tie.
    #[serde(default)]
    pub tied: usize,
}

#[derive(Debug, Deserialize)]
struct SummaryAccuracy {
    value: f64,
}

impl SummaryTotals {
    /// Those of the run in `folder`; `None`: it has no summary, as after a kill.
    pub fn read(folder: &Path) -> Option<Self> {
        let path = folder.join("summary.json");
        if !path.exists() {
            return None;
        }
        let read = fs::read(&path).map_err(Error::io(&path, "read"));
        let parsed = read.and_then(|text| {
            serde_json::from_slice(&text).map_err(|error| Error::format(&path, format!("not a run's summary: {error}")))
        });
        parsed.inspect_err(|error| log::warn!("{error}")).ok()
    }

    pub fn accuracy(&self) -> Option<f64> {
        self.accuracy.as_ref().map(|accuracy| accuracy.value)
    }

    /// `None`: the summary counted no item.
    pub fn totals(&self) -> Option<RunTotals> {
        (!self.levels.is_empty()).then(|| RunTotals::of_levels(&self.levels))
    }
}

impl RunTotals {
    /// The sums over `levels`.
    pub fn of_levels(levels: &[LevelUse]) -> Self {
        let sum = |of: fn(&LevelUse) -> u64| levels.iter().map(of).sum::<u64>();
        Self {
            tokens: Some(sum(|level| level.tokens)),
            tokens_unshared: sum(|level| level.tokens_unshared),
            kv_bytes: Some(sum(|level| level.kv_bytes)),
        }
    }

    /// Counts the trees of `items`: the tokens of a prompt that begin an earlier item's, too, count once.
    pub fn of_items(items: &[ShownItem]) -> Self {
        let mut seen = DistinctTokens::default();
        let own = |item: &ShownItem| -> Option<u64> {
            let prompt = item.trace.nodes.first()?.token_ids.as_deref();
            let shared = match prompt {
                Some(tokens) => seen.insert(tokens),
                // An item alone shares nothing with others.
                None if items.len() == 1 => 0,
                None => return None,
            };
            Some(item.distinct_tokens().saturating_sub(shared) as u64)
        };
        let own: Option<Vec<u64>> = items.iter().map(own).collect();
        let bytes = |tokens: &[u64]| {
            let each = items.iter().map(|item| item.trace.kv_bytes_per_token);
            tokens.iter().zip(each).map(|(&tokens, each)| Some(tokens * each? as u64)).sum()
        };
        Self {
            tokens_unshared: items.iter().map(|item| item.tokens_unshared() as u64).sum(),
            kv_bytes: own.as_deref().and_then(bytes),
            tokens: own.map(|own| own.iter().sum()),
        }
    }
}
