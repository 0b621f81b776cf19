//! A folder of a candidate's own, removed with all that is in it whatever the candidate has done there.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// An empty folder under the system's folder for temporary files; dropped, it is removed.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
}

impl WorkFolder {
    pub(super) fn new() -> Result<WorkFolder> {
        let parent = fs::canonicalize(std::env::temp_dir()).map_err(Error::io(std::env::temp_dir(), "find"))?;
        for _ in 0..100 {
            let path = parent.join(format!("offshoot-{:016x}", random()?));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let own = WorkFolder { path };
                    fs::set_permissions(&own.path, Permissions::from_mode(0o700))
                        .map_err(Error::io(&own.path, "close"))?;
                    return Ok(own);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(Error::io(&path, "create")(error)),
            }
        }
        Err(Error::Internal(format!("{} has no free name for a folder", parent.display())))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            log::warn!("{}: cannot be removed: {error}", self.path.display());
        }
    }
}

fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let source = Path::new("/dev/urandom");
    fs::File::open(source)
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes))
        .map_err(Error::io(source, "read"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Removes a tree of any depth: folders inside folders are moved up to `top` before they are emptied, so that neither paths nor
/// the stack grow.
fn remove(top: &Path) -> io::Result<()> {
    let mut moved = 0u64;
    loop {
        let mut empty = true;
        for entry in fs::read_dir(top)? {
            let entry = entry?;
            empty = false;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
                continue;
            }
            let folder = entry.path();
            fs::set_permissions(&folder, Permissions::from_mode(0o700))?;
            for inner in fs::read_dir(&folder)? {
                let inner = inner?;
                if inner.file_type()?.is_dir() {
                    fs::set_permissions(inner.path(), Permissions::from_mode(0o700))?;
                    let free = loop {
                        moved += 1;
                        let name = top.join(OsString::from(format!("{moved}.moved")));
                        if fs::symlink_metadata(&name).is_err() {
                            break name;
                        }
                    };
                    fs::rename(inner.path(), free)?;
                } else {
                    fs::remove_file(inner.path())?;
                }
            }
            fs::remove_dir(&folder)?;
        }
        if empty {
            return fs::remove_dir(top);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_removed_however_deep_and_closed() {
        let own = WorkFolder::new().unwrap();
        let top = own.path().to_path_buf();
        let mut deep = top.clone();
        for level in 0..300 {
            deep.push(format!("{level}.moved"));
            fs::create_dir(&deep).unwrap();
            fs::write(deep.with_extension("file"), "x").unwrap();
        }
        std::os::unix::fs::symlink("/", top.join("root")).unwrap();
        fs::set_permissions(top.join("0.moved"), Permissions::from_mode(0o0)).unwrap();
        drop(own);
        assert!(!top.exists());
        assert!(Path::new("/usr").exists());
    }
}
