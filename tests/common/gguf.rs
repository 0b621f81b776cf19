//! Writes small GGUF files, right and wrong ones.

use std::path::{Path, PathBuf};

use offshoot_gguf::TensorType;

/// A file of tests/data/gguf.
pub fn golden(name: &str) -> PathBuf {
    Path::new(offshoot_fixtures::REPOSITORY).join("tests/data/gguf").join(name)
}

/// A file in the making. Its metadata are written as they are pushed.
#[derive(Clone, Default)]
pub struct GgufWriter {
    pairs: Vec<(String, Vec<u8>)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone)]
struct Tensor {
    name: String,
    /// The innermost size first, as files have it.
    sizes: Vec<u64>,
    kind: u32,
    bytes: Vec<u8>,
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

#[allow(dead_code, reason = "each suite uses some")]
impl GgufWriter {
    fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.retain(|(other, _)| other != key);
        self.pairs.push((key.to_owned(), [&kind.to_le_bytes(), value].concat()));
        self
    }

    pub fn count(self, key: &str, value: u32) -> Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub fn number(self, key: &str, value: f32) -> Self {
        self.pair(key, 6, &value.to_le_bytes())
    }

    pub fn flag(self, key: &str, value: bool) -> Self {
        self.pair(key, 7, &[value.into()])
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        self.pair(key, 8, &string(value))
    }

    fn list(self, key: &str, kind: u32, elements: &[Vec<u8>]) -> Self {
        let head = [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes()].concat();
        self.pair(key, 9, &[head, elements.concat()].concat())
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        self.list(key, 8, &values.iter().map(|value| string(value)).collect::<Vec<_>>())
    }

    pub fn counts(self, key: &str, values: &[i32]) -> Self {
        self.list(key, 5, &values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    pub fn numbers(self, key: &str, values: &[f32]) -> Self {
        self.list(key, 6, &values.iter().map(|value| value.to_le_bytes().to_vec()).collect::<Vec<_>>())
    }

    pub fn without(mut self, key: &str) -> Self {
        self.pairs.retain(|(other, _)| other != key);
        self.tensors.retain(|tensor| tensor.name != key);
        self
    }

    /// `shape`: the outermost size first.
    pub fn tensor(self, name: &str, shape: &[usize], kind: TensorType, bytes: Vec<u8>) -> Self {
        self.tensor_of(name, shape, kind.number(), bytes)
    }

    pub fn tensor_of(mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> Self {
        let sizes = shape.iter().rev().map(|&size| size as u64).collect();
        self.tensors.push(Tensor { name: name.to_owned(), sizes, kind, bytes });
        self
    }

    pub fn f32(self, name: &str, shape: &[usize], values: &[f32]) -> Self {
        self.tensor(name, shape, TensorType::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The file's bytes; `moved`: changes the offset of each tensor, by its index.
    pub fn bytes_moved(&self, moved: impl Fn(usize, u64) -> u64) -> Vec<u8> {
        let mut bytes = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        bytes.extend((self.tensors.len() as u64).to_le_bytes());
        bytes.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            bytes.extend([string(key), value.clone()].concat());
        }
        let mut data = Vec::new();
        for (i, tensor) in self.tensors.iter().enumerate() {
            bytes.extend(string(&tensor.name));
            bytes.extend((tensor.sizes.len() as u32).to_le_bytes());
            tensor.sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(tensor.kind.to_le_bytes());
            bytes.extend(moved(i, data.len() as u64).to_le_bytes());
            data.extend(&tensor.bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(data);
        bytes
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.bytes_moved(|_, offset| offset)
    }
}
