//! A separate root file system for the candidate, in a mount namespace: it contains the readable paths, read-only, and
//! the candidate's own files, in memory and bounded by the kernel. Paths are the same as outside.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{chdir, pivot_root};

use super::setup_error::{SetupError, doing};
use super::tree::{self, CopyError};
use super::{Confined, Limit, MOST_FILES, base};

/// The folder of POSIX shared memory and semaphores, in the same file system as the working folder.
pub(super) const SHARED: &str = "/dev/shm";

/// The new root is assembled over the old `/proc`, which exists on every machine and is not needed meanwhile.
const SITE: &str = "/proc";

/// The part of the root that all candidates have, as it was found once: what to make, in this order.
#[derive(Debug, Default)]
pub(super) struct CommonRoot {
    folders: Vec<PathBuf>,
    /// Places for files.
    files: Vec<PathBuf>,
    /// Targets and places.
    links: Vec<(PathBuf, PathBuf)>,
    /// What is shown, and where.
    shown: Vec<(PathBuf, PathBuf)>,
}

impl CommonRoot {
    pub fn plan() -> CommonRoot {
        let mut common = CommonRoot::default();
        for path in base::READABLE.iter().chain(base::DEVICES).map(Path::new) {
            common.add(path);
        }
        let devices = inside(Path::new("/dev"));
        for (name, target) in [("stdin", "0"), ("stdout", "1"), ("stderr", "2")] {
            common.links.push((format!("/proc/self/fd/{target}").into(), devices.join(name)));
        }
        common.links.push(("/proc/self/fd".into(), devices.join("fd")));
        for place in ["/dev", "/proc", SHARED] {
            common.add_folders(Path::new(place));
        }
        common
    }

    /// A link stays one; a missing path is skipped.
    fn add(&mut self, path: &Path) {
        let Ok(facts) = fs::symlink_metadata(path) else { return };
        self.add_folders(path.parent().unwrap_or(path));
        if facts.is_symlink() {
            return self.links.extend(fs::read_link(path).ok().map(|target| (target, inside(path))));
        }
        match facts.is_dir() {
            true => self.add_folders(path),
            false => self.files.push(inside(path)),
        }
        self.shown.push((path.to_path_buf(), inside(path)));
    }

    /// A folder and those above it.
    fn add_folders(&mut self, path: &Path) {
        let above: Vec<PathBuf> = path.ancestors().filter(|folder| folder.parent().is_some()).map(inside).collect();
        for folder in above.into_iter().rev() {
            if !self.folders.contains(&folder) {
                self.folders.push(folder);
            }
        }
    }

    fn make(&self) -> Result<(), SetupError> {
        self.folders.iter().try_for_each(fs::create_dir).map_err(doing("make the folders of its root"))?;
        self.files.iter().try_for_each(|file| fs::File::create(file).map(drop)).map_err(doing("make files"))?;
        self.links.iter().try_for_each(|(target, at)| symlink(target, at)).map_err(doing("make links"))?;
        self.shown.iter().try_for_each(|(path, at)| bind(path, at).map_err(doing(format!("show {}", path.display()))))
    }

    /// Moves the processes of this mount namespace, whose pid namespace is this process's too, to a new root.
    pub fn enter(&self, order: &Confined, hidden: &[PathBuf]) -> Result<OwnFiles, SetupError> {
        mount(Some("tmpfs"), SITE, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some("size=1m,mode=755"))
            .map_err(doing("mount a root"))?;
        self.make()?;
        enter(order, hidden)
    }
}

/// Adds what the order names to the root that has been made, and goes there.
fn enter(order: &Confined, hidden: &[PathBuf]) -> Result<OwnFiles, SetupError> {
    let none = None::<&str>;
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
    let (proc, shared) = (inside(Path::new("/proc")), inside(Path::new(SHARED)));
    set(Path::new(SITE), MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID).map_err(doing("close the root"))?;
    let quiet = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), &proc, Some("proc"), quiet, none).map_err(doing("mount /proc"))?;
    let own = OwnFiles::mount(order, &folder, &shared)?;
    chdir(SITE).map_err(doing("enter the root"))?;
    pivot_root(".", ".").map_err(doing("change the root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(doing("leave the old root"))?;
    chdir("/").map_err(doing("enter the root"))?;
    Ok(own)
}

/// The files of a candidate: a file system in memory, seen as its working folder and as [`SHARED`], that holds no more
/// than the output limit beside what the caller had put into the folder.
pub(super) struct OwnFiles {
    /// The file system's root.
    whole: Dir,
    /// The caller's folder.
    outer: Dir,
    /// The file system's size in bytes.
    most: u64,
}

impl OwnFiles {
    /// Mounts the file system and copies the caller's folder into it.
    fn mount(order: &Confined, folder: &Path, shared: &Path) -> Result<OwnFiles, SetupError> {
        // Larger than any memory: it gets its bounds when the caller's files are there.
        const WIDE: u64 = 1 << 50;
        const PAGE: u64 = 4096;
        let none = None::<&str>;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        let mounted = |flags: MsFlags, bytes: u64, files: u64| {
            let bounds = format!("size={bytes},nr_inodes={files},mode=755");
            mount(Some("tmpfs"), shared, Some("tmpfs"), flags, Some(bounds.as_str())).map_err(doing("mount its files"))
        };
        mounted(flags, WIDE, WIDE / PAGE)?;
        let mut outer = tree::open(&order.folder).map_err(doing("open its folder"))?;
        let whole = tree::open(shared).map_err(doing("open its files"))?;
        let (work, memory) = (shared.join("work"), shared.join("memory"));
        for (part, mode) in [(&work, 0o755), (&memory, 0o1777)] {
            fs::create_dir(part).map_err(doing("make a place for its files"))?;
            fs::set_permissions(part, Permissions::from_mode(mode)).map_err(doing("open its files"))?;
        }
        let inner = tree::open(&work).map_err(doing("open its files"))?;
        tree::copy(&mut outer, &inner, u64::MAX).map_err(|error| match error {
            CopyError::TooLarge | CopyError::Unbounded(_) => {
                doing("copy its folder")(io::Error::other("it holds too many files"))
            }
            CopyError::Io(why) => doing("copy its folder")(why),
        })?;
        let used = fstatvfs(&whole).map_err(doing("measure its files"))?;
        let before = (used.blocks() - used.blocks_free()) * used.fragment_size();
        // One page and one file more than it may have: where they are in use, it has exceeded the limit.
        let most = before.saturating_add(order.limits.output_bytes.next_multiple_of(PAGE)).min(WIDE - PAGE) + PAGE;
        mounted(flags | MsFlags::MS_REMOUNT, most, used.files() - used.files_free() + MOST_FILES + 1)?;
        mount(Some(&work), folder, none, MsFlags::MS_BIND, none).map_err(doing("show its folder"))?;
        mount(Some(&memory), shared, none, MsFlags::MS_BIND, none).map_err(doing("show shared memory"))?;
        set(folder, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).map_err(doing("close its folder"))?;
        set(shared, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC).map_err(doing("close shared memory"))?;
        Ok(OwnFiles { whole, outer, most })
    }

    /// The number of the file system's device, which no other file has.
    pub fn device(&self) -> io::Result<u64> {
        Ok(nix::sys::stat::fstat(&self.whole)?.st_dev as u64)
    }

    /// Which limit the candidate's files exceed, if one.
    pub fn exceeded(&self) -> Option<Limit> {
        match fstatvfs(&self.whole).ok()? {
            used if used.blocks_free() == 0 => Some(Limit::Output),
            used if used.files_free() == 0 => Some(Limit::Files),
            _ => None,
        }
    }

    /// Copies the working folder back to the caller's.
    pub fn keep(&self, order: &Confined) -> Result<(), CopyError> {
        tree::copy(&mut tree::open(&order.folder)?, &self.outer, self.most)
    }
}

const MOUNT_ATTR_RDONLY: u64 = 1;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;
const MOUNT_ATTR_NOEXEC: u64 = 8;

/// Where a path will be in the new root.
fn inside(path: &Path) -> PathBuf {
    Path::new(SITE).join(path.strip_prefix("/").unwrap_or(path))
}

/// Bind-mounts a file or folder; a missing path and one that is there already are skipped.
fn show(path: &Path) -> io::Result<()> {
    let at = inside(path);
    if at.symlink_metadata().is_ok_and(|there| !there.is_dir()) {
        return Ok(());
    }
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::metadata(path) {
        Ok(facts) if facts.is_dir() => fs::create_dir_all(&at)?,
        Ok(_) => drop(fs::File::create(&at)?),
        Err(_) => return Ok(()),
    }
    bind(path, &at)
}

fn bind(path: &Path, at: &Path) -> io::Result<()> {
    mount(Some(path), at, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
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
