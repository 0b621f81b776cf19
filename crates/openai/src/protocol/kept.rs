//! What an answer tells of its tokens' records beside their log-probabilities: the sets that they were drawn from, the
//! entropies, the confidences, and which ones their form left no choice. They stand in a choice as lists with an entry
//! for each of `token_ids`, the token that ended it included; the entry of a token of which it is not recorded is
//! `null`, so that no other one moves to its place.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::request::ProtocolRequest;
use offshoot_engine::{KeptForm, TokenRecord, TokenRoutes};

/// The fields of a choice that its request asked for by `return_kept`, `return_entropy` and `return_confidence`.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct RecordFields {
    /// By `return_kept`.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept: Option<KeptSets>,
    /// By `return_entropy`: the entropy of the model's own distribution in each token's place, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    entropies: Option<Vec<Option<f64>>>,
    /// By `return_confidence`: the model's confidence in each token's place, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    confidences: Option<Vec<Option<f64>>>,
    /// Of a sample with a form whose tokens are shown: whether the form allowed no other token in each one's place.
    #[serde(skip_serializing_if = "Option::is_none")]
    forced: Option<Vec<bool>>,
}

/// The experts of a sample's tokens, from number `start` of its prompt on, as vLLM's clients read them: the bytes of a
/// .npy file, `[tokens, layers, chosen]` of u1 or u2, in base64.
pub fn routed_experts(routes: &TokenRoutes, start: usize) -> String {
    let [tokens, layers, chosen] = routes.shape();
    let (tokens, bytes) = (tokens.saturating_sub(start), routes.id_bytes());
    let kind = if bytes == 1 { "|u1" } else { "<u2" };
    let mut head = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({tokens}, {layers}, {chosen}), }}");
    // Its end, after ten bytes before it, is a multiple of 64.
    let padded = (NPY_BEGIN.len() + 2 + head.len() + 1).next_multiple_of(64) - NPY_BEGIN.len() - 2;
    head = format!("{head:<width$}\n", width = padded - 1);
    let length = u16::try_from(head.len()).expect("a head of three numbers is short");
    let file = [NPY_BEGIN, &length.to_le_bytes(), head.as_bytes(), &routes.bytes(start)].concat();
    STANDARD.encode(file)
}

/// How a .npy file of version 1.0 begins.
const NPY_BEGIN: &[u8] = b"\x93NUMPY\x01\x00";

/// The tokens from which each token was drawn, in one of the forms of [`KeptForm`].
#[derive(Debug, Default, PartialEq, Serialize)]
struct KeptSets {
    counts: Vec<Option<u32>>,
    /// The smallest score of each set: of logits after bias and penalties, before the temperature.
    lowest: Vec<Option<f64>>,
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
        let entropies = || records.clone().map(|record| record.entropy.map(f64::from)).collect();
        let confidences = || records.clone().map(|record| record.confidence.map(f64::from)).collect();
        RecordFields {
            kept: request.kept.map(|form| KeptSets::new(form, records.clone())),
            entropies: request.params.records.entropy.then(entropies),
            confidences: request.shows_confidence.then(confidences),
            forced: request.shows_forced().then(|| records.map(|record| record.forced).collect()),
        }
    }
}

impl KeptSets {
    fn new<'a>(form: KeptForm, records: impl Iterator<Item = TokenRecord<'a>> + Clone) -> Self {
        let drawn = records.map(|record| record.drawn);
        let ids = drawn.clone().map(|drawn| drawn?.ids.as_deref());
        let mask = |ids: Option<&[_]>| ids.map(|ids| STANDARD.encode(KeptForm::mask(ids)));
        KeptSets {
            counts: drawn.clone().map(|drawn| Some(drawn?.kept)).collect(),
            lowest: drawn.map(|drawn| Some(f64::from(drawn?.lowest))).collect(),
            ids: (form == KeptForm::Ids)
                .then(|| ids.clone().map(|ids| ids.map(|ids| ids.iter().map(|id| id.0).collect())).collect()),
            masks: (form == KeptForm::Mask).then(|| ids.map(mask).collect()),
        }
    }
}
