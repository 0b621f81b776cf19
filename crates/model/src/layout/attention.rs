//! The tensors of attention: the projections of queries, keys and values, the gates of queries, and the norms of heads.

use std::ops::Range;

use super::names::LayerNames;
use super::tensors::{Dim, HeadNormTensors, LinearTensors, linear, vector};
use crate::config::{AttentionSpec, HeadNormSpan, KeySource, QueryGate};
use offshoot_backend::{HeadLayout, Segment, Split};

pub(super) fn q_width(heads: HeadLayout) -> Dim {
    Dim { size: heads.q_width(), field: "num_attention_heads * head_dim" }
}

fn kv_width(heads: HeadLayout) -> Dim {
    Dim { size: heads.kv_heads * heads.head_dim, field: "num_key_value_heads * head_dim" }
}

/// The segments of a row of `qkv` that ranks divide: queries, keys and values.
fn segments_of(heads: HeadLayout, has_keys: bool) -> Split {
    let queries = Segment::of_queries(heads, heads.head_dim);
    let keys = Segment { width: kv_width(heads).size, unit: heads.head_dim, meets_keys: false };
    Split::Outputs(if has_keys { vec![queries, keys, keys] } else { vec![queries] })
}

/// The rows of queries, keys and values of a module that has those of one head after the other; as many of each.
fn rows_by_head(heads: HeadLayout) -> Vec<Range<usize>> {
    let HeadLayout { q_heads, head_dim, .. } = heads;
    let of_kind = |kind: usize| (0..q_heads).map(move |head| (3 * head + kind) * head_dim);
    (0..3).flat_map(of_kind).map(|first| first..first + head_dim).collect()
}

/// Rows of a module that holds pairs of heads, a query and its gate: `from` 0 the queries, `head_dim` the gates.
fn queries_of_pairs(heads: HeadLayout, from: usize) -> Vec<Range<usize>> {
    let HeadLayout { q_heads, head_dim, .. } = heads;
    (0..q_heads).map(|head| 2 * head * head_dim + from).map(|first| first..first + head_dim).collect()
}

impl LayerNames<'_> {
    pub(super) fn qkv(&self, attention: &AttentionSpec) -> LinearTensors {
        let heads = attention.heads;
        let query = (self.at("self_attn.q_proj"), q_width(heads));
        if attention.gate == Some(QueryGate::InQueries) {
            let [query, key, value] = [
                self.gated_queries(attention),
                (self.at("self_attn.k_proj"), kv_width(heads)),
                (self.at("self_attn.v_proj"), kv_width(heads)),
            ];
            let both = query.1.size;
            let mut rows = queries_of_pairs(heads, 0);
            rows.push(both..both + 2 * kv_width(heads).size);
            let split = segments_of(heads, true);
            let stacked = linear(&[query, key, value], self.hidden, attention.qkv_bias);
            return LinearTensors { rows: Some(rows), split, ..stacked };
        }
        let key = (self.at("self_attn.k_proj"), kv_width(heads));
        let modules = match (attention.keys, self.modules().fused_qkv) {
            (KeySource::Latent(_), _) => unreachable!("`latent` lists the tensors of latent attention"),
            (KeySource::OfLayer(_), _) => vec![query],
            (KeySource::KeysAreValues, _) => vec![query, key.clone(), key],
            (KeySource::Projected, false) => vec![query, key, (self.at("self_attn.v_proj"), kv_width(heads))],
            (KeySource::Projected, true) => {
                let field = "(num_attention_heads + 2 * num_key_value_heads) * head_dim";
                vec![(self.at("self_attn.qkv_proj"), Dim { size: heads.qkv_width(), field })]
            }
        };
        let stacked = linear(&modules, self.hidden, attention.qkv_bias);
        let rows = (self.modules().fused_qkv && self.modules().qkv_by_head).then(|| rows_by_head(heads));
        LinearTensors { rows, split: segments_of(heads, attention.stores_keys()), ..stacked }
    }

    /// The module that holds the queries and gates of all heads: each head's query, then its gate.
    fn gated_queries(&self, attention: &AttentionSpec) -> (String, Dim) {
        let field = "2 * num_attention_heads * head_dim";
        (self.at("self_attn.q_proj"), Dim { size: 2 * attention.heads.q_width(), field })
    }

    /// The projection of the gates, if queries have some.
    pub(super) fn query_gate(&self, attention: &AttentionSpec) -> Option<LinearTensors> {
        let split = Split::outputs([attention.heads.q_width()]);
        Some(match attention.gate? {
            QueryGate::InQueries => {
                let rows = Some(queries_of_pairs(attention.heads, attention.heads.head_dim));
                let pairs = linear(&[self.gated_queries(attention)], self.hidden, attention.qkv_bias);
                LinearTensors { rows, split, ..pairs }
            }
            QueryGate::Own => {
                let module = (self.at("self_attn.gate_proj"), q_width(attention.heads));
                linear(&[module], self.hidden, false).split(split)
            }
        })
    }

    pub(super) fn head_norms(&self, attention: &AttentionSpec) -> Option<HeadNormTensors> {
        let span = attention.head_norm.filter(|norm| norm.weights)?.span;
        let heads = attention.heads;
        let one = Dim { size: heads.head_dim, field: "head_dim" };
        let weights = |module: &str, all: Dim| match span {
            HeadNormSpan::Head => vec![vector(&self.at(&format!("{module}.weight")), one)],
            HeadNormSpan::AllHeads => vec![vector(&self.at(&format!("{module}.weight")), all)],
            HeadNormSpan::EachHead => {
                let of_head = |head: usize| vector(&self.at(&format!("{module}.norms.{head}.weight")), one);
                (0..all.size / one.size).map(of_head).collect()
            }
        };
        Some(HeadNormTensors {
            query: weights("self_attn.q_norm", q_width(heads)),
            key: attention.stores_keys().then(|| weights("self_attn.k_norm", kv_width(heads))),
        })
    }
}
