//! The configuration of a model (`model`), read by `folder` from config.json and generation_config.json. `families`
//! holds what each architecture implies, `layer` describes a layer, `recurrent` one with a state, `groups` its pages,
//! `rope` parses rotary embeddings, `output` what follows the final norm, `fields` reads JSON fields and reports
//! errors, `agreement` compares two configurations. `weights` reads the tensors.

mod agreement;
mod bare_words;
mod embedder;
mod families;
mod fields;
mod folder;
mod gguf;
mod groups;
mod layer;
mod model;
mod modules;
mod output;
mod quantisation;
mod ranks;
mod recurrent;
mod rope;
mod routes;

pub use agreement::Difference;
pub use embedder::EmbedderPooling;
pub use families::{Family, ModelRole, Why, ignored as ignored_fields};
pub use folder::{ModelFolder, read_json};
pub use gguf::{PairedHeads, paired_heads};
pub use groups::LayerPages;
pub use layer::{
    Activation, AttentionKind, AttentionSpec, BlockNorms, BranchScale, DenseSpec, ExpertWidthField, ExpertsSpec,
    FeedForward, HeadNorm, KeySource, LatentSpec, LayerNorms, LayerSpec, Mixer, Norm, QueryGate, QueryGrowth,
    kind_index, kinds,
};
pub use model::{EmbedScale, ModelConfig, PerLayerInputs};
pub use modules::{DeltaRuleModules, EXPERTS, ExpertForm, Halves, Modules, OwnNames, StackedForm, own_name};
pub use offshoot_backend::HeadNormSpan;
pub use output::{OutputHead, ValueHead, ValueLayer};
pub use quantisation::{
    ActivationChoice, CodePacking, MadeFormat, Nvfp4Form, Published, Quantisation, Scheme, WeightChoice, module_of,
};
pub use ranks::{SharedKeys, WhyCopied};
pub use recurrent::{ChannelSpec, ConvSpec, DeltaSpec, RecurrentSpec, ScanSpec, SumFactors, SumSpec};
pub use rope::{RopeConfig, RopeScaling};
