//! Several items files by one pattern: `test/*_test.csv`. The text matched by the star becomes a field of each item.

use std::path::{Path, PathBuf};

use offshoot_core::error::{Error, Result};
use offshoot_core::input;

/// A file's name with one star in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamePattern {
    before: String,
    after: String,
}

impl NamePattern {
    /// `None`: the name has no star, or several, or names a folder too.
    pub fn of(name: &str) -> Option<NamePattern> {
        let (before, after) = name.split_once('*').filter(|(_, after)| !after.contains('*'))?;
        let (before, after) = (before.to_owned(), after.to_owned());
        (!name.contains('/')).then_some(NamePattern { before, after })
    }

    /// The text for which the star stands.
    fn star(&self, path: &Path) -> Option<String> {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix(&self.before)?.strip_suffix(&self.after).map(str::to_owned)
    }
}

/// The files at `path`, each with the text matched by the star of its name, sorted by that text. `path` is a pattern,
/// or with `names` also a folder or one file.
pub(crate) fn files(path: &Path, names: Option<&NamePattern>) -> Result<Vec<(String, PathBuf)>> {
    let Some(names) = names else { return matching(path) };
    if path.is_dir() {
        return matching(&path.join(format!("{}*{}", names.before, names.after)));
    }
    if path.to_string_lossy().contains('*') {
        return matching(path);
    }
    match names.star(path) {
        Some(star) => Ok(vec![(star, path.to_path_buf())]),
        None if !path.exists() => Err(Error::io(path, "open")(std::io::ErrorKind::NotFound.into())),
        None => {
            let expected = format!("a file named `{}*{}`, or a folder of such files", names.before, names.after);
            Err(Error::value("items.path", expected, path.display().to_string()))
        }
    }
}

/// The files that match `pattern`. The star must be in the file's name, not in a folder's.
fn matching(pattern: &Path) -> Result<Vec<(String, PathBuf)>> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy();
    let Some(names) = NamePattern::of(&name) else {
        return Err(Error::value(pattern.display().to_string(), "one `*` in the file's name", "none, or several"));
    };
    let folder = pattern.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    for path in input::entries(folder)? {
        found.extend(names.star(&path).map(|star| (star, path)));
    }
    found.sort();
    match found.is_empty() {
        true => Err(Error::format(pattern, "no file has such a name")),
        false => Ok(found),
    }
}
