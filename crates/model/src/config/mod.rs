//! The configuration of a model, read from config.json and generation_config.json. `families` holds what each
//! architecture implies, `layer` describes a layer, `rope` parses rotary embeddings, `fields` reads JSON fields and
//! reports errors. `weights` reads the tensors.

mod families;
mod fields;
mod gguf;
mod groups;
mod layer;
mod modules;
mod quantisation;
mod ranks;
mod rope;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use offshoot_backend::{Backend, DeltaHeads, Dtype, HeadLayout, KvShape, StateDtype, StateShape, WeightFormat};
use offshoot_core::error::{Error, Result};
use offshoot_core::hub;
use offshoot_core::ids::TokenId;
use offshoot_core::input;
use offshoot_core::setting::{ACTIVATIONS, WEIGHTS};
use offshoot_gguf::Gguf;
use offshoot_kv::PageGroups;

use super::layout::{LayerTensors, Layout, TensorSpec};
use super::weights::GgufModel;
pub use families::Family;
use fields::Fields;
pub use gguf::{PairedHeads, paired_heads};
pub use groups::LayerPages;
pub use layer::{
    Activation, AttentionKind, AttentionSpec, BlockNorms, DeltaRuleSpec, DenseSpec, ExpertWidthField, ExpertsSpec,
    FeedForward, HeadNorm, HeadNormSpan, KeySource, LayerNorms, LayerSpec, Mixer, Norm, QueryGrowth, kind_index, kinds,
};
pub use modules::{DeltaRuleModules, ExpertForm, ExpertModules, Modules, STACKED_EXPERTS};
pub use quantisation::{
    ActivationChoice, MadeFormat, Packing, Published, Quantisation, Scheme, WeightChoice, module_of,
};
pub use ranks::{SharedKeys, WhyCopied};
pub use rope::{RopeConfig, RopeScaling};

/// Everything that distinguishes one decoder from another, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    /// The names of its tensors.
    pub modules: Modules,
    /// Width of the residual stream.
    pub hidden: usize,
    /// At least one.
    pub layers: Vec<LayerSpec>,
    /// The norm before the output layer.
    pub final_norm: Norm,
    pub vocab: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// Factor of the embeddings (Gemma); rounded to the dtype of the embedding table.
    pub embed_scale: Option<f32>,
    /// Inputs that each layer gets besides the residual stream (Gemma 4's smaller models).
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Logits become `cap * tanh(logit / cap)` (Gemma 2 and 4).
    pub final_softcap: Option<f32>,
    /// Whether the output layer has a bias.
    pub head_bias: bool,
    /// Whether the output layer is the embedding table.
    pub tied_embeddings: bool,
    /// How matrices are quantised; `None`: they are dense.
    pub quantisation: Option<Quantisation>,
    /// The compute dtype, to which dense weights are converted; `None`: that of the tensors.
    pub compute: Option<Dtype>,
    /// The dtype in config.json, for information: the dtype of the tensors is what counts.
    pub dtype: Option<Dtype>,
    pub bos: Option<TokenId>,
    /// End-of-text tokens.
    pub eos: Vec<TokenId>,
    /// How the tensors of a GGUF file are stored, by the layout's names; empty for other models.
    pub formats: Arc<HashMap<String, WeightFormat>>,
}

/// A second embedding of each token: `width` numbers for each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    pub width: usize,
    /// Rows of its table.
    pub vocab: usize,
}

impl ModelConfig {
    /// Reads a config.json. Special tokens in a generation_config.json in the same folder take precedence.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let json = read_json(path)?;
        let fields = Fields::of_file(path, &json)?;
        let mut config = families::read(&fields)?;
        let model_opt = path.with_file_name("hf_quant_config.json");
        if config.quantisation.is_none() && model_opt.is_file() {
            let json = read_json(&model_opt)?;
            config.quantisation = quantisation::read_model_opt(&Fields::of_file(&model_opt, &json)?)?;
        }
        let generation = path.with_file_name("generation_config.json");
        if generation.is_file() {
            let json = read_json(&generation)?;
            families::read_generation(&Fields::of_file(&generation, &json)?, &mut config)?;
        }
        Ok(config)
    }

    /// Parses the text of a built-in config.json.
    pub fn from_json(text: &str) -> Result<Self> {
        let path = Path::new("a built-in config.json");
        let json =
            serde_json::from_str(text).map_err(|fault| Error::format(path, format!("not valid JSON: {fault}")))?;
        let fields = Fields::of_file(path, &json)?;
        families::read(&fields)
    }

    /// The same with the weights that the user asks for. Errors, which name `path`: the checkpoint is quantised already.
    pub fn with(mut self, choice: WeightChoice, path: &Path) -> Result<Self> {
        let exact = choice.activations == ActivationChoice::Bf16;
        self.quantisation = match (self.quantisation, choice.weights) {
            (None, made) => made.map(|format| Quantisation::Made { format, exact, dense_head: false }),
            (Some(stored), None) => Some(if exact { stored.exact() } else { stored }),
            (Some(stored), Some(format)) => {
                let what = format!("{WEIGHTS} {format} is made of dense weights; this checkpoint has {stored}");
                return Err(Error::format(path, what));
            }
        };
        Ok(self)
    }

    /// What of the `choice` with which this was read changes the model: nothing if its matrices are dense.
    pub fn effect_of(&self, choice: WeightChoice) -> WeightChoice {
        if self.quantisation.is_none() { WeightChoice::default() } else { choice }
    }

    /// The kinds of attention, in order of the first layer of each. Each needs its own attention plan.
    pub fn attention_kinds(&self) -> Vec<AttentionKind> {
        kinds(self.attention_by_layer().into_iter().flatten())
    }

    /// The kind of attention of each layer; `None` for those without.
    pub fn attention_by_layer(&self) -> Vec<Option<AttentionKind>> {
        let LayerPages { places, .. } = self.layer_pages();
        let kind = |(layer, stored): (&LayerSpec, usize)| {
            let &AttentionSpec { heads, window, .. } = layer.attention()?;
            Some(AttentionKind { heads, window, group: places[stored].group })
        };
        self.layers.iter().zip(self.stored_layers()).map(kind).collect()
    }

    /// How many layers have this kind of attention.
    pub fn layers_of(&self, kind: AttentionKind) -> usize {
        self.attention_by_layer().into_iter().flatten().filter(|&of_layer| of_layer == kind).count()
    }

    /// The pages in which the layers keep their keys and values.
    pub fn layer_pages(&self) -> LayerPages {
        LayerPages::of(self)
    }

    /// The page groups of the layers, of which pages are freed behind windows in whole tiles of the backend.
    pub fn page_groups<B: Backend>(&self, backend: &B) -> PageGroups {
        self.layer_pages().groups(backend.tile().max(backend.page_tokens()))
    }

    /// The memory for keys and values, with no room for states.
    pub fn kv_shape(&self, dtype: Dtype, pages: usize) -> KvShape {
        let places = self.layer_pages().places;
        let states = StateShape { heads: self.delta_heads().collect(), ..StateShape::default() };
        KvShape { heads: self.stored_heads().collect(), places, dtype, pages, states }
    }

    /// The attention of the layers that have it, in order.
    pub fn attention(&self) -> impl Iterator<Item = &AttentionSpec> {
        self.layers.iter().filter_map(LayerSpec::attention)
    }

    /// The heads of each layer with attention.
    pub fn heads(&self) -> impl Iterator<Item = HeadLayout> {
        self.attention().map(|attention| attention.heads)
    }

    /// The heads of each delta-rule layer.
    pub fn delta_heads(&self) -> impl Iterator<Item = DeltaHeads> {
        self.layers.iter().filter_map(LayerSpec::delta_rule).map(|delta_rule| delta_rule.heads)
    }

    /// Bytes of one sequence's state in all delta-rule layers.
    pub fn state_bytes(&self, dtype: StateDtype) -> usize {
        self.delta_heads().map(|heads| heads.state_bytes(dtype)).sum()
    }

    /// What becomes of the dtype of states that is asked for: nothing if there are none.
    pub fn state_dtype(&self, asked: StateDtype) -> StateDtype {
        if self.delta_heads().next().is_some() { asked } else { StateDtype::default() }
    }

    /// The heads of each layer that stores keys and values, in order.
    pub fn stored_heads(&self) -> impl Iterator<Item = HeadLayout> {
        self.attention().filter(|attention| attention.stores_keys()).map(|attention| attention.heads)
    }

    /// For each layer, which of the layers that store keys and values it reads; of one without attention, how many come
    /// before it.
    pub fn stored_layers(&self) -> Vec<usize> {
        let stores = |layer: &&LayerSpec| layer.attention().is_some_and(AttentionSpec::stores_keys);
        let before = |layer: usize| self.layers[..layer].iter().filter(stores).count();
        let read = self.layers.iter().enumerate().map(|(layer, spec)| match spec.attention().map(|spec| spec.keys) {
            Some(KeySource::OfLayer(other)) => before(other),
            Some(KeySource::Projected | KeySource::KeysAreValues) | None => before(layer),
        });
        read.collect()
    }

    /// The number of weights; a tied embedding counts once.
    pub fn parameters(&self) -> usize {
        Layout::of(self).tensors().map(|tensor| tensor.elements()).sum()
    }

    /// The number of weights without the experts that a row does not choose.
    pub fn active_parameters(&self) -> usize {
        self.parameters_read(1)
    }

    /// The number of weights without the experts that none of `rows` rows chooses; the mean over choices that are
    /// independent and equally likely.
    pub fn parameters_read(&self, rows: usize) -> usize {
        self.read(rows, TensorSpec::elements)
    }

    /// The same in bytes; `dtype`: that of the tensors that are not quantised.
    pub fn weight_bytes_read(&self, rows: usize, dtype: Dtype) -> usize {
        self.read(rows, |tensor| self.format(tensor, dtype).bytes(tensor.rows(), tensor.cols()))
    }

    /// The sum of `size` over all tensors without the experts that none of `rows` rows chooses.
    fn read(&self, rows: usize, size: impl Fn(&TensorSpec) -> usize) -> usize {
        let idle = |tensors: &LayerTensors, layer: &LayerSpec| {
            let Some((experts, spec)) = tensors.experts.as_ref().zip(layer.feed_forward.experts()) else { return 0 };
            let one = experts.matrices().map(&size).sum::<usize>() / spec.count;
            let chosen = spec.router.experts_chosen(spec.count, rows);
            one * spec.count - (one as f64 * chosen).round() as usize
        };
        let layout = Layout::of(self);
        let idle: usize = layout.layers.iter().zip(&self.layers).map(|(t, layer)| idle(t, layer)).sum();
        layout.tensors().map(&size).sum::<usize>() - idle
    }

    /// Bytes of all weights; `dtype`: that of the tensors that are not quantised.
    pub fn weight_bytes(&self, dtype: Dtype) -> usize {
        Layout::of(self).tensors().map(|tensor| self.format(tensor, dtype).bytes(tensor.rows(), tensor.cols())).sum()
    }

    /// Whether a backend multiplies matrices of `format` in this model, experts among them.
    pub fn is_multiplied<B: Backend>(&self, backend: &B, format: WeightFormat) -> bool {
        backend.multiplies(format) && self.expert_widths().all(|width| backend.multiplies_experts(format, width))
    }

    /// The width of the experts of each mixture.
    pub fn expert_widths(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().filter_map(|layer| Some(layer.feed_forward.experts()?.width))
    }

    /// Whether a layer is a mixture of experts.
    pub fn has_experts(&self) -> bool {
        self.layers.iter().any(|layer| layer.feed_forward.experts().is_some())
    }

    /// The same model as a device holds it that makes matrices dense unless it `multiplies` their format; see
    /// [`Quantisation::held_where`].
    #[must_use]
    pub fn held_where(&self, multiplies: impl Fn(WeightFormat) -> bool) -> Self {
        let mut held = self.clone();
        held.quantisation =
            held.quantisation.and_then(|how| how.held_where(|format| multiplies(WeightFormat::Quantised(format))));
        if held.formats.values().any(|&format| !multiplies(format)) {
            let kept = self.formats.iter().filter(|(_, format)| multiplies(**format));
            held.formats = Arc::new(kept.map(|(name, format)| (name.clone(), *format)).collect());
        }
        held
    }

    /// How a tensor is stored; `dtype`: if it is not quantised.
    pub fn format(&self, tensor: &TensorSpec, dtype: Dtype) -> WeightFormat {
        let quantised = || self.quantisation.as_ref().and_then(|how| how.format(tensor, self.tied_embeddings));
        let stored = self.formats.get(&tensor.name).copied();
        stored.or_else(|| quantised().map(WeightFormat::Quantised)).unwrap_or(WeightFormat::Dense(dtype))
    }

    /// Bytes of one token's keys and values in all layers, with parts of pages that no layer uses. `element_bytes`:
    /// bytes per element in layers with these heads.
    pub fn kv_bytes_per_token(&self, element_bytes: impl Fn(HeadLayout) -> usize) -> usize {
        let bytes = |heads: HeadLayout| 2 * heads.kv_heads * heads.head_dim * element_bytes(heads);
        let of_layers = self.stored_heads().map(bytes).sum::<usize>();
        let unused = self.layer_pages().unused_parts();
        of_layers + unused * self.stored_heads().next().map_or(0, bytes)
    }

    /// The same on devices that compute together, all of theirs.
    pub fn kv_bytes_per_token_on<B: Backend>(&self, backend: &B, dtype: Dtype) -> usize {
        self.kv_bytes_per_token(|heads| backend.kv_copies(heads) * backend.kv_element_bytes(heads, dtype))
    }
}

/// A folder in Hugging Face layout whose config.json has been read, or a GGUF model whose metadata has.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    pub config: ModelConfig,
    /// The compute dtype of a GGUF model with quantised matrices, which have none; `None`: bf16. In f32, activations are
    /// not rounded.
    pub dtype: Option<Dtype>,
}

impl ModelFolder {
    /// # Errors
    ///
    /// `path` is neither; what its configuration says cannot be read, or is not supported.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        if offshoot_gguf::files(&path)?.is_some() {
            let gguf = Gguf::open(&path)?;
            let config = gguf::read(&gguf)?;
            let model = GgufModel::new(gguf, &config, None)?;
            // What is wrong with a tensor is said where all are verified.
            let formats = model.formats(&Layout::of(&config)).unwrap_or_default();
            return Ok(Self { path, config: ModelConfig { formats: Arc::new(formats), ..config }, dtype: None });
        }
        if path.is_file() {
            return Err(Error::format(
                &path,
                "expected a model folder in Hugging Face layout or a .gguf file, found another file",
            ));
        }
        if !path.exists() {
            return Err(Error::format(&path, hub::no_folder(&path)));
        }
        let config = ModelConfig::from_file(path.join("config.json"))?;
        Ok(Self { path, config, dtype: None })
    }

    /// The same with the weights that the user asks for. Errors: the checkpoint is quantised already, or a GGUF model.
    pub fn with(mut self, choice: WeightChoice) -> Result<Self> {
        if !choice.is_as_stored() && offshoot_gguf::files(&self.path)?.is_some() {
            let option = if choice.weights.is_some() { WEIGHTS } else { ACTIVATIONS };
            let expected = "a model folder with it; a GGUF model stays as it is stored";
            return Err(Error::value(option, expected, self.path.display().to_string()));
        }
        self.config = self.config.with(choice, &self.path)?;
        Ok(self)
    }
}

pub(super) fn read_json(path: &Path) -> Result<Value> {
    let text = input::model_file(path)?;
    serde_json::from_slice(&text).map_err(|fault| Error::format(path, format!("not valid JSON: {fault}")))
}
