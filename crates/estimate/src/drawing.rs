//! Draws an estimate: the prompt tree (width: samples, depth: tokens), and below it the tokens of each step over time
//! for each policy, at one scale. Plain SVG, no script.

use std::fmt::Write;

use super::job::PlannedJob;
use super::predict::{Prediction, TimeSlice};
use super::report::JobEstimate;
use offshoot_core::figures::{beginning, bytes, count, counted, seconds};
use offshoot_core::out::svg::{Anchor, Font, LINE, Svg, round_step, width_of};
use offshoot_kv::PromptTree;

const WIDTH: f64 = 1000.0;
const RIGHT: f64 = 20.0;
const TREE_TOP: f64 = 74.0;
const TREE_HEIGHT: f64 = 240.0;
/// The height of the most tokens of a step, and of the words above each panel.
const PEAK: f64 = 110.0;
const PANEL_TITLE: f64 = 38.0;
/// The fewest steps between the marks of an axis; there are at most five.
const FEWEST_STEPS: f64 = 2.0;
/// The most characters of a title in the width of the card.
const TITLE_CHARS: usize = 90;
const PROMPT: [&str; 2] = ["#2f6db3", "#5b93d1"];
const DRAWN: &str = "#e8a33d";

/// The drawing as the text of a file.
pub fn draw(estimate: &JobEstimate, job: &PlannedJob, tree: &PromptTree) -> String {
    let longest = estimate.predictions.iter().map(|prediction| prediction.totals.seconds).fold(0.0, f64::max);
    let most = estimate.predictions.iter().flat_map(|p| &p.parts).map(TimeSlice::tokens).fold(0.0, f64::max);
    let heights: Vec<f64> = estimate.predictions.iter().map(|prediction| tall(peak(prediction), most)).collect();
    let panels: f64 = heights.iter().map(|height| PANEL_TITLE + height).sum();
    let deepest = deepest(job, tree);
    let marks = round_marks(deepest as f64).into_iter().chain(round_marks(most));
    let widest = marks.map(|mark| width_of(&count(mark as u64))).fold(0.0, f64::max);
    let frame = Frame { left: widest + 16.0 };
    let height = TREE_TOP + TREE_HEIGHT + panels + if panels > 0.0 { 36.0 } else { 20.0 };
    let mut svg = Svg::new(WIDTH, height);
    let title = format!(
        "{}: {}, {}",
        estimate.job.input,
        counted(estimate.job.prompts as u64, "prompt"),
        counted(estimate.job.samples, "sample")
    );
    let title = beginning(&title, TITLE_CHARS).map_or(title.clone(), |start| format!("{start}…"));
    svg.words(frame.left, 26.0, Font::Title, Anchor::Start, &title);
    let about = format!(
        "{} of {} prompt tokens are distinct; {} of keys and values at once, {} without sharing",
        count(estimate.job.distinct_prompt_tokens),
        count(estimate.job.prompt_tokens),
        bytes(estimate.kv_bytes),
        bytes(estimate.kv_bytes_unshared)
    );
    svg.words(frame.left, 46.0, Font::Plain, Anchor::Start, &about);
    legend(&mut svg);
    frame.draw_tree(&mut svg, job, tree, deepest);
    let mut bottom = TREE_TOP + TREE_HEIGHT;
    for (prediction, height) in estimate.predictions.iter().zip(heights) {
        bottom += PANEL_TITLE + height;
        frame.draw_panel(&mut svg, prediction, bottom, longest, most);
    }
    if !estimate.predictions.is_empty() {
        frame.draw_times(&mut svg, bottom + 18.0, longest);
    }
    svg.finish()
}

/// The height of this many tokens of a step.
fn tall(tokens: f64, most: f64) -> f64 {
    tokens / most.max(1.0) * PEAK
}

/// The most tokens of a step.
fn peak(prediction: &Prediction) -> f64 {
    prediction.parts.iter().map(TimeSlice::tokens).fold(0.0, f64::max)
}

/// The last position of any sample.
fn deepest(job: &PlannedJob, tree: &PromptTree) -> u64 {
    let ends = (0..tree.nodes().len()).flat_map(|node| {
        let end = u64::from(tree.nodes()[node].end);
        tree.own(node).map(move |at| end + u64::from(job.per_prompt[tree.sorted()[at].prompt as usize].tokens))
    });
    ends.max().unwrap_or(1).max(1)
}

/// Round whole numbers from 0 to `most`.
fn round_marks(most: f64) -> Vec<f64> {
    let step = round_step(most, FEWEST_STEPS).max(1.0);
    (0..=(most / step) as u32).map(|mark| f64::from(mark) * step).collect()
}

/// Round times from 0 to `longest` seconds, each with its words: all in one unit, with as many digits as they need.
fn round_times(longest: f64) -> Vec<(f64, String)> {
    let (unit, name) = match longest {
        longest if longest >= 1.0 => (1.0, "s"),
        longest if longest >= 1e-3 => (1e-3, "ms"),
        _ => (1e-6, "µs"),
    };
    let step = round_step(longest / unit, FEWEST_STEPS);
    let digits = (-step.log10().floor()).max(0.0) as usize;
    let words = |value: f64| match digits {
        0 => format!("{} {name}", count(value.round() as u64)),
        digits => format!("{value:.digits$} {name}"),
    };
    let marks = (longest / unit / step + 1e-9) as u32;
    (0..=marks).map(|mark| f64::from(mark) * step).map(|value| (value * unit, words(value))).collect()
}

fn legend(svg: &mut Svg) {
    let at = WIDTH - RIGHT - 240.0;
    let line = TREE_TOP - 8.0;
    svg.rect(at, line - 10.0, 12.0, 12.0, PROMPT[0]);
    svg.words(at + 18.0, line, Font::Plain, Anchor::Start, "prompt tokens");
    svg.rect(at + 120.0, line - 10.0, 12.0, 12.0, DRAWN);
    svg.words(at + 138.0, line, Font::Plain, Anchor::Start, "sampled tokens");
}

/// Where the axes stand: as far to the right as the words beside them need.
struct Frame {
    left: f64,
}

impl TimeSlice {
    fn tokens(&self) -> f64 {
        self.prompt_tokens + self.drawn_tokens
    }
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

impl Frame {
    fn inner(&self) -> f64 {
        WIDTH - self.left - RIGHT
    }

    fn draw_tree(&self, svg: &mut Svg, job: &PlannedJob, tree: &PromptTree, deepest: u64) {
        let samples: Vec<u64> =
            tree.sorted().iter().map(|sorted| u64::from(job.per_prompt[sorted.prompt as usize].samples)).collect();
        let mut before = vec![0u64; samples.len() + 1];
        for (at, samples) in samples.iter().enumerate() {
            before[at + 1] = before[at] + samples;
        }
        let all = before[samples.len()].max(1) as f64;
        let x = |prompt: usize| self.left + before[prompt] as f64 / all * self.inner();
        let drawn = |at: usize| u64::from(job.per_prompt[tree.sorted()[at].prompt as usize].tokens);
        let deepest = deepest as f64;
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
        for position in round_marks(deepest) {
            let at = y(position as u64);
            svg.words(self.left - 8.0, at + 4.0, Font::Plain, Anchor::End, &count(position as u64));
        }
        svg.words(self.left, TREE_TOP - 8.0, Font::Plain, Anchor::Start, "position in tokens; width: samples below");
    }

    /// One policy's tokens of each step over time; `bottom`: the edge on which they stand.
    fn draw_panel(&self, svg: &mut Svg, prediction: &Prediction, bottom: f64, longest: f64, most: f64) {
        let wide = prediction.totals.seconds / longest.max(f64::MIN_POSITIVE) * self.inner();
        let step = wide / prediction.parts.len().max(1) as f64;
        let area = |svg: &mut Svg, tokens: fn(&TimeSlice) -> f64, colour: &str| {
            let mut path = format!("M{:.1} {bottom:.1}", self.left);
            for (at, part) in prediction.parts.iter().enumerate() {
                let y = bottom - tall(tokens(part), most);
                let (from, to) = (self.left + at as f64 * step, self.left + (at + 1) as f64 * step);
                write!(path, "L{from:.1} {y:.1}L{to:.1} {y:.1}").expect("writing to a string cannot fail");
            }
            write!(path, "L{:.1} {bottom:.1}Z", self.left + wide).expect("writing to a string cannot fail");
            svg.path(&path, colour);
        };
        // Prompt tokens are stacked on sampled ones.
        area(svg, TimeSlice::tokens, PROMPT[0]);
        area(svg, |part| part.drawn_tokens, DRAWN);
        svg.line((self.left, bottom), (WIDTH - RIGHT, bottom), 1.0, LINE);
        let height = tall(peak(prediction), most);
        for mark in round_marks(most).into_iter().filter(|&mark| tall(mark, most) <= height) {
            let at = bottom - tall(mark, most);
            svg.words(self.left - 8.0, at + 4.0, Font::Plain, Anchor::End, &count(mark as u64));
        }
        let title = format!(
            "{}: {}, {} of {}, {} computed",
            prediction.policy,
            seconds(prediction.totals.seconds),
            counted(prediction.totals.steps as u64, "step"),
            counted(prediction.tokens_per_step.round() as u64, "token"),
            counted(prediction.totals.prompt_tokens_computed, "prompt token")
        );
        svg.words(self.left, bottom - height - 8.0, Font::Bold, Anchor::Start, &title);
    }

    fn draw_times(&self, svg: &mut Svg, line: f64, longest: f64) {
        for (time, words) in round_times(longest) {
            let at = self.left + time / longest.max(f64::MIN_POSITIVE) * self.inner();
            let fits = at + width_of(&words) / 2.0 <= WIDTH - 4.0;
            svg.words(at, line, Font::Plain, if fits { Anchor::Middle } else { Anchor::End }, &words);
        }
    }
}

/// Draws a run of tokens; a gap separates it from the next one if there is room.
fn run(svg: &mut Svg, x: f64, y: f64, width: f64, height: f64, colour: &str) {
    let gap = if width > 3.0 { 0.6 } else { 0.0 };
    svg.rect(x, y, (width - gap).max(0.5), height, colour);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_whole() {
        assert_eq!(round_marks(1234.0), [0.0, 500.0, 1000.0]);
        assert_eq!(round_marks(3.0), [0.0, 1.0, 2.0, 3.0]);
        let words = |longest| round_times(longest).into_iter().map(|(_, words)| words).collect::<Vec<_>>().join(", ");
        assert_eq!(words(15.6), "0 s, 5 s, 10 s, 15 s");
        assert_eq!(words(0.058), "0 ms, 20 ms, 40 ms");
        assert_eq!(words(1.3), "0.0 s, 0.5 s, 1.0 s");
        assert_eq!(words(4700.0), "0 s, 2,000 s, 4,000 s");
    }
}
