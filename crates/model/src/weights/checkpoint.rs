//! The tensors of a model folder: `model.safetensors`, or the files listed in `model.safetensors.index.json`. `verify`
//! compares all of them with a layout before any is packed, so that errors are reported at once and not after loading
//! ten gigabytes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use offshoot_backend::{Dtype, MatrixPart, QuantFormat, WeightFormat, WeightView};
use offshoot_core::error::{Error, Result};

use super::super::config::{ModelConfig, ModelFolder, Quantisation, module_of, read_json};
use super::super::layout::{LayerTensors, Layout, TensorSpec};
use super::files::{FileFacts, ModelFiles};
use super::naming::{Naming, PREFIX, stored_modules};
use super::not_finite;
use super::stored::{Check, StoredMatrix, Tensor, companion_module, is_companion};
use super::tensor_source::{INDEX, TensorData, TensorFolder, TensorSource, weight_map};

const HEAD: &str = "lm_head.weight";
const EMBED: &str = "model.embed_tokens.weight";

/// Ends of the names of vectors that are published as matrices of one row.
const ROWS: [&str; 1] = ["moe_statics.e_score_correction_bias"];

/// The tensors of a checkpoint.
pub struct Checkpoint<'a> {
    tensors: Box<dyn TensorSource + 'a>,
    /// The names of all tensors.
    names: Vec<String>,
    naming: Naming,
    /// How matrices are quantised, published or to be made.
    pub(super) quantisation: Option<Quantisation>,
    /// Whether the output layer is the embedding table.
    tied: bool,
    /// Whether all layers behind the model's predict further tokens, whichever of their tensors there are: others may
    /// come with another part of an update.
    in_parts: bool,
    /// Copies in host memory of tensors on a device, by their names, where the host reads them.
    copies: HashMap<String, OnceLock<Vec<u8>>>,
}

impl Checkpoint<'static> {
    pub fn open(folder: &ModelFolder) -> Result<Self> {
        let tensors = TensorFolder::of_model(&folder.path)?;
        let names: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
        let naming = Naming::of(names.iter(), folder.config.modules.outside);
        let (tensors, copies) = (Box::new(tensors), HashMap::new());
        let mut checkpoint = Self { tensors, names, naming, quantisation: None, tied: false, in_parts: false, copies };
        let config = checkpoint.complete(&folder.config);
        checkpoint.quantisation = config.quantisation;
        checkpoint.tied = config.tied_embeddings;
        Ok(checkpoint)
    }
}

impl<'a> Checkpoint<'a> {
    /// Some or all of the tensors of a model that is loaded: of `config`, named by `naming`.
    pub fn of_update(tensors: impl TensorSource + 'a, config: &ModelConfig, naming: Naming) -> Self {
        let names: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
        let is_on_device =
            |name: &&String| tensors.tensor(name).is_some_and(|tensor| matches!(tensor.data, TensorData::Device(_)));
        let copies = names.iter().filter(is_on_device).map(|name| (name.clone(), OnceLock::new())).collect();
        let (quantisation, tied) = (config.quantisation.clone(), config.tied_embeddings);
        let in_parts = config.family.predicts_further();
        Self { tensors: Box::new(tensors), names, naming, quantisation, tied, in_parts, copies }
    }

    /// Whether an output layer is stored that is no copy of the embedding table: of other numbers, in another dtype, or
    /// as codes.
    fn has_own_head(&self) -> bool {
        let [head, embed] = [HEAD, EMBED].map(|name| self.tensor(&self.name_in_file(name)));
        match (head, embed) {
            (Some(head), Some(embed)) => {
                head.info.shape == embed.info.shape && !is_same(head, embed).is_ok_and(|is_same| is_same)
            }
            (None, Some(_)) => self.coded_modules().contains(&*self.name_in_file(module_of(HEAD))),
            (_, None) => false,
        }
    }

    /// Whether a layer whose first product would give queries and latents stores them in different dtypes.
    fn has_latents_apart(&self, config: &ModelConfig) -> bool {
        let layers = Layout::of(config).layers;
        layers.iter().filter(|layer| layer.latent.is_some()).any(|layer| {
            let first = layer.qkv.iter().flat_map(|first| &first.weights);
            let stored = first.filter_map(|spec| self.tensor(&self.name_in_file(&spec.name)));
            let dtypes: Vec<_> = stored.map(|tensor| tensor.info.dtype).collect();
            dtypes.windows(2).any(|pair| pair[0] != pair[1])
        })
    }

    /// The file that errors about the whole checkpoint name.
    pub(super) fn path(&self) -> &Path {
        self.tensors.place(None)
    }

    /// A tensor by its name in the file.
    pub(super) fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let (info, copy) = (self.tensors.tensor(name)?, self.copies.get(name));
        Some(Tensor { source: &*self.tensors, info, copy })
    }

    /// The dense tensor of `spec`, and its elements in host memory.
    pub fn find(&self, spec: &TensorSpec) -> Result<(Tensor<'_>, WeightView<'_>)> {
        let (tensor, dtype) = self.locate(spec)?;
        Ok((tensor, WeightView { dtype, rows: spec.rows(), cols: spec.cols(), bytes: tensor.bytes()? }))
    }

    /// The dense tensor of `spec`, wherever its bytes lie, and its dtype.
    pub(super) fn locate(&self, spec: &TensorSpec) -> Result<(Tensor<'_>, Dtype)> {
        let name = &*self.name_in_file(&spec.name);
        let Some(tensor) = self.tensor(name) else {
            let tied = if name == "lm_head.weight" { ", as `tie_word_embeddings` is not true" } else { "" };
            return Err(Error::tensor(self.path(), name, format!("{}{tied}", spec.describe_shape()), "nothing"));
        };
        let (path, info) = (tensor.path(), tensor.info);
        let is_row = ROWS.iter().any(|end| name.ends_with(end));
        let stored = info.shape.iter().copied().skip(usize::from(is_row && info.shape.first() == Some(&1)));
        if !stored.eq(spec.shape.iter().map(|dim| dim.size)) {
            return Err(Error::tensor(path, name, spec.describe_shape(), format!("{:?}", info.shape)));
        }
        let unsupported = || Error::tensor(path, name, "F32, F16 or BF16", format!("{:?}", info.dtype));
        let dtype = tensor.dtype().ok_or_else(unsupported)?;
        Ok((tensor, dtype))
    }

    pub(super) fn name_in_file<'n>(&self, name: &'n str) -> Cow<'n, str> {
        self.naming.in_file(name)
    }

    fn unread(&self, layout: &Layout) -> UnreadNames<'_> {
        UnreadNames::of(self.names.iter(), layout, &self.naming, self.quantisation.as_ref(), self.in_parts)
    }

    /// Refuses tensors that the layout does not read though they belong to what it computes.
    fn refuse_unread(&self, layout: &Layout) -> Result<()> {
        let unread = self.unread(layout);
        let Some(name) = unread.refused.into_iter().find(|name| !self.is_zeros(name)) else { return Ok(()) };
        let shape = self.tensors.tensor(name).map_or_else(String::new, |info| format!(" of shape {:?}", info.shape));
        Err(Error::tensor(
            self.tensors.place(Some(name)),
            name,
            nothing_of_this_name(layout),
            format!("a tensor{shape}"),
        ))
    }

    /// Of an update: refuses tensors that are none of the model, but for those that are computed, and those of other
    /// parts of a wrapper. `names`: all, in order.
    pub fn refuse_unknown(&self, layout: &Layout, names: &[&str]) -> Result<()> {
        self.refuse_unread(layout)?;
        let unread = self.unread(layout);
        let unknown = unread.left_out.iter().find(|name| !is_of_pictures(name));
        if let (Some(name), false) = (unknown, self.naming.is_wrapped()) {
            let expected = "the name of a tensor of the loaded model";
            return Err(Error::tensor(self.tensors.place(Some(name)), *name, expected, "another"));
        }
        let head = self.name_in_file(HEAD);
        if !self.tied || !names.contains(&&*head) {
            return Ok(());
        }
        let [head, embed] = [HEAD, EMBED].map(|name| self.tensor(&self.name_in_file(name)));
        match (head, embed) {
            (Some(head), Some(embed)) if !is_same(head, embed)? => {
                let expected = format!("the numbers of {}, to which it is tied", embed.info.name);
                Err(Error::tensor(head.path(), head.info.name, expected, "others"))
            }
            (Some(head), None) => {
                let expected = format!("{} beside it, to which it is tied", self.name_in_file(EMBED));
                Err(Error::tensor(head.path(), head.info.name, expected, "nothing"))
            }
            _ => Ok(()),
        }
    }

    /// The modules of which there are codes, or what lies beside them, by their names in the file.
    pub fn coded_modules(&self) -> HashSet<&str> {
        self.names.iter().filter_map(|name| companion_module(name)).collect()
    }

    /// Whether there is a tensor of the layout's name, or one of its codes. `coded`: [`Checkpoint::coded_modules`].
    pub fn has_some_of(&self, name: &str, coded: &HashSet<&str>) -> bool {
        self.tensor(&self.name_in_file(name)).is_some() || coded.contains(&*self.name_in_file(module_of(name)))
    }

    /// The error of a tensor that is not as expected.
    pub fn wrong(&self, spec: &TensorSpec, expected: impl Into<String>, found: impl Into<String>) -> Error {
        let name = self.name_in_file(&spec.name);
        Error::tensor(self.tensors.place(Some(&name)), &*name, expected, found)
    }

    /// `place`: that of an element that is not finite, or not in the dtype that it gets.
    pub fn refuse_not_finite(&self, spec: &TensorSpec, place: Option<usize>, becomes: Dtype) -> Result<()> {
        let Some(place) = place else { return Ok(()) };
        let value = self.find(spec)?.1.get(place);
        let expected = match value.is_finite() {
            true => format!("numbers that are finite as {becomes}"),
            false => "finite numbers".to_owned(),
        };
        Err(self.wrong(spec, expected, format!("{value} at place {place}")))
    }

    /// Checks that what is stacked has one dtype.
    pub fn verify_stack(&self, stacked: &[TensorSpec]) -> Result<()> {
        let Some((first, others)) = stacked.split_first() else { return Ok(()) };
        let Some(dtype) = self.matrix(first, Check::Shapes)?.dense() else { return Ok(()) };
        for spec in others {
            let Some(other) = self.matrix(spec, Check::Shapes)?.dense() else { continue };
            if other != dtype {
                let expected = format!("{dtype:?} as {}, with which it is stacked", first.name);
                let path = self.locate(spec)?.0.path();
                return Err(Error::tensor(path, &spec.name, expected, format!("{other:?}")));
            }
        }
        Ok(())
    }

    /// Whether a tensor is zeros that tools write for what a module has not: a bias, zero points of its activations.
    fn is_zeros(&self, name: &str) -> bool {
        let published = matches!(self.quantisation, Some(Quantisation::Published(_)));
        let may_be = [".bias", ".input_zero_point"].iter().any(|end| name.ends_with(end));
        let tensor = self.tensor(name).filter(|_| published && may_be);
        let bytes = tensor.map(Tensor::bytes).transpose();
        bytes.ok().flatten().is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
    }
}

impl ModelFiles for Checkpoint<'_> {
    fn quantisation(&self) -> Option<&Quantisation> {
        self.quantisation.as_ref()
    }

    fn refuse_nan(&self, view: &WeightView<'_>, spec: &TensorSpec) -> Result<()> {
        let Some(place) = not_finite(view, view.dtype) else { return Ok(()) };
        let row = place / view.cols.max(1);
        let (path, name) = (self.locate(spec)?.0.path(), self.name_in_file(&spec.name));
        Err(Error::tensor(path, name, "finite numbers, to be made into codes", format!("another in row {row}")))
    }

    fn made_format(&self, spec: &TensorSpec) -> Option<QuantFormat> {
        match &self.quantisation {
            Some(made @ Quantisation::Made { .. }) => made.format(spec, self.tied),
            _ => None,
        }
    }

    fn mxfp4(&self, spec: &TensorSpec, check: Check) -> Result<StoredMatrix<'_>> {
        self.mxfp4_experts(spec, check)
    }

    fn facts(&self) -> FileFacts {
        let dtypes = self.names.iter().filter_map(|name| Some(format!("{:?}", self.tensor(name)?.info.dtype)));
        let tensors = || self.names.iter().filter_map(|name| self.tensors.tensor(name));
        let files: HashSet<&Path> = self.names.iter().map(|name| self.tensors.place(Some(name))).collect();
        FileFacts::of(files.len(), tensors().map(|tensor| tensor.data.len()).sum(), dtypes)
    }

    /// `config` with what only the tensors tell: how experts are stored, whether queries and latents have one dtype,
    /// and whether an output layer that config.json calls tied is stored all the same and differs from the embedding
    /// table. Then it is used, as in transformers.
    fn complete(&self, config: &ModelConfig) -> ModelConfig {
        let mut config = config.clone();
        config.modules = stored_modules(config.modules, self.names.iter().map(String::as_str));
        config.tied_embeddings = config.tied_embeddings && !self.has_own_head();
        config.latents_apart = self.has_latents_apart(&config);
        config
    }

    /// Checks that every tensor of `layout` exists with its shape and a supported dtype, that stacked tensors have
    /// equal dtypes, and that no tensor outside the layout would change the result.
    fn verify(&self, layout: &Layout) -> Result<()> {
        let stacks: Vec<&[TensorSpec]> = layout.layers.iter().flat_map(|layer| layer.stacks()).collect();
        let values = || layout.values.iter().flat_map(|layer| &layer.weights);
        let matrices = || stacks.iter().copied().flatten().chain(&layout.head).chain(values());
        let names: HashSet<&str> = matrices().map(|spec| spec.name.as_str()).collect();
        for spec in layout.tensors().filter(|spec| !names.contains(spec.name.as_str())) {
            self.locate(spec)?;
        }
        for spec in matrices() {
            self.matrix(spec, Check::Shapes)?;
        }
        for spec in layout.layers.iter().flat_map(LayerTensors::mxfp4) {
            self.mxfp4(spec, Check::Shapes)?;
        }
        stacks.into_iter().try_for_each(|stacked| self.verify_stack(stacked))?;
        self.refuse_unread(layout)
    }

    fn formats(&self, layout: &Layout) -> Result<HashMap<String, WeightFormat>> {
        let format = |spec: &TensorSpec| Ok((spec.name.clone(), self.matrix(spec, Check::Shapes)?.part().format()));
        layout.matrices().map(format).collect()
    }

    /// The compute dtype: that of the layers' matrices or, if those are quantised, of the embedding table.
    fn dtype(&self, layout: &Layout) -> Result<Dtype> {
        let spec = layout.first_matrix();
        let has = |name: &str| self.tensor(name).is_some();
        let module = self.name_in_file(module_of(&spec.name));
        let is_packed = has(&format!("{module}.qweight")) || has(&format!("{module}.weight_packed"));
        match self.locate(spec) {
            Ok((_, dtype)) => Ok(dtype),
            Err(_) if is_packed || self.quantisation.is_some() => Ok(self.locate(&layout.embed)?.1),
            Err(error) => Err(error),
        }
    }

    fn packed(&self, specs: &[TensorSpec], pack: &mut dyn FnMut(&[WeightView<'_>]) -> Result<()>) -> Result<()> {
        let found = specs.iter().map(|spec| self.find(spec)).collect::<Result<Vec<_>>>()?;
        pack(&found.iter().map(|(_, view)| *view).collect::<Vec<_>>())?;
        found.iter().for_each(|(tensor, _)| tensor.release());
        Ok(())
    }

    fn parts(
        &self,
        specs: &[TensorSpec],
        _: Dtype,
        check: Check,
        pack: &mut dyn FnMut(&[MatrixPart<'_>]) -> Result<()>,
    ) -> Result<()> {
        let stored = specs.iter().map(|spec| self.matrix(spec, check)).collect::<Result<Vec<_>>>()?;
        pack(&stored.iter().map(StoredMatrix::part).collect::<Vec<_>>())?;
        stored.iter().for_each(StoredMatrix::release);
        Ok(())
    }

    fn note_left_out(&self, layout: &Layout) {
        let UnreadNames { left_out, predicting, .. } = self.unread(layout);
        let path = self.path().display();
        if predicting > 0 {
            log::info!("{path}: {predicting} tensors of layers that predict further tokens are left out");
        }
        let has = |name: &String| self.tensor(&self.name_in_file(name)).is_some();
        if layout.router_biases().any(|name| has(&name)) {
            log::warn!("{path}: biases of routers are left out, as in transformers");
        }
        let (of_pictures, others): (Vec<&str>, Vec<&str>) = left_out.into_iter().partition(|name| is_of_pictures(name));
        if let [first, ..] = of_pictures[..] {
            let count = of_pictures.len();
            log::info!("{path}: only text is read; {count} tensors for pictures or sound are left out: `{first}`, ...");
        }
        let what = if self.naming.is_wrapped() { "beside the text model" } else { "unknown" };
        match &others[..] {
            [] => {}
            [only] => log::warn!("{path}: a tensor {what} is left out: `{only}`"),
            [first, ..] => log::warn!("{path}: {} tensors {what} are left out: `{first}`, ...", others.len()),
        }
    }
}

/// How the names of parts of wrappers begin that read pictures, video or sound, or lead from there to the text model;
/// `model.` may stand before them.
const OF_PICTURES: [&str; 14] = [
    "visual.",
    "vision_tower.",
    "vision_model.",
    "vision_encoder.",
    "vision_embed_tokens.",
    "embed_vision.",
    "image_newline",
    "multi_modal_projector.",
    "mm_projector.",
    "connector.",
    "mlp1.",
    "audio_tower.",
    "audio_encoder.",
    "embed_audio.",
];

/// Whether a tensor of this name belongs to such a part.
fn is_of_pictures(name: &str) -> bool {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    OF_PICTURES.iter().any(|part| name.starts_with(part))
}

/// Whether two tensors have one dtype and shape.
fn is_alike(a: Tensor<'_>, b: Tensor<'_>) -> bool {
    (a.info.dtype, a.info.shape) == (b.info.dtype, b.info.shape)
}

/// Whether two tensors have one dtype, one shape and the same numbers.
fn is_same(a: Tensor<'_>, b: Tensor<'_>) -> Result<bool> {
    let lie_together = match (a.info.data, b.info.data) {
        (TensorData::Device(a), TensorData::Device(b)) => (a.ordinal(), a.address()) == (b.ordinal(), b.address()),
        _ => false,
    };
    Ok(is_alike(a, b) && (lie_together || a.bytes()? == b.bytes()?))
}

/// The names of tensors that a layout does not read.
struct UnreadNames<'a> {
    /// Names in a layer, and a bias of the output layer, in order: ignoring them would silently change the arithmetic.
    refused: Vec<&'a str>,
    /// Names outside the text model, in order. Precomputed tables, a copy of the tied embedding, other heads, and keys
    /// and values of layers that read those of others are not among them.
    left_out: Vec<&'a str>,
    /// How many there are in layers behind the model's that predict further tokens (multi-token prediction).
    predicting: usize,
}

/// The number of a layer behind the model's first `count`, and what of it a tensor is. `layers`: how the names of
/// layers begin.
fn layer_behind<'n>(name: &'n str, layers: &str, count: usize) -> Option<(usize, &'n str)> {
    let (number, module) = name.strip_prefix(layers)?.split_once('.')?;
    let number = number.parse().ok().filter(|&number| number >= count)?;
    Some((number, module))
}

impl<'a> UnreadNames<'a> {
    /// `in_parts`: see [`Checkpoint::in_parts`]; else those layers predict further tokens that join a row and the next
    /// token's embedding by `eh_proj`, dense or of codes.
    fn of(
        names: impl Iterator<Item = &'a String> + Clone,
        layout: &Layout,
        naming: &Naming,
        quantisation: Option<&Quantisation>,
        in_parts: bool,
    ) -> Self {
        const COMPUTED: [&str; 6] = [
            "rotary_emb.inv_freq",
            "rotary_emb.cos_cached",
            "rotary_emb.sin_cached",
            "attn.bias",
            "attention.bias",
            "masked_bias",
        ];
        let head = naming.in_file(HEAD);
        let read: HashSet<_> = layout.tensors().map(|spec| naming.in_file(&spec.name).into_owned()).collect();
        let unused: Vec<String> = layout.unused().map(|module| naming.in_file(&module).into_owned()).collect();
        let layers = naming.in_file("model.layers.");
        // Of the modules that may have codes.
        let module = |spec: &TensorSpec| naming.in_file(module_of(&spec.name)).into_owned();
        let modules: HashSet<String> = match quantisation {
            Some(Quantisation::Published(_)) => layout.tensors().map(module).collect(),
            _ => HashSet::new(),
        };
        let behind = |name: &'a str| layer_behind(name, &layers, layout.layers.len());
        let all_behind = || names.clone().filter_map(|name| Some((name.as_str(), behind(name)?)));
        let joins = |(_, (number, module)): (&str, (usize, &str))| module.starts_with("eh_proj.").then_some(number);
        let joining: HashSet<usize> = all_behind().filter_map(joins).collect();
        let is_joining = |number: &usize| joining.contains(number);
        let predicting = all_behind().filter(|(_, (number, _))| in_parts || is_joining(number)).count();
        let is_unread = |name: &&'a str| {
            !behind(name).is_some_and(|(number, _)| in_parts || is_joining(&number))
                && !read.contains(*name)
                && !COMPUTED.iter().any(|end| name.ends_with(end))
                && !name.ends_with(HEAD)
                && **name != *head
                && !unused.iter().any(|module| name.starts_with(module))
                && !is_companion(&modules, name)
        };
        // Scorers leave an output layer for tokens out.
        let generates = layout.values.is_empty();
        let is_refused = |name: &&str| name.starts_with(&*layers) || (generates && name.ends_with("lm_head.bias"));
        let (mut refused, mut left_out): (Vec<_>, Vec<_>) =
            names.map(String::as_str).filter(is_unread).partition(is_refused);
        refused.sort_unstable();
        left_out.sort_unstable();
        Self { refused, left_out, predicting }
    }
}

fn nothing_of_this_name(layout: &Layout) -> String {
    let layers = layout.layers.len();
    format!("nothing of this name by config.json (num_hidden_layers {layers}, its biases, norms and experts)")
}

/// What an index lists, whose files may be missing.
pub struct IndexFacts {
    pub tensors: usize,
    /// Tensors of these that are outside the text model.
    pub left_out: usize,
    /// `metadata.total_size`, if the index has it.
    pub bytes: Option<u64>,
}

/// Compares the names of an index with what a config asks for; `None` if there is no index. Errors: the first name that
/// is missing, or that belongs to what the model computes and is not asked for.
pub fn compare_index(folder: &Path, config: &ModelConfig) -> Result<Option<IndexFacts>> {
    let index = folder.join(INDEX);
    if !index.is_file() {
        return Ok(None);
    }
    let json = read_json(&index)?;
    let map = weight_map(&index, &json)?;
    let naming = Naming::of(map.keys(), config.modules.outside);
    let layout = Layout::of(&ModelConfig {
        modules: stored_modules(config.modules, map.keys().map(String::as_str)),
        ..config.clone()
    });
    let published = matches!(config.quantisation, Some(Quantisation::Published(_)));
    let is_listed = |spec: &TensorSpec| {
        let module = naming.in_file(module_of(&spec.name));
        let codes = ["qweight", "weight_packed"].map(|end| format!("{module}.{end}"));
        let has = |name: &str| map.contains_key(name);
        has(&naming.in_file(&spec.name))
            || published && (codes.iter().any(|name| has(name)) || has(&format!("{module}_blocks")))
    };
    if let Some(spec) = layout.tensors().find(|spec| !is_listed(spec)) {
        let name = naming.in_file(&spec.name);
        let expected = format!("a file with {}", spec.describe_shape());
        return Err(Error::field(&index, format!("weight_map.{name}"), expected, "nothing"));
    }
    let unread = UnreadNames::of(map.keys(), &layout, &naming, config.quantisation.as_ref(), false);
    // Zeros beside codes belong to nothing; whether they are zeros only the files tell.
    let may_be_zeros = |name: &str| published && (name.ends_with(".bias") || name.ends_with(".input_zero_point"));
    if let Some(name) = unread.refused.iter().find(|name| !may_be_zeros(name)) {
        return Err(Error::field(&index, format!("weight_map.{name}"), nothing_of_this_name(&layout), "a file"));
    }
    let bytes = json.pointer("/metadata/total_size").and_then(Value::as_u64);
    Ok(Some(IndexFacts { tensors: map.len(), left_out: unread.left_out.len(), bytes }))
}
