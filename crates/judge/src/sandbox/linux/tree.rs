//! Trees of files, reached folder by folder through descriptors: neither long names nor depth hide a part of them.
//! Measures what a tree holds on disk, and copies one into another folder.

use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};

use super::{DEEPEST, Limit, MOST_FILES};

/// What a tree holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TreeSize {
    /// On disk.
    pub bytes: u64,
    pub files: u64,
}

/// What the tree exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbounded {
    /// [`MOST_FILES`].
    Files,
    /// [`DEEPEST`].
    Depth,
}

impl From<Unbounded> for Limit {
    fn from(exceeded: Unbounded) -> Limit {
        match exceeded {
            Unbounded::Files => Limit::Files,
            Unbounded::Depth => Limit::Depth,
        }
    }
}

/// Opens a folder to list it; a link is not followed.
pub(super) fn open(folder: &Path) -> nix::Result<Dir> {
    Dir::open(folder, FOLDER, Mode::empty())
}

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// Measures a folder and everything under it. A file with several links counts once; `note` gets the inode
/// and the bytes of each.
pub(super) fn measure(folder: &Path, mut note: impl FnMut(u64, u64)) -> Result<TreeSize, Unbounded> {
    let Ok(mut top) = open(folder) else { return Ok(TreeSize::default()) };
    let mut linked = HashSet::new();
    let mut size = TreeSize { bytes: fstat(&top).map_or(0, |facts| bytes_of(&facts)), files: 0 };
    let mut count = |facts: &FileStat| {
        if facts.st_nlink == 1 || linked.insert((facts.st_dev, facts.st_ino)) {
            size.bytes += bytes_of(facts);
            note(facts.st_ino, bytes_of(facts));
        }
        size.files += 1;
        if size.files > MOST_FILES { Err(Unbounded::Files) } else { Ok(()) }
    };
    visit(&mut top, 0, &mut count)?;
    Ok(size)
}

fn visit(
    folder: &mut Dir,
    depth: usize,
    count: &mut impl FnMut(&FileStat) -> Result<(), Unbounded>,
) -> Result<(), Unbounded> {
    if depth > DEEPEST {
        return Err(Unbounded::Depth);
    }
    let mut folders = Vec::new();
    let fd = folder.as_fd().try_clone_to_owned();
    for entry in folder.iter().flatten() {
        let Ok(fd) = &fd else { break };
        let name = entry.file_name();
        // A file may be gone by now.
        if is_dots(name) {
            continue;
        }
        let Ok(facts) = fstatat(fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
        count(&facts)?;
        if kind_of(&facts) == SFlag::S_IFDIR {
            folders.push(name.to_owned());
        }
    }
    for name in folders {
        if let Ok(mut inner) = Dir::openat(&*folder, name.as_c_str(), FOLDER, Mode::empty()) {
            visit(&mut inner, depth + 1, count)?;
        }
    }
    Ok(())
}

/// Why a tree was not copied whole.
#[derive(Debug)]
pub(super) enum CopyError {
    /// It is larger than the copy may be.
    TooLarge,
    Unbounded(Unbounded),
    Io(io::Error),
}

impl<E: Into<io::Error>> From<E> for CopyError {
    fn from(error: E) -> CopyError {
        CopyError::Io(error.into())
    }
}

/// Copies regular files, folders and links; replaces what has their names. Pipes, sockets and devices are left out.
/// `most`: the largest sum of the files' lengths, in bytes.
pub(super) fn copy(from: &mut Dir, to: &impl AsFd, most: u64) -> Result<(), CopyError> {
    let mut left = TreeSize { bytes: most, files: MOST_FILES };
    copy_level(from, to, 0, &mut left)
}

fn copy_level(from: &mut Dir, to: &impl AsFd, depth: usize, left: &mut TreeSize) -> Result<(), CopyError> {
    if depth > DEEPEST {
        return Err(CopyError::Unbounded(Unbounded::Depth));
    }
    let mut names = Vec::new();
    for entry in from.iter() {
        let entry = entry?;
        if !is_dots(entry.file_name()) {
            names.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    for (name, kind) in names {
        let name = name.as_c_str();
        left.files = left.files.checked_sub(1).ok_or(CopyError::Unbounded(Unbounded::Files))?;
        match kind {
            Some(Type::Directory) => {
                let mut inner = Dir::openat(&*from, name, FOLDER, Mode::empty())?;
                match mkdirat(to, name, Mode::from_bits_truncate(0o755)) {
                    Ok(()) | Err(Errno::EEXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let target = openat(to, name, FOLDER, Mode::empty())?;
                copy_level(&mut inner, &target, depth + 1, left)?;
            }
            Some(Type::Symlink) => {
                let link = readlinkat(&*from, name)?;
                make_way(to, name)?;
                symlinkat(link.as_os_str(), to, name)?;
            }
            Some(Type::File) => {
                let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
                let source = File::from(openat(&*from, name, flags, Mode::empty())?);
                let facts = fstat(&source)?;
                let length = facts.st_size as u64;
                left.bytes = left.bytes.checked_sub(length).ok_or(CopyError::TooLarge)?;
                make_way(to, name)?;
                let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
                let mut target = File::from(openat(to, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
                io::copy(&mut source.take(length), &mut target)?;
                fchmod(&target, Mode::from_bits_truncate(facts.st_mode & 0o755 | 0o600))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes what has this name, unless it is a folder.
fn make_way(folder: &impl AsFd, name: &CStr) -> nix::Result<()> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::ENOENT) => Ok(()),
        done => done,
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Blocks are of 512 bytes whatever the file system's are.
fn bytes_of(facts: &FileStat) -> u64 {
    facts.st_blocks as u64 * 512
}

fn kind_of(facts: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(facts.st_mode) & SFlag::S_IFMT
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder() -> crate::sandbox::WorkFolder {
        crate::sandbox::WorkFolder::new().unwrap()
    }

    /// A folder of 40 levels, whose names together are longer than any path may be.
    fn long_paths(top: &Path) {
        let name = "n".repeat(200);
        let mut at = open(top).unwrap();
        for _ in 0..40 {
            mkdirat(&at, name.as_str(), Mode::S_IRWXU).unwrap();
            at = Dir::openat(&at, name.as_str(), FOLDER, Mode::empty()).unwrap();
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT;
        let mut file = File::from(openat(&at, "file", flags, Mode::S_IRWXU).unwrap());
        io::Write::write_all(&mut file, &[1; 1 << 20]).unwrap();
    }

    #[test]
    fn files_beyond_the_longest_path_are_measured_and_copied() {
        let (from, to) = (folder(), folder());
        long_paths(from.path());
        let size = measure(from.path(), |_, _| ()).unwrap();
        assert!(size.bytes >= 1 << 20 && size.files == 41, "{size:?}");
        copy(&mut open(from.path()).unwrap(), &open(to.path()).unwrap(), 1 << 20).unwrap();
        assert!(measure(to.path(), |_, _| ()).unwrap().bytes >= 1 << 20);
    }

    #[test]
    fn a_tree_that_is_too_deep_or_has_too_many_files_is_told_apart() {
        let (deep, many) = (folder(), folder());
        fs::create_dir_all(deep.path().join("d/".repeat(DEEPEST + 1))).unwrap();
        (0..=MOST_FILES).for_each(|n| fs::write(many.path().join(n.to_string()), "").unwrap());
        for (tree, exceeded, limit) in
            [(&deep, Unbounded::Depth, Limit::Depth), (&many, Unbounded::Files, Limit::Files)]
        {
            assert_eq!(measure(tree.path(), |_, _| ()), Err(exceeded));
            assert_eq!(Limit::from(exceeded), limit);
        }
    }

    #[test]
    fn links_count_once_and_copies_are_bounded() {
        let (from, to) = (folder(), folder());
        fs::write(from.path().join("a"), [1; 1 << 16]).unwrap();
        fs::hard_link(from.path().join("a"), from.path().join("b")).unwrap();
        std::os::unix::fs::symlink("/", from.path().join("root")).unwrap();
        assert!(measure(from.path(), |_, _| ()).unwrap().bytes < 2 << 16);
        let copied = |most| copy(&mut open(from.path()).unwrap(), &open(to.path()).unwrap(), most);
        assert!(matches!(copied(1 << 16), Err(CopyError::TooLarge)));
        copied(2 << 16).unwrap();
        assert_eq!(fs::read(to.path().join("b")).unwrap().len(), 1 << 16);
        assert!(fs::symlink_metadata(to.path().join("root")).unwrap().is_symlink());
    }
}
