//! Temporary folders of candidates, removed with their contents whatever the candidate has done there.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use offshoot_core::error::{Error, Result};

/// An empty folder under the system's folder for temporary files, removed on drop. Its name holds the id of the process
/// that owns it, and it is locked while in use. If the process is killed, its sandbox server removes the folder
/// (`sweep_behind`); if the server is killed too, the next process sees that the lock is free and removes it (`sweep`).
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    _lock: File,
}

/// All our folders have such names, of files and of control groups, with the number of the process that owns them.
pub(super) const PREFIX: &str = "offshoot-judge-";

/// Removes the folders of killed processes; folders of running processes are left.
pub(super) fn sweep() {
    remove_unused(&std::env::temp_dir(), PREFIX, remove);
}

/// Removes the folders in `parent` with names that begin so and that no process has locked. Each is locked meanwhile,
/// so that who has just created it sees that it has gone.
pub(super) fn remove_unused(parent: &Path, prefix: &str, remove: fn(&Path) -> io::Result<()>) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix)
            && entry.file_type().is_ok_and(|kind| kind.is_dir())
            && let Ok(lock) = File::open(entry.path())
            && lock.try_lock().is_ok()
        {
            let _ = remove(&entry.path());
        }
    }
}

/// Longest time between a process closing its files and its end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Waits for the end of the process that started this one, then removes its folders in `folders`: no folder can then be
/// new and not yet locked.
pub(super) fn sweep_behind(process: u32, folders: &Path) {
    let begun = Instant::now();
    while parent_id() == process {
        if begun.elapsed() > END_LIMIT {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    remove_unused(folders, &format!("{PREFIX}{process}-"), remove);
}

impl WorkFolder {
    pub(super) fn new() -> Result<WorkFolder> {
        let parent = fs::canonicalize(std::env::temp_dir()).map_err(Error::io(std::env::temp_dir(), "find"))?;
        for _ in 0..100 {
            let path = parent.join(format!("{PREFIX}{}-{:016x}", std::process::id(), random()?));
            match fs::create_dir(&path) {
                Ok(()) => {
                    let Some(lock) = locked(&path).map_err(Error::io(&path, "lock"))? else { continue };
                    let own = WorkFolder { _lock: lock, path };
                    // A candidate that runs as a separate user may have to read another candidate's folder.
                    fs::set_permissions(&own.path, Permissions::from_mode(0o755))
                        .map_err(Error::io(&own.path, "open"))?;
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

/// The new folder, locked; `None` if another process has swept it away.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let gone = |error: io::Error| if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    let folder = match File::open(path) {
        Ok(folder) => folder,
        Err(error) => return gone(error),
    };
    folder.lock()?;
    match fs::metadata(path) {
        Ok(there) => Ok((there.ino() == folder.metadata()?.ino()).then_some(folder)),
        Err(error) => gone(error),
    }
}

pub(super) fn random() -> Result<u64> {
    let mut bytes = [0; 8];
    let source = Path::new("/dev/urandom");
    File::open(source)
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes))
        .map_err(Error::io(source, "read"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Removes a tree of any depth: nested folders are moved up to `top` before they are emptied, so that neither paths nor
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

    #[test]
    fn only_unlocked_folders_are_swept() {
        let held = WorkFolder::new().unwrap();
        let left = std::env::temp_dir().join(format!("{PREFIX}left-{}", std::process::id()));
        fs::create_dir(&left).unwrap();
        sweep();
        assert!(held.path().exists() && !left.exists());
    }
}
