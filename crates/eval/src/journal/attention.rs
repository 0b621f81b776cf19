//! `attention.jsonl`: the attention of each sample by level, one line per sample. It is written next to `samples.jsonl`
//! after the run, for the views. `run::attention` computes the shares.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::folder;
use offshoot_core::error::{Error, Result};
use offshoot_core::json;

/// One sample of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleAttention {
    /// The item's id.
    pub id: String,
    /// The sample's number among the item's.
    pub index: u64,
    /// Its tokens.
    pub tokens: usize,
    /// The share of attention on each level of the prompt and, last, on the sample's own text: the mean over its
    /// tokens, query heads and layers.
    pub attention: Vec<f64>,
}

/// The lines of the file, in order.
#[derive(Clone, Debug, Default)]
pub struct AttentionFile {
    samples: Vec<SampleAttention>,
    /// The place of each, by item and number.
    places: HashMap<(String, u64), usize>,
}

impl AttentionFile {
    pub const NAME: &str = "attention.jsonl";

    /// Reads the file in `folder`; empty if there is none.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(Self::NAME);
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = fs::read_to_string(&path).map_err(Error::io(&path, "read"))?;
        let mut file = Self::default();
        for (number, line) in text.lines().enumerate() {
            let wrong = |error| Error::format(&path, format!("line {}: not a sample's attention: {error}", number + 1));
            file.set(serde_json::from_str(line).map_err(wrong)?);
        }
        Ok(file)
    }

    /// Adds a sample's attention, or replaces it.
    pub fn set(&mut self, sample: SampleAttention) {
        let next = self.samples.len();
        let place = *self.places.entry((sample.id.clone(), sample.index)).or_insert(next);
        match self.samples.get_mut(place) {
            Some(before) => *before = sample,
            None => self.samples.push(sample),
        }
    }

    /// Replaces the file in the folder `run` atomically.
    pub fn write(&self, run: &Path) -> Result<()> {
        let line = |sample| json::text("a sample's attention", sample).map(|line| line + "\n");
        folder::write(run, Self::NAME, &self.samples.iter().map(line).collect::<Result<String>>()?)
    }

    /// Adds the field `attention` to a line of `samples.jsonl`, if the sample is known and has as many tokens.
    pub fn add_to(&self, sample: &mut Map<String, Value>) {
        let known = || {
            let id = sample.get("id")?.as_str()?.to_string();
            let known = &self.samples[*self.places.get(&(id, sample.get("index")?.as_u64()?))?];
            (sample.get("tokens")?.as_u64()? == known.tokens as u64).then_some(&known.attention)
        };
        if let Some(attention) = known() {
            sample.insert("attention".to_string(), json!(attention));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_replaced_and_kept_by_item_and_number() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sample = |id: &str, index, tokens, own: f64| SampleAttention {
            id: id.to_string(),
            index,
            tokens,
            attention: vec![1.0 - own, own],
        };
        let mut file = AttentionFile::read(folder.path()).expect("nothing is there");
        for sample in [sample("a", 1, 3, 0.5), sample("b", 1, 4, 0.25), sample("a", 1, 5, 0.75)] {
            file.set(sample);
        }
        file.write(folder.path()).expect("written");
        let read = AttentionFile::read(folder.path()).expect("readable");
        assert_eq!(read.samples, [sample("a", 1, 5, 0.75), sample("b", 1, 4, 0.25)]);

        let line = |id: &str, tokens: u64| {
            let line = json!({"id": id, "index": 1, "tokens": tokens});
            let mut line = line.as_object().expect("an object").clone();
            read.add_to(&mut line);
            line.get("attention").cloned()
        };
        assert_eq!(line("b", 4), Some(json!([0.75, 0.25])));
        assert_eq!(
            (line("b", 3), line("c", 4)),
            (None, None),
            "a sample of another length, and an item that is not there"
        );
    }
}
