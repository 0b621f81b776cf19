//! Latent attention on a modelled device: what its pages take, and what copies spare.

use std::sync::Arc;
use std::time::Duration;

use offshoot_backend::{Dtype, KvDtype, StateDtype};
use offshoot_estimate::replay::{
    JobRecord, ReplayJob, ReplayRequest, ReplaySettings, SimulatedMachine, TextRun, TracePrompt, replay,
};
use offshoot_model::ModelConfig;
use offshoot_sim::DeviceProfile;

const LAYERS: u64 = 27;
const RANK: u64 = 512;
const ROPE: u64 = 64;

/// An H200 with the attention of DeepSeek-V2-Lite.
fn machine(kv: KvDtype) -> SimulatedMachine {
    let config = format!(
        r#"{{ "model_type": "minicpm3", "hidden_size": 2048, "num_hidden_layers": {LAYERS}, "num_attention_heads": 16,
            "intermediate_size": 10944, "vocab_size": 102400, "max_position_embeddings": 32768, "kv_lora_rank": {RANK},
            "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": {ROPE}, "v_head_dim": 128,
            "rms_norm_eps": 1e-6, "tie_word_embeddings": false }}"#
    );
    let model = ModelConfig::from_json(&config).expect("a sound shape");
    let profile = Arc::new(DeviceProfile::named("h200").expect("built in"));
    SimulatedMachine { model, dtype: Dtype::Bf16, kv, states: StateDtype::F32, profile }
}

/// The best of 1,024 samples of 128 tokens below a prompt of 8,192.
fn best_of_1024(kv: KvDtype, copies: Option<usize>) -> JobRecord {
    let prompt = TracePrompt::Runs(vec![TextRun { text: 1, tokens: 8192 }]);
    let job = ReplayJob::new(vec![ReplayRequest { prompt, arrival: Duration::ZERO, samples: 1024, output: 128 }]);
    let settings = ReplaySettings { copies, ..ReplaySettings::default() };
    replay(&machine(kv), &settings, &job).expect("it fits")
}

#[test]
fn pages_hold_latents_alone() {
    let record = best_of_1024(KvDtype::Model, Some(0));
    let metrics = &record.metrics;
    assert_eq!((metrics.latent_tokens_expanded, metrics.latent_copies_held), (0, 0));
    // The last token of a sample has no latent.
    let latents = (8192 + 1024 * 127) * LAYERS * (RANK + ROPE) * 2;
    let held = metrics.kv_bytes_peak as f64 / latents as f64;
    assert!((1.0..=1.15).contains(&held), "{held} x the latents");
}

#[test]
fn fp8_latents_take_half() {
    let [model, fp8] = [KvDtype::Model, KvDtype::Fp8].map(|kv| best_of_1024(kv, Some(0)).metrics.kv_bytes_peak);
    assert_eq!(2 * fp8, model);
}

#[test]
fn copies_spare_time_where_many_rows_share_a_prompt() {
    let [absorbed, copied] = [Some(0), None].map(|copies| best_of_1024(KvDtype::Model, copies));
    // The prompt, once.
    assert_eq!(copied.metrics.latent_tokens_expanded, 8192);
    assert_eq!(copied.metrics.kv_bytes_peak, absorbed.metrics.kv_bytes_peak, "copies are no part of it");
    let [absorbed, copied] = [absorbed, copied].map(|record| record.totals(2048).seconds);
    assert!(1.5 * copied < absorbed, "{copied} s with copies, {absorbed} s without");
}
