//! dots.llm1: DeepSeek-V3's router, norms of heads, and windows in layers behind the first.

use serde_json::json;

use offshoot_core::error::Result;

use super::super::super::fields::Fields;
use super::super::canonical::Canonical;
use super::super::description::{
    Description, ExpertRule, HeadNormRule, ImpliedKinds, KindRule, PLAIN, WindowRule, WindowUse,
};

pub const DOTS1: Description = Description {
    name: "dots1",
    adapt: Some(rename_scores),
    defaults: || {
        json!({
            "vocab_size": 152_064, "hidden_size": 4608, "intermediate_size": 10_944, "moe_intermediate_size": 1408,
            "num_hidden_layers": 62, "num_attention_heads": 32, "max_position_embeddings": 2048, "n_group": 1,
            "topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": false, "routed_scaling_factor": 1.0,
        })
    },
    kinds: KindRule { listed: true, words: &[], otherwise: ImpliedKinds::Behind(62), last_is_full: false },
    windows: WindowRule { used: WindowUse::Always, default: WindowRule::DEFAULT },
    head_norm: Some(HeadNormRule::BY_HEAD),
    experts: Some(ExpertRule::SIGMOID),
    ..PLAIN
};

/// Its `scoring_func` has the name of the method by which experts are chosen.
fn rename_scores(written: &Fields<'_>, canonical: &mut Canonical) -> Result<()> {
    const SCORES: &str = "scoring_func";
    if written.text(SCORES)? == Some("noaux_tc") {
        canonical.object.insert(SCORES.to_owned(), "sigmoid".into());
    }
    Ok(())
}
