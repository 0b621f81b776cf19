//! `offshoot bench chart`: draws recorded figures as horizontal bars in SVG. A chart file (JSON) selects the lines of
//! recorded files, `file` reads them; nothing is measured here.

mod drawing;
mod file;

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::out;

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
    let chart = Chart::read(&options.chart)?;
    std::fs::write(&options.svg, draw(&chart)).map_err(Error::io(&options.svg, "write"))?;
    out::line(format_args!("wrote {}", options.svg.display()))
}
