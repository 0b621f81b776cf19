//! Several items files by one pattern: `test/*_test.csv`. The text matched by the star becomes a field of each item.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The files that match `pattern`, each with the text matched by its star, sorted by that text. The star must be in the
/// file's name, not in a folder's.
pub(crate) fn files(pattern: &Path) -> Result<Vec<(String, PathBuf)>> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let Some((before, after)) = name.split_once('*').filter(|(_, after)| !after.contains('*')) else {
        return Err(Error::value(pattern.display().to_string(), "one `*` in the file's name", "none, or several"));
    };
    let folder = pattern.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "list the folder"))? {
        let path = entry.map_err(Error::io(folder, "list the folder"))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(star) = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)) {
            found.push((star.to_string(), path));
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(Error::format(pattern, "no file has such a name")),
        false => Ok(found),
    }
}
