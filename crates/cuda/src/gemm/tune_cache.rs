//! The fastest algorithms of products, stored on disk so that only the first run on a machine measures. A file holds
//! the results for one GPU model, driver and cuBLASLt, which it names. A file that cannot be read or written is logged
//! and ignored: it costs time, never correctness.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use super::cublaslt::{GemmShape, Library};
use crate::compile::cache::{self, Key};

/// Everything that determines the fastest algorithm, and whether the library can decode it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneMachine {
    /// "NVIDIA H200".
    pub gpu: String,
    pub multiprocessors: u32,
    /// The CUDA version that the driver speaks.
    pub driver: String,
    /// cuBLASLt's own number: 130002 is 13.0.2.
    pub cublas_lt: usize,
    /// Bytes of memory that an algorithm may use.
    pub workspace: usize,
}

/// An algorithm with its time and that of the library's first choice, in microseconds per call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedAlgorithm {
    pub algorithm: Algorithm,
    pub us: f64,
    pub first_us: f64,
}

/// All choices known for one machine.
#[derive(Debug)]
pub struct TuneCache {
    machine: TuneMachine,
    /// `None`: nothing is stored.
    path: Option<PathBuf>,
    known: HashMap<GemmShape, TunedAlgorithm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TuneFile {
    machine: TuneMachine,
    products: Vec<TunedProduct>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TunedProduct {
    shape: GemmShape,
    choice: TunedAlgorithm,
}

impl TuneMachine {
    pub(super) fn of(library: &Library) -> Self {
        let facts = library.device().facts();
        Self {
            gpu: facts.name.clone(),
            multiprocessors: facts.multiprocessors,
            driver: facts.driver.to_string(),
            cublas_lt: Library::version(),
            workspace: library.workspace_bytes(),
        }
    }

    /// The name of its file.
    fn file_name(&self) -> String {
        let Self { gpu, multiprocessors, driver, cublas_lt, workspace } = self;
        let numbers = [*multiprocessors as usize, *cublas_lt, *workspace].map(|number| number.to_string());
        let parts = [gpu.as_str(), driver.as_str()].into_iter().chain(numbers.iter().map(String::as_str));
        format!("{}.json", Key::of(parts))
    }
}

impl TuneCache {
    /// The choices of this machine in the user's cache.
    pub fn of_user(machine: TuneMachine) -> Self {
        Self::in_folder(machine, cache::user_folder().map(|folder| folder.join("products")))
    }

    /// The choices of this machine in `folder`, which is created when something is stored.
    pub fn in_folder(machine: TuneMachine, folder: Option<PathBuf>) -> Self {
        let path = folder.map(|folder| folder.join(machine.file_name()));
        let known = path.as_deref().map(|path| read(path, &machine)).unwrap_or_default();
        Self { machine, path, known }
    }

    pub fn get(&self, shape: &GemmShape) -> Option<&TunedAlgorithm> {
        self.known.get(shape)
    }

    /// Stores it, keeping what other processes have stored meanwhile.
    pub fn keep(&mut self, shape: GemmShape, choice: TunedAlgorithm) {
        if let Some(path) = &self.path {
            for (shape, choice) in read(path, &self.machine) {
                self.known.entry(shape).or_insert(choice);
            }
        }
        self.known.insert(shape, choice);
        if let Some(path) = &self.path
            && let Err(error) = cache::write_whole(path, &self.encoded())
        {
            log::warn!("{}: cannot keep the choice of algorithms: {error}", path.display());
        }
    }

    fn encoded(&self) -> Vec<u8> {
        let mut products: Vec<_> = self.known.iter().map(|(&shape, &choice)| TunedProduct { shape, choice }).collect();
        products.sort_by_key(|TunedProduct { shape, .. }| {
            let GemmShape { rows, outputs, inner, weights, compute, out, accumulate, biased } = *shape;
            (outputs, inner, weights, compute, out, accumulate, biased, rows)
        });
        let file = TuneFile { machine: self.machine.clone(), products };
        serde_json::to_vec_pretty(&file).expect("finite numbers and text have a form in JSON")
    }
}

/// The choices in `path`, if they are for `machine`; else none, with a warning.
fn read(path: &Path, machine: &TuneMachine) -> HashMap<GemmShape, TunedAlgorithm> {
    let refused = |why: String| {
        log::warn!("{}: the choice of algorithms {why}, it is made anew", path.display());
        HashMap::new()
    };
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return HashMap::new(),
        Err(error) => return refused(format!("cannot be read ({error})")),
    };
    match serde_json::from_slice::<TuneFile>(&text) {
        Ok(file) if file.machine == *machine => {
            file.products.into_iter().map(|TunedProduct { shape, choice }| (shape, choice)).collect()
        }
        Ok(file) => refused(format!("belongs to another machine ({:?})", file.machine)),
        Err(error) => refused(format!("is damaged ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::{Dtype, WeightFormat};

    fn machine(gpu: &str) -> TuneMachine {
        let (driver, gpu) = ("13.0".to_owned(), gpu.to_owned());
        TuneMachine { gpu, multiprocessors: 132, driver, cublas_lt: 130_002, workspace: 64 << 20 }
    }

    fn shape(rows: usize, accumulate: bool) -> GemmShape {
        let (compute, out) = (Dtype::Bf16, if accumulate { Dtype::F32 } else { Dtype::Bf16 });
        let weights = WeightFormat::Dense(compute);
        GemmShape { rows, outputs: 4096, inner: 14336, weights, compute, out, accumulate, biased: false }
    }

    fn choice(word: u64) -> TunedAlgorithm {
        let algorithm = serde_json::from_value(serde_json::json!([word, 1, 2, 3, 4, 5, 6, u64::MAX])).unwrap();
        TunedAlgorithm { algorithm, us: 0.1 + 0.2, first_us: 41.7 }
    }

    fn only_file(folder: &Path) -> PathBuf {
        fs::read_dir(folder).unwrap().next().expect("a file was written").unwrap().path()
    }

    #[test]
    fn choices_come_back_as_they_were_kept() {
        let folder = tempfile::tempdir().unwrap();
        let open = || TuneCache::in_folder(machine("NVIDIA H200"), Some(folder.path().join("products")));
        let mut choices = open();
        choices.keep(shape(256, false), choice(u64::MAX - 1));
        choices.keep(shape(256, true), choice(7));
        choices.keep(shape(256, true), choice(8));
        let again = open();
        assert_eq!(again.get(&shape(256, false)), Some(&choice(u64::MAX - 1)));
        assert_eq!(again.get(&shape(256, true)), Some(&choice(8)));
        assert_eq!(again.get(&shape(257, true)), None);
    }

    #[test]
    fn two_processes_lose_nothing_of_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let open = || TuneCache::in_folder(machine("NVIDIA H200"), Some(folder.path().to_owned()));
        let (mut one, mut other) = (open(), open());
        one.keep(shape(8, false), choice(1));
        other.keep(shape(16, false), choice(2));
        one.keep(shape(24, false), choice(3));
        let all = open();
        for (rows, word) in [(8, 1), (16, 2), (24, 3)] {
            assert_eq!(all.get(&shape(rows, false)), Some(&choice(word)), "{rows} rows");
        }
    }

    #[test]
    fn a_damaged_file_and_that_of_another_gpu_say_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let open = |gpu: &str| TuneCache::in_folder(machine(gpu), Some(folder.path().to_owned()));
        open("NVIDIA H200").keep(shape(8, false), choice(1));
        assert_eq!(open("NVIDIA H100").get(&shape(8, false)), None);

        let ours = only_file(folder.path());
        let theirs = folder.path().join(machine("NVIDIA H100").file_name());
        fs::rename(&ours, &theirs).unwrap();
        assert_eq!(open("NVIDIA H100").get(&shape(8, false)), None, "the file says whose it is");

        let whole = fs::read(&theirs).unwrap();
        for damaged in [&whole[..whole.len() / 2], b"", b"[]", b"\xff\xfe", br#"{"machine": 1, "products": []}"#] {
            fs::write(&ours, damaged).unwrap();
            let mut choices = open("NVIDIA H200");
            assert_eq!(choices.get(&shape(8, false)), None);
            choices.keep(shape(8, false), choice(2));
            assert_eq!(open("NVIDIA H200").get(&shape(8, false)), Some(&choice(2)));
        }
    }

    #[test]
    fn without_a_folder_choices_last_as_long_as_the_process() {
        let mut choices = TuneCache::in_folder(machine("NVIDIA H200"), None);
        choices.keep(shape(8, false), choice(1));
        assert_eq!(choices.get(&shape(8, false)), Some(&choice(1)));
    }
}
