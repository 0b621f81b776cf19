//! A trie as a safetensors file: one tensor a column, and the reasons for which the samples ended as JSON in the file's
//! metadata.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{SafeTensors, TensorView};
use safetensors::{Dtype, serialize};
use serde::{Deserialize, Serialize};

use super::columns::{LeafColumns, TokenColumns};
use super::trie::RolloutTrie;
use offshoot_core::error::{Error, Result};
use offshoot_core::input;
use offshoot_engine::FinishReason;

/// The only key of the metadata, so that a trie has one file: several keys have no order.
const METADATA: &str = "offshoot_rollouts";

/// What the metadata says, as JSON.
#[derive(Serialize, Deserialize)]
struct Metadata {
    /// 1.
    version: u32,
    /// Why each sample ended.
    leaf_finish: Vec<FinishReason>,
}

const VERSION: u32 = 1;

impl RolloutTrie {
    /// Writes the trie to a safetensors file: `token_ids`, `parents`, `ends`, `positions`, `depths`, `weight_versions`
    /// (I64), `logprobs` (F32) and `sampled` (BOOL) of tokens; `leaf_tokens`, `leaf_groups`, `leaf_samples` (I64),
    /// `leaf_rewards` (F64) and `leaf_continued` (BOOL) of samples; the metadata's `offshoot_rollouts` is a JSON object
    /// with `version`, 1, and `leaf_finish`, the reasons in a list.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let (tokens, leaves) = (self.token_columns(), self.leaf_columns());
        let columns: [(&str, Dtype, usize, Vec<u8>); 13] = [
            ("token_ids", Dtype::I64, tokens.token_ids.len(), bytes(&tokens.token_ids, i64::to_le_bytes)),
            ("parents", Dtype::I64, tokens.parents.len(), bytes(&tokens.parents, i64::to_le_bytes)),
            ("ends", Dtype::I64, tokens.ends.len(), bytes(&tokens.ends, i64::to_le_bytes)),
            ("positions", Dtype::I64, tokens.positions.len(), bytes(&tokens.positions, i64::to_le_bytes)),
            ("depths", Dtype::I64, tokens.depths.len(), bytes(&tokens.depths, i64::to_le_bytes)),
            ("logprobs", Dtype::F32, tokens.logprobs.len(), bytes(&tokens.logprobs, f32::to_le_bytes)),
            (
                "weight_versions",
                Dtype::I64,
                tokens.weight_versions.len(),
                bytes(&tokens.weight_versions, i64::to_le_bytes),
            ),
            ("sampled", Dtype::BOOL, tokens.sampled.len(), bytes(&tokens.sampled, |of| [u8::from(of)])),
            ("leaf_tokens", Dtype::I64, leaves.tokens.len(), bytes(&leaves.tokens, i64::to_le_bytes)),
            ("leaf_groups", Dtype::I64, leaves.groups.len(), bytes(&leaves.groups, i64::to_le_bytes)),
            ("leaf_samples", Dtype::I64, leaves.samples.len(), bytes(&leaves.samples, i64::to_le_bytes)),
            ("leaf_rewards", Dtype::F64, leaves.rewards.len(), bytes(&leaves.rewards, f64::to_le_bytes)),
            ("leaf_continued", Dtype::BOOL, leaves.continued.len(), bytes(&leaves.continued, |of| [u8::from(of)])),
        ];
        let not_written = |why: String| Error::Internal(format!("rollouts are not written: {why}"));
        let mut views = Vec::with_capacity(columns.len());
        for (name, dtype, length, bytes) in &columns {
            let view = TensorView::new(*dtype, vec![*length], bytes).map_err(|fault| not_written(fault.to_string()))?;
            views.push((*name, view));
        }
        let leaf_finish = self.leaves().iter().map(|leaf| leaf.finish.clone()).collect();
        let metadata = serde_json::to_string(&Metadata { version: VERSION, leaf_finish });
        let metadata = metadata.map_err(|fault| not_written(fault.to_string()))?;
        let metadata = HashMap::from([(METADATA.to_owned(), metadata)]);
        let file = serialize(views, Some(metadata)).map_err(|fault| not_written(fault.to_string()))?;
        std::fs::write(path, file).map_err(Error::io(path, "write"))
    }

    /// Reads a trie that [`write`](Self::write) wrote.
    ///
    /// # Errors
    ///
    /// The file is missing, is no safetensors file, lacks a column, or its columns are no trie.
    pub fn read(path: &Path) -> Result<RolloutTrie> {
        let file = input::bytes(path)?;
        let not_valid = |fault: safetensors::SafeTensorError| Error::format(path, format!("not safetensors: {fault}"));
        let (_, header) = SafeTensors::read_metadata(&file).map_err(not_valid)?;
        let tensors = SafeTensors::deserialize(&file).map_err(not_valid)?;
        let expected = || format!("an object with version {VERSION} and leaf_finish, a list of finish reasons");
        let wrong = |found: String| Error::field(path, format!("metadata.{METADATA}"), expected(), found);
        let metadata = header.metadata().as_ref().and_then(|all| all.get(METADATA));
        let metadata = metadata.ok_or_else(|| wrong("none".to_owned()))?;
        let metadata: Metadata = serde_json::from_str(metadata).map_err(|fault| wrong(fault.to_string()))?;
        if metadata.version != VERSION {
            return Err(wrong(format!("version {}", metadata.version)));
        }
        let of = Columns { path, tensors: &tensors };
        let tokens = TokenColumns {
            token_ids: of.column("token_ids", Dtype::I64, i64::from_le_bytes)?,
            parents: of.column("parents", Dtype::I64, i64::from_le_bytes)?,
            ends: of.column("ends", Dtype::I64, i64::from_le_bytes)?,
            positions: of.column("positions", Dtype::I64, i64::from_le_bytes)?,
            depths: of.column("depths", Dtype::I64, i64::from_le_bytes)?,
            logprobs: of.column("logprobs", Dtype::F32, f32::from_le_bytes)?,
            weight_versions: of.column("weight_versions", Dtype::I64, i64::from_le_bytes)?,
            sampled: of.column("sampled", Dtype::BOOL, |[byte]: [u8; 1]| byte != 0)?,
        };
        let leaves = LeafColumns {
            tokens: of.column("leaf_tokens", Dtype::I64, i64::from_le_bytes)?,
            groups: of.column("leaf_groups", Dtype::I64, i64::from_le_bytes)?,
            samples: of.column("leaf_samples", Dtype::I64, i64::from_le_bytes)?,
            rewards: of.column("leaf_rewards", Dtype::F64, f64::from_le_bytes)?,
            continued: of.column("leaf_continued", Dtype::BOOL, |[byte]: [u8; 1]| byte != 0)?,
        };
        let trie = RolloutTrie::from_columns(&tokens, &leaves, &metadata.leaf_finish);
        trie.map_err(|error| Error::format(path, error.to_string()))
    }
}

/// The tensors of a file as columns.
struct Columns<'a> {
    path: &'a Path,
    tensors: &'a SafeTensors<'a>,
}

impl Columns<'_> {
    fn column<T, const SIZE: usize>(&self, name: &str, dtype: Dtype, of: impl Fn([u8; SIZE]) -> T) -> Result<Vec<T>> {
        let expected = || format!("a {dtype:?} tensor with one dimension");
        let wrong = |found: Cow<'_, str>| Error::field(self.path, name, expected(), found);
        let tensor = self.tensors.tensor(name).map_err(|_| wrong("none".into()))?;
        if tensor.dtype() != dtype || tensor.shape().len() != 1 {
            return Err(wrong(format!("{:?} of shape {:?}", tensor.dtype(), tensor.shape()).into()));
        }
        let (numbers, _) = tensor.data().as_chunks::<SIZE>();
        Ok(numbers.iter().map(|&number| of(number)).collect())
    }
}

fn bytes<T: Copy, const SIZE: usize>(numbers: &[T], of: impl Fn(T) -> [u8; SIZE]) -> Vec<u8> {
    numbers.iter().flat_map(|&number| of(number)).collect()
}
