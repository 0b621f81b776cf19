//! How a model's matrices are quantised: as its checkpoint was published (`published` reads config.json's
//! `quantization_config`), or made of dense weights when they are loaded. `patterns` matches names of modules.
//! `weights` finds the tensors; `backend::quantised` says what their codes mean.

mod patterns;
mod published;

use std::fmt;

use serde::{Deserialize, Serialize};

use super::super::layout::TensorSpec;
use offshoot_backend::{CodeFormat, QuantFormat, Rounding, RoundingKind};
use offshoot_core::named;
use offshoot_core::setting::{ACTIVATIONS, WEIGHTS};

pub use published::{CodePacking, Nvfp4Form, Published, Scheme};
pub(super) use published::{read, read_model_opt};

/// How a model's matrices are quantised.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantisation {
    Published(Published),
    /// Made when dense weights are loaded; `exact`: activations are not rounded.
    Made {
        format: MadeFormat,
        exact: bool,
        /// Whether the output layer is dense where a device holds it that does not multiply its format.
        dense_head: bool,
    },
}

/// Formats that dense weights can be made into when they are loaded.
#[warn(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MadeFormat {
    /// e4m3 with a scale for each output; activations e4m3 with a scale for each row
    Fp8,
    /// 8-bit integers with a scale for each output; activations 8-bit integers with a scale for each row
    Int8,
    /// 4-bit integers with a scale for 32 inputs of an output; activations not rounded. The output layer is int8
    Int4,
}

/// What the activations of quantised matrices are rounded to.
#[warn(missing_docs)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationChoice {
    /// What the format says: e4m3, 8-bit integers, or nothing
    #[default]
    Format,
    /// Nothing beyond the model's dtype: weight-only arithmetic
    Bf16,
}

/// Which weights the user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightChoice {
    /// What dense weights are made into; `None`: as they are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<MadeFormat>,
    #[serde(default)]
    pub activations: ActivationChoice,
}

impl WeightChoice {
    /// Whether nothing is asked for.
    pub fn is_as_stored(&self) -> bool {
        *self == Self::default()
    }
}

/// `--weights int8 --activations bf16`; "weights as stored".
impl fmt::Display for WeightChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weights {
            Some(format) => write!(f, "{WEIGHTS} {format}")?,
            None => write!(f, "weights as stored")?,
        }
        match self.activations {
            ActivationChoice::Format => Ok(()),
            ActivationChoice::Bf16 => write!(f, " {ACTIVATIONS} bf16"),
        }
    }
}

/// Inputs that share a scale in int4 made at load.
const MADE_GROUP: u32 = 32;

named!(MadeFormat { Fp8 = "fp8", Int8 = "int8", Int4 = "int4" });

impl MadeFormat {
    /// The format of the layers' matrices.
    pub fn of_layers(self) -> QuantFormat {
        let rounded = |codes, to| QuantFormat {
            codes,
            group: None,
            zeros: false,
            rounding: Rounding::Dynamic { to, group: None },
        };
        match self {
            MadeFormat::Fp8 => rounded(CodeFormat::Fp8, RoundingKind::Fp8),
            MadeFormat::Int8 => rounded(CodeFormat::Int8, RoundingKind::Int8),
            MadeFormat::Int4 => QuantFormat {
                codes: CodeFormat::Int4,
                group: Some(MADE_GROUP),
                zeros: false,
                rounding: Rounding::Exact,
            },
        }
    }

    /// The format of the output layer, which is the embedding table too if it is `tied`; `None`: it stays dense.
    pub fn of_head(self, tied: bool) -> Option<QuantFormat> {
        match self {
            // No GPU looks up rows of e4m3.
            MadeFormat::Fp8 => (!tied).then(|| self.of_layers()),
            MadeFormat::Int8 | MadeFormat::Int4 => Some(MadeFormat::Int8.of_layers()),
        }
    }
}

/// What part of a model a matrix is, as far as quantisation asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A linear layer of a decoder layer, experts among them.
    Layer,
    Router,
    /// The maps of latents, which are dense on every device whatever they are stored as.
    Maps,
    Head,
    Embedding,
    /// Vectors, tables, and projections outside the layers.
    Other,
}

/// Ends of the names of matrices with few outputs: routers and gates.
const SMALL: [&str; 10] = [
    ".gate.weight",
    ".gate.wg.weight",
    ".router.layer.weight",
    ".router.weight",
    ".router.classifier.weight",
    "router.proj.weight",
    "shared_expert_gate.weight",
    "in_proj_a.weight",
    "in_proj_b.weight",
    "in_proj_ba.weight",
];

impl Role {
    fn of(tensor: &TensorSpec) -> Self {
        let name = tensor.name.as_str();
        match tensor.shape.len() {
            1 => Role::Other,
            _ if name == "lm_head.weight" => Role::Head,
            _ if name == "model.embed_tokens.weight" => Role::Embedding,
            _ if !name.starts_with("model.layers.") || name.ends_with("bias") => Role::Other,
            _ if name.ends_with("conv1d.weight") => Role::Other,
            _ if SMALL.iter().any(|end| name.ends_with(end)) => Role::Router,
            _ if name.ends_with(".kv_b_proj.weight") => Role::Maps,
            _ => Role::Layer,
        }
    }
}

impl Quantisation {
    /// How the matrix of `tensor` is held, as far as config.json tells; `None`: dense. `tied`: the output layer is
    /// the embedding table.
    pub fn format(&self, tensor: &TensorSpec, tied: bool) -> Option<QuantFormat> {
        let role = Role::of(tensor);
        match self {
            Quantisation::Made { format, exact, dense_head } => {
                let format = match role {
                    Role::Layer => Some(format.of_layers()),
                    Role::Head if !dense_head => format.of_head(tied),
                    Role::Embedding if tied && !dense_head => format.of_head(tied),
                    Role::Router | Role::Maps | Role::Head | Role::Embedding | Role::Other => None,
                };
                format.map(|format| rounded_unless(*exact, format))
            }
            Quantisation::Published(published) => match role {
                // Only experts are stored in blocks.
                Role::Layer | Role::Router if published.has_mxfp4_experts() && tensor.shape.len() != 3 => None,
                Role::Layer | Role::Router => published.scheme(module_of(&tensor.name)).map(|scheme| scheme.format),
                Role::Head if published.head => published.scheme("lm_head").map(|scheme| scheme.format),
                Role::Maps | Role::Head | Role::Embedding | Role::Other => None,
            },
        }
    }

    /// The formats of its matrices.
    pub fn formats(&self) -> impl Iterator<Item = QuantFormat> {
        let (made, published) = match self {
            Quantisation::Made { format, exact, .. } => (Some((*format, *exact)), None),
            Quantisation::Published(published) => (None, Some(published)),
        };
        let made = made.into_iter().flat_map(|(made, exact)| {
            let all = std::iter::once(made.of_layers()).chain(made.of_head(false));
            all.map(move |format| rounded_unless(exact, format))
        });
        made.chain(published.into_iter().flat_map(|all| &all.schemes).map(|(_, scheme)| scheme.format))
    }

    /// The format of the layers' matrices, if they are made at load.
    pub fn made_layers(&self) -> Option<QuantFormat> {
        match *self {
            Quantisation::Made { format, exact, .. } => Some(rounded_unless(exact, format.of_layers())),
            Quantisation::Published(_) => None,
        }
    }

    /// What activations are rounded to, in words: of all formats, each once.
    pub fn activations(&self) -> String {
        let mut all: Vec<String> = Vec::new();
        for format in self.formats() {
            let said = format.rounding.to_string();
            if !all.contains(&said) {
                all.push(said);
            }
        }
        all.join(" and ")
    }

    /// The quantisation held by a device that makes matrices dense unless it `multiplies` their format; `None`: all
    /// dense. If it does not multiply one of a checkpoint's formats, all are; an output layer made at load may be dense
    /// alone.
    #[must_use]
    pub fn held_where(self, multiplies: impl Fn(QuantFormat) -> bool) -> Option<Self> {
        match self {
            Quantisation::Made { format, exact, dense_head } => {
                let multiplies = |format| multiplies(rounded_unless(exact, format));
                let dense_head = dense_head || format.of_head(false).is_some_and(|head| !multiplies(head));
                multiplies(format.of_layers()).then_some(Quantisation::Made { format, exact, dense_head })
            }
            Quantisation::Published(published) => {
                let all = published.schemes.iter().all(|(_, scheme)| multiplies(scheme.format));
                all.then_some(Quantisation::Published(published))
            }
        }
    }

    /// This quantisation without rounding of activations.
    #[must_use]
    pub fn exact(self) -> Self {
        match self {
            Quantisation::Made { format, dense_head, .. } => Quantisation::Made { format, exact: true, dense_head },
            Quantisation::Published(mut published) => {
                published.schemes.iter_mut().for_each(|(_, scheme)| scheme.format.rounding = Rounding::Exact);
                Quantisation::Published(published)
            }
        }
    }
}

/// The format, with activations unrounded if it is multiplied `exact`.
fn rounded_unless(exact: bool, format: QuantFormat) -> QuantFormat {
    if exact { QuantFormat { rounding: Rounding::Exact, ..format } } else { format }
}

/// The module that has a weight of this name; stacked experts are their own.
pub fn module_of(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

/// `fp8 (compressed-tensors)`, `int4 in groups of 32, made at load`: for people and manifests.
impl fmt::Display for Quantisation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Quantisation::Made { format, exact, .. } => {
                write!(f, "{}, made at load", format.of_layers())?;
                if *exact && *format != MadeFormat::Int4 { write!(f, ", activations not rounded") } else { Ok(()) }
            }
            Quantisation::Published(published) => {
                let formats: Vec<String> =
                    published.schemes.iter().map(|(_, scheme)| scheme.format.to_string()).collect();
                write!(f, "{} ({})", formats.join(" and "), published.method)
            }
        }
    }
}
