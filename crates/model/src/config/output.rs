//! What a model computes behind its final norm: the logits of a generator, the values of a scorer (a reward model or
//! classifier), or the vector of an embedder. Where a scorer's layers are is found by `weights`, and what its values
//! mean is left to those who read them: neither sigmoid nor softmax is applied.

use std::fmt;

use offshoot_core::ids::TokenId;

use super::model::ModelConfig;

/// What becomes of a row behind the final norm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputHead {
    /// A logit for each token of the vocabulary: the model generates.
    Tokens,
    /// Values by linear layers of their own: a scorer. No softcap is applied to them.
    Values(ValueHead),
    /// The logits of these tokens, in this order: a scorer that reads rows of the output layer.
    TokenLogits(Vec<TokenId>),
    /// Nothing: the row itself is the value, a vector of the text so far.
    Hidden,
}

/// The linear layers of a scorer, with a ReLU between each two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueHead {
    /// The layers before the last one, in their order; most heads have none.
    pub inner: Vec<ValueLayer>,
    pub last: ValueLayer,
}

/// A linear layer of a scorer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueLayer {
    /// The name of its tensors without `.weight` and `.bias`, and without what a checkpoint has before it.
    pub module: String,
    pub outputs: usize,
    pub bias: bool,
}

impl ValueHead {
    /// All layers, in their order.
    pub fn layers(&self) -> impl Iterator<Item = &ValueLayer> {
        self.inner.iter().chain([&self.last])
    }
}

impl ModelConfig {
    /// The numbers that the model computes for a row: a logit of each token, or a scorer's values.
    pub fn outputs(&self) -> usize {
        match &self.output {
            OutputHead::Tokens => self.vocab,
            OutputHead::Values(head) => head.last.outputs,
            OutputHead::TokenLogits(tokens) => tokens.len(),
            OutputHead::Hidden => self.hidden,
        }
    }

    /// Whether the model computes values in place of the logits of all tokens.
    pub fn is_scorer(&self) -> bool {
        self.output != OutputHead::Tokens
    }
}

/// `1 value: score`, `2 values: score.0 to 64 with bias, relu, score.2 with bias`, `the logits of tokens 648 and 387`.
impl fmt::Display for OutputHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OutputHead::Tokens => write!(f, "the logits of all tokens"),
            OutputHead::Hidden => write!(f, "a vector of the text"),
            OutputHead::TokenLogits(tokens) => {
                let tokens: Vec<String> = tokens.iter().map(ToString::to_string).collect();
                write!(f, "the logits of tokens {}", tokens.join(", "))
            }
            OutputHead::Values(ValueHead { inner, last }) => {
                let bias = |layer: &ValueLayer| if layer.bias { " with bias" } else { "" };
                write!(f, "{} value{}: ", last.outputs, if last.outputs == 1 { "" } else { "s" })?;
                for layer in inner {
                    write!(f, "{} to {}{}, relu, ", layer.module, layer.outputs, bias(layer))?;
                }
                write!(f, "{}{}", last.module, bias(last))
            }
        }
    }
}
