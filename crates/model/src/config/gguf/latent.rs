//! Files of models with latent attention: llama.cpp's `deepseek2` (DeepSeek-V2 and V3, Kimi K2, Moonlight, GLM-4.7
//! Flash), `mistral4` and `minicpm3`. Older files of `deepseek2` give the widths of expanded heads; newer ones those of
//! what is stored, and of expanded heads beside them.

use serde_json::{Map, Value};

use offshoot_core::error::Result;

use super::super::families::{Family, GroupRule};
use super::Translation;

/// The architecture of DeepSeek-V2 and V3, and of models that differ in numbers alone.
pub const DEEPSEEK: &str = "deepseek2";

const GATING: &str = "expert_gating_func";
const SOFTMAX: u64 = 1;
const SIGMOID: u64 = 2;

/// Layers and vocabulary of GLM-4.7 Flash, whose first files do not say that its router has sigmoids.
const GLM_LAYERS: [u64; 2] = [47, 48];
const GLM_VOCABULARY: usize = 154_880;

impl Translation<'_> {
    /// The family of a `deepseek2` file: V3 has sigmoids, V2 a softmax, which Mistral's normalise over the chosen
    /// experts.
    pub(super) fn deepseek(&self) -> Result<Family> {
        let normalises = self.metadata.flag(&self.key("expert_weights_norm"))?.unwrap_or(false);
        let name = match self.gating()? {
            SIGMOID => "deepseek_v3",
            _ if normalises => "mistral4",
            _ => "deepseek_v2",
        };
        Ok(Family::named(name).expect("they are supported"))
    }

    fn gating(&self) -> Result<u64> {
        let key = self.key(GATING);
        match self.metadata.count(&key)? {
            Some(known @ (SOFTMAX | SIGMOID)) => Ok(known),
            Some(other) => Err(self.metadata.error(&key, "1 (softmax) or 2 (sigmoids)", other.to_string())),
            None => {
                let vocabulary = self.gguf.tensor("token_embd.weight").map(|(_, tensor)| tensor.rows());
                let layers = self.layered("block_count")?;
                let is_glm = vocabulary == Some(GLM_VOCABULARY) && layers.is_some_and(|n| GLM_LAYERS.contains(&n));
                Ok(if is_glm { SIGMOID } else { SOFTMAX })
            }
        }
    }

    /// The widths of heads and latents.
    pub(super) fn latent_heads(&mut self) -> Result<()> {
        const KEYS: &str = "attention.key_length";
        const RANK: &str = "attention.kv_lora_rank";
        self.count("kv_lora_rank", RANK)?;
        self.count("qk_rope_head_dim", "rope.dimension_count")?;
        let rope = self.layered("rope.dimension_count")?.unwrap_or(0);
        // Some files without such a projection say its rank all the same.
        let query_rank = self.layered("attention.q_lora_rank")?.filter(|_| self.has_tensor("blk.0.attn_q_a.weight"));
        self.set("q_lora_rank", self.key("attention.q_lora_rank"), Some(query_rank.map_or(Value::Null, Value::from)));
        let (stored, expanded) = (self.layered(KEYS)?, self.layered("attention.key_length_mla")?);
        let (keys, key, value) = match expanded {
            Some(keys) => (Some(keys), "attention.key_length_mla", "attention.value_length_mla"),
            None => (stored, KEYS, "attention.value_length"),
        };
        if let (Some(_), Some(stored), Some(rank)) = (expanded, stored, self.layered(RANK)?)
            && stored != rank + rope
        {
            let expected = format!("the width of what is stored ({rank} + {rope}), beside attention.key_length_mla");
            return Err(self.metadata.error(&self.key(KEYS), expected, stored.to_string()));
        }
        let nope = match keys {
            Some(keys) if keys <= rope => {
                let expected = format!("more than rope.dimension_count ({rope})");
                return Err(self.metadata.error(&self.key(key), expected, keys.to_string()));
            }
            keys => keys.map(|keys| keys - rope),
        };
        self.set("qk_nope_head_dim", self.key(key), nope.map(Value::from));
        let values = self.layered(value)?;
        self.set("v_head_dim", self.key(value), Some(values.map_or(Value::Null, Value::from)));
        Ok(())
    }

    /// Layers, dense blocks and mixtures.
    pub(super) fn latent_blocks(&mut self, family: Family) -> Result<()> {
        self.count("intermediate_size", "feed_forward_length")?;
        // They are behind the model's own layers.
        let predicting = self.layered("nextn_predict_layers")?.unwrap_or(0);
        let layers = self.layered("block_count")?.map(|layers| layers.saturating_sub(predicting));
        self.set("num_hidden_layers", self.key("block_count"), layers.map(Value::from));
        let Some(experts) = family.description().experts else { return Ok(()) };
        self.count("n_routed_experts", "expert_count")?;
        self.count("num_experts_per_tok", "expert_used_count")?;
        self.count("moe_intermediate_size", "expert_feed_forward_length")?;
        let or = |value: Option<u64>, default: u64| Some(Value::from(value.unwrap_or(default)));
        for (field, key, default) in [
            ("first_k_dense_replace", "leading_dense_block_count", 0),
            ("n_shared_experts", "expert_shared_count", 0),
            ("n_group", "expert_group_count", 1),
            ("topk_group", "expert_group_used_count", 1),
        ] {
            self.set(field, self.key(key), or(self.layered(key)?.filter(|&count| count > 0), default));
        }
        if matches!(experts.groups, GroupRule::ByMethod) {
            let limited = self.layered("expert_group_count")?.is_some_and(|groups| groups > 1);
            let method = if limited { "group_limited_greedy" } else { "greedy" };
            self.object.insert("topk_method".to_owned(), method.into());
        }
        let scale = self.key("expert_weights_scale");
        let factor = self.metadata.number(&scale)?.filter(|&factor| factor != 0.0);
        self.set("routed_scaling_factor", scale, Some(factor.unwrap_or(1.0).into()));
        let normalise = self.key("expert_weights_norm");
        let normalises = self.metadata.flag(&normalise)?.unwrap_or(false);
        self.set("norm_topk_prob", normalise, Some(normalises.into()));
        Ok(())
    }

    /// What yarn does to scores, and how queries grow.
    pub(super) fn latent_rope(&mut self, family: Family, scaling: &mut Map<String, Value>) -> Result<()> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        // A tenth of the number in config.json, of whose two llama.cpp writes one.
        let multiplier = self.key("rope.scaling.yarn_log_multiplier");
        if let Some(tenth) = self.metadata.number(&multiplier)? {
            for field in ["mscale", "mscale_all_dim"] {
                scaling.insert(field.to_owned(), (tenth / 0.1).into());
                self.keys.insert(format!("rope_scaling.{field}"), multiplier.clone());
            }
        }
        let temperature = self.key("attention.temperature_scale");
        let Some(growth) = self.metadata.number(&temperature)?.filter(|&growth| growth != 0.0) else { return Ok(()) };
        if !family.description().grows {
            let expected = format!("nothing: queries of {family} do not grow");
            return Err(self.metadata.error(&temperature, expected, growth.to_string()));
        }
        scaling.insert("llama_4_scaling_beta".to_owned(), growth.into());
        self.keys.insert("rope_scaling.llama_4_scaling_beta".to_owned(), temperature);
        let length = self.key("attention.temperature_length");
        let given = self.metadata.count(&length)?;
        match (given, scaling.get(ORIGINAL).and_then(Value::as_f64)) {
            (Some(given), Some(original)) if given as f64 != original => {
                let expected = format!("rope.scaling.original_context_length ({original})");
                return Err(self.metadata.error(&length, expected, given.to_string()));
            }
            (Some(given), None) => {
                scaling.insert(ORIGINAL.to_owned(), given.into());
                self.keys.insert(format!("rope_scaling.{ORIGINAL}"), length);
            }
            _ => {}
        }
        Ok(())
    }
}
