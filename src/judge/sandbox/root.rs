//! A separate root file system for the candidate, in a mount namespace: it contains the readable paths, read-only, and
//! the working folder. Paths are the same as outside.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, pivot_root};

use super::base;
use super::candidate::{SetupError, doing};
use super::wire::CandidateSpec;

/// The folder of POSIX shared memory and semaphores: a small in-memory file system of the candidate. Its contents count
/// as the working folder's.
pub(super) const SHARED: &str = "/dev/shm";
/// Maximum number of files in it.
const MOST_SHARED: u32 = 1024;

/// The new root is assembled over the old `/proc`, which exists on every machine and is not needed meanwhile.
const SITE: &str = "/proc";

/// Moves this process, the first of its pid namespace and alone in its mount namespace, to a new root.
pub(super) fn enter(order: &CandidateSpec, hidden: &[PathBuf]) -> Result<(), SetupError> {
    let none = None::<&str>;
    mount(Some("tmpfs"), SITE, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("size=1m,mode=755"))
        .map_err(doing("mount a root"))?;
    for path in base::READABLE.iter().chain(base::DEVICES) {
        show(Path::new(path)).map_err(doing(format!("show {path}")))?;
    }
    let devices = inside(Path::new("/dev"));
    for (name, target) in [("stdin", "0"), ("stdout", "1"), ("stderr", "2")] {
        symlink(format!("/proc/self/fd/{target}"), devices.join(name)).map_err(doing("make /dev"))?;
    }
    symlink("/proc/self/fd", devices.join("fd")).map_err(doing("make /dev"))?;
    for path in order.readable.iter().chain([&order.program]) {
        for name in base::names(path).into_iter().filter(|name| !base::covers(name)) {
            show(&name).map_err(doing(format!("show {}", name.display())))?;
        }
    }
    let needed = |path: &Path| order.readable.iter().chain([&order.program]).any(|readable| readable.starts_with(path));
    for path in hidden.iter().filter(|path| !needed(path)) {
        cover(&inside(path)).map_err(doing(format!("hide {}", path.display())))?;
    }
    let folder = inside(&order.folder);
    fs::create_dir_all(&folder).map_err(doing("make a place for its folder"))?;
    let proc = inside(Path::new("/proc"));
    fs::create_dir_all(&proc).map_err(doing("make a place for /proc"))?;
    let shared = inside(Path::new(SHARED));
    fs::create_dir(&shared).map_err(doing("make a place for shared memory"))?;
    set(Path::new(SITE), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID).map_err(doing("close the root"))?;
    mount(Some(&order.folder), &folder, none, MsFlags::MS_BIND, none).map_err(doing("show its folder"))?;
    set(&folder, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).map_err(doing("close its folder"))?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &proc, Some("proc"), quiet, none).map_err(doing("mount /proc"))?;
    // 0 would mean no limit.
    let bounds = format!("size={},nr_inodes={MOST_SHARED},mode=1777", order.output_bytes.max(1));
    mount(Some("tmpfs"), &shared, Some("tmpfs"), quiet, Some(bounds.as_str())).map_err(doing("mount shared memory"))?;
    chdir(SITE).map_err(doing("enter the root"))?;
    pivot_root(".", ".").map_err(doing("change the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(doing("leave the old root"))?;
    chdir("/").map_err(doing("enter the root"))
}

const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;

/// Where a path will be in the new root.
fn inside(path: &Path) -> PathBuf {
    Path::new(SITE).join(path.strip_prefix("/").unwrap_or(path))
}

/// Recreates a link, bind-mounts a file or folder; a missing path is skipped.
fn show(path: &Path) -> io::Result<()> {
    let Ok(facts) = fs::symlink_metadata(path) else { return Ok(()) };
    let at = inside(path);
    if at.symlink_metadata().is_ok_and(|there| !there.is_dir()) {
        return Ok(());
    }
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    if facts.is_symlink() && base::READABLE.iter().any(|base| Path::new(base) == path) {
        return symlink(fs::read_link(path)?, at);
    }
    match fs::metadata(path) {
        Ok(facts) if facts.is_dir() => fs::create_dir_all(&at)?,
        Ok(_) => drop(fs::File::create(&at)?),
        Err(_) => return Ok(()),
    }
    mount(Some(path), &at, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(())
}

/// Mounts something empty over a file or folder of the new root; a missing path and a link are skipped.
fn cover(at: &Path) -> io::Result<()> {
    match fs::symlink_metadata(at) {
        Ok(facts) if facts.is_dir() => {
            let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            mount(Some("tmpfs"), at, Some("tmpfs"), flags, Some("size=4k,mode=755"))?;
        }
        Ok(facts) if facts.is_file() => {
            mount(Some("/dev/null"), at, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        }
        _ => {}
    }
    Ok(())
}

/// Adds attributes to a mount and all mounts under it.
fn set(path: &Path, attributes: u64) -> io::Result<()> {
    /// `struct mount_attr` of mount_setattr(2).
    #[repr(C)]
    struct MountAttributes {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let change = MountAttributes { set: attributes, clear: 0, propagation: 0, user_namespace: 0 };
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero byte, `change` has the size that is passed; both outlive the call.
    let done = unsafe {
        let flags = libc::AT_RECURSIVE;
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            &raw const change,
            size_of::<MountAttributes>(),
        )
    };
    Errno::result(done)?;
    Ok(())
}
