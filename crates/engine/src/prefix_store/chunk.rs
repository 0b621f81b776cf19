//! The files of a chunk in the prefix store: keys and values of [`CHUNK_TOKENS`] consecutive tokens of a prompt, and
//! the state of recurrent layers after the last of them. Their name is a hash of what determines their contents, so
//! equal prefixes of different prompts are one chunk. When files are written, read and removed is left to the rest of
//! the store.
//!
//! # Format
//! `magic, identity, name of the chunk before, number of bytes (u64), tokens (u32 each), the bytes of pages or of a
//! state, BLAKE3 of all that`, little endian. All but these bytes follows from what a reader looks for, so it is
//! compared and never interpreted.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_core::out::files::write_whole;

/// Tokens of a chunk: a multiple of every page size. Small enough that a shared beginning is rarely cut by much, large
/// enough that a file has some megabytes.
pub const CHUNK_TOKENS: usize = 512;

/// What a file holds of its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkPart {
    /// Keys and values of its tokens.
    Pages,
    /// The state after its last token. Not every chunk has one.
    State,
}

impl ChunkPart {
    pub const BOTH: [ChunkPart; 2] = [ChunkPart::Pages, ChunkPart::State];

    fn magic(self) -> [u8; 8] {
        match self {
            ChunkPart::Pages => *b"offkv\0\0\x01",
            ChunkPart::State => *b"offst\0\0\x01",
        }
    }

    /// Ending of the files' names.
    pub fn ending(self) -> &'static str {
        match self {
            ChunkPart::Pages => "kv",
            ChunkPart::State => "state",
        }
    }
}

/// What determines keys and values beside the tokens: model, arithmetic, formats. A hash.
pub(super) type Identity = [u8; 32];

/// Name of a chunk: a hash of the identity and of all tokens up to its end.
pub(super) type ChunkName = [u8; 32];

/// The key of a chunk: all that is known of it without its file.
#[derive(Clone, Debug)]
pub(super) struct ChunkKey {
    pub identity: Identity,
    /// The chunk before. For the first one the identity itself, or a hash of it and the prompt's salt.
    pub before: ChunkName,
    pub tokens: Vec<TokenId>,
}

impl ChunkKey {
    pub fn name(&self) -> ChunkName {
        let mut hash = blake3::Hasher::new();
        hash.update(&self.identity).update(&self.before);
        self.tokens.iter().for_each(|token| _ = hash.update(&token.0.to_le_bytes()));
        hash.finalize().into()
    }

    fn header(&self, part: ChunkPart, bytes: usize) -> Vec<u8> {
        let mut header = [&part.magic()[..], &self.identity, &self.before, &(bytes as u64).to_le_bytes()].concat();
        self.tokens.iter().for_each(|token| header.extend(token.0.to_le_bytes()));
        header
    }
}

/// The path of a part of the chunk `name` in `folder`.
pub(super) fn path_of(folder: &Path, name: &ChunkName, part: ChunkPart) -> PathBuf {
    folder.join(format!("{}.{}", blake3::Hash::from_bytes(*name).to_hex(), part.ending()))
}

/// Why a chunk cannot be used.
#[derive(Debug)]
pub(super) enum Unread {
    /// There is no such file: it was never written, or evicted meanwhile.
    Missing,
    /// The file is not what its name says.
    Damaged(&'static str),
    Unreadable(io::Error),
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => Unread::Missing,
            ErrorKind::UnexpectedEof => Unread::Damaged("it is cut short"),
            _ => Unread::Unreadable(error),
        }
    }
}

/// Whether a file lies there. What is no regular file (a FIFO, a folder, a link) is no chunk.
pub(super) fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|there| there.is_file())
}

/// The file of a part. Nothing else is opened: to open a FIFO would wait for its writer.
pub(super) fn open(path: &Path) -> Result<File, Unread> {
    const NO_FILE: Unread = Unread::Damaged("it is no regular file");
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(NO_FILE);
    }
    Ok(OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path)?)
}

/// A part of the chunk `key`, `bytes` bytes in all.
pub(super) fn read(path: &Path, key: &ChunkKey, part: ChunkPart, bytes: usize) -> Result<Vec<u8>, Unread> {
    let mut file = open(path)?;
    let expected = key.header(part, bytes);
    if file.metadata()?.len() != (expected.len() + bytes + blake3::OUT_LEN) as u64 {
        return Err(Unread::Damaged("its length is wrong"));
    }
    let mut header = vec![0; expected.len()];
    file.read_exact(&mut header)?;
    if header != expected {
        return Err(Unread::Damaged("it belongs to another prefix, model or version"));
    }
    let mut held = vec![0; bytes];
    file.read_exact(&mut held)?;
    let mut checksum = [0; blake3::OUT_LEN];
    file.read_exact(&mut checksum)?;
    match blake3::Hasher::new().update(&header).update(&held).finalize() == checksum {
        true => Ok(held),
        false => Err(Unread::Damaged("its checksum is wrong")),
    }
}

/// Writes a part of the chunk `key`; it appears whole or not at all.
pub(super) fn write(path: &Path, key: &ChunkKey, part: ChunkPart, held: &[u8]) -> Result<()> {
    let header = key.header(part, held.len());
    let checksum = blake3::Hasher::new().update(&header).update(held).finalize();
    write_whole(path, |file| {
        file.write_all(&header)?;
        file.write_all(held)?;
        file.write_all(checksum.as_bytes())
    })
}

/// Bytes of a file that holds so many of a chunk.
pub(super) fn file_bytes(held: usize) -> u64 {
    let header = 2 * size_of::<Identity>() + size_of::<[u8; 8]>() + size_of::<u64>() + 4 * CHUNK_TOKENS;
    (header + held + blake3::OUT_LEN) as u64
}
