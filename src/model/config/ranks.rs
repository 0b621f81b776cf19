//! Whether a model can be divided among the ranks of tensor parallelism (`backend::ranks`), and by how many.

use crate::backend::ranks::PARTS;
use crate::error::{Error, Result};

use super::{FeedForward, HeadNormSpan, LayerSpec, Mixer, ModelConfig};

/// A size of a layer that ranks divide.
struct DividedSize {
    field: &'static str,
    size: usize,
    /// Whether sums go over it, which have [`PARTS`] parts if they are exact.
    is_summed: bool,
}

impl DividedSize {
    /// What must divide it for `ranks` ranks.
    fn divisor(&self, ranks: usize, exact: bool) -> usize {
        if exact && self.is_summed { PARTS } else { ranks }
    }
}

impl ModelConfig {
    /// Refuses a model that `ranks` ranks cannot divide. `exact`: sums have the same parts for any number of ranks.
    ///
    /// # Errors
    ///
    /// The first layer that stands against it, with the numbers of ranks that divide the model.
    pub fn check_ranks(&self, ranks: usize, exact: bool) -> Result<()> {
        for (ix, layer) in self.layers.iter().enumerate() {
            if let Some(kind) = undivided(layer) {
                let what = format!("layer {ix} ({}) under --tensor-parallel {ranks}", self.family);
                return Err(Error::value(what, "attention whose norms are those of single heads", kind));
            }
            for divided in sizes(layer) {
                let by = divided.divisor(ranks, exact);
                if !divided.size.is_multiple_of(by) {
                    let what = format!("{} of layer {ix} under --tensor-parallel {ranks}", divided.field);
                    let expected = format!("a multiple of {by} (of this model: {})", self.whole_ranks(exact));
                    return Err(Error::value(what, expected, divided.size.to_string()));
                }
            }
        }
        Ok(())
    }

    /// The numbers of ranks that divide the model, for people.
    fn whole_ranks(&self, exact: bool) -> String {
        let divides = |ranks: &usize| {
            self.layers.iter().flat_map(sizes).all(|one| one.size.is_multiple_of(one.divisor(*ranks, exact)))
        };
        let counts: Vec<String> =
            [1, 2, 4, PARTS].iter().filter(|ranks| divides(ranks)).map(usize::to_string).collect();
        match counts.as_slice() {
            [] => "no number of devices does".to_owned(),
            counts => format!("{} devices do", counts.join(", ")),
        }
    }
}

/// What of a layer is not divided yet, for people.
fn undivided(layer: &LayerSpec) -> Option<&'static str> {
    let norm = layer.attention()?.head_norm?;
    (norm.span == HeadNormSpan::AllHeads).then_some("a norm over all heads")
}

fn sizes(layer: &LayerSpec) -> impl Iterator<Item = DividedSize> {
    let heads = layer.attention().map(|attention| attention.heads).into_iter();
    let of_heads = heads.flat_map(|heads| {
        [
            DividedSize { field: "num_attention_heads", size: heads.q_heads, is_summed: false },
            DividedSize { field: "num_key_value_heads", size: heads.kv_heads, is_summed: false },
            DividedSize { field: "num_attention_heads * head_dim", size: heads.q_width(), is_summed: true },
        ]
    });
    let of_delta = match &layer.mixer {
        Mixer::Attention(_) => None,
        Mixer::DeltaRule(delta_rule) => Some(delta_rule.heads),
    };
    let of_delta = of_delta.into_iter().flat_map(|heads| {
        [
            DividedSize { field: "linear_num_key_heads", size: heads.key_heads, is_summed: false },
            DividedSize { field: "linear_num_value_heads", size: heads.value_heads, is_summed: false },
            DividedSize {
                field: "linear_num_value_heads * linear_value_head_dim",
                size: heads.value_width(),
                is_summed: true,
            },
        ]
    });
    let of_dense = match layer.feed_forward {
        FeedForward::SharedExpert { .. } => "shared_expert_intermediate_size",
        _ => "intermediate_size",
    };
    let dense = layer.feed_forward.dense().map(|dense| (of_dense, dense.width));
    let experts = layer.feed_forward.experts().map(|experts| (experts.width_field.name(), experts.width));
    let inner = dense.into_iter().chain(experts);
    of_heads.chain(of_delta).chain(inner.map(|(field, size)| DividedSize { field, size, is_summed: true }))
}
