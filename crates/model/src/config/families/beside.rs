//! Layers that have attention beside a recurrent layer (Falcon-H1): both read the same norm, and what they give is
//! multiplied by factors and added to the residual stream. They are read as two layers, of which the second one's
//! attention reads the norm of the first.

use offshoot_core::error::Result;

use super::super::fields::Fields;
use super::super::layer::{BlockNorms, BranchScale, DenseSpec, FeedForward, LayerNorms, LayerSpec, Mixer, Norm};
use super::recurrent::{factor, factors};

/// The two layers of `spec`, which has attention, and of `recurrent`.
pub fn layers(fields: &Fields<'_>, spec: LayerSpec, recurrent: Mixer, norm: Norm) -> Result<Vec<LayerSpec>> {
    let of_input = factor(fields, "attention_in_multiplier")?;
    let [of_gate, of_block] = factors(fields, "mlp_multipliers")?;
    let mixer = match spec.mixer {
        Mixer::Attention(mut attention) => {
            if of_input != 1.0 && attention.qkv_bias {
                let expected = "1, as the biases of queries, keys and values are not multiplied by it (attention_bias)";
                return Err(fields.error("attention_in_multiplier", expected, of_input.to_string()));
            }
            // Queries and keys are both projected from rows multiplied by it, values as well.
            attention.scale *= factor(fields, "key_multiplier")? * of_input * of_input;
            Mixer::Attention(attention)
        }
        other => other,
    };
    let feed_forward = match spec.feed_forward {
        FeedForward::Dense(dense) => FeedForward::Dense(DenseSpec { gate_factor: scaled(of_gate), ..dense }),
        other => other,
    };
    let first = LayerSpec {
        mixer: recurrent,
        feed_forward: FeedForward::None,
        norms: LayerNorms::Sequential { attention: BlockNorms::Before(norm), feed_forward: BlockNorms::None },
        output_scale: false,
        branch_scale: BranchScale { mixer: scaled(factor(fields, "ssm_out_multiplier")?), feed_forward: None },
    };
    let second = LayerSpec {
        mixer,
        feed_forward,
        norms: LayerNorms::Sequential { attention: BlockNorms::AsBefore, feed_forward: BlockNorms::Before(norm) },
        branch_scale: BranchScale {
            mixer: scaled(factor(fields, "attention_out_multiplier")? * of_input),
            feed_forward: scaled(of_block),
        },
        ..spec
    };
    Ok(vec![first, second])
}

/// A factor that changes something.
fn scaled(factor: f32) -> Option<f32> {
    (factor != 1.0).then_some(factor)
}
