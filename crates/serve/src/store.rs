//! Uploaded files and batches on disk: an object and, for files, its bytes, under names that the server makes. What a
//! client names is looked up only if it has the form of such a name, so that no path can be asked for. Each object
//! belongs to one API key.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use offshoot_core::error::{Error, Result};
use offshoot_core::out::files::{FolderClaim, remove_partials, write_whole};
use offshoot_core::setting::MAX_DATA;
use offshoot_openai::protocol::Refusal;
use offshoot_openai::protocol::files::{BatchObject, FileObject};

use super::random::random_hex;

/// What is kept in a folder of its own.
pub trait Kept: Serialize + DeserializeOwned {
    const FOLDER: &'static str;
    const PREFIX: &'static str;
    /// In messages.
    const NOUN: &'static str;
    fn id(&self) -> &str;
    fn created(&self) -> u64;

    /// Whether it is one of those that a list of this purpose has.
    fn has_purpose(&self, _purpose: &str) -> bool {
        true
    }
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

    fn has_purpose(&self, purpose: &str) -> bool {
        serde_json::to_value(self.purpose).is_ok_and(|own| own == purpose)
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
    /// The client to whom the object belongs: `ApiKeys::owner`.
    pub owner: String,
    pub object: T,
}

impl<T> Record<T> {
    pub fn new(owner: String, object: T) -> Record<T> {
        Record { owner, object }
    }
}

/// Digits of a name.
const DIGITS: usize = 24;

pub struct Store {
    folder: FolderClaim,
    /// Bytes that all files may have.
    pub most_bytes: u64,
    /// Held while objects are changed, so that two requests do not write one at once.
    changing: Mutex<()>,
    lengths: Mutex<Lengths>,
}

/// The bytes of each file of content: what it has, or what it is about to have.
#[derive(Default)]
struct Lengths {
    files: HashMap<PathBuf, u64>,
    /// Their sum.
    all: u64,
}

impl Lengths {
    fn set(&mut self, path: &Path, bytes: u64) {
        let before = match bytes {
            0 => self.files.remove(path),
            _ => self.files.insert(path.to_path_buf(), bytes),
        };
        self.all = self.all.saturating_sub(before.unwrap_or(0)).saturating_add(bytes);
    }
}

/// What the names of files end with: of uploaded bytes, of answers that are collected, of the records of attempts.
const BYTES: &str = ".jsonl";
const ANSWERS: &str = ".answers.jsonl";
const ATTEMPTS: &str = ".attempts";

impl Store {
    /// Claims `folder`, and removes what a crash left there: bytes without an object, answers and attempts of batches
    /// that have ended, and files that are half written.
    ///
    /// # Errors
    ///
    /// Another process has claimed it, or it cannot be made.
    pub fn open(folder: &Path, most_bytes: u64) -> Result<Store> {
        let folder = FolderClaim::of(folder)?;
        for name in [FileObject::FOLDER, BatchObject::FOLDER] {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).map_err(Error::io(&path, "create the folder"))?;
            remove_partials(&path, "");
        }
        let store = Store { folder, most_bytes, changing: Mutex::new(()), lengths: Mutex::default() };
        store.settle::<FileObject>(BYTES, |id| store.path::<FileObject>(id).exists());
        let is_open = |id: &str| {
            let path = store.path::<BatchObject>(id);
            match store.read::<Record<BatchObject>>(&path) {
                Ok(record) => !record.object.status.is_end(),
                // What cannot be read may be mended by hand.
                Err(_) => path.exists(),
            }
        };
        store.settle::<BatchObject>(ANSWERS, is_open);
        store.settle::<BatchObject>(ATTEMPTS, is_open);
        Ok(store)
    }

    /// Counts the bytes that belong to objects of one kind, and removes those that belong to none.
    fn settle<T: Kept>(&self, ending: &str, is_needed: impl Fn(&str) -> bool) {
        for entry in fs::read_dir(self.folder.path().join(T::FOLDER)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // Other files are not the server's own.
            let Some(id) = name.to_str().and_then(|name| name.strip_suffix(ending)).filter(|id| is_name::<T>(id))
            else {
                continue;
            };
            let path = entry.path();
            if !is_needed(id)
                && let Err(error) = fs::remove_file(&path)
            {
                log::warn!("{}: cannot be removed: {error}", path.display());
            }
            self.count(&path);
        }
    }

    /// Gives a file of content a length that it does not have yet, so that what is written at once shares the room;
    /// `what`: the file, in messages.
    ///
    /// # Errors
    ///
    /// All files together would have more bytes than they may.
    pub fn reserve(&self, what: &str, path: &Path, bytes: u64) -> Result<()> {
        let mut lengths = self.lengths();
        let others = lengths.all - lengths.files.get(path).copied().unwrap_or(0);
        let left = self.most_bytes.saturating_sub(others);
        if bytes > left {
            let expected = format!("at most {left} bytes, which {MAX_DATA} leaves");
            return Err(Error::value(what, expected, format!("at least {bytes}")));
        }
        lengths.set(path, bytes);
        Ok(())
    }

    /// Counts a file of content as it is on disk now.
    pub fn count(&self, path: &Path) {
        let bytes = fs::metadata(path).map_or(0, |facts| facts.len());
        self.lengths().set(path, bytes);
    }

    fn lengths(&self) -> MutexGuard<'_, Lengths> {
        self.lengths.lock().expect("nothing panics while it counts bytes")
    }

    /// A name that no object has.
    pub fn new_id<T: Kept>() -> String {
        format!("{}{}", T::PREFIX, random_hex::<{ DIGITS / 2 }>())
    }

    /// Where the bytes of a file are.
    pub fn bytes_of(&self, file: &str) -> PathBuf {
        self.folder.path().join(FileObject::FOLDER).join(format!("{file}{BYTES}"))
    }

    /// Where a batch collects its answers.
    pub fn answers_of(&self, batch: &str) -> PathBuf {
        self.folder.path().join(BatchObject::FOLDER).join(format!("{batch}{ANSWERS}"))
    }

    /// Where a batch notes its attempts.
    pub fn attempts_of(&self, batch: &str) -> PathBuf {
        self.folder.path().join(BatchObject::FOLDER).join(format!("{batch}{ATTEMPTS}"))
    }

    fn path<T: Kept>(&self, id: &str) -> PathBuf {
        self.folder.path().join(T::FOLDER).join(format!("{id}.json"))
    }

    /// Writes an object, new or changed.
    pub fn put<T: Kept>(&self, record: &Record<T>) -> Result<()> {
        let _changing = self.changing();
        self.write(record)
    }

    /// Reads an object, changes it and writes it, while no other request can change it. Returns what was written.
    pub fn change<T: Kept>(&self, id: &str, change: impl FnOnce(&mut Record<T>)) -> Result<Record<T>> {
        let _changing = self.changing();
        let mut record = self.record(id)?;
        change(&mut record);
        self.write(&record)?;
        Ok(record)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        // What is guarded is on disk, where each write is whole: a panic of another change leaves it sound.
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T: Kept>(&self, record: &Record<T>) -> Result<()> {
        let text = serde_json::to_vec(record).expect("keys are strings");
        write_whole(&self.path::<T>(record.object.id()), |file| file.write_all(&text))
    }

    /// The object that the server itself calls `id`.
    pub fn record<T: Kept>(&self, id: &str) -> Result<Record<T>> {
        self.read(&self.path::<T>(id))
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
        let _changing = self.changing();
        let bytes = self.bytes_of(id);
        // The object goes first: bytes without an object are removed at the next start.
        let removed = fs::remove_file(self.path::<FileObject>(id)).and_then(|()| fs::remove_file(&bytes));
        self.count(&bytes);
        removed.map_err(|error| Refusal::of(&Error::io(self.bytes_of(id), "remove")(error)))
    }

    /// Bytes of all files, of those that are being uploaded and of the answers that batches collect.
    pub fn bytes(&self) -> u64 {
        self.lengths().all
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
    use offshoot_openai::protocol::BatchEndpoint;
    use offshoot_openai::protocol::files::{BatchStatus, FilePurpose, NewBatch};

    fn file(id: &str) -> Record<FileObject> {
        let object = FileObject::new(id.to_owned(), 3, "a".to_owned(), FilePurpose::Batch, 1);
        Record::new("me".to_owned(), object)
    }

    fn batch() -> Record<BatchObject> {
        let new = NewBatch { input_file_id: String::new(), endpoint: BatchEndpoint::Responses, metadata: None };
        Record::new("me".to_owned(), BatchObject::new(Store::new_id::<BatchObject>(), new, 1))
    }

    /// A cancellation that meets the end of a batch does not take its answers away.
    #[test]
    fn a_change_sees_what_was_written_before_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 100).expect("it is free");
        let record = batch();
        let id = record.object.id.clone();
        store.put(&record).expect("it is writable");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let added = store.change::<BatchObject>(&id, |record| record.object.request_counts.total += 1);
                        added.expect("it is there");
                    }
                });
            }
        });
        let ended = store.change::<BatchObject>(&id, |record| {
            record.object.output_file_id = Some("file-a".to_owned());
            record.object.enter(BatchStatus::Completed, 2);
        });
        ended.expect("it is there");
        let cancelled = store.change::<BatchObject>(&id, |record| {
            if !record.object.status.is_end() {
                record.object.enter(BatchStatus::Cancelling, 3);
            }
        });
        let object = cancelled.expect("it is there").object;
        assert_eq!((object.request_counts.total, object.status), (160, BatchStatus::Completed));
        assert_eq!(object.output_file_id.as_deref(), Some("file-a"));
        assert_eq!(store.get::<BatchObject>("me", &id), Ok(object));
        assert!(store.change::<BatchObject>(&Store::new_id::<BatchObject>(), |_| {}).is_err(), "there is none");
    }

    #[test]
    fn what_is_written_at_once_shares_the_room() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 100).expect("it is free");
        let [one, other] = [0; 2].map(|_| store.bytes_of(&Store::new_id::<FileObject>()));
        store.reserve("file", &one, 60).expect("there is room");
        assert!(store.reserve("file", &other, 41).is_err());
        store.reserve("file", &one, 70).expect("its own bytes do not count against it");
        store.reserve("file", &other, 30).expect("there is room");
        assert_eq!(store.bytes(), 100);
        store.count(&one);
        assert_eq!(store.bytes(), 30, "it was not written");
    }

    #[test]
    fn bytes_without_an_object_do_not_outlive_a_start() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 100).expect("it is free");
        let [kept, lost] = [0; 2].map(|_| Store::new_id::<FileObject>());
        store.put(&file(&kept)).expect("it is writable");
        let (open, mut ended) = (batch(), batch());
        ended.object.enter(BatchStatus::Failed, 2);
        for record in [&open, &ended] {
            store.put(record).expect("it is writable");
        }
        let foreign = store.bytes_of("notes");
        let needed = [store.bytes_of(&kept), store.answers_of(&open.object.id), foreign];
        let spare = [
            store.bytes_of(&lost),
            store.answers_of(&ended.object.id),
            store.answers_of(&Store::new_id::<BatchObject>()),
            store.attempts_of(&ended.object.id),
        ];
        for path in needed.iter().chain(&spare) {
            std::fs::write(path, "abc").expect("it is writable");
        }
        drop(store);
        let store = Store::open(folder.path(), 100).expect("it is free again");
        assert!(needed.iter().all(|path| path.exists()));
        assert!(!spare.iter().any(|path| path.exists()));
        assert_eq!(store.bytes(), 6, "of the file and of the open batch's answers");
    }

    #[test]
    fn objects_are_found_by_their_owner_under_their_own_name_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = Store::open(folder.path(), 100).expect("it is free");
        let id = Store::new_id::<FileObject>();
        store.put(&file(&id)).expect("it is writable");
        std::fs::write(store.bytes_of(&id), "abc").expect("it is writable");
        store.count(&store.bytes_of(&id));
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
        assert_eq!((store.all::<FileObject>().len(), store.bytes_of(&id).exists(), store.bytes()), (0, false, 0));
        assert!(Store::open(folder.path(), 100).is_err(), "it is claimed");
    }
}
