//! `offshoot bench chart`: draws recorded figures as horizontal bars in SVG. A chart file (JSON) selects the lines of
//! recorded files, `file` reads them; nothing is measured here.

mod drawing;
mod file;

use std::io::Write;
use std::path::PathBuf;

use crate::error::Result;
use crate::out;
use crate::out::files::{check_output, write_whole};

pub use drawing::draw;
pub use file::{Chart, ChartGroup, Series};

/// The options of `bench chart`.
#[derive(Clone, Debug)]
pub struct ChartOptions {
    /// The chart file.
    pub chart: PathBuf,
    pub svg: PathBuf,
}

/// Draws the chart.
///
/// # Errors
///
/// The chart file or a recorded file cannot be read, or a bar does not have exactly one line.
pub fn main(options: &ChartOptions) -> Result<()> {
    check_output(&options.svg)?;
    let chart = Chart::read(&options.chart)?;
    write_whole(&options.svg, |file| file.write_all(draw(&chart).as_bytes()))?;
    out::line(format_args!("wrote {}", options.svg.display()))
}
