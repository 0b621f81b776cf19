//! Compiled kernels on disk, keyed by a hash of everything that affects them. A cache that cannot be read or written is
//! logged and ignored: it costs time, never correctness.

use std::fs;
use std::path::{Path, PathBuf};

use super::ptxas::{self, KernelUsage};

/// Machine code of one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    pub bytes: Vec<u8>,
    /// NVRTC's log.
    pub log: String,
}

impl Cubin {
    pub fn usage(&self) -> Vec<KernelUsage> {
        ptxas::usage(&self.log)
    }
}

/// The hash of source, headers, options, architecture and compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(blake3::Hash);

impl Key {
    /// Hash of `parts` in order, with their lengths.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Key {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        Key(hasher.finalize())
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

/// A folder of `HASH.cubin` files. Each starts with the hash of the rest, so that a damaged one is found.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// `kernels` in the user's folder.
    pub fn of_user() -> Cache {
        let folder = user_folder();
        if folder.is_none() {
            log::warn!("no folder for compiled kernels (HOME is not set): they are compiled anew each time");
        }
        Cache { folder: folder.map(|folder| folder.join("kernels")) }
    }

    /// The cache in this folder, which is created when something is stored.
    pub fn in_folder(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    pub fn get(&self, key: &Key) -> Option<Cubin> {
        let path = self.path(key)?;
        let file = match fs::read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                log::warn!("{}: cannot read the compiled kernel: {error}", path.display());
                return None;
            }
        };
        let cubin = decode(&file);
        if cubin.is_none() {
            log::warn!("{}: the compiled kernel is damaged, it is compiled anew", path.display());
        }
        cubin
    }

    pub fn put(&self, key: &Key, cubin: &Cubin) {
        let Some(path) = self.path(key) else { return };
        if let Err(error) = write_whole(&path, &encode(cubin)) {
            log::warn!("{}: cannot keep the compiled kernel: {error}", path.display());
        }
    }

    fn path(&self, key: &Key) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.cubin")))
    }
}

/// `$OFFSHOOT_CACHE`, else `$XDG_CACHE_HOME/offshoot`, else `~/.cache/offshoot`; `None` where none of them is set.
pub fn user_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("OFFSHOOT_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|folder| folder.join("offshoot")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/offshoot")))
}

/// Hash of the rest (32 bytes), length of the log (8 bytes), log, machine code.
fn encode(cubin: &Cubin) -> Vec<u8> {
    let mut rest = (cubin.log.len() as u64).to_le_bytes().to_vec();
    rest.extend_from_slice(cubin.log.as_bytes());
    rest.extend_from_slice(&cubin.bytes);
    let mut file = blake3::hash(&rest).as_bytes().to_vec();
    file.append(&mut rest);
    file
}

fn decode(file: &[u8]) -> Option<Cubin> {
    let (hash, rest) = file.split_first_chunk::<32>()?;
    if blake3::hash(rest) != *hash {
        return None;
    }
    let (length, rest) = rest.split_first_chunk::<8>()?;
    let (log, bytes) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(Cubin { bytes: bytes.to_vec(), log: String::from_utf8(log.to_vec()).ok()? })
}

/// A reader sees the whole file or none, whoever else writes it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let unfinished = path.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    let written = fs::write(&unfinished, bytes).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The first error is reported; a file that was not made cannot be removed.
        let _ = fs::remove_file(&unfinished);
    }
    written
}
