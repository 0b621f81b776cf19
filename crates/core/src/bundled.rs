//! Finds the files of the bundled tasks and their model.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file of the bundled tasks: beneath the current folder, beside the binary's build folder, or where it was built.
pub fn bundled(name: &str) -> Result<PathBuf> {
    let beside_binary = std::env::current_exe().ok();
    let folders = beside_binary.iter().flat_map(|exe| exe.ancestors().skip(1)).map(Path::to_path_buf);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_path_buf);
    let places = [PathBuf::new()].into_iter().chain(folders).chain(built);
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

#[cfg(test)]
mod tests {
    use std::path::Component;

    use super::*;

    #[test]
    fn a_bundled_file_has_a_plain_path() {
        let path = bundled("words-vote.json").expect("it is bundled");
        assert!(path.components().all(|part| part != Component::ParentDir), "{}", path.display());
    }
}
