//! The supported architectures by name.

use std::fmt;

use offshoot_core::error::Result;

use super::super::fields::Fields;
use super::description::Description;
use super::table::FAMILIES;

/// An architecture of config.json's `model_type`, which `families::table` describes.
#[derive(Clone, Copy)]
pub struct Family(&'static Description);

impl Family {
    /// All that are supported, in the order in which errors list them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(Self)
    }

    /// The family of a `model_type`.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|family| family.0.name == name || family.0.also.contains(&name))
    }

    /// Reads the family by `model_type`, or else by the first of `architectures`.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        if let Some(name) = fields.text("model_type")? {
            return Self::named(name).ok_or_else(|| fields.error("model_type", supported(), nearest(name)));
        }
        let architectures = fields.list("architectures")?.unwrap_or_default();
        match architectures.first().and_then(|name| name.as_str()) {
            Some(name) => {
                let plain = |name: &str| name.to_lowercase().replace('_', "").replace("text", "");
                let found = plain(&name.to_lowercase().replace("forcausallm", ""));
                let family = Self::all().find(|family| plain(family.name()) == found);
                family.ok_or_else(|| fields.error("architectures", supported(), format!("\"{name}\"")))
            }
            None => Err(fields.error("model_type", supported(), "nothing")),
        }
    }

    /// Its `model_type`; that of the text model where a wrapper has another.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    pub fn description(self) -> &'static Description {
        self.0
    }

    /// Other values of `model_type` that mean it.
    pub fn other_names(self) -> &'static [&'static str] {
        self.0.also
    }

    /// What of GGUF files llama.cpp calls it; `None`: there are no such files, or another family names them.
    pub fn gguf_architecture(self) -> Option<&'static str> {
        self.0.gguf.architecture
    }

    /// What its layers may have beside attention to keys and values and dense feed-forward blocks.
    pub fn parts(self) -> Vec<&'static str> {
        let Description { latent, experts, recurrent, .. } = self.0;
        let parts = [
            (latent.is_some(), "latent attention"),
            (recurrent.is_some(), "recurrent layers"),
            (experts.is_some(), "experts"),
        ];
        parts.into_iter().filter_map(|(has, part)| has.then_some(part)).collect()
    }

    /// Whether its attention is latent.
    pub fn is_latent(self) -> bool {
        self.0.latent.is_some()
    }

    /// Whether checkpoints may have layers behind the model's that predict further tokens.
    pub fn predicts_further(self) -> bool {
        self.0.predicts_further
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Family {}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Models that are not computed: their `model_type`, what of them is missing, and the nearest family that is computed.
const REFUSED: [(&str, &str, &str); 11] = [
    ("deepseek_v32", "attention to keys that an indexer chooses is", "deepseek_v3"),
    ("glm_moe_dsa", "attention to keys that an indexer chooses is", "deepseek_v3"),
    ("mistral_large4", "attention to keys that an indexer chooses is", "mistral4"),
    ("deepseek_v4", "compressed keys, hyper-connections and routing by hashes are", "deepseek_v3"),
    ("qwen4_exp", "block-sparse attention, hyper-connections and hashed embeddings are", "qwen3_next"),
    ("qwen4_exp_text", "block-sparse attention, hyper-connections and hashed embeddings are", "qwen3_next"),
    ("bailing_hybrid", "linear attention with bounded decays beside gated latent attention is", "qwen3_next"),
    ("lfm3", "long convolutions and gates of heads are", "llama"),
    ("llama4_text", "attention within chunks is", "llama"),
    ("gemma3n_text", "alternating updates of four streams are", "gemma3_text"),
    ("mimo_v2_flash", "values narrower than keys are", "minimax_m2"),
];

/// Refuses a `model_type` that is known not to be computed.
pub fn refuse_known(fields: &Fields<'_>) -> Result<()> {
    match fields.text("model_type")?.filter(|name| REFUSED.iter().any(|(refused, ..)| refused == name)) {
        None => Ok(()),
        Some(name) => Err(fields.error("model_type", supported(), nearest(name))),
    }
}

/// A name that is no family's, what it lacks, and the nearest family: where nothing is known of it, the one whose name
/// begins most alike.
fn nearest(name: &str) -> String {
    if let Some((_, missing, nearest)) = REFUSED.iter().find(|(refused, ..)| *refused == name) {
        return format!("\"{name}\", whose {missing} not supported; the nearest family that runs is {nearest}");
    }
    let common = |family: &Family| family.name().bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    // Of equals the first: the last that `max_by_key` comes to.
    let best = Family::all().collect::<Vec<_>>().into_iter().rev().max_by_key(common);
    match best.filter(|best| common(best) >= 3) {
        Some(best) => format!("\"{name}\"; the nearest family by name that runs is {best}"),
        None => format!("\"{name}\""),
    }
}

/// `one of llama, mistral, ...`
pub fn supported() -> String {
    let names: Vec<String> = Family::all().map(|family| family.to_string()).collect();
    format!("one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_models_have_a_nearest_family_that_runs() {
        for (name, _, nearest) in REFUSED {
            assert!(Family::named(name).is_none() && Family::named(nearest).is_some(), "{name}, {nearest}");
        }
    }

    #[test]
    fn an_unknown_model_is_told_the_family_whose_name_begins_most_alike() {
        assert!(nearest("qwen3_moe_next").ends_with(" qwen3_moe"), "{}", nearest("qwen3_moe_next"));
        assert_eq!(nearest("zamba"), "\"zamba\"");
    }

    #[test]
    fn no_two_families_share_a_name() {
        let mut names: Vec<&str> = Family::all()
            .flat_map(|family| std::iter::once(family.name()).chain(family.description().also.iter().copied()))
            .collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
