//! Other people's data, which is not part of the repository: `../shared`, or the folder that OFFSHOOT_SHARED names.

use std::path::{Path, PathBuf};

/// A file or folder of it; `None`, with a line that says so, where it is absent.
pub fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("OFFSHOOT_SHARED")
        .map_or_else(|| Path::new(offshoot_fixtures::REPOSITORY).join("../shared"), PathBuf::from);
    let found = Some(root.join(path)).filter(|path| path.exists());
    if found.is_none() {
        crate::skip::skipped("../shared is not here");
    }
    found
}
