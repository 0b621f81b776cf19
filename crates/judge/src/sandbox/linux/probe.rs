//! The probes: a confined process of our own tries what candidates must not be able to do. The sandbox reports a
//! protection as in force only if these attempts were refused.

use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An action that must be refused to a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SandboxProbe {
    Read,
    Write,
    Socket,
    Signal,
}

impl SandboxProbe {
    pub const ALL: [SandboxProbe; 4] =
        [SandboxProbe::Read, SandboxProbe::Write, SandboxProbe::Socket, SandboxProbe::Signal];

    pub fn words(self) -> &'static str {
        match self {
            SandboxProbe::Read => "reading a file outside",
            SandboxProbe::Write => "writing a file outside",
            SandboxProbe::Socket => "a socket that reaches others",
            SandboxProbe::Signal => "sending a signal to the caller",
        }
    }
}

/// The targets that the probing process tries to access.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ProbeTarget {
    /// A world-readable file of the caller, in a world-writable folder.
    pub file: PathBuf,
    /// The caller listens on this socket, and on an abstract one whose name is this path.
    pub socket: PathBuf,
    /// ... and on this one, in a folder that the process may read.
    pub shown: PathBuf,
    pub caller: i32,
}

pub(super) const FILE: &str = "secret";
const SOCKET: &str = "socket";

impl ProbeTarget {
    /// Writes the file that the probes try to read and write, and listens where they try to connect; `shown` is a
    /// folder that they may read.
    pub fn in_folders(folder: &Path, shown: &Path) -> std::io::Result<(ProbeTarget, [UnixListener; 3])> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o777))?;
        let file = folder.join(FILE);
        fs::write(&file, "a candidate can read this")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
        let [socket, shown] = [folder, shown].map(|folder| folder.join(SOCKET));
        let by_name = UnixListener::bind_addr(&abstract_name(&socket)?)?;
        let listeners = [UnixListener::bind(&socket)?, UnixListener::bind(&shown)?, by_name];
        for path in [&socket, &shown] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        }
        Ok((ProbeTarget { file, socket, shown, caller: std::process::id() as i32 }, listeners))
    }

    /// Runs all probes; returns those that were not refused.
    pub fn done(&self) -> Vec<SandboxProbe> {
        // SAFETY: socket(2) takes no pointers; an opened socket is closed when this process ends.
        let socket = |family| unsafe { libc::socket(family, libc::SOCK_STREAM, 0) } >= 0;
        let succeeds = |probe: &SandboxProbe| match probe {
            SandboxProbe::Read => fs::read(&self.file).is_ok(),
            SandboxProbe::Write => {
                File::create(&self.file).is_ok() || File::create(self.file.with_extension("new")).is_ok()
            }
            SandboxProbe::Socket => {
                let abstract_one = abstract_name(&self.socket).and_then(|name| UnixStream::connect_addr(&name));
                socket(libc::AF_INET)
                    || socket(libc::AF_INET6)
                    || UnixStream::connect(&self.socket).is_ok()
                    || UnixStream::connect(&self.shown).is_ok()
                    || abstract_one.is_ok()
            }
            // SAFETY: signal 0 only asks whether a signal could be sent.
            SandboxProbe::Signal => unsafe { libc::kill(self.caller, 0) == 0 },
        };
        SandboxProbe::ALL.into_iter().filter(succeeds).collect()
    }
}

fn abstract_name(of: &Path) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(of.as_os_str().as_encoded_bytes())
}
