//! The trial: a confined process of our own tries what candidates must not be able to do. What a probe says is in force has
//! been refused here.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Something that a candidate must not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Deed {
    Read,
    Write,
    Socket,
    Signal,
}

impl Deed {
    pub const ALL: [Deed; 4] = [Deed::Read, Deed::Write, Deed::Socket, Deed::Signal];

    pub fn words(self) -> &'static str {
        match self {
            Deed::Read => "reading a file outside",
            Deed::Write => "writing a file outside",
            Deed::Socket => "opening a socket",
            Deed::Signal => "sending a signal to the caller",
        }
    }
}

/// What the confined process needs for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trial {
    /// A file of the caller's that anyone may read, in a folder that anyone may write.
    pub file: PathBuf,
    pub caller: i32,
}

pub(super) const FILE: &str = "secret";

impl Trial {
    /// Lays out the file that is then tried for.
    pub fn in_folder(folder: &Path) -> std::io::Result<Trial> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
        let file = folder.join(FILE);
        fs::write(&file, "a candidate can read this")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        Ok(Trial { file, caller: std::process::id() as i32 })
    }

    /// What was not refused.
    pub fn done(&self) -> Vec<Deed> {
        // SAFETY: opens a socket, or not; it is left to this process's end.
        let socket = |family| unsafe { libc::socket(family, libc::SOCK_STREAM, 0) } >= 0;
        let succeeds = |deed: &Deed| match deed {
            Deed::Read => fs::read(&self.file).is_ok(),
            Deed::Write => File::create(&self.file).is_ok() || File::create(self.file.with_extension("new")).is_ok(),
            Deed::Socket => socket(libc::AF_INET) || socket(libc::AF_INET6) || socket(libc::AF_UNIX),
            // SAFETY: signal 0 only asks whether a signal could be sent.
            Deed::Signal => unsafe { libc::kill(self.caller, 0) == 0 },
        };
        Deed::ALL.into_iter().filter(succeeds).collect()
    }
}
