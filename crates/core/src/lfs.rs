//! Pointers of Git LFS: the short texts that a clone of a repository has in place of its large files until they are
//! fetched (git-lfs, docs/spec.md).

use std::path::Path;

use crate::error::{Error, Result};
use crate::figures;

const BEGINNING: &[u8] = b"version https://git-lfs.github.com/spec/v";
/// Pointers have fewer bytes.
const MOST: usize = 1024;

/// # Errors
///
/// `bytes`, those of the file `path`, are a pointer: says what fetches the file.
pub fn refuse_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    if bytes.len() >= MOST || !bytes.starts_with(BEGINNING) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(bytes);
    let size = text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
    let size = size.map_or_else(String::new, |size| format!(" of {}", figures::bytes(size)));
    let what =
        format!("expected the file itself, found a Git LFS pointer to one{size}; `git lfs pull` there fetches it");
    Err(Error::format(path, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_refused_and_other_files_are_not() {
        let path = Path::new("models/m/model.safetensors");
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665a5ea\nsize 4976698672\n";
        let error = refuse_pointer(path, pointer.as_bytes()).unwrap_err().to_string();
        for said in ["models/m/model.safetensors", "Git LFS pointer to one of 4.63 GiB", "`git lfs pull`"] {
            assert!(error.contains(said), "`{said}` is not in: {error}");
        }
        let cut = refuse_pointer(path, pointer.split('\n').next().unwrap().as_bytes());
        assert!(cut.unwrap_err().to_string().contains("pointer to one; `git lfs"));
        let long = format!("{pointer}{}", " ".repeat(MOST));
        for other in ["", "version 3\n", long.as_str()] {
            refuse_pointer(path, other.as_bytes()).unwrap();
        }
    }
}
