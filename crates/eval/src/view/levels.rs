//! Draws a run's sampling tree: its levels from the root to the samples, and next to each its costs with and without
//! sharing. The costs are from `summary.json`; the tree shows only a few nodes per level. What the run's trees hold
//! beside prompts and samples stands below them.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::totals::RunTotals;
use crate::report::LevelUse;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::{bytes, count, counted, times};
use offshoot_core::out::svg::{Anchor, Font, LINE, Svg, width_of};

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 24.0;
/// Horizontal layout in pixels: the tree is left of the costs.
const TREE_RIGHT: f64 = 440.0;
const COSTS: f64 = 480.0;
const TOP: f64 = 80.0;
const LEVEL: f64 = 104.0;
const BOX: f64 = 30.0;
const NODE: &str = "#2f6db3";
const SAMPLE: &str = "#5b93d1";
const UNSHARED: &str = "#dfe4ea";
/// Number of children drawn below a node, and of samples.
const SHOWN_NODES: usize = 4;
const SHOWN_SAMPLES: usize = 6;

/// The fields of `summary.json` that are drawn.
#[derive(Deserialize)]
struct SummaryFile {
    task: String,
    items: usize,
    samples: usize,
    levels: Vec<LevelUse>,
    engine: SummaryEngine,
}

#[derive(Deserialize)]
struct SummaryEngine {
    kv_bytes_peak: u64,
    kv_bytes_peak_unshared: u64,
}

/// The picture of the run in `folder` as the text of an SVG file.
///
/// # Errors
/// `summary.json` cannot be read, or no item has finished.
pub fn svg(folder: &Path) -> Result<String> {
    let path = folder.join("summary.json");
    let text = fs::read(&path).map_err(Error::io(&path, "read"))?;
    let summary: SummaryFile = serde_json::from_slice(&text)
        .map_err(|error| Error::format(&path, format!("it is not a run's summary: {error}")))?;
    if summary.levels.is_empty() || summary.items == 0 || summary.samples == 0 {
        return Err(Error::field(&path, "levels", "those of a run with samples", "none: no item has finished"));
    }
    let trees = folder.join("trees").is_dir().then(|| super::folder::read(folder, None).map(|run| run.totals));
    Ok(summary.draw(trees.transpose()?))
}

impl SummaryFile {
    /// `trees`: the totals of the run's trees; `None`: it kept none.
    fn draw(&self, trees: Option<RunTotals>) -> String {
        let height = TOP + self.levels.len() as f64 * LEVEL + 82.0;
        let mut svg = Svg::new(WIDTH, height);
        let (items, samples) = (counted(self.items as u64, "prompt"), counted(self.samples as u64, "sample"));
        let title = format!("{}: {items}, {samples}, one tree", self.task);
        svg.words(MARGIN, 32.0, Font::Title, Anchor::Start, &title);
        let about = "mean tokens per node of a level; only a few nodes are drawn";
        svg.words(MARGIN, 50.0, Font::Muted, Anchor::Start, about);
        self.legend(&mut svg);
        self.draw_below(&mut svg, 0, self.children(), (MARGIN, TREE_RIGHT), None);
        for (number, level) in self.levels.iter().enumerate() {
            let colour = if number + 1 == self.levels.len() { SAMPLE } else { NODE };
            self.draw_costs(&mut svg, level, TOP + number as f64 * LEVEL, colour);
        }
        self.draw_totals(&mut svg, height - 70.0, trees);
        svg.finish()
    }

    fn legend(&self, svg: &mut Svg) {
        svg.rect(COSTS, 40.0, 12.0, 12.0, NODE);
        svg.words(COSTS + 18.0, 50.0, Font::Plain, Anchor::Start, "tokens computed and kept");
        svg.rect(COSTS + 200.0, 40.0, 12.0, 12.0, UNSHARED);
        svg.words(COSTS + 218.0, 50.0, Font::Plain, Anchor::Start, "tokens without sharing");
    }

    /// Number of nodes of a level: one per prompt on the prompts' last level; above it, estimated from the number of
    /// samples that share a token.
    fn nodes(&self, level: usize) -> usize {
        match self.levels.len() - level {
            1 => self.samples,
            2 => self.items,
            _ => {
                let LevelUse { tokens, tokens_unshared, .. } = self.levels[level];
                let nodes = self.samples as f64 * tokens as f64 / tokens_unshared.max(1) as f64;
                (nodes.round() as usize).clamp(1, self.items)
            }
        }
    }

    /// For each level, the number of its nodes below one node of the level above.
    fn children(&self) -> Vec<usize> {
        let nodes: Vec<usize> = (0..self.levels.len()).map(|level| self.nodes(level)).collect();
        let above = [1].into_iter().chain(nodes.iter().copied());
        above.zip(&nodes).map(|(above, &here)| (here as f64 / above as f64).round().max(1.0) as usize).collect()
    }

    /// Draws `level` between `left` and `right`, and all levels below it. `parent` is the lower edge of the node above.
    fn draw_below(
        &self,
        svg: &mut Svg,
        level: usize,
        children: Vec<usize>,
        (left, right): (f64, f64),
        parent: Option<(f64, f64)>,
    ) {
        let last = level + 1 == self.levels.len();
        let shown = children[level].min(if last { SHOWN_SAMPLES } else { SHOWN_NODES });
        let elided = shown < children[level];
        let slots = shown + usize::from(elided);
        let slot = (right - left) / slots as f64;
        let top = TOP + level as f64 * LEVEL;
        let height = if last { BOX + 16.0 } else { BOX };
        for place in 0..slots {
            let (from, to) = (left + place as f64 * slot, left + (place + 1) as f64 * slot);
            let middle = (from + to) / 2.0;
            if elided && place + 2 == slots {
                svg.words(middle, top + height / 2.0 + 3.0, Font::Muted, Anchor::Middle, "…");
                continue;
            }
            if let Some(parent) = parent {
                svg.line(parent, (middle, top), 1.0, "#8c9bab");
            }
            if last {
                let wide = (slot * 0.5).min(8.0);
                svg.rect(middle - wide / 2.0, top, wide, height, SAMPLE);
                continue;
            }
            let gap = (slot * 0.08).min(8.0);
            svg.rect(from + gap, top, slot - 2.0 * gap, height, NODE);
            let mean = self.levels[level].tokens as f64 / self.nodes(level) as f64;
            let tokens = counted(mean.round() as u64, "token");
            if width_of(&tokens) <= slot - 2.0 * gap {
                svg.words(middle, top + height / 2.0 + 4.0, Font::Inverse, Anchor::Middle, &tokens);
            }
            self.draw_below(svg, level + 1, children.clone(), (from, to), Some((middle, top + height)));
        }
    }

    fn draw_costs(&self, svg: &mut Svg, level: &LevelUse, top: f64, colour: &str) {
        let most = self.levels.iter().map(|level| level.tokens_unshared).max().unwrap_or(1).max(1) as f64;
        let long = |tokens: u64| (tokens as f64 / most * (WIDTH - MARGIN - COSTS)).max(2.0);
        let served = level.tokens_unshared as f64 / level.tokens.max(1) as f64;
        let served = match served.round() as u64 {
            0 | 1 => "each token serves one sample".to_string(),
            served => format!("each token serves {} samples", count(served)),
        };
        svg.words(COSTS, top + 10.0, Font::Bold, Anchor::Start, &level.level);
        svg.words(COSTS + 120.0, top + 10.0, Font::Muted, Anchor::Start, &served);
        svg.rect(COSTS, top + 18.0, long(level.tokens_unshared), 12.0, UNSHARED);
        svg.rect(COSTS, top + 18.0, long(level.tokens), 12.0, colour);
        let (mut tokens, mut kv) =
            (counted(level.tokens, "token"), format!("{} of keys and values", bytes(level.kv_bytes)));
        if level.tokens != level.tokens_unshared {
            tokens += &format!(" instead of {}", count(level.tokens_unshared));
            kv += &format!(" instead of {}", bytes(level.kv_bytes_unshared));
        }
        svg.words(COSTS, top + 46.0, Font::Plain, Anchor::Start, &tokens);
        svg.words(COSTS, top + 62.0, Font::Plain, Anchor::Start, &kv);
    }

    fn draw_totals(&self, svg: &mut Svg, top: f64, trees: Option<RunTotals>) {
        svg.line((MARGIN, top), (WIDTH - MARGIN, top), 1.0, LINE);
        let fewer = |what: &str, totals: RunTotals| {
            let (tokens, unshared) = (totals.tokens?, totals.tokens_unshared);
            let ratio = times(tokens, unshared);
            Some(format!("{what}: {} tokens instead of {}: {ratio} times fewer.", count(tokens), count(unshared)))
        };
        let lines = [
            fewer("Prompts and samples", RunTotals::of_levels(&self.levels)),
            trees.and_then(|totals| fewer("All nodes of the trees", totals)),
        ];
        let (kv, kv_unshared) = (self.engine.kv_bytes_peak, self.engine.kv_bytes_peak_unshared);
        let held = format!(
            "Keys and values at most {} instead of {}: {} times less.",
            bytes(kv),
            bytes(kv_unshared),
            times(kv, kv_unshared)
        );
        for (line, text) in lines.iter().flatten().enumerate() {
            svg.words(MARGIN, top + 24.0 + 20.0 * line as f64, Font::Plain, Anchor::Start, text);
        }
        svg.words(COSTS, top + 24.0, Font::Plain, Anchor::Start, &held);
    }
}
