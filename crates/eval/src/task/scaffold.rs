//! Writes a commented example task file and three items, for `offshoot new`. The comments, and `task`, explain the
//! keys.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use offshoot_core::error::{Error, Result};

const TASK: &str = include_str!("new_task.json");
const ITEMS: &str = include_str!("new_items.jsonl");

/// The characters allowed in a name of a file or folder; it may not begin with a `.`.
pub const PLAIN_NAME: &str = "letters, digits, `-`, `_` and `.`";

/// Whether files can be named `name` without leaving their folder.
pub fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c))
}

/// The task's name by what a user typed, which may be the name of its file.
pub fn task_name(typed: &str) -> &str {
    typed.strip_suffix(".json").or_else(|| typed.strip_suffix(".jsonl")).unwrap_or(typed)
}

/// Writes `NAME.json` and `NAME.jsonl` into `folder`, which is created if necessary; existing files are never changed.
/// Returns the paths, the task file first.
pub fn write(folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    if !is_plain_name(name) {
        return Err(Error::value("the task's name", PLAIN_NAME, format!("\"{name}\"")));
    }
    let files = [(folder.join(format!("{name}.json")), TASK), (folder.join(format!("{name}.jsonl")), ITEMS)];
    if let Some((path, _)) = files.iter().find(|(path, _)| path.exists()) {
        return Err(Error::format(path, "already exists; choose another name"));
    }
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "create"))?;
    for (path, text) in &files {
        let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(Error::io(path, "create"))?;
        file.write_all(text.replace("@NAME@", name).as_bytes()).map_err(Error::io(path, "write"))?;
    }
    Ok(files.into_iter().map(|(path, _)| path).collect())
}
