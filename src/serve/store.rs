//! Uploaded files and batches on disk: an object and, for files, its bytes, under names that the server makes. What a
//! client names is looked up only if it has the form of such a name, so that no path can be asked for. Each object belongs
//! to one API key.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::openai::protocol::Refusal;
use crate::openai::protocol::files::{BatchObject, FileObject};
use crate::out::files::{FolderClaim, write_whole};

use super::random::random_hex;

/// What is kept in a folder of its own.
pub trait Kept: Serialize + DeserializeOwned {
    const FOLDER: &'static str;
    const PREFIX: &'static str;
    /// In messages.
    const NOUN: &'static str;
    fn id(&self) -> &str;
    fn created(&self) -> u64;
}

impl Kept for FileObject {
    const FOLDER: &'static str = "files";
    const PREFIX: &'static str = "file-";
    const NOUN: &'static str = "file";

    fn id(&self) -> &str {
        &self.id
    }

    fn created(&self) -> u64 {
        self.created_at
    }
}

impl Kept for BatchObject {
    const FOLDER: &'static str = "batches";
    const PREFIX: &'static str = "batch_";
    const NOUN: &'static str = "batch";

    fn id(&self) -> &str {
        &self.id
    }

    fn created(&self) -> u64 {
        self.created_at
    }
}

/// An object as it is on disk.
#[derive(Serialize, Deserialize)]
pub struct Record<T> {
    /// Whose it is: `ApiKeys::owner`.
    pub owner: String,
    pub object: T,
}

/// Digits of a name.
const DIGITS: usize = 24;

pub struct Store {
    folder: FolderClaim,
    /// Bytes that all files may have.
    pub most_bytes: u64,
    /// Held while objects are changed, so that two requests do not write one at once.
    changing: Mutex<()>,
}

impl Store {
    /// Claims `folder`.
    ///
    /// # Errors
    ///
    /// Another process has claimed it, or it cannot be made.
    pub fn open(folder: &Path, most_bytes: u64) -> Result<Store> {
        let folder = FolderClaim::of(folder)?;
        for name in [FileObject::FOLDER, BatchObject::FOLDER] {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).map_err(Error::io(&path, "create the folder"))?;
        }
        Ok(Store { folder, most_bytes, changing: Mutex::new(()) })
    }

    /// A name that no object has.
    pub fn new_id<T: Kept>() -> String {
        format!("{}{}", T::PREFIX, random_hex::<{ DIGITS / 2 }>())
    }

    /// Where the bytes of a file are.
    pub fn bytes_of(&self, file: &str) -> PathBuf {
        self.folder.path().join(FileObject::FOLDER).join(format!("{file}.jsonl"))
    }

    /// Where a batch collects its answers.
    pub fn answers_of(&self, batch: &str) -> PathBuf {
        self.folder.path().join(BatchObject::FOLDER).join(format!("{batch}.answers.jsonl"))
    }

    fn path<T: Kept>(&self, id: &str) -> PathBuf {
        self.folder.path().join(T::FOLDER).join(format!("{id}.json"))
    }

    /// Writes an object, new or changed.
    pub fn put<T: Kept>(&self, record: &Record<T>) -> Result<()> {
        let _changing = self.changing.lock().expect("nothing panics while it changes objects");
        let text = serde_json::to_vec(record).expect("keys are strings");
        write_whole(&self.path::<T>(record.object.id()), |file| file.write_all(&text))
    }

    /// The object that `owner` calls `id`.
    pub fn get<T: Kept>(&self, owner: &str, id: &str) -> Result<T, Refusal> {
        let unknown = || {
            let shown: String = id.chars().take(60).collect();
            Refusal::not_found(format!("there is no {} {shown:?}", T::NOUN))
        };
        if !is_name::<T>(id) {
            return Err(unknown());
        }
        let record: Record<T> = self.read(&self.path::<T>(id)).map_err(|_| unknown())?;
        if record.owner == owner { Ok(record.object) } else { Err(unknown()) }
    }

    /// All objects of one kind, newest first.
    pub fn all<T: Kept>(&self) -> Vec<Record<T>> {
        let folder = self.folder.path().join(T::FOLDER);
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let is_object = |path: &Path| {
            let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".json"));
            name.is_some_and(is_name::<T>)
        };
        let paths = entries.map(|entry| entry.path()).filter(|path| is_object(path));
        let mut all: Vec<Record<T>> = paths.filter_map(|path| self.read(&path).ok()).collect();
        all.sort_by(|a, b| (b.object.created(), b.object.id()).cmp(&(a.object.created(), a.object.id())));
        all
    }

    /// Removes a file and its bytes.
    pub fn remove_file(&self, owner: &str, id: &str) -> Result<(), Refusal> {
        self.get::<FileObject>(owner, id)?;
        let _changing = self.changing.lock().expect("nothing panics while it changes objects");
        // The object goes first: bytes without an object are removed at the next start.
        let removed = fs::remove_file(self.path::<FileObject>(id)).and_then(|()| fs::remove_file(self.bytes_of(id)));
        removed.map_err(|error| Refusal::of(&Error::io(self.bytes_of(id), "remove")(error)))
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.all::<FileObject>().iter().map(|record| record.object.bytes).sum()
    }

    fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<T> {
        let text = fs::read(path).map_err(Error::io(path, "read"))?;
        serde_json::from_slice(&text).map_err(|error| Error::format(path, error.to_string()))
    }
}

/// Whether `id` has the form of the server's own names.
fn is_name<T: Kept>(id: &str) -> bool {
    let digits = id.strip_prefix(T::PREFIX);
    digits.is_some_and(|digits| {
        digits.len() == DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::protocol::files::{FilePurpose, FileStatus, FileTag};

    fn file(id: &str) -> Record<FileObject> {
        let object = FileObject {
            id: id.to_owned(),
            object: FileTag::File,
            bytes: 3,
            created_at: 1,
            expires_at: None,
            filename: "a".to_owned(),
            purpose: FilePurpose::Batch,
            status: FileStatus::Processed,
        };
        Record { owner: "me".to_owned(), object }
    }

    #[test]
    fn objects_are_found_by_their_owner_under_their_own_name_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 100).expect("it is free");
        let id = Store::new_id::<FileObject>();
        store.put(&file(&id)).expect("it is writable");
        std::fs::write(store.bytes_of(&id), "abc").expect("it is writable");
        assert!(store.get::<FileObject>("me", &id).is_ok());
        let secret = folder.path().join("secret.json");
        std::fs::write(&secret, serde_json::to_vec(&file("secret")).expect("JSON")).expect("it is writable");
        for name in ["../secret", "secret", "", "file-", "file-../../../../etc/passwd00", &id.to_uppercase()] {
            assert!(store.get::<FileObject>("me", name).is_err(), "{name}");
        }
        assert_eq!(store.get::<FileObject>("other", &id).map(drop).map_err(|refusal| refusal.status()), Err(404));
        assert_eq!((store.all::<FileObject>().len(), store.bytes()), (1, 3));
        assert!(store.remove_file("other", &id).is_err());
        store.remove_file("me", &id).expect("it is mine");
        assert_eq!((store.all::<FileObject>().len(), store.bytes_of(&id).exists()), (0, false));
        assert!(Store::open(folder.path(), 100).is_err(), "it is claimed");
    }
}
