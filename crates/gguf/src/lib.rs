//! Reads GGUF files, the format of llama.cpp: metadata, tensors, and what the bytes of their blocks mean. What the
//! metadata says of a model is left to `model` and `tokenizer`.
//!
//! Internal to Offshoot, and changes with every version: programs use the package `offshoot`.

mod blocks;
mod cursor;
mod file;
mod metadata;
mod paths;
mod tensor_type;
mod value;

use std::collections::HashMap;
use std::path::Path;

use offshoot_core::error::{Error, Result};

pub use blocks::{CodedBlock, IQ4_NUMBERS, LIFTED, half, half_power_of_two};
pub use file::{GgufFile, TensorInfo};
pub use metadata::Metadata;
pub use paths::files;
pub use tensor_type::TensorType;

/// A model in one or several files. The metadata is the first file's.
pub struct Gguf {
    /// At least one.
    files: Vec<GgufFile>,
    /// For each tensor by its name: the index of its file, and its index there.
    place_of: HashMap<String, (usize, usize)>,
}

impl Gguf {
    /// Opens a file, all parts of a file that was split, or the only model in a folder.
    ///
    /// # Errors
    ///
    /// `path` is no such file or folder; a part is missing; a header is broken.
    pub fn open(path: &Path) -> Result<Self> {
        let paths = files(path)?
            .ok_or_else(|| Error::format(path, "expected a .gguf file, or a folder with one, found neither"))?;
        let files = paths.into_iter().map(GgufFile::open).collect::<Result<Vec<_>>>()?;
        let mut place_of = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            check_part(file, number, files.len())?;
            for (ix, tensor) in file.tensors().iter().enumerate() {
                if let Some((other, _)) = place_of.insert(tensor.name.clone(), (number, ix)) {
                    let other: &GgufFile = &files[other];
                    return Err(Error::Tensor {
                        path: file.path().to_path_buf(),
                        tensor: tensor.name.clone(),
                        expected: "one tensor of this name in all files".to_owned(),
                        found: format!("another one in {}", other.path().display()),
                    });
                }
            }
        }
        let gguf = Self { files, place_of };
        gguf.check_count()?;
        Ok(gguf)
    }

    pub fn files(&self) -> &[GgufFile] {
        &self.files
    }

    /// The first file.
    pub fn path(&self) -> &Path {
        self.files[0].path()
    }

    pub fn metadata(&self) -> Metadata<'_> {
        self.files[0].metadata()
    }

    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.files.iter().flat_map(GgufFile::tensors)
    }

    /// A tensor and its file.
    pub fn tensor(&self, name: &str) -> Option<(&GgufFile, &TensorInfo)> {
        let &(file, ix) = self.place_of.get(name)?;
        let file = &self.files[file];
        Some((file, &file.tensors()[ix]))
    }

    /// The elements of a tensor.
    pub fn values(&self, name: &str) -> Option<Vec<f32>> {
        let (file, tensor) = self.tensor(name)?;
        let mut values = vec![0.0; tensor.shape.iter().product()];
        tensor.kind.decode(file.bytes(tensor), &mut values);
        Some(values)
    }

    /// A file that was split says how many tensors all of its parts have.
    fn check_count(&self) -> Result<()> {
        const COUNT: &str = "split.tensors.count";
        match self.metadata().count(COUNT)? {
            Some(count) if count != self.place_of.len() as u64 && self.files.len() > 1 => {
                let found = format!("{} in all files", self.place_of.len());
                Err(self.metadata().error(COUNT, format!("{count} tensors, as it says"), found))
            }
            _ => Ok(()),
        }
    }
}

/// The parts of a file that was split say which they are.
fn check_part(file: &GgufFile, number: usize, parts: usize) -> Result<()> {
    let metadata = file.metadata();
    for (key, expected) in [("split.no", number), ("split.count", parts)] {
        if let Some(found) = metadata.count(key)?.filter(|&found| found != expected as u64) {
            // A whole file may say that it is one of none.
            if parts > 1 || found > 1 {
                return Err(metadata.error(key, format!("{expected}, by the names of the files"), found.to_string()));
            }
        }
    }
    Ok(())
}
