//! The configuration of a model in a GGUF file: its metadata is written as the config.json that it was made from, so
//! that `families` reads and checks both alike. Errors name the keys of the metadata. `weights` reads the tensors.

mod latent;

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use offshoot_core::error::{Error, Result};
use offshoot_gguf::{Gguf, Metadata};

use super::families::{self, Family, FileWindows, GgufRule, ModelRole};
use super::fields::{Fields, LARGEST_LAYERS, LARGEST_WIDTH};
use super::layer::{FeedForward, LayerNorms, LayerSpec, Norm};
use super::model::ModelConfig;
use super::modules::{GGUF, GGUF_BEHIND, Modules};
use super::rope::RopeScaling;

const ARCHITECTURE: &str = "general.architecture";

/// The names of the tensor with factors for each pair's wavelength: of all contexts, of short and of long ones.
const FACTORS: &str = "rope_freqs.weight";
const SHORT_FACTORS: &str = "rope_factors_short.weight";
const LONG_FACTORS: &str = "rope_factors_long.weight";

/// Heads whose rows lie so that rope turns neighbouring elements: llama.cpp's order for some architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairedHeads {
    pub q_heads: usize,
    pub kv_heads: usize,
}

/// Reads the configuration of a model.
///
/// # Errors
///
/// An architecture that is not supported; a key that is missing or has a wrong value.
pub fn read(gguf: &Gguf) -> Result<ModelConfig> {
    let metadata = gguf.metadata();
    let (name, family) = architecture(&metadata)?;
    let mut translation =
        Translation { gguf, metadata: gguf.metadata(), name, object: Map::new(), keys: BTreeMap::new() };
    let family = translation.family(family)?;
    translation.translate(family)?;
    let Translation { object, keys, .. } = translation;
    let value = Value::Object(object);
    let fields = Fields::of_metadata(gguf.path(), &value, &keys)?;
    let mut config = families::read(&fields, ModelRole::Generator)?;
    config.modules = modules(gguf, &config);
    store_norms(&mut config);
    stretch_ropes(gguf, &mut config)?;
    Ok(config)
}

/// The heads of queries and keys if rope turns neighbouring elements of them.
pub fn paired_heads(gguf: &Gguf, config: &ModelConfig) -> Result<Option<PairedHeads>> {
    let (_, family) = architecture(&gguf.metadata())?;
    let heads = config.heads().next().expect("a config has layers, and those of GGUF files have attention");
    Ok(rule(family).paired.then_some(PairedHeads { q_heads: heads.q_heads, kv_heads: heads.kv_heads }))
}

fn rule(family: Family) -> &'static GgufRule {
    &family.description().gguf
}

/// The architecture that a file names, and the first family that has such files.
fn architecture<'a>(metadata: &Metadata<'a>) -> Result<(&'a str, Family)> {
    let supported = || {
        let names: Vec<&str> = Family::all().filter_map(|family| rule(family).architecture).collect();
        format!("one of {}", names.join(", "))
    };
    let Some(name) = metadata.text(ARCHITECTURE)? else {
        return Err(metadata.error(ARCHITECTURE, supported(), "nothing"));
    };
    match Family::all().find(|&family| rule(family).architecture == Some(name)) {
        Some(family) => Ok((name, family)),
        None => Err(metadata.error(ARCHITECTURE, supported(), format!("\"{name}\""))),
    }
}

/// A config.json in the making.
struct Translation<'a> {
    gguf: &'a Gguf,
    metadata: Metadata<'a>,
    /// The architecture, with which its keys begin.
    name: &'a str,
    object: Map<String, Value>,
    /// For each field, the key of the metadata that it comes from.
    keys: BTreeMap<String, String>,
}

impl<'a> Translation<'a> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// Sets a field; errors about it will name `key`.
    fn set(&mut self, field: &str, key: String, value: Option<Value>) {
        if let Some(value) = value {
            self.object.insert(field.to_owned(), value);
        }
        self.keys.insert(field.to_owned(), key);
    }

    fn number(&mut self, field: &str, key: &str) -> Result<()> {
        let key = self.key(key);
        let value = self.metadata.number(&key)?.map(Value::from);
        self.set(field, key, value);
        Ok(())
    }

    /// A whole number, or a list with the same one for each layer.
    fn layered(&self, key: &str) -> Result<Option<u64>> {
        let key = self.key(key);
        if !self.metadata.is_list(&key) {
            return self.metadata.count(&key);
        }
        let counts = self.metadata.counts(&key)?.unwrap_or_default();
        match counts.first() {
            Some(first) if counts.iter().all(|count| count == first) => Ok(Some(*first)),
            Some(first) => {
                let other = counts.iter().find(|count| *count != first).unwrap_or(first);
                Err(self.metadata.error(&key, "the same number for all layers", format!("{first} and {other}")))
            }
            None => Ok(None),
        }
    }

    fn count(&mut self, field: &str, key: &str) -> Result<()> {
        let value = self.layered(key)?.map(Value::from);
        self.set(field, self.key(key), value);
        Ok(())
    }

    fn has_tensor(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    fn family(&mut self, family: Family) -> Result<Family> {
        let has_experts = self.layered("expert_count")?.unwrap_or(0) > 0;
        let has_windows = self.window()?.is_some();
        if self.name == latent::DEEPSEEK {
            return self.deepseek();
        }
        let GgufRule { with_experts, with_windows, .. } = *rule(family);
        let other = with_experts.filter(|_| has_experts).or(with_windows.filter(|_| has_windows));
        Ok(other.map_or(family, |name| Family::named(name).expect("rules name families")))
    }

    /// The sliding window; zero means none.
    fn window(&self) -> Result<Option<u64>> {
        Ok(self.layered("attention.sliding_window")?.filter(|&window| window > 0))
    }

    fn translate(&mut self, family: Family) -> Result<()> {
        self.object.insert("model_type".to_owned(), family.name().into());
        self.count("hidden_size", "embedding_length")?;
        self.count("num_hidden_layers", "block_count")?;
        self.count("num_attention_heads", "attention.head_count")?;
        self.count("num_key_value_heads", "attention.head_count_kv")?;
        self.count("max_position_embeddings", "context_length")?;
        self.number("rms_norm_eps", "attention.layer_norm_rms_epsilon")?;
        self.number("layer_norm_eps", "attention.layer_norm_epsilon")?;
        self.vocabulary();
        if family.is_latent() {
            self.latent_heads()?;
            self.latent_blocks(family)?;
        } else {
            self.head_dim()?;
            self.feed_forward(family)?;
        }
        self.windows(family)?;
        self.rope(family)?;
        self.scores(family)?;
        let biased = ["attn_q", "attn_qkv", "attn_kv_a_mqa"];
        let biased = biased.iter().any(|module| self.has_tensor(&format!("blk.0.{module}.bias")));
        self.object.insert("attention_bias".to_owned(), biased.into());
        self.object.insert("mlp_bias".to_owned(), self.has_tensor("blk.0.ffn_up.bias").into());
        self.object.insert("tie_word_embeddings".to_owned(), (!self.has_tensor("output.weight")).into());
        self.special_tokens()
    }

    /// The rows of the embedding table: files may pad it, or leave out rows that the tokenizer does not have.
    fn vocabulary(&mut self) {
        let rows = self.gguf.tensor("token_embd.weight").map(|(_, tensor)| tensor.rows());
        self.set("vocab_size", "rows of token_embd.weight".to_owned(), rows.map(Value::from));
    }

    fn head_dim(&mut self) -> Result<()> {
        let (keys, values) = (self.layered("attention.key_length")?, self.layered("attention.value_length")?);
        if let (Some(keys), Some(values)) = (keys, values)
            && keys != values
        {
            let expected = format!("the width of keys ({keys})");
            return Err(self.metadata.error(&self.key("attention.value_length"), expected, values.to_string()));
        }
        self.set("head_dim", self.key("attention.key_length"), keys.map(Value::from));
        Ok(())
    }

    fn feed_forward(&mut self, family: Family) -> Result<()> {
        let rule = rule(family);
        self.count("intermediate_size", rule.width)?;
        if family.description().experts.is_some() {
            self.count("num_experts", "expert_count")?;
            self.count("num_experts_per_tok", "expert_used_count")?;
            self.count("moe_intermediate_size", "expert_feed_forward_length")?;
            // llama.cpp normalises the chosen experts' weights in all of these.
            self.object.insert("norm_topk_prob".to_owned(), true.into());
        }
        Ok(())
    }

    /// The window, and which layers have it: a list of booleans, or a number of which every such layer has none.
    fn windows(&mut self, family: Family) -> Result<()> {
        let rule = rule(family);
        if rule.windows == FileWindows::None {
            return Ok(());
        }
        let by_layer = rule.windows != FileWindows::InAll;
        let window = self.window()?;
        self.set("sliding_window", self.key("attention.sliding_window"), window.map(Value::from));
        let layers = self.layered("block_count")?.unwrap_or(0);
        if !by_layer || layers > LARGEST_LAYERS as u64 {
            return Ok(());
        }
        let key = self.key("attention.sliding_window_pattern");
        let pattern = if self.metadata.is_list(&key) {
            self.metadata.flags(&key)?
        } else {
            let period = self.metadata.count(&key)?.filter(|&period| period > 0);
            period.map(|period| (1..=layers).map(|layer| !layer.is_multiple_of(period)).collect())
        };
        let pattern = match (pattern, window) {
            (None, None) if rule.windows == FileWindows::ByLayerOrNone => Some(vec![false; layers as usize]),
            (pattern, _) => pattern,
        };
        let kinds = pattern.map(|pattern| {
            let kind = |sliding: bool| if sliding { "sliding_attention" } else { "full_attention" };
            pattern.into_iter().map(|sliding| Value::from(kind(sliding))).collect::<Vec<_>>()
        });
        self.set("layer_types", key, kinds.map(Value::from));
        Ok(())
    }

    fn rope(&mut self, family: Family) -> Result<()> {
        self.number("rope_theta", "rope.freq_base")?;
        if let Some(field) = family.description().rope.sliding.theta_field.filter(|&field| field != "rope_theta") {
            self.number(field, "rope.freq_base_swa")?;
        }
        if !family.is_latent() {
            self.rotated()?;
        }
        const ORIGINAL: &str = "original_max_position_embeddings";
        self.count(ORIGINAL, "rope.scaling.original_context_length")?;
        if rule(family).trained_on_context && !self.object.contains_key(ORIGINAL) {
            self.count(ORIGINAL, "context_length")?;
        }
        let kind_key = self.key("rope.scaling.type");
        let kind = self.metadata.text(&kind_key)?.unwrap_or("none");
        let mut scaling = Map::new();
        match kind {
            _ if self.gguf.tensor(LONG_FACTORS).is_some() => {
                self.scaled(&mut scaling, "attention_factor", "rope.scaling.attn_factor")?;
                for (field, tensor) in [("short_factor", SHORT_FACTORS), ("long_factor", LONG_FACTORS)] {
                    let factors = factors(self.gguf, tensor);
                    scaling.insert(field.to_owned(), json!(factors));
                    self.keys.insert(format!("rope_scaling.{field}"), tensor.to_owned());
                }
                scaling.insert("rope_type".to_owned(), "longrope".into());
            }
            // A family's own scaling, which its config.json may leave out, is not meant.
            "none" => {
                scaling.insert("rope_type".to_owned(), "default".into());
            }
            "linear" | "yarn" => {
                self.scaled(&mut scaling, "factor", "rope.scaling.factor")?;
                self.scaled(&mut scaling, ORIGINAL, "rope.scaling.original_context_length")?;
                self.scaled(&mut scaling, "attention_factor", "rope.scaling.yarn_attn_factor")?;
                self.scaled(&mut scaling, "beta_fast", "rope.scaling.yarn_beta_fast")?;
                self.scaled(&mut scaling, "beta_slow", "rope.scaling.yarn_beta_slow")?;
                scaling.insert("rope_type".to_owned(), kind.into());
                if !rule(family).truncates {
                    scaling.insert("truncate".to_owned(), false.into());
                }
            }
            other => {
                let expected = format!("none, linear, yarn, or longrope with a tensor `{LONG_FACTORS}`");
                return Err(self.metadata.error(&kind_key, expected, format!("\"{other}\"")));
            }
        }
        if family.is_latent() {
            self.latent_rope(family, &mut scaling)?;
        }
        self.set("rope_scaling", kind_key, Some(Value::Object(scaling)));
        Ok(())
    }

    /// A number of the rope's scaling.
    fn scaled(&mut self, scaling: &mut Map<String, Value>, field: &str, key: &str) -> Result<()> {
        let key = self.key(key);
        if let Some(number) = self.metadata.number(&key)? {
            scaling.insert(field.to_owned(), number.into());
        }
        self.keys.insert(format!("rope_scaling.{field}"), key);
        Ok(())
    }

    /// The elements of a head that are rotated, as a fraction of all.
    fn rotated(&mut self) -> Result<()> {
        let Some(rotated) = self.layered("rope.dimension_count")? else { return Ok(()) };
        let head_dim = match (self.layered("attention.key_length")?, self.layered("attention.head_count")?) {
            (Some(head_dim), _) => head_dim,
            (None, Some(heads)) if heads > 0 => self.layered("embedding_length")?.unwrap_or(0) / heads,
            (None, _) => 0,
        };
        if head_dim > 0 && rotated != head_dim {
            // A little more than the quotient, which may lie just below it: the product is cut to a whole number.
            let fraction = (rotated as f64 + 0.25) / head_dim as f64;
            self.set("partial_rotary_factor", self.key("rope.dimension_count"), Some(fraction.into()));
        }
        Ok(())
    }

    /// Caps, and the scale of scores. Of Gemma's models, the ones of 27 B scale by the width of the residual stream.
    fn scores(&mut self, family: Family) -> Result<()> {
        let Some(scaled_by_hidden) = rule(family).scaled_by_hidden else { return Ok(()) };
        for field in ["attn_logit_softcapping", "final_logit_softcapping"] {
            self.number(field, field)?;
            // The config.json of some families has a cap where it says nothing.
            self.object.entry(field).or_insert(Value::Null);
        }
        let key = self.key("attention.scale");
        let (layers, heads) = (self.layered("block_count")?, self.layered("attention.head_count")?.filter(|&n| n > 0));
        let scalar = match (self.metadata.number(&key)?, heads) {
            (Some(scale), _) => Some(1.0 / (scale * scale)),
            (None, Some(heads)) if layers == Some(scaled_by_hidden) => {
                Some(self.layered("embedding_length")?.unwrap_or(0) as f64 / heads as f64)
            }
            (None, _) => self.layered("attention.key_length")?.map(|head_dim| head_dim as f64),
        };
        self.set("query_pre_attn_scalar", key, scalar.map(Value::from));
        Ok(())
    }

    /// Texts end at the tokens that keys name, and at those that chat models end their answers with.
    fn special_tokens(&mut self) -> Result<()> {
        let id = |key: &str| self.metadata.count(&format!("tokenizer.ggml.{key}_token_id"));
        let bos = id("bos")?;
        let mut ends: Vec<u64> = [id("eos")?, id("eot")?, id("eom")?].into_iter().flatten().collect();
        ends.extend(ending_tokens(&self.metadata)?);
        let mut once = Vec::new();
        ends.into_iter().for_each(|end| {
            if !once.contains(&end) {
                once.push(end);
            }
        });
        self.set("bos_token_id", "tokenizer.ggml.bos_token_id".to_owned(), bos.map(Value::from));
        self.set("eos_token_id", "tokenizer.ggml.eos_token_id".to_owned(), Some(once.into()));
        Ok(())
    }
}

/// The tokens of the vocabulary with which chat models end an answer or a turn. gpt-oss ends its messages with
/// `<|end|>` and goes on.
fn ending_tokens(metadata: &Metadata<'_>) -> Result<Vec<u64>> {
    const ENDS: [&str; 10] = [
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
    ];
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let mut found: Vec<(u64, &str)> = (0..).zip(tokens).filter(|(_, token)| ENDS.contains(token)).collect();
    if ["<|return|>", "<|call|>"].iter().all(|end| found.iter().any(|(_, token)| token == end)) {
        found.retain(|(_, token)| *token != "<|end|>");
    }
    Ok(found.into_iter().map(|(id, _)| id).collect())
}

/// The names of the file's tensors, which may have queries, keys and values in one.
fn modules(gguf: &Gguf, config: &ModelConfig) -> Modules {
    let has = |name: &str| gguf.tensor(name).is_some();
    let is_before = |layer: &LayerSpec| match layer.norms {
        LayerNorms::Sequential { attention, .. } => attention.after().is_none(),
        LayerNorms::Parallel(_) | LayerNorms::ParallelOfTwo { .. } => true,
    };
    let is_plain = config.layers.iter().all(is_before) && !rule(config.family).norm_behind_attention;
    Modules {
        fused_qkv: has("blk.0.attn_qkv.weight"),
        // The first layer may have experts alone.
        fused_up: has("blk.0.ffn_up.weight") && !has("blk.0.ffn_gate.weight"),
        ..if is_plain { GGUF } else { GGUF_BEHIND }
    }
}

/// Files store one plus the weights of norms that multiply by that.
fn store_norms(config: &mut ModelConfig) {
    config.final_norm = config.final_norm.with_stored_sum();
    for layer in &mut config.layers {
        layer.norms = match layer.norms {
            LayerNorms::Sequential { attention, feed_forward } => LayerNorms::Sequential {
                attention: attention.map(Norm::with_stored_sum),
                feed_forward: feed_forward.map(Norm::with_stored_sum),
            },
            LayerNorms::Parallel(norm) => LayerNorms::Parallel(norm.with_stored_sum()),
            LayerNorms::ParallelOfTwo { attention, feed_forward } => LayerNorms::ParallelOfTwo {
                attention: attention.with_stored_sum(),
                feed_forward: feed_forward.with_stored_sum(),
            },
        };
        if let Some(head_norm) = layer.attention_mut().and_then(|attention| attention.head_norm.as_mut()) {
            head_norm.norm = head_norm.norm.with_stored_sum();
        }
        if let FeedForward::DenseAndExperts { norm, .. } = &mut layer.feed_forward {
            *norm = norm.with_stored_sum();
        }
    }
}

/// The numbers of a tensor of factors, as somebody wrote them.
fn factors(gguf: &Gguf, tensor: &str) -> Option<Vec<f64>> {
    let as_written = |x: &f32| x.to_string().parse().unwrap_or(f64::from(*x));
    let (_, found) = gguf.tensor(tensor)?;
    if found.rows() != 1 || found.cols() > LARGEST_WIDTH {
        return Some(Vec::new());
    }
    gguf.values(tensor).map(|values| values.iter().map(as_written).collect())
}

/// The tensor with factors of wavelengths, where there is one.
fn stretch_ropes(gguf: &Gguf, config: &mut ModelConfig) -> Result<()> {
    let Some(factors) = factors(gguf, FACTORS) else { return Ok(()) };
    for layer in &mut config.layers {
        let Some(rope) = layer.attention_mut().and_then(|attention| attention.rope.as_mut()) else { continue };
        if factors.len() != rope.rotary / 2 || factors.iter().any(|factor| !(*factor > 0.0 && factor.is_finite())) {
            let expected = format!("{} numbers above 0, one for each rotated pair", rope.rotary / 2);
            return Err(Error::tensor(gguf.path(), FACTORS, expected, format!("{} numbers", factors.len())));
        }
        rope.scaling = RopeScaling::Factors(factors.clone());
    }
    Ok(())
}
