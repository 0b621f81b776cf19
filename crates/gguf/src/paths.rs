//! Which files a path to a GGUF model means: one, all parts of one that was split (`NAME-00001-of-00003.gguf`), or what
//! a folder holds.

use std::fs;
use std::path::{Path, PathBuf};

use offshoot_core::error::{Error, Result};

/// The most parts that a file may have been split into.
const MOST_PARTS: usize = 1000;

/// The files of the model at `path`, in order; `None` if it is neither a GGUF file nor a folder with some. A folder
/// that has safetensors files is none.
///
/// # Errors
///
/// A folder with several models; a part that is missing; a folder that cannot be read.
pub fn files(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    if path.is_file() {
        return if is_gguf(path) { parts(path).map(Some) } else { Ok(None) };
    }
    if !path.is_dir() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(Error::io(path, "read"))? {
        let file = entry.map_err(Error::io(path, "read"))?.path();
        if file.extension().is_some_and(|kind| kind == "safetensors") {
            return Ok(None);
        }
        if is_gguf(&file) && file.is_file() && part(&file).is_none_or(|part| part.number == 1) {
            found.push(file);
        }
    }
    found.sort();
    match found.as_slice() {
        [] => Ok(None),
        [one] => parts(one).map(Some),
        [first, second, ..] => {
            let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let found = format!("{} models, {} and {} among them", found.len(), name(first), name(second));
            Err(Error::format(path, format!("expected one GGUF model, found {found}; give the file of one")))
        }
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("gguf"))
}

/// What the name of a part says.
struct Part {
    stem: String,
    number: usize,
    of: usize,
}

/// `NAME-00001-of-00003.gguf`
fn part(path: &Path) -> Option<Part> {
    let (rest, of) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |digits: &str| {
        (digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
    };
    Some(Part { stem: stem.to_owned(), number: five(number)?, of: five(of)? })
}

/// All parts of the file that `path` is a part of.
fn parts(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(Part { stem, of, .. }) = part(path).filter(|part| (2..=MOST_PARTS).contains(&part.of)) else {
        return Ok(vec![path.to_path_buf()]);
    };
    let kind = path.extension().unwrap_or_default().to_string_lossy().into_owned();
    let all: Vec<PathBuf> =
        (1..=of).map(|number| path.with_file_name(format!("{stem}-{number:05}-of-{of:05}.{kind}"))).collect();
    match all.iter().find(|part| !part.is_file()) {
        None => Ok(all),
        Some(missing) => {
            let name = missing.file_name().unwrap_or_default().display();
            Err(Error::format(path, format!("expected all {of} parts of the model beside it, found no {name}")))
        }
    }
}
