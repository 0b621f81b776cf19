//! Bamba: layers of Mamba-2, some with attention in its place.

use serde_json::json;

use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::super::modules::{LLAMA, Modules};
use super::super::super::rope::{LayerKind, RopeDefaults};
use super::super::canonical::Canonical;
use super::super::description::{Biases, Description, KindRule, PLAIN, PLAIN_ROPE, RopeRule};
use super::super::keys::Why;
use super::super::recurrent;

pub const BAMBA: Description = Description {
    name: "bamba",
    adapt: Some(list_kinds),
    defaults: || {
        json!({
            "vocab_size": 128_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262_144,
            "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1, "mamba_d_state": 256,
            "mamba_d_conv": 4, "mamba_expand": 2, "bos_token_id": 1, "eos_token_id": 2,
        })
    },
    ignored: &[("attn_rotary_emb", Why::Unread), ("z_loss_coefficient", Why::Training)],
    eps: ("rms_norm_eps", 1e-5),
    biases: Biases::OF_ALL,
    kinds: KindRule::all(LayerKind::Linear),
    rope: RopeRule::same(RopeDefaults { fraction: 0.5, partial: true, ..PLAIN_ROPE }),
    recurrent: Some(recurrent::mamba2),
    modules: Modules {
        in_layer: &[("mlp", "feed_forward"), ("post_attention_layernorm", "pre_ff_layernorm")],
        outside: &[("model.norm", "model.final_layernorm")],
        ..LLAMA
    },
    ..PLAIN
};

/// Half of a head is rotated, whatever a config says.
fn list_kinds(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    canonical.object.remove("partial_rotary_factor");
    canonical.list_attention(written, "attn_layer_indices", 32)
}
