//! Replaces several files of a folder atomically. The new files are written into a subfolder and synced to the disk.
//! Renaming that subfolder commits them; then each is moved to its place. A process killed before the commit leaves the
//! old set; after the commit, the next process that opens the folder moves the rest.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::write_whole;

/// The folder of new files before the commit; they are ignored.
const BEGUN: &str = "new-results.partial";
/// The folder of new files after the commit; they replace the old ones.
const WHOLE: &str = "new-results";

/// Replaces `files`, given as names and contents.
pub fn replace(folder: &Path, files: &[(&str, Vec<u8>)]) -> Result<()> {
    settle(folder)?;
    let begun = folder.join(BEGUN);
    if begun.exists() {
        fs::remove_dir_all(&begun).map_err(Error::io(&begun, "remove"))?;
    }
    fs::create_dir(&begun).map_err(Error::io(&begun, "create the folder"))?;
    for (name, bytes) in files {
        write_whole(&begun.join(name), |file| file.write_all(bytes))?;
    }
    fs::rename(&begun, folder.join(WHOLE)).map_err(Error::io(&begun, "rename"))?;
    settle(folder)
}

/// Completes a committed but interrupted replacement in `folder`; call it before reading its files.
pub fn settle(folder: &Path) -> Result<()> {
    let whole = folder.join(WHOLE);
    let entries = match fs::read_dir(&whole) {
        Err(_) if !whole.is_dir() => return Ok(()),
        entries => entries.map_err(Error::io(&whole, "read"))?,
    };
    // Another process may settle the same folder at the same time.
    let unless_gone = |done: std::io::Result<()>| match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    };
    for entry in entries {
        let entry = entry.map_err(Error::io(&whole, "read"))?;
        unless_gone(fs::rename(entry.path(), folder.join(entry.file_name())))
            .map_err(Error::io(entry.path(), "move to its place"))?;
    }
    unless_gone(fs::remove_dir(&whole)).map_err(Error::io(&whole, "remove"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 3] = ["a.jsonl", "b.jsonl", "c.json"];

    fn of(which: &str) -> [(&'static str, Vec<u8>); 3] {
        NAMES.map(|name| (name, format!("{which} {name}").into_bytes()))
    }

    fn write(folder: &Path, files: &[(&str, Vec<u8>)]) {
        fs::create_dir_all(folder).expect("writable");
        for (name, text) in files {
            fs::write(folder.join(name), text).expect("writable");
        }
    }

    fn holds(folder: &Path, which: &str) {
        for (name, text) in of(which) {
            assert_eq!(fs::read(folder.join(name)).expect("readable"), text);
        }
    }

    fn names(folder: &Path) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(folder).expect("readable");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("readable").file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn wherever_it_is_killed_the_files_are_all_old_or_all_new() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for written in 0..=NAMES.len() {
            write(folder.path(), &of("old"));
            write(&folder.path().join(BEGUN), &of("new")[..written]);
            settle(folder.path()).expect("it is ours");
            holds(folder.path(), "old");
        }
        for moved in 0..=NAMES.len() {
            write(folder.path(), &of("old"));
            write(folder.path(), &of("new")[..moved]);
            write(&folder.path().join(WHOLE), &of("new")[moved..]);
            settle(folder.path()).expect("it is ours");
            holds(folder.path(), "new");
        }
        replace(folder.path(), &of("newer")).expect("writable");
        holds(folder.path(), "newer");
        assert_eq!(names(folder.path()), NAMES, "nothing else is left");
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_ones() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write(folder.path(), &of("old"));
        let error = replace(folder.path(), &[("a.jsonl", Vec::new()), ("no/such/folder", Vec::new())]);
        assert!(error.is_err_and(|error| error.to_string().contains("no/such/folder")));
        settle(folder.path()).expect("it is ours");
        holds(folder.path(), "old");
    }
}
