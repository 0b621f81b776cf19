//! What every program finds: its environment, and the paths that it may read: the system's programs and libraries, and
//! a few settings. Sources under `/usr/src`, homes, accounts and other processes are not among them.

use std::path::{Path, PathBuf};

/// What every program finds in its environment, beside the names of its folder.
pub(super) const ENVIRONMENT: [(&str, &str); 5] = [
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("LANG", "C.UTF-8"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("MKL_NUM_THREADS", "1"),
];

/// Files and folders; those that a machine lacks are skipped.
pub(super) const READABLE: &[&str] = &[
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/libx32",
    "/usr/include",
    "/usr/share",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/libexec",
    "/usr/local/include",
    "/usr/local/share",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/gnu/store",
    "/nix/store",
    "/sys/devices/system/cpu",
];

/// Devices without state that a candidate could read or change.
pub(super) const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// The readable files of `/proc`. Its other files show other processes.
pub(super) const FACTS: &[&str] = &["/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm/overcommit_memory"];

/// Whether `path` is under a path that every program may read.
pub(super) fn covers(path: &Path) -> bool {
    READABLE.iter().any(|base| path.starts_with(base))
}

/// The path as given and, if it contains links, the resolved path.
pub(super) fn names(path: &Path) -> Vec<PathBuf> {
    let mut names = vec![path.to_path_buf()];
    if let Ok(real) = path.canonicalize()
        && real != path
    {
        names.push(real);
    }
    names
}
