//! Draws an estimate: the prompt tree (width: samples, depth: tokens), and below it the tokens of each step over time
//! for each policy, at one scale. Plain SVG, no script.

use std::fmt::Write;

use super::job::PlannedJob;
use super::predict::{Prediction, TimeSlice};
use super::report::JobEstimate;
use crate::figures::{bytes, count, counted, seconds};
use crate::kv::PromptTree;
use crate::out::svg::{Anchor, Font, LINE, Svg};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TREE_TOP: f64 = 74.0;
const TREE_HEIGHT: f64 = 240.0;
const PANEL: f64 = 150.0;
const PANEL_GAP: f64 = 34.0;
const PROMPT: [&str; 2] = ["#2f6db3", "#5b93d1"];
const DRAWN: &str = "#e8a33d";

/// The drawing as the text of a file.
pub fn draw(estimate: &JobEstimate, job: &PlannedJob, tree: &PromptTree) -> String {
    let panels = estimate.predictions.len() as f64;
    let panels_top = TREE_TOP + TREE_HEIGHT + 56.0;
    let height = panels_top + panels * (PANEL + PANEL_GAP) + 30.0;
    let mut svg = Svg::new(WIDTH, height);
    let title = format!(
        "{}: {}, {}",
        estimate.job.input,
        counted(estimate.job.prompts as u64, "prompt"),
        counted(estimate.job.samples, "sample")
    );
    svg.words(LEFT, 26.0, Font::Title, Anchor::Start, &title);
    let about = format!(
        "{} of {} prompt tokens are distinct; {} of keys and values at once, {} without sharing",
        count(estimate.job.distinct_prompt_tokens),
        count(estimate.job.prompt_tokens),
        bytes(estimate.kv_bytes),
        bytes(estimate.kv_bytes_unshared)
    );
    svg.words(LEFT, 46.0, Font::Plain, Anchor::Start, &about);
    legend(&mut svg);
    draw_tree(&mut svg, job, tree);
    let longest = estimate.predictions.iter().map(|prediction| prediction.totals.seconds).fold(0.0, f64::max);
    let most = estimate.predictions.iter().flat_map(|p| &p.parts).map(TimeSlice::tokens).fold(0.0, f64::max);
    for (number, prediction) in estimate.predictions.iter().enumerate() {
        let top = panels_top + number as f64 * (PANEL + PANEL_GAP);
        draw_panel(&mut svg, prediction, top, longest, most);
    }
    if estimate.predictions.is_empty() {
        return svg.finish();
    }
    let bottom = panels_top + panels * (PANEL + PANEL_GAP) - PANEL_GAP;
    for tick in 0..=5 {
        let at = f64::from(tick) / 5.0;
        let anchor = if tick == 5 { Anchor::End } else { Anchor::Middle };
        svg.words(LEFT + at * inner(), bottom + 18.0, Font::Plain, anchor, &seconds(at * longest));
    }
    svg.finish()
}

fn inner() -> f64 {
    WIDTH - LEFT - RIGHT
}

impl TimeSlice {
    fn tokens(&self) -> f64 {
        self.prompt_tokens + self.drawn_tokens
    }
}

fn legend(svg: &mut Svg) {
    let at = WIDTH - RIGHT - 230.0;
    svg.rect(at, 16.0, 12.0, 12.0, PROMPT[0]);
    svg.words(at + 18.0, 26.0, Font::Plain, Anchor::Start, "prompt tokens");
    svg.rect(at + 110.0, 16.0, 12.0, 12.0, DRAWN);
    svg.words(at + 128.0, 26.0, Font::Plain, Anchor::Start, "sampled tokens");
}

/// The column of a position: two columns per pixel.
fn column(x: f64) -> i64 {
    (2.0 * x).floor() as i64
}

/// Thins out narrow runs: of those narrower than a column, only the first in each column is drawn.
#[derive(Default)]
struct Thinned {
    last: Vec<Option<i64>>,
}

impl Thinned {
    fn draws(&mut self, depth: usize, x: f64, width: f64) -> bool {
        if self.last.len() <= depth {
            self.last.resize(depth + 1, None);
        }
        let here = column(x);
        let new = width >= 0.5 || self.last[depth] != Some(here);
        self.last[depth] = Some(here);
        new
    }
}

fn draw_tree(svg: &mut Svg, job: &PlannedJob, tree: &PromptTree) {
    let samples: Vec<u64> =
        tree.sorted().iter().map(|sorted| u64::from(job.per_prompt[sorted.prompt as usize].samples)).collect();
    let mut before = vec![0u64; samples.len() + 1];
    for (at, samples) in samples.iter().enumerate() {
        before[at + 1] = before[at] + samples;
    }
    let all = before[samples.len()].max(1) as f64;
    let x = |prompt: usize| LEFT + before[prompt] as f64 / all * inner();
    let drawn = |at: usize| u64::from(job.per_prompt[tree.sorted()[at].prompt as usize].tokens);
    let ends = (0..tree.nodes().len()).flat_map(|node| {
        let end = u64::from(tree.nodes()[node].end);
        tree.own(node).map(move |at| end + drawn(at))
    });
    let deepest = ends.max().unwrap_or(1).max(1) as f64;
    let y = |position: u64| TREE_TOP + position as f64 / deepest * TREE_HEIGHT;
    let (mut prompts_thinned, mut samples_thinned) = (Thinned::default(), Thinned::default());
    let mut depths: Vec<usize> = Vec::with_capacity(tree.nodes().len());
    for (index, node) in tree.nodes().iter().enumerate() {
        let depth = node.parent.map_or(0, |parent| depths[parent as usize] + 1);
        depths.push(depth);
        let (left, right) = (x(node.prompts.start as usize), x(node.prompts.end as usize));
        let (top, bottom) = (y(node.first.into()), y(node.end.into()));
        if prompts_thinned.draws(depth, left, right - left) {
            run(svg, left, top, right - left, bottom - top, PROMPT[depth % 2]);
        }
        for at in tree.own(index) {
            let (left, right) = (x(at), x(at + 1));
            if samples_thinned.draws(0, left, right - left) {
                let end = y(u64::from(node.end) + drawn(at));
                run(svg, left, bottom, right - left, end - bottom, DRAWN);
            }
        }
    }
    for part in 0..=4 {
        let position = deepest * f64::from(part) / 4.0;
        let at = TREE_TOP + TREE_HEIGHT * f64::from(part) / 4.0;
        svg.words(LEFT - 8.0, at + 4.0, Font::Plain, Anchor::End, &count(position as u64));
    }
    svg.words(LEFT, TREE_TOP - 8.0, Font::Plain, Anchor::Start, "position in tokens; width: samples below");
}

/// Draws a run of tokens; a gap separates it from the next one if there is room.
fn run(svg: &mut Svg, x: f64, y: f64, width: f64, height: f64, colour: &str) {
    let gap = if width > 3.0 { 0.6 } else { 0.0 };
    svg.rect(x, y, (width - gap).max(0.5), height, colour);
}

fn draw_panel(svg: &mut Svg, prediction: &Prediction, top: f64, longest: f64, most: f64) {
    let bottom = top + PANEL;
    let wide = prediction.totals.seconds / longest.max(f64::MIN_POSITIVE) * inner();
    let step = wide / prediction.parts.len().max(1) as f64;
    let tall = |tokens: f64| tokens / most.max(1.0) * (PANEL - 24.0);
    let area = |svg: &mut Svg, tokens: fn(&TimeSlice) -> f64, colour: &str| {
        let mut path = format!("M{:.1} {bottom:.1}", LEFT);
        for (at, part) in prediction.parts.iter().enumerate() {
            let y = bottom - tall(tokens(part));
            let (from, to) = (LEFT + at as f64 * step, LEFT + (at + 1) as f64 * step);
            write!(path, "L{from:.1} {y:.1}L{to:.1} {y:.1}").expect("writing to a string cannot fail");
        }
        write!(path, "L{:.1} {bottom:.1}Z", LEFT + wide).expect("writing to a string cannot fail");
        svg.path(&path, colour);
    };
    // Prompt tokens are stacked on sampled ones.
    area(svg, TimeSlice::tokens, PROMPT[0]);
    area(svg, |part| part.drawn_tokens, DRAWN);
    svg.line((LEFT, bottom), (WIDTH - RIGHT, bottom), 1.0, LINE);
    svg.words(LEFT - 8.0, bottom + 4.0, Font::Plain, Anchor::End, "0");
    svg.words(LEFT - 8.0, bottom - tall(most) + 4.0, Font::Plain, Anchor::End, &count(most.round() as u64));
    let title = format!(
        "{}: {}, {} of {}, {} computed",
        prediction.policy,
        seconds(prediction.totals.seconds),
        counted(prediction.totals.steps as u64, "step"),
        counted(prediction.tokens_per_step.round() as u64, "token"),
        counted(prediction.totals.prompt_tokens_computed, "prompt token")
    );
    svg.words(LEFT, top + 8.0, Font::Bold, Anchor::Start, &title);
}
