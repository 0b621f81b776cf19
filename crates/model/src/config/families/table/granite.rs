//! Granite 3 and 4 without recurrent layers: llama with factors, dense, with experts, and with a shared one.

use serde_json::{Value, json};

use super::super::super::layer::ExpertWidthField;
use super::super::super::modules::{ExpertForm, LLAMA, Modules, StackedForm};
use super::super::description::{Beside, Biases, Description, ExpertRule, Factor, PLAIN, ScaleRule, ScoreRule};

/// The factors of all kinds of Granite.
pub const SCALES: ScaleRule = ScaleRule {
    embeddings: Factor::Field("embedding_multiplier"),
    scores: Factor::Field("attention_multiplier"),
    branches: Factor::Field("residual_multiplier"),
    logits: Factor::OneOver("logits_scaling"),
    ..ScaleRule::NONE
};

/// The mixture of all kinds of Granite.
pub const EXPERTS: ExpertRule = ExpertRule {
    count: &["num_local_experts"],
    width: ExpertWidthField::Intermediate,
    scores: ScoreRule::SoftmaxOfChosen,
    beside: Beside::Ungated("shared_intermediate_size"),
    ..ExpertRule::SOFTMAX
};

/// Experts in one tensor, and gate and up of the shared one.
pub const NAMES: Modules = Modules {
    in_layer: &[
        ("mlp.gate", "block_sparse_moe.router.layer"),
        ("mlp.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"),
        ("mlp.experts.down_proj", "block_sparse_moe.output_linear.weight"),
        ("mlp.shared_experts.gate_up_proj", "shared_mlp.input_linear"),
        ("mlp.shared_experts.down_proj", "shared_mlp.output_linear"),
    ],
    fused_up: true,
    experts: ExpertForm::Stacked(StackedForm::Plain),
    ..LLAMA
};

fn defaults() -> Value {
    json!({
        "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048, "attention_multiplier": 1.0,
        "num_local_experts": 8, "num_experts_per_tok": 2, "bos_token_id": 1, "eos_token_id": 2,
    })
}

pub const GRANITE: Description =
    Description { name: "granite", defaults, biases: Biases::OF_ALL, scales: SCALES, ..PLAIN };

pub const GRANITE_MOE: Description = Description {
    name: "granitemoe",
    defaults,
    scales: SCALES,
    experts: Some(ExpertRule { beside: Beside::Nothing, ..EXPERTS }),
    modules: NAMES,
    ..PLAIN
};

pub const GRANITE_MOE_SHARED: Description =
    Description { name: "granitemoeshared", experts: Some(EXPERTS), ..GRANITE_MOE };
