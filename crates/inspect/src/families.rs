//! `offshoot models`: the families that run and what each was compared with, and whether a folder runs.

use std::fmt::{self, Display};
use std::path::Path;

use offshoot_core::error::Result;
use offshoot_core::out;
use offshoot_model::check::{COMPARISONS, Comparison, stored_dtype};
use offshoot_model::config::Family;
use offshoot_model::{ModelFolder, ModelRole};

use super::fact;

/// Prints the families, or what of `folder` runs.
///
/// # Errors
///
/// The folder is no model that runs: why.
pub fn models(folder: Option<&Path>) -> Result<()> {
    match folder {
        None => out::text(Families),
        Some(folder) => runs(folder),
    }
}

/// The families as a table in Markdown.
struct Families;

impl Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["family", "also named", "has", "GGUF", "compared with transformers", "on"].map(str::to_owned);
        let rows: Vec<[String; 6]> = std::iter::once(head).chain(Family::all().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for (number, row) in rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "| {} |", cells.join(" | "))?;
            if number == 0 {
                let lines: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
                writeln!(f, "| {} |", lines.join(" | "))?;
            }
        }
        Ok(())
    }
}

fn row(family: Family) -> [String; 6] {
    let comparison = comparison(family);
    [
        family.name().to_owned(),
        family.other_names().join(", "),
        family.parts().join(", "),
        family.gguf_architecture().unwrap_or_default().to_owned(),
        comparison.map_or_else(|| "nothing".to_owned(), |comparison| comparison.goldens.join(", ")),
        comparison.map_or_else(String::new, devices),
    ]
}

fn comparison(family: Family) -> Option<&'static Comparison> {
    COMPARISONS.iter().find(|comparison| comparison.family == family.name())
}

/// The devices of a comparison: the CPU by this version's tests, a GPU where a run of some of its models is recorded.
fn devices(comparison: &Comparison) -> String {
    match comparison.on_gpu() {
        None => "CPU".to_owned(),
        Some((gpu, date)) => format!("CPU, some on {gpu} ({date})"),
    }
}

fn runs(path: &Path) -> Result<()> {
    let folder = match ModelRole::of(path)? {
        ModelRole::Scorer => ModelFolder::open_scorer(path, None)?,
        ModelRole::Generator | ModelRole::Embedder => ModelFolder::open(path)?,
    };
    let family = folder.config.family;
    fact("family", family.name())?;
    match comparison(family) {
        None => fact("compared", "with nothing")?,
        Some(comparison) => {
            let goldens = comparison.goldens.join(", ");
            fact("compared", format_args!("with transformers: {goldens} on {}", devices(comparison)))?;
        }
    }
    match stored_dtype(&folder)? {
        None => fact("runs", "by its configuration; not all of its weights are there"),
        Some(dtype) => fact("runs", format_args!("in {dtype}")),
    }
}
