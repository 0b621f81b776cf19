//! SmolLM3: some layers have no rope.

use serde_json::json;

use super::super::super::rope::RopeDefaults;
use super::super::description::{
    Biases, Description, GgufRule, ImpliedKinds, KindRule, PLAIN, PLAIN_ROPE, RopeRule, Rotated, WindowRule,
};

pub const SMOLLM3: Description = Description {
    name: "smollm3",
    defaults: || {
        json!({
            "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 11_008, "num_hidden_layers": 36,
            "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
            "tie_word_embeddings": true, "bos_token_id": 128_000, "eos_token_id": 128_001,
        })
    },
    biases: Biases::OF_ALL,
    kinds: KindRule { listed: true, words: &[], otherwise: ImpliedKinds::Unrotated, last_is_full: false },
    // `use_sliding_window` decides what `layer_types` are where they are not written, and nothing else.
    windows: WindowRule::WRITTEN,
    rope: RopeRule { rotated: Rotated::Listed, ..RopeRule::same(RopeDefaults { theta: 2e6, ..PLAIN_ROPE }) },
    gguf: GgufRule { paired: true, ..GgufRule::named("smollm3") },
    ..PLAIN
};
