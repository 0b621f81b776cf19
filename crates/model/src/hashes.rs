//! BLAKE3 hashes of files: one for each file that a task names, and one for a whole model folder. The manifest compares
//! them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;

use offshoot_core::error::{Error, Result};
use offshoot_gguf as gguf;

use super::weights::TensorSource;

/// Hashes files, by their paths from the folder `beside` where they are in it.
pub fn hashes(paths: impl IntoIterator<Item = PathBuf>, beside: &Path) -> Result<BTreeMap<String, String>> {
    let named = |path: PathBuf| {
        let name = path.strip_prefix(beside).unwrap_or(&path).display().to_string();
        Ok((name, hash_of_file(&path)?))
    };
    paths.into_iter().map(named).collect()
}

/// Hashes every file that a string of the task names; the model is hashed by itself.
pub fn files_named(value: &Value, beside: &Path, files: &mut BTreeMap<String, String>) -> Result<()> {
    /// The longest string that is taken for a file name, in bytes.
    const LONGEST_NAME: usize = 1024;
    match value {
        Value::String(name) if !name.is_empty() && name.len() <= LONGEST_NAME && !name.contains(['\n', '\0']) => {
            let path = beside.join(name);
            let is_model = path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("gguf"));
            if path.is_file() && !is_model {
                files.insert(name.clone(), hash_of_file(&path)?);
            }
        }
        Value::Array(list) => list.iter().try_for_each(|value| files_named(value, beside, files))?,
        Value::Object(map) => map.values().try_for_each(|value| files_named(value, beside, files))?,
        _ => {}
    }
    Ok(())
}

/// BLAKE3 of a file's contents, in hexadecimal.
pub(crate) fn hash_of_file(path: &Path) -> Result<String> {
    let mut hash = blake3::Hasher::new();
    let mut file = File::open(path).map_err(Error::io(path, "open"))?;
    std::io::copy(&mut file, &mut hash).map_err(Error::io(path, "read"))?;
    Ok(hash.finalize().to_hex().to_string())
}

/// Bytes read from the beginning of a large file, which holds the header of a safetensors or GGUF file.
const WHOLE: u64 = 8 << 20;
/// Bytes of each sample behind the beginning; the last sample is the end of the file.
const SAMPLE: u64 = 64 << 10;
/// Distance between the starts of two samples, in bytes.
const SAMPLE_STRIDE: u64 = 16 << 20;

/// BLAKE3 of a model folder, or of the files of a GGUF model: names, lengths and contents of its weights, configuration
/// and tokenizer. Of files above 8 MiB only the first 8 MiB, and 64 KiB every 16 MiB and at the end, are read, so that
/// a model of 16 GB takes a moment. The hash distinguishes another model, another precision or another fine-tuning; it
/// may miss a change of a few weights.
pub fn hash_of_folder(folder: &Path) -> Result<String> {
    const KINDS: [&str; 5] = ["json", "safetensors", "txt", "jinja", "model"];
    let mut paths = gguf::files(folder)?.unwrap_or_default();
    if paths.is_empty() {
        for entry in fs::read_dir(folder).map_err(Error::io(folder, "read"))? {
            let path = entry.map_err(Error::io(folder, "read"))?.path();
            let kind = path.extension().and_then(|kind| kind.to_str());
            if path.is_file() && kind.is_some_and(|kind| KINDS.contains(&kind)) {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let mut hash = blake3::Hasher::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut file = File::open(&path).map_err(Error::io(&path, "open"))?;
        let bytes = file.metadata().map_err(Error::io(&path, "read"))?.len();
        hash.update(format!("{name}\0{bytes}\0").as_bytes());
        for (start, length) in read_of(bytes) {
            let read = file
                .seek(SeekFrom::Start(start))
                .and_then(|_| std::io::copy(&mut file.by_ref().take(length), &mut hash));
            read.map_err(Error::io(&path, "read"))?;
        }
    }
    Ok(hash.finalize().to_hex().to_string())
}

/// BLAKE3 of all tensors: names, types, shapes and every byte.
///
/// # Errors
///
/// A device on which tensors lie fails.
pub fn hash_of_tensors(source: &dyn TensorSource) -> Result<String> {
    let mut names = source.names();
    names.sort_unstable();
    let of_tensor = |name: &&str| {
        let mut hash = blake3::Hasher::new();
        if let Some(tensor) = source.tensor(name) {
            hash.update(format!("{name}\0{:?}\0{:?}\0", tensor.dtype, tensor.shape).as_bytes());
            hash.update(&tensor.data.on_host()?);
        }
        Ok(hash.finalize())
    };
    let each: Vec<blake3::Hash> = names.par_iter().map(of_tensor).collect::<Result<_>>()?;
    let mut hash = blake3::Hasher::new();
    for tensor in &each {
        hash.update(tensor.as_bytes());
    }
    Ok(format!("tensors {}", hash.finalize().to_hex()))
}

/// The ranges of a file that are read: (start, length) in bytes. `bytes` is the length of the file.
fn read_of(bytes: u64) -> Vec<(u64, u64)> {
    let mut ranges = vec![(0, WHOLE)];
    if bytes > WHOLE {
        ranges.extend((SAMPLE_STRIDE..bytes).step_by(SAMPLE_STRIDE as usize).map(|start| (start, SAMPLE)));
        ranges.push((bytes.saturating_sub(SAMPLE).max(WHOLE), SAMPLE));
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_are_read_in_part_and_small_ones_whole() {
        assert_eq!(read_of(100), [(0, WHOLE)]);
        let large = read_of(16 << 30);
        let read: u64 = large.iter().map(|(_, length)| length).sum();
        assert!(read < 128 << 20, "{read} bytes are read");
        assert_eq!(large.last(), Some(&((16 << 30) - SAMPLE, SAMPLE)), "the end is read");
    }
}
