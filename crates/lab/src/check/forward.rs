//! Whole forward passes without an engine: small random models of every family, in every dtype, on the device and in
//! the CPU's clear loops. Like golden files, but for the device, and without files.

use offshoot_backend::{AdapterSlot, Backend, Dtype};
use offshoot_cases::case::ANY_VOCAB;
use offshoot_cases::{CaseResult, CheckEffort, CheckReport, WorstError};
use offshoot_core::dice::Dice;
use offshoot_core::error::Result;
use offshoot_core::ids::TokenId;
use offshoot_cpu::{Cpu, Isa};
use offshoot_model::check::tolerance;
use offshoot_model::{Adapter, Decoder, ModelConfig, Sequence};

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

/// Ranks of adapters of all linear layers.
const RANKS: [usize; 2] = [5, 16];

pub fn forwards<B: Backend>(backend: &mut B, effort: CheckEffort, report: &mut CheckReport) -> Result<()> {
    let families = if effort == CheckEffort::Quick { &FAMILIES[..1] } else { &FAMILIES };
    for dtype in Dtype::ALL {
        let some = (dtype == Dtype::F32).then_some(&SOME_EXPERTS);
        for (family, changes) in families.iter().chain([&ALL_EXPERTS]).chain(some) {
            forward(backend, dtype, (family, changes), &[], report)?;
        }
        forward(backend, dtype, FAMILIES[0], &RANKS, report)?;
    }
    Ok(())
}

/// Compares the logits of a model with random weights with those of the definition. `ranks`: those of adapters that
/// tokens have; none if it is empty.
fn forward<B: Backend>(
    backend: &mut B,
    dtype: Dtype,
    (family, changes): (&str, &str),
    ranks: &[usize],
    report: &mut CheckReport,
) -> Result<()> {
    let config = ModelConfig::from_json(&format!(
        r#"{{ "model_type": "{family}", "hidden_size": 128, "intermediate_size": 200, "num_hidden_layers": 3,
            "num_attention_heads": 4, "vocab_size": {ANY_VOCAB}, "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, {changes} }}"#
    ))?;
    let tokens = Dice::new(7).text(STEPS.iter().sum(), ANY_VOCAB);
    let expected = logits(&mut definition(), &config, dtype, &tokens, ranks)?;
    let found = logits(backend, &config, dtype, &tokens, ranks)?;
    let repeats = found == logits(backend, &config, dtype, &tokens, ranks)?;
    let scale = expected.iter().fold(0.0f32, |scale, logit| scale.max(logit.abs()));
    let difference = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
    let error = found.iter().zip(&expected).map(difference);
    let error = error.fold(0.0, |worst: f64, e| if e.is_nan() { f64::INFINITY } else { worst.max(e) });
    let worst = WorstError { error, tolerance: f64::from(tolerance(dtype, config.layers.len(), scale)) };
    let op = if ranks.is_empty() { "forward" } else { "forward, adapters" };
    report.see(op, Some(dtype), family, CaseResult::twice(worst, repeats));
    Ok(())
}

/// Loads random adapters of these ranks, and returns their slots, which are no neighbours.
pub fn load_adapters<B: Backend>(backend: &mut B, model: &mut Decoder<B>, ranks: &[usize]) -> Result<Vec<AdapterSlot>> {
    (0..)
        .zip(ranks)
        .map(|(number, &rank): (u16, _)| {
            let slot = AdapterSlot::new(3 * number).expect("few adapters");
            let adapter = Adapter::random(model.config(), rank, rank as u64);
            let staged = model.stage_adapter(backend, &adapter)?;
            model.put_adapter(backend, slot, staged);
            Ok(slot)
        })
        .collect()
}

/// The adapters of `tokens` tokens, in runs of odd length: of none, then of each of these slots, and so on in turn.
pub fn adapters_in_runs(slots: &[AdapterSlot], tokens: usize) -> Vec<Option<AdapterSlot>> {
    const RUN: usize = 7;
    (0..tokens).map(|token| (token / RUN % (slots.len() + 1)).checked_sub(1).map(|number| slots[number])).collect()
}

/// Logits of all positions.
fn logits<B: Backend>(
    backend: &mut B,
    config: &ModelConfig,
    dtype: Dtype,
    tokens: &[TokenId],
    ranks: &[usize],
) -> Result<Vec<f32>> {
    let mut model = Decoder::random(backend, config.clone(), dtype, 5)?;
    let slots = load_adapters(backend, &mut model, ranks)?;
    let adapters = adapters_in_runs(&slots, tokens.len());
    let mut sequence = Sequence::new(backend, &mut model, tokens.len())?;
    let (mut logits, mut from) = (Vec::new(), 0);
    for rows in STEPS {
        let step = from..from + rows;
        logits.extend(sequence.extend_with_adapters(&tokens[step.clone()], &adapters[step], 0..rows as u32)?);
        from += rows;
    }
    Ok(logits)
}
