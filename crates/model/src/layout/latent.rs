//! The tensors of latent attention: the projections of queries, which may go through a rank of their own, those to
//! latents and rotated parts, and the maps of latents to the keys and values of all heads.

use super::names::LayerNames;
use super::tensors::{Dim, LinearTensors, NormTensors, TensorSpec, linear, matrix, norm, vector};
use crate::config::{AttentionSpec, LatentSpec, Norm};
use offshoot_backend::{Dtype, LatentHeads, Segment, Split};

/// What latent attention has beside the first projection of its queries and the projection of what its heads have read.
#[derive(Clone, Debug)]
pub struct LatentTensors {
    /// `None` where the first projection gives queries.
    pub queries: Option<QueryTensors>,
    /// Latents and rotated parts; `None`: the first projection gives them behind queries.
    pub latents: Option<LinearTensors>,
    /// The weights of the norm of latents, `[rank]`.
    pub norm: TensorSpec,
    /// `[heads * (nope + value), rank]`, and how ranks divide it.
    pub maps: TensorSpec,
    pub maps_split: Split,
}

/// How queries are made of what the first projection gives.
#[derive(Clone, Debug)]
pub struct QueryTensors {
    pub norm: NormTensors,
    pub up: LinearTensors,
}

impl LatentTensors {
    pub fn tensors(&self) -> impl Iterator<Item = &TensorSpec> {
        let queries = self.queries.iter().flat_map(|queries| queries.norm.tensors().chain(queries.up.tensors()));
        let latents = self.latents.iter().flat_map(LinearTensors::tensors);
        queries.chain(latents).chain([&self.norm, &self.maps])
    }

    /// Its linear layers. The maps are none: what is made of them is no matrix.
    pub fn linears(&self) -> impl Iterator<Item = &LinearTensors> {
        self.queries.iter().map(|queries| &queries.up).chain(&self.latents)
    }

    /// The projections, of weights that are stacked in `first` or alone, whose outputs every rank computes.
    pub fn whole<'a>(&'a self, first: &'a LinearTensors) -> impl Iterator<Item = &'a TensorSpec> {
        let of_first = match (&self.queries, &self.latents) {
            (Some(_), _) => &first.weights[..],
            (None, Some(_)) => &[],
            (None, None) => &first.weights[1..],
        };
        of_first.iter().chain(self.latents.iter().flat_map(|latents| &latents.weights))
    }
}

/// What all heads have read, as the projection out of attention takes it.
pub(super) fn out_width(heads: LatentHeads) -> Dim {
    Dim { size: heads.out_width(), field: "num_attention_heads * v_head_dim" }
}

impl LayerNames<'_> {
    /// Its tensors, and the first projection of its queries, which gives latents too where both read the same input as
    /// they are.
    pub(super) fn latent(&self, attention: &AttentionSpec, spec: &LatentSpec) -> (LatentTensors, LinearTensors) {
        let LatentSpec { heads, query_rank, .. } = *spec;
        let at = |module: &str| self.at(&format!("self_attn.{module}"));
        let dim = |size, field| Dim { size, field };
        let rank = dim(heads.rank, "kv_lora_rank");
        let queries = dim(heads.query_width(), "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)");
        let latents = dim(heads.latent_width(), "kv_lora_rank + qk_rope_head_dim");
        let of_heads = |width: usize| Segment { width, unit: width / heads.heads, meets_keys: true };
        let query_split = Split::Outputs(vec![of_heads(queries.size)]);
        let latents = (at("kv_a_proj_with_mqa"), latents);
        let alone = linear(std::slice::from_ref(&latents), self.hidden, attention.qkv_bias);
        let (queries, first, latents) = match query_rank.map(|rank| dim(rank, "q_lora_rank")) {
            None => {
                let first = linear(&[(at("q_proj"), queries)], self.hidden, false).split(query_split);
                match !self.config.latents_apart && self.are_alike(&first, &alone) {
                    true => {
                        let of_latents = Segment { width: latents.1.size, unit: latents.1.size, meets_keys: false };
                        let split = Split::Outputs(vec![of_heads(queries.size), of_latents]);
                        (None, linear(&[(at("q_proj"), queries), latents], self.hidden, false).split(split), None)
                    }
                    false => (None, first, Some(alone)),
                }
            }
            Some(rank) => {
                let up = linear(&[(at("q_b_proj"), queries)], rank, false).split(query_split);
                let norm = norm(&at("q_a_layernorm"), Norm::Rms { eps: spec.eps }, rank);
                let first = linear(&[(at("q_a_proj"), rank)], self.hidden, attention.qkv_bias);
                (Some(QueryTensors { norm, up }), first, Some(alone))
            }
        };
        let map_rows = dim(heads.map_rows(), "num_attention_heads * (qk_nope_head_dim + v_head_dim)");
        let tensors = LatentTensors {
            queries,
            latents,
            norm: vector(&at("kv_a_layernorm.weight"), rank),
            maps: matrix(&at("kv_b_proj"), map_rows, rank),
            maps_split: Split::Outputs(vec![of_heads(map_rows.size)]),
        };
        (tensors, first)
    }

    /// Whether one matrix may be stacked of both, without making a part of it dense.
    fn are_alike(&self, a: &LinearTensors, b: &LinearTensors) -> bool {
        let format = |of: &LinearTensors| self.config.format(&of.weights[0], Dtype::F32);
        a.biases.is_empty() == b.biases.is_empty() && format(a) == format(b)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::config::ModelConfig;
    use crate::layout::Layout;
    use offshoot_backend::{Dtype, WeightFormat};

    fn config(query_rank: Option<usize>, bias: bool) -> ModelConfig {
        let fields = serde_json::json!({
            "model_type": "deepseek_v3", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
            "intermediate_size": 48, "vocab_size": 100, "kv_lora_rank": 16, "q_lora_rank": query_rank,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1,
            "attention_bias": bias
        });
        ModelConfig::from_json(&fields.to_string()).unwrap()
    }

    /// The matrices that the layer's first projection stacks, and whether another one gives latents.
    fn first(config: &ModelConfig) -> (usize, bool) {
        let layout = Layout::of(config);
        (
            layout.layers[0].qkv.as_ref().unwrap().weights.len(),
            layout.layers[0].latent.as_ref().unwrap().latents.is_some(),
        )
    }

    #[test]
    fn one_product_gives_queries_and_latents_where_both_are_stored_alike() {
        let plain = config(None, false);
        assert_eq!(first(&plain), (2, false));
        assert_eq!(first(&config(Some(24), false)), (1, true), "queries are made of something else");
        assert_eq!(first(&config(None, true)), (1, true), "latents alone have a bias");
        let of_latents = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight".to_owned();
        let formats = [(of_latents, WeightFormat::Dense(Dtype::Bf16))].into_iter().collect();
        assert_eq!(first(&ModelConfig { formats: Arc::new(formats), ..plain.clone() }), (1, true));
        assert_eq!(first(&ModelConfig { latents_apart: true, ..plain }), (1, true));
    }
}
