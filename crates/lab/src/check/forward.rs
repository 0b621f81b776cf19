//! Whole forward passes without an engine: small random models of every family, in every dtype, on the device and in
//! the CPU's clear loops. Like golden files, but for the device, and without files.

use offshoot_backend::{Backend, Dtype};
use offshoot_cases::case::ANY_VOCAB;
use offshoot_cases::{CaseResult, CheckEffort, CheckReport, WorstError};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check::tolerance;
use offshoot_model::{Decoder, ModelConfig, Sequence};

/// The clear loops of the CPU, which define every op.
pub fn definition() -> Cpu {
    Cpu::with_isa(Isa::Portable)
}

/// The differences between the families: grouped heads; windows and biases in some layers; normalised heads, wider than
/// the hidden state; layer norms, biases everywhere, partial rope and a parallel feed-forward block.
const FAMILIES: [(&str, &str); 4] = [
    ("llama", r#""num_key_value_heads": 2"#),
    ("qwen2", r#""num_key_value_heads": 2, "sliding_window": 40, "use_sliding_window": true, "max_window_layers": 1"#),
    ("qwen3", r#""num_key_value_heads": 1, "head_dim": 64"#),
    ("phi", r#""num_key_value_heads": 4, "hidden_act": "gelu_new""#),
];

/// Mixtures: all experts, so that roundings do not change which; and, in f32 only, some of many in every other layer.
const ALL_EXPERTS: (&str, &str) =
    ("mixtral", r#""num_key_value_heads": 2, "num_local_experts": 3, "num_experts_per_tok": 3"#);
const SOME_EXPERTS: (&str, &str) = (
    "qwen3_moe",
    r#""num_key_value_heads": 2, "head_dim": 32, "num_experts": 12, "num_experts_per_tok": 3, "norm_topk_prob": true,
       "moe_intermediate_size": 96, "decoder_sparse_step": 2, "mlp_only_layers": []"#,
);

/// Tokens of each step: a long prompt, an odd chunk, then single tokens, so that one shape repeats often enough to be
/// replayed as a graph.
const STEPS: [usize; 7] = [93, 17, 1, 1, 1, 1, 1];

pub fn forwards<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let families = if effort == CheckEffort::Quick { &FAMILIES[..1] } else { &FAMILIES };
    for dtype in Dtype::ALL {
        let some = (dtype == Dtype::F32).then_some(&SOME_EXPERTS);
        for (family, changes) in families.iter().chain([&ALL_EXPERTS]).chain(some) {
            let config = ModelConfig::from_json(&format!(
                r#"{{ "model_type": "{family}", "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 3,
                    "num_attention_heads": 4, "vocab_size": {ANY_VOCAB}, "max_position_embeddings": 256,
                    "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, {changes} }}"#
            ))?;
            let tokens = Dice::new(7).text(STEPS.iter().sum(), ANY_VOCAB);
            let expected = logits(&mut definition(), &config, dtype, &tokens)?;
            let found = logits(backend, &config, dtype, &tokens)?;
            let repeats = found == logits(backend, &config, dtype, &tokens)?;
            let scale = expected.iter().fold(0.0f32, |scale, logit| scale.max(logit.abs()));
            let difference = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
            let error = found.iter().zip(&expected).map(difference);
            let error = error.fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) });
            let worst = WorstError { error, tolerance: f64::from(tolerance(dtype, config.layers.len(), scale)) };
            report.see("forward", Some(dtype), family, CaseResult::twice(worst, repeats));
        }
    }
    Ok(())
}

/// Logits of all positions.
fn logits<B: Backend>(backend: &mut B, config: &ModelConfig, dtype: Dtype, tokens: &[TokenId]) -> Result<Vec<f32>> {
    let mut model = Decoder::random(backend, config.clone(), dtype, 5)?;
    let mut sequence = Sequence::new(backend, &mut model, tokens.len())?;
    let (mut logits, mut left) = (Vec::new(), tokens);
    for rows in STEPS {
        let (chunk, rest) = left.split_at(rows);
        logits.extend(sequence.extend(chunk, 0..rows as u32)?);
        left = rest;
    }
    Ok(logits)
}
