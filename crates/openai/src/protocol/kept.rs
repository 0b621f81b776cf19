//! What an answer tells of its tokens' records beside their log-probabilities: the sets that they were drawn from, and
//! the entropies. They stand in a choice as lists with an entry for each of `token_ids`, the token that ended it
//! included.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::request::ProtocolRequest;
use offshoot_engine::{KeptForm, TokenRecord};

/// The fields of a choice that its request asked for by `return_kept` and `return_entropy`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct RecordFields {
    /// By `return_kept`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptSets>,
    /// By `return_entropy`: the entropy of the model's own distribution in each token's place, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    entropies: Option<Vec<f64>>,
}

/// The tokens from which each token was drawn, in one of the forms of [`KeptForm`].
#[derive(Debug, Default, PartialEq, Serialize)]
struct KeptSets {
    counts: Vec<u32>,
    /// The smallest score of each set: of logits after bias and penalties, before the temperature.
    lowest: Vec<f64>,
    /// `null` for sets that are too large to be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<Option<Vec<u32>>>>,
    /// Bit sets in base64; `null` where `ids` would be.
    #[serde(skip_serializing_if = "Option::is_none")]
    masks: Option<Vec<Option<String>>>,
}

impl RecordFields {
    /// Of a choice with these tokens.
    pub fn new<'a>(request: &ProtocolRequest, records: impl Iterator<Item = TokenRecord<'a>> + Clone) -> Self {
        let entropies = || records.clone().filter_map(|record| record.entropy).map(f64::from).collect();
        RecordFields {
            kept: request.kept.map(|form| KeptSets::new(form, records.clone())),
            entropies: request.params.records.entropy.then(entropies),
        }
    }
}

impl KeptSets {
    fn new<'a>(form: KeptForm, records: impl Iterator<Item = TokenRecord<'a>> + Clone) -> Self {
        let drawn = records.filter_map(|record| record.drawn);
        let ids = drawn.clone().map(|drawn| drawn.ids.as_deref());
        let mask = |ids: Option<&[_]>| ids.map(|ids| STANDARD.encode(KeptForm::mask(ids)));
        KeptSets {
            counts: drawn.clone().map(|drawn| drawn.kept).collect(),
            lowest: drawn.clone().map(|drawn| f64::from(drawn.lowest)).collect(),
            ids: (form == KeptForm::Ids)
                .then(|| ids.clone().map(|ids| ids.map(|ids| ids.iter().map(|id| id.0).collect())).collect()),
            masks: (form == KeptForm::Mask).then(|| ids.map(mask).collect()),
        }
    }
}
