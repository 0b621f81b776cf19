//! The folders of results and whole files in them: names that are free, atomic writes, copies of what was there before.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::{FolderClaim, is_stream, with_ending, write_whole};

/// Writes the file `name` in `folder` atomically.
pub fn write(folder: &Path, name: &str, contents: &str) -> Result<()> {
    let path = folder.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::io(parent, "create the folder"))?;
    }
    write_whole(&path, |file| file.write_all(contents.as_bytes()))
}

/// Copies the file at `path` to `PATH.before`, unless that exists. Streams of this process have nothing to keep.
pub fn keep(path: &Path) -> Result<()> {
    let before = with_ending(path, ".before");
    if is_stream(path) || !path.exists() || before.exists() {
        return Ok(());
    }
    let mut now = File::open(path).map_err(Error::io(path, "open"))?;
    write_whole(&before, |file| std::io::copy(&mut now, file).map(drop))
}

/// The existing folders among `base`, `base-2`, ..., latest first.
pub fn run_folders(base: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = numbered(base).take_while(|path| path.exists()).collect();
    folders.reverse();
    folders
}

/// Makes and claims the first of `base`, `base-2`, `base-3`, ... that does not exist yet.
pub fn fresh_folder(base: &Path) -> Result<FolderClaim> {
    for path in numbered(base) {
        if let Some(claim) = FolderClaim::fresh(&path)? {
            return Ok(claim);
        }
    }
    Err(Error::Internal(format!("no number behind {} is free", base.display())))
}

/// The first of `base`, `base-2`, `base-3`, ... that does not exist yet.
pub fn free_path(base: &Path) -> PathBuf {
    numbered(base).find(|path| !path.exists()).expect("some number is free")
}

/// `base`, `base-2`, `base-3`, ...
fn numbered(base: &Path) -> impl Iterator<Item = PathBuf> {
    (1u32..).map(|n| match n {
        1 => base.to_path_buf(),
        n => PathBuf::from(format!("{}-{n}", base.display())),
    })
}
