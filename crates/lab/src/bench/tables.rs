//! `bench machine`, and what the other measurements print with: figures as text or as JSON lines.

use std::fmt;

use serde::Serialize;

use offshoot_backend::Backend;
use offshoot_core::error::Result;
use offshoot_core::{json, out};
use offshoot_cpu::Cpu;
use offshoot_cpu::machine::MachineRates;

pub fn machine(as_json: bool) -> Result<()> {
    let cpu = Cpu::open()?;
    let rates = MachineRates::measure(cpu.isa());
    match as_json {
        true => print_json(&rates),
        false => out::line(format_args!("{}: {rates}", cpu.describe())),
    }
}

pub(crate) fn print(as_json: bool, row: &(impl fmt::Display + Serialize)) -> Result<()> {
    match as_json {
        true => print_json(row),
        false => out::line(row),
    }
}

/// The median of these values, of which there is at least one.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// `x` rounded to `decimals` decimals.
pub(super) fn rounded(x: f64, decimals: i32) -> f64 {
    let unit = 10f64.powi(decimals);
    (x * unit).round() / unit
}

/// Prints one JSON object per line.
pub(super) fn print_json(row: &impl Serialize) -> Result<()> {
    out::line(json::text("a row", row)?)
}
