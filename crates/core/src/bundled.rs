//! Finds the files of the bundled tasks and their model.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file of the bundled tasks: beneath the current folder, beside the binary's build folder, or where it was built.
pub fn bundled(name: &str) -> Result<PathBuf> {
    let beside_binary = std::env::current_exe().ok();
    let folders = beside_binary.iter().flat_map(|exe| exe.ancestors().skip(1)).map(Path::to_path_buf);
    let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let places = [PathBuf::new()].into_iter().chain(folders).chain([built]);
    let found = places.map(|folder| folder.join("tasks").join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let expected = "beneath the current folder or beside the binary";
        Error::value(
            format!("the bundled task tasks/{name}"),
            expected,
            "nothing: name a task file, or use `offshoot new`",
        )
    })
}
