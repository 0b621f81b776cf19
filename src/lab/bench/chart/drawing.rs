//! Lays out and draws a chart: bars, labels and axis.

use super::file::{Chart, SeriesShape};
use crate::figures::count;
use crate::out::svg::{Anchor, Font, LINE, Svg, round_step, width_of};

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 20.0;
/// Distance from the top to the legend, and to the first group.
const LEGEND: f64 = 54.0;
const TOP: f64 = 80.0;
const BAR: f64 = 14.0;
const BETWEEN_BARS: f64 = 3.0;
const BETWEEN_GROUPS: f64 = 16.0;
/// Height of a group's two lines of text.
const LABEL_HEIGHT: f64 = 30.0;
/// Colours of the bars, by series.
const BARS: [&str; 4] = ["#2f6db3", "#8c9bab", "#c3ccd5", "#dfe4ea"];
const MARK: &str = "#d1741a";
const NOTE: f64 = 17.0;
/// The fewest steps between the grid lines.
const FEWEST_STEPS: f64 = 4.0;

/// The chart as the text of an SVG file.
pub fn draw(chart: &Chart) -> String {
    let layout = ChartLayout::of(chart);
    let notes = NOTE * chart.notes.len() as f64;
    let mut svg = Svg::new(WIDTH, layout.bottom + 34.0 + notes + 8.0);
    svg.words(MARGIN, 28.0, Font::Title, Anchor::Start, &chart.title);
    legend(&mut svg, chart);
    grid(&mut svg, chart, &layout);
    for (number, group) in chart.groups.iter().enumerate() {
        let top = layout.top_of(number);
        let middle = top + layout.group / 2.0;
        svg.words(layout.left - 12.0, middle - 2.0, Font::Bold, Anchor::End, &group.label);
        svg.words(layout.left - 12.0, middle + 13.0, Font::Muted, Anchor::End, &group.detail);
        bars(&mut svg, chart, &layout, number);
    }
    for (number, note) in chart.notes.iter().enumerate() {
        let y = layout.bottom + 44.0 + NOTE * number as f64;
        svg.words(MARGIN, y, Font::Muted, Anchor::Start, note);
    }
    svg.finish()
}

struct ChartLayout {
    /// Left end and length of the axis, in pixels.
    left: f64,
    width: f64,
    /// Value at the end of the axis, and value between two grid lines.
    most: f64,
    step: f64,
    /// Height of a group's bars.
    group: f64,
    bottom: f64,
}

impl ChartLayout {
    fn of(chart: &Chart) -> ChartLayout {
        let labels = chart.groups.iter().flat_map(|group| [&group.label, &group.detail]).map(|label| width_of(label));
        let left = MARGIN + labels.fold(0.0, f64::max) + 12.0;
        // Leave room for the value to the right of the longest bar.
        let beside =
            (0..chart.series.len()).flat_map(|series| (0..chart.groups.len()).map(move |group| (series, group)));
        let room = beside.map(|(series, group)| width_of(&said(chart, series, group))).fold(0.0, f64::max) + 6.0;
        let most = chart.series.iter().flat_map(|series| &series.values).copied().fold(0.0, f64::max);
        let step = round_step(most, FEWEST_STEPS);
        let bars = chart.series.iter().filter(|series| series.shape == SeriesShape::Bar).count() as f64;
        let group = (bars * (BAR + BETWEEN_BARS) - BETWEEN_BARS).max(LABEL_HEIGHT);
        let bottom = TOP + chart.groups.len() as f64 * (group + BETWEEN_GROUPS) - BETWEEN_GROUPS + 8.0;
        ChartLayout {
            left,
            width: WIDTH - MARGIN - room - left,
            most: most.max(f64::MIN_POSITIVE),
            step,
            group,
            bottom,
        }
    }

    fn top_of(&self, group: usize) -> f64 {
        TOP + group as f64 * (self.group + BETWEEN_GROUPS)
    }

    fn x(&self, value: f64) -> f64 {
        self.left + value / self.most * self.width
    }
}

fn legend(svg: &mut Svg, chart: &Chart) {
    let mut x = MARGIN;
    let mut bar = 0;
    for series in &chart.series {
        match series.shape {
            SeriesShape::Bar => {
                svg.rect(x, LEGEND - 10.0, 12.0, 12.0, BARS[bar % BARS.len()]);
                bar += 1;
            }
            SeriesShape::Mark => svg.line((x + 6.0, LEGEND - 11.0), (x + 6.0, LEGEND + 3.0), 2.0, MARK),
        }
        svg.words(x + 18.0, LEGEND, Font::Plain, Anchor::Start, &series.name);
        x += 18.0 + width_of(&series.name) + 16.0;
    }
    svg.words(WIDTH - MARGIN, LEGEND, Font::Muted, Anchor::End, &chart.unit);
}

fn grid(svg: &mut Svg, chart: &Chart, layout: &ChartLayout) {
    let lines = (layout.most / layout.step).floor() as usize;
    for line in 0..=lines {
        let value = line as f64 * layout.step;
        let x = layout.x(value);
        svg.line((x, TOP - 6.0), (x, layout.bottom), 1.0, LINE);
        svg.words(x, layout.bottom + 15.0, Font::Muted, Anchor::Middle, &figure(value, chart));
    }
}

fn bars(svg: &mut Svg, chart: &Chart, layout: &ChartLayout, group: usize) {
    let top = layout.top_of(group);
    let is_bar = |series: &usize| chart.series[*series].shape == SeriesShape::Bar;
    let y = |place: usize| top + place as f64 * (BAR + BETWEEN_BARS);
    let end = |series: usize| layout.x(chart.series[series].values[group]);
    let bars: Vec<usize> = (0..chart.series.len()).filter(is_bar).collect();
    for (place, &series) in bars.iter().enumerate() {
        let length = (end(series) - layout.left).max(1.0);
        svg.rect(layout.left, y(place), length, BAR, BARS[place % BARS.len()]);
    }
    for mark in (0..chart.series.len()).filter(|series| !is_bar(series)) {
        svg.line((end(mark), top - 2.0), (end(mark), top + layout.group + 2.0), 2.0, MARK);
    }
    for (place, &series) in bars.iter().enumerate() {
        let font = if series == 0 { Font::Bold } else { Font::Plain };
        let said = said(chart, series, group);
        svg.words(end(series) + 6.0, y(place) + BAR - 3.0, font, Anchor::Start, &said);
    }
}

/// The label of a bar: its value and, for the first series, the ratio to the series it is compared with.
fn said(chart: &Chart, series: usize, group: usize) -> String {
    let value = chart.series[series].values[group];
    let figure = figure(value, chart);
    match chart.over {
        Some(over) if series == 0 => format!("{figure} ({:.2} x)", value / chart.series[over].values[group]),
        _ => figure,
    }
}

/// Formats a value: as an integer if the chart's values are large, else with one decimal.
fn figure(value: f64, chart: &Chart) -> String {
    let most = chart.series.iter().flat_map(|series| &series.values).copied().fold(0.0, f64::max);
    match most >= 100.0 {
        true => count(value.round() as u64),
        false => format!("{value:.1}"),
    }
}
