//! Tensors by name, wherever they are: the files of a folder ([`TensorFolder`]), memory of the caller
//! ([`TensorsInMemory`]), or memory of a GPU ([`TensorData::Device`]). `checkpoint` reads the weights of a model from
//! any source; which tensors a model needs is decided by its layout.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use offshoot_backend::DeviceBytes;
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;

use super::super::config::{ModelFolder, read_json};
use super::safetensors_file::SafetensorsFile;

pub use safetensors::Dtype as TensorDtype;

const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// A tensor of a source: row-major, little-endian, not necessarily aligned.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    pub name: &'a str,
    pub dtype: TensorDtype,
    pub shape: &'a [usize],
    pub data: TensorData<'a>,
}

/// Where a tensor's bytes lie.
#[derive(Clone, Copy, Debug)]
pub enum TensorData<'a> {
    Host(&'a [u8]),
    Device(DeviceBytes<'a>),
}

impl<'a> TensorData<'a> {
    pub fn len(self) -> usize {
        match self {
            TensorData::Host(bytes) => bytes.len(),
            TensorData::Device(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes in host memory: a copy, if they lie on a device.
    ///
    /// # Errors
    ///
    /// The device fails.
    pub fn on_host(self) -> Result<Cow<'a, [u8]>> {
        match self {
            TensorData::Host(bytes) => Ok(Cow::Borrowed(bytes)),
            TensorData::Device(bytes) => bytes.download().map(Cow::Owned),
        }
    }
}

/// Tensors by the names that the model's checkpoint has on Hugging Face. What it gives must not change while it is
/// read.
pub trait TensorSource: Send + Sync {
    /// The names of all tensors, each once.
    fn names(&self) -> Vec<&str>;

    /// The tensor of this name, if there is one.
    fn tensor(&self, name: &str) -> Option<TensorView<'_>>;

    /// What errors call the place of a tensor: its file. `None`: that of all tensors together.
    fn place(&self, name: Option<&str>) -> &Path;

    /// Gives back memory that holds a copy of a tensor which can be read again.
    fn release(&self, name: &str) {
        let _ = name;
    }

    /// The GGUF model whose tensors these are: they have no names of Hugging Face, and are read by that model's own
    /// configuration.
    fn gguf(&self) -> Option<&ModelFolder> {
        None
    }
}

impl<T: TensorSource + ?Sized> TensorSource for &T {
    fn names(&self) -> Vec<&str> {
        (**self).names()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        (**self).tensor(name)
    }

    fn place(&self, name: Option<&str>) -> &Path {
        (**self).place(name)
    }

    fn release(&self, name: &str) {
        (**self).release(name);
    }

    fn gguf(&self) -> Option<&ModelFolder> {
        (**self).gguf()
    }
}

impl<T: TensorSource + ?Sized> TensorSource for Arc<T> {
    fn names(&self) -> Vec<&str> {
        (**self).names()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        (**self).tensor(name)
    }

    fn place(&self, name: Option<&str>) -> &Path {
        (**self).place(name)
    }

    fn release(&self, name: &str) {
        (**self).release(name);
    }

    fn gguf(&self) -> Option<&ModelFolder> {
        (**self).gguf()
    }
}

/// The mapped safetensors files of a folder.
pub struct TensorFolder {
    files: Vec<SafetensorsFile>,
    /// For each tensor, by its name, the index into `files`.
    file_of: HashMap<String, usize>,
    /// The file that errors about all tensors name: the only one, the index, or the folder.
    path: PathBuf,
    gguf: Option<ModelFolder>,
}

impl TensorFolder {
    /// All tensors of a model: those of `model.safetensors`, or of the files that `model.safetensors.index.json` lists.
    ///
    /// # Errors
    ///
    /// There is neither, or a file is none of safetensors.
    pub(super) fn of_model(folder: &Path) -> Result<Self> {
        Self::listed(folder)?.ok_or_else(|| no_weights(folder))
    }

    /// The tensors with which weights are to be updated, some or all: those of `model.safetensors`, of the files that
    /// `model.safetensors.index.json` lists or, without these two, of all `.safetensors` files in the folder. `path`
    /// may also be a GGUF model.
    ///
    /// # Errors
    ///
    /// There are none, a tensor is in two files, or a file is none of safetensors.
    pub fn open(path: &Path) -> Result<Self> {
        if offshoot_gguf::files(path)?.is_some() {
            let gguf = Some(ModelFolder::open(path)?);
            return Ok(Self { files: Vec::new(), file_of: HashMap::new(), path: path.to_path_buf(), gguf });
        }
        if let Some(listed) = Self::listed(path)? {
            return Ok(listed);
        }
        let is_safetensors = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "safetensors");
        let entries = fs::read_dir(path).map_err(Error::io(path, "read"))?;
        let paths = entries.map(|entry| Ok(entry.map_err(Error::io(path, "read"))?.path()));
        let mut paths = paths.collect::<Result<Vec<_>>>()?;
        paths.retain(is_safetensors);
        paths.sort();
        let files = paths.into_iter().map(SafetensorsFile::open).collect::<Result<Vec<_>>>()?;
        if files.is_empty() {
            return Err(no_weights(path));
        }
        let mut file_of = HashMap::new();
        for (number, file) in files.iter().enumerate() {
            for name in file.names() {
                if let Some(other) = file_of.insert(name.clone(), number) {
                    let found = format!("another in {}", files[other].path().display());
                    return Err(Error::tensor(file.path(), name, "one tensor of this name in the folder", found));
                }
            }
        }
        Ok(Self { files, file_of, path: path.to_path_buf(), gguf: None })
    }

    fn listed(folder: &Path) -> Result<Option<Self>> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        let (path, files, file_of) = if single.is_file() {
            let file = SafetensorsFile::open(single.clone())?;
            let file_of = file.names().into_iter().map(|name| (name, 0)).collect();
            (single, vec![file], file_of)
        } else if index.is_file() {
            let (files, file_of) = open_indexed(folder, &index)?;
            (index, files, file_of)
        } else {
            return Ok(None);
        };
        Ok(Some(Self { files, file_of, path, gguf: None }))
    }

    fn file(&self, name: &str) -> Option<(&str, &SafetensorsFile)> {
        let (name, &file) = self.file_of.get_key_value(name)?;
        Some((name, &self.files[file]))
    }
}

impl TensorSource for TensorFolder {
    fn names(&self) -> Vec<&str> {
        self.file_of.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, file) = self.file(name)?;
        let info = file.info(name)?;
        Some(TensorView { name, dtype: info.dtype, shape: &info.shape, data: TensorData::Host(file.bytes(info)) })
    }

    fn place(&self, name: Option<&str>) -> &Path {
        name.and_then(|name| self.file(name)).map_or(&self.path, |(_, file)| file.path())
    }

    fn release(&self, name: &str) {
        if let Some((name, file)) = self.file(name)
            && let Some(info) = file.info(name)
        {
            file.release(info);
        }
    }

    fn gguf(&self) -> Option<&ModelFolder> {
        self.gguf.as_ref()
    }
}

/// Tensors in host memory, their own or borrowed.
#[derive(Default)]
pub struct TensorsInMemory<'a> {
    tensors: BTreeMap<String, TensorInMemory<'a>>,
}

struct TensorInMemory<'a> {
    dtype: TensorDtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> TensorsInMemory<'a> {
    /// Adds a tensor.
    ///
    /// # Errors
    ///
    /// There is one of this name, or its bytes do not fit its shape.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        dtype: TensorDtype,
        shape: Vec<usize>,
        bytes: impl Into<Cow<'a, [u8]>>,
    ) -> Result<()> {
        let (name, bytes) = (name.into(), bytes.into());
        let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bitsize()));
        if bits != bytes.len().checked_mul(8) {
            let expected = format!("as many bytes as {dtype:?} of shape {shape:?} has");
            return Err(Error::tensor(in_memory(), name, expected, format!("{} bytes", bytes.len())));
        }
        if self.tensors.contains_key(&name) {
            return Err(Error::tensor(in_memory(), name, "one tensor of this name", "another"));
        }
        self.tensors.insert(name, TensorInMemory { dtype, shape, bytes });
        Ok(())
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.tensors.values().map(|tensor| tensor.bytes.len()).sum()
    }
}

fn in_memory() -> &'static Path {
    Path::new("tensors in memory")
}

impl TensorSource for TensorsInMemory<'_> {
    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, tensor) = self.tensors.get_key_value(name)?;
        Some(TensorView { name, dtype: tensor.dtype, shape: &tensor.shape, data: TensorData::Host(&tensor.bytes) })
    }

    fn place(&self, _: Option<&str>) -> &Path {
        in_memory()
    }
}

/// Whether the folder has its weights: the only file of them, or all that its index lists.
pub(super) fn are_there(folder: &Path) -> Result<bool> {
    let index = folder.join(INDEX);
    if folder.join(SINGLE).is_file() || !index.is_file() {
        return Ok(folder.join(SINGLE).is_file());
    }
    let json = read_json(&index)?;
    let files: HashSet<&str> = weight_map(&index, &json)?.values().filter_map(Value::as_str).collect();
    Ok(files.into_iter().all(|file| folder.join(file).is_file()))
}

/// The files of the tensors that an index lists.
pub(super) fn weight_map<'a>(index: &Path, json: &'a Value) -> Result<&'a Map<String, Value>> {
    json.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
        Error::field(index, "weight_map", "an object from tensor names to file names", "nothing of the kind")
    })
}

/// Opens the files listed in an index and checks that each has the tensors listed for it.
fn open_indexed(folder: &Path, index: &Path) -> Result<(Vec<SafetensorsFile>, HashMap<String, usize>)> {
    let json = read_json(index)?;
    let map = weight_map(index, &json)?;
    let (mut files, mut file_of, mut numbers) = (Vec::new(), HashMap::new(), HashMap::new());
    for (tensor, file) in map {
        let Some(file) = file.as_str() else {
            return Err(Error::field(index, format!("weight_map.{tensor}"), "a file name", file.to_string()));
        };
        let number = match numbers.get(file) {
            Some(&number) => number,
            None => {
                let path = folder.join(file);
                let wrong = |expected, found| Error::field(index, format!("weight_map.{tensor}"), expected, found);
                if !is_shard(file) {
                    return Err(wrong(
                        "the name of a .safetensors file, without a folder",
                        shortened(file.to_string(), 200),
                    ));
                }
                if !path.is_file() {
                    return Err(wrong("a file in the same folder", format!("{file}, which is not there")));
                }
                files.push(SafetensorsFile::open(path)?);
                numbers.insert(file, files.len() - 1);
                files.len() - 1
            }
        };
        if files[number].info(tensor).is_none() {
            let expected = format!("the tensor that {INDEX} says is here");
            return Err(Error::tensor(files[number].path(), tensor, expected, "nothing"));
        }
        file_of.insert(tensor.clone(), number);
    }
    Ok((files, file_of))
}

/// Whether the manifest's hash of the folder covers a file of this name.
fn is_shard(name: &str) -> bool {
    let path = Path::new(name);
    path.file_name() == Some(path.as_os_str()) && path.extension().is_some_and(|kind| kind == "safetensors")
}

/// The error for a folder without weights; names a file that looks like weights in another format.
fn no_weights(folder: &Path) -> Error {
    let others = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let other = others
        .filter_map(|name| name.into_string().ok())
        .find(|name| [".bin", ".pth", ".pt", ".ckpt"].iter().any(|end| name.ends_with(end)));
    let found = other.map_or_else(|| "neither".to_owned(), |name| format!("{name}, a format that is not read"));
    Error::format(folder, format!("expected {SINGLE} or {INDEX}, found {found}"))
}
