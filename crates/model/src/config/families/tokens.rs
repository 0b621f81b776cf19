//! Special tokens, from config.json and generation_config.json.

use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;

use super::super::fields::{Fields, shown, whole};
use super::super::model::ModelConfig;

/// Reads `bos_token_id` and `eos_token_id` (one id or a list) if present. Ids outside the vocabulary cannot be sampled;
/// they are ignored with a warning.
pub fn read_special_tokens(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<()> {
    if let Some(bos) = token_ids(fields, "bos_token_id", config.vocab)? {
        config.bos = bos.first().copied();
    }
    if let Some(eos) = token_ids(fields, "eos_token_id", config.vocab)? {
        config.eos = eos;
    }
    Ok(())
}

fn token_ids(fields: &Fields<'_>, name: &str, vocab: usize) -> Result<Option<Vec<TokenId>>> {
    let Some(value) = fields.value(name) else { return Ok(None) };
    let single = std::slice::from_ref(value);
    let mut ids = Vec::new();
    for value in value.as_array().map_or(single, Vec::as_slice) {
        let id = whole(value).ok_or_else(|| fields.error(name, "a token id or a list of them", shown(value)))?;
        match u32::try_from(id).ok().filter(|&id| (id as usize) < vocab) {
            Some(id) => ids.push(TokenId(id)),
            None => log::warn!("{}", fields.error(name, format!("an id below vocab_size ({vocab})"), id.to_string())),
        }
    }
    Ok(Some(ids))
}
