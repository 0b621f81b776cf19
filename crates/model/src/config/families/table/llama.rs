//! Llama 1 to 3, CodeLlama, Yi and every other model with the type `llama`.

use serde_json::json;

use super::super::description::{Biases, Description, GgufRule, PLAIN};

pub const LLAMA: Description = Description {
    name: "llama",
    fixed: &[("activation", "\"swiglu\"")],
    defaults: || json!({"bos_token_id": 1, "eos_token_id": 2}),
    biases: Biases::OF_ALL,
    gguf: GgufRule { with_experts: Some("mixtral"), paired: true, ..GgufRule::named("llama") },
    ..PLAIN
};
