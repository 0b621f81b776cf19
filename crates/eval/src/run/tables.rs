//! A run's results as Parquet beside its JSON lines, from which a run is resumed: written from the lines when a process
//! ends, and again by whatever changes the lines afterwards. `records::table` defines the columns.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind};
use std::path::Path;

use crate::records::table::RecordKind;
use crate::records::write::write_parquet;
use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::WholeFile;

/// The form of a run's results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResultFormat {
    /// JSON lines alone.
    #[default]
    Jsonl,
    /// JSON lines, and the same as Parquet.
    Parquet,
}

/// A file of lines, the Parquet file of the same records, and their kind.
pub const TABLES: [(&str, &str, RecordKind); 2] =
    [("samples.jsonl", "samples.parquet", RecordKind::Sample), ("items.jsonl", "items.parquet", RecordKind::Item)];

/// Removes the Parquet files of earlier processes, which would no longer be those of the lines. Returns whether there
/// were any: such a folder gets new ones.
pub fn remove(folder: &Path) -> Result<bool> {
    let mut found = false;
    for (_, table, _) in TABLES {
        let path = folder.join(table);
        match fs::remove_file(&path) {
            Ok(()) => found = true,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Error::io(&path, "remove")(error)),
        }
    }
    Ok(found)
}

/// Writes the Parquet files of the lines in `folder`, each whole or not at all.
pub fn write(folder: &Path) -> Result<()> {
    for (lines, table, kind) in TABLES {
        let lines = folder.join(lines);
        let file = File::open(&lines).map_err(Error::io(&lines, "open"))?;
        let mut out = WholeFile::create(&folder.join(table))?;
        write_parquet(kind, &lines, Box::new(BufReader::new(file)), out.writer())?;
        out.finish()?;
    }
    Ok(())
}
