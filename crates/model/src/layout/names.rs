//! The names of a layer's tensors.

use super::tensors::{Dim, NormTensors, norm};
use crate::config::{Halves, LayerSpec, ModelConfig, Modules, Norm};

/// Makes the tensors of layer `ix`.
pub struct LayerNames<'a> {
    pub ix: usize,
    pub hidden: Dim,
    pub config: &'a ModelConfig,
    pub spec: &'a LayerSpec,
}

impl LayerNames<'_> {
    /// The name of a module of the layer, or of one of its tensors, as the family calls it.
    pub fn at(&self, module: &str) -> String {
        let module = self.modules().in_layer(module);
        match self.modules().halves {
            Halves::None => return format!("model.layers.{}.{module}", self.ix),
            Halves::Plain => return format!("model.layers.{}.{module}", self.ix / 2),
            Halves::Numbered => {}
        }
        let (number, half) = (self.ix / 2, self.ix % 2);
        let (first, rest) = module.split_once('.').map_or((&*module, None), |(first, rest)| (first, Some(rest)));
        // The mixture is that of both.
        let own = if first == "mlp" { first.to_owned() } else { format!("{first}.{half}") };
        let rest = rest.map(|rest| format!(".{rest}")).unwrap_or_default();
        format!("model.layers.{number}.{own}{rest}")
    }

    pub fn modules(&self) -> &Modules {
        &self.config.modules
    }

    pub fn norm(&self, module: &str, kind: Norm) -> NormTensors {
        norm(&self.at(module), kind, self.hidden)
    }
}

#[cfg(test)]
mod tests {
    use crate::config::ModelConfig;
    use crate::layout::Layout;

    /// The names of a small model of this family.
    fn names(family: &str) -> Vec<String> {
        let fields = serde_json::json!({
            "model_type": family, "num_hidden_layers": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1,
            "topk_group": 1, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 12
        });
        let config = ModelConfig::from_json(&fields.to_string()).unwrap();
        Layout::of(&config).tensors().map(|tensor| tensor.name.clone()).collect()
    }

    #[test]
    fn routers_and_shared_experts_have_the_names_of_published_checkpoints() {
        let deepseek = names("deepseek_v3");
        for name in [
            "model.layers.0.mlp.gate_proj.weight",
            "model.layers.3.mlp.gate.weight",
            "model.layers.3.mlp.gate.e_score_correction_bias",
            "model.layers.3.mlp.shared_experts.down_proj.weight",
            "model.layers.3.mlp.experts.7.gate_proj.weight",
        ] {
            assert!(deepseek.iter().any(|other| other == name), "{name}: {deepseek:?}");
        }
        assert!(!deepseek.iter().any(|name| name.contains("shared_expert_gate")));
        assert!(!names("mistral4").iter().any(|name| name.contains("correction_bias")));
    }

    #[test]
    fn two_layers_of_longcat_share_a_number_and_its_mixture() {
        let longcat = names("longcat_flash");
        for name in [
            "model.layers.0.self_attn.0.q_a_proj.weight",
            "model.layers.1.self_attn.1.kv_a_layernorm.weight",
            "model.layers.1.input_layernorm.0.weight",
            "model.layers.0.post_attention_layernorm.1.weight",
            "model.layers.0.mlps.1.down_proj.weight",
            "model.layers.1.mlp.experts.7.up_proj.weight",
            "model.layers.1.mlp.router.classifier.weight",
            "model.layers.0.mlp.router.e_score_correction_bias",
        ] {
            assert!(longcat.iter().any(|other| other == name), "{name}: {longcat:?}");
        }
        // Identities have no tensors.
        assert!(!longcat.iter().any(|name| name.contains("experts.8.") || name.starts_with("model.layers.2")));
    }
}
