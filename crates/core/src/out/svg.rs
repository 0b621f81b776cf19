//! Writes drawings as SVG: rectangles, paths and text on a white card, so that drawings are readable on light and dark
//! pages. Coordinates are in pixels from the top left. The callers decide the content and layout.

use std::fmt::{Arguments, Write};

use crate::listed;

/// Colours of main and of secondary text.
const INK: &str = "#24292f";
const MUTED: &str = "#57606a";
/// Borders, axes and grid lines.
pub const LINE: &str = "#d0d7de";

/// Text styles: 12 px except for titles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Font {
    Plain,
    Muted,
    Bold,
    /// White and bold, on a dark shape.
    Inverse,
    /// 16 px and bold.
    Title,
}

listed!(Font { Plain = "plain", Muted = "muted", Bold = "bold", Inverse = "inverse", Title = "title" });

/// Which point of a text is at the given position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

listed!(Anchor { Start = "start", Middle = "middle", End = "end" });

/// A drawing being written.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

impl Svg {
    /// An empty card of this size.
    pub fn new(width: f64, height: f64) -> Svg {
        let mut svg = Svg { text: String::new() };
        svg.add(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\">"
        ));
        // A white edge keeps text readable where a line crosses it.
        svg.add(format_args!(
            "<style>text{{font:12px sans-serif;fill:{INK};stroke:#fff;stroke-width:3px;stroke-linejoin:round;\
             paint-order:stroke}}\
             .muted{{fill:{MUTED}}}.bold{{font-weight:bold}}.inverse{{font-weight:bold;fill:#fff;stroke:none}}\
             .title{{font-size:16px;font-weight:bold}}</style>"
        ));
        let (inner_width, inner_height) = (width - 1.0, height - 1.0);
        svg.add(format_args!(
            "<rect x=\"0.5\" y=\"0.5\" width=\"{inner_width}\" height=\"{inner_height}\" rx=\"6\" fill=\"#fff\" \
             stroke=\"{LINE}\"/>"
        ));
        svg
    }

    pub fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{fill}\"/>"
        ));
    }

    /// A filled path; `data` in SVG's path language.
    pub fn path(&mut self, data: &str, fill: &str) {
        self.add(format_args!("<path d=\"{data}\" fill=\"{fill}\"/>"));
    }

    /// A straight line, `width` pixels wide.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, colour: &str) {
        let ((x, y), (to_x, to_y)) = (from, to);
        self.add(format_args!(
            "<path d=\"M{x:.2} {y:.2}L{to_x:.2} {to_y:.2}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
        ));
    }

    /// `words` on one line; `y`: the baseline.
    pub fn words(&mut self, x: f64, y: f64, font: Font, anchor: Anchor, words: &str) {
        let (class, anchor, words) = (font.name(), anchor.name(), escaped(words));
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{words}</text>"
        ));
    }

    /// The drawing as the text of a file.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn add(&mut self, element: Arguments<'_>) {
        self.text.write_fmt(element).expect("writing to a string cannot fail");
        self.text.push('\n');
    }
}

/// Upper estimate of the width of `words` in 12 px letters, in pixels; fonts differ, so this assumes a wide one.
pub fn width_of(words: &str) -> f64 {
    const PIXELS: f64 = 7.6;
    words.chars().count() as f64 * PIXELS
}

/// The largest of 1, 2 and 5 times a power of ten of which `most` has at least `least` steps; 1 if `most` is not
/// above 0.
pub fn round_step(most: f64, least: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((most / least).log10().floor());
    [5.0, 2.0, 1.0].map(|times| times * power).into_iter().find(|step| least * step <= most).unwrap_or(power)
}

/// Escapes text for XML; characters that XML does not allow are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_not_too_many() {
        for (most, step) in [(36_000.0, 5_000.0), (1_600.0, 200.0), (4.0, 1.0), (9.9, 2.0), (0.5, 0.1)] {
            let found = round_step(most, 4.0);
            assert!((found / step - 1.0).abs() < 1e-9, "{most}: {found}");
            assert!((4.0..=10.0).contains(&(most / found)), "{most}: {found}");
        }
        assert_eq!(round_step(0.0, 4.0), 1.0);
    }

    #[test]
    fn any_text_makes_a_document() {
        let mut svg = Svg::new(100.0, 50.0);
        let text = "</text><script> & \u{0}\u{1b}\u{ffff} 日本";
        svg.words(1.0, 2.0, Font::Plain, Anchor::Start, text);
        let document = svg.finish();
        let parsed = roxmltree::Document::parse(&document).expect("a well-formed document");
        let read: Vec<_> = parsed.descendants().filter(|node| node.has_tag_name("text")).collect();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].text(), Some("</text><script> & \u{fffd}\u{fffd}\u{fffd} 日本"));
    }
}
