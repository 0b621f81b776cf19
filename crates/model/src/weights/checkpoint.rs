//! The tensors of a model folder: `model.safetensors`, or the files listed in `model.safetensors.index.json`. `verify`
//! compares all of them with a layout before any is packed, so that errors are reported at once and not after loading
//! ten gigabytes.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::{Map, Value};

use offshoot_backend::{Dtype, MatrixPart, QuantFormat, WeightView};
use offshoot_core::error::{Error, Result};
use offshoot_core::figures::shortened;

use super::super::config::{ModelConfig, ModelFolder, Quantisation, module_of, read_json};
use super::super::layout::{LayerTensors, Layout, TensorSpec};
use super::files::{FileFacts, ModelFiles};
use super::naming::{Naming, stored_modules};
use super::safetensors_file::SafetensorsFile;
use super::stored::{Check, StoredMatrix, Tensor, is_companion};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const HEAD: &str = "lm_head.weight";
const EMBED: &str = "model.embed_tokens.weight";

/// The mapped files of a checkpoint.
pub struct Checkpoint {
    files: Vec<SafetensorsFile>,
    /// For each tensor, by its name in the file, the index into `files`.
    file_of: FileOfTensor,
    /// The file that errors about the whole checkpoint name: the only one, or the index.
    path: PathBuf,
    naming: Naming,
    /// How matrices are quantised, published or to be made.
    pub(super) quantisation: Option<Quantisation>,
    /// Whether the output layer is the embedding table.
    tied: bool,
}

impl Checkpoint {
    pub fn open(folder: &ModelFolder) -> Result<Self> {
        let mut checkpoint = Self::map(&folder.path)?;
        let config = checkpoint.complete(&folder.config);
        checkpoint.quantisation = config.quantisation;
        checkpoint.tied = config.tied_embeddings;
        Ok(checkpoint)
    }

    fn map(folder: &Path) -> Result<Self> {
        let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
        let (path, files, file_of) = if single.is_file() {
            let file = SafetensorsFile::open(single.clone())?;
            let file_of = file.names().into_iter().map(|name| (name, 0)).collect();
            (single, vec![file], file_of)
        } else if index.is_file() {
            let (files, file_of) = open_indexed(folder, &index)?;
            (index, files, file_of)
        } else {
            return Err(no_weights(folder));
        };
        let naming = Naming::of(file_of.keys());
        Ok(Self { files, file_of, path, naming, quantisation: None, tied: false })
    }

    fn has_own_head(&self) -> bool {
        let [head, embed] = [HEAD, EMBED].map(|name| self.tensor(&self.name_in_file(name)));
        let (Some(head), Some(embed)) = (head, embed) else { return false };
        let kind = |tensor: Tensor<'_>| (tensor.info.dtype, tensor.info.shape.clone());
        kind(head) == kind(embed) && head.bytes() != embed.bytes()
    }

    /// The file that errors about the whole checkpoint name.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A tensor by its name in the file.
    pub(super) fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let file = &self.files[*self.file_of.get(name)?];
        Some(Tensor { file, info: file.info(name)? })
    }

    /// The dense tensor of `spec`, and its elements.
    pub(super) fn find(&self, spec: &TensorSpec) -> Result<(Tensor<'_>, WeightView<'_>)> {
        let name = &*self.name_in_file(&spec.name);
        let Some(tensor) = self.tensor(name) else {
            let tied = if name == "lm_head.weight" { ", as `tie_word_embeddings` is not true" } else { "" };
            return Err(Error::tensor(&self.path, name, format!("{}{tied}", spec.describe_shape()), "nothing"));
        };
        let (path, info) = (tensor.file.path(), tensor.info);
        if !info.shape.iter().copied().eq(spec.shape.iter().map(|dim| dim.size)) {
            return Err(Error::tensor(path, name, spec.describe_shape(), format!("{:?}", info.shape)));
        }
        let unsupported = || Error::tensor(path, name, "F32, F16 or BF16", format!("{:?}", info.dtype));
        let dtype = tensor.dtype().ok_or_else(unsupported)?;
        Ok((tensor, WeightView { dtype, rows: spec.rows(), cols: spec.cols(), bytes: tensor.bytes() }))
    }

    pub(super) fn name_in_file<'a>(&self, name: &'a str) -> Cow<'a, str> {
        self.naming.in_file(name)
    }

    /// Refuses tensors that the layout does not read though they belong to what it computes.
    fn refuse_unread(&self, layout: &Layout) -> Result<()> {
        let unread = UnreadNames::of(self.file_of.keys(), layout, &self.naming, self.quantisation.as_ref());
        let Some(name) = unread.refused.into_iter().find(|name| !self.is_zeros(name)) else { return Ok(()) };
        let file = &self.files[self.file_of[name]];
        let shape = file.info(name).map_or_else(String::new, |info| format!(" of shape {:?}", info.shape));
        Err(Error::tensor(file.path(), name, nothing_of_this_name(layout), format!("a tensor{shape}")))
    }

    /// Whether a tensor is zeros that tools write for what a module has not: a bias, zero points of its activations.
    fn is_zeros(&self, name: &str) -> bool {
        let published = matches!(self.quantisation, Some(Quantisation::Published(_)));
        let may_be = [".bias", ".input_zero_point"].iter().any(|end| name.ends_with(end));
        let tensor = self.tensor(name).filter(|_| published && may_be);
        tensor.is_some_and(|tensor| tensor.bytes().iter().all(|&byte| byte == 0))
    }
}

impl ModelFiles for Checkpoint {
    fn quantisation(&self) -> Option<&Quantisation> {
        self.quantisation.as_ref()
    }

    fn refuse_nan(&self, view: &WeightView<'_>, spec: &TensorSpec) -> Result<()> {
        let rows = (0..view.rows).into_par_iter();
        let bad = rows.find_first(|row| (0..view.cols).any(|k| !view.get(row * view.cols + k).is_finite()));
        let Some(row) = bad else { return Ok(()) };
        let (path, name) = (self.find(spec)?.0.file.path(), self.name_in_file(&spec.name));
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
        let dtypes = self.file_of.keys().filter_map(|name| Some(format!("{:?}", self.tensor(name)?.info.dtype)));
        FileFacts::of(self.files.len(), self.files.iter().map(SafetensorsFile::data_len).sum(), dtypes)
    }

    /// `config` with what only the tensors tell: how experts are stored, and whether an output layer that config.json
    /// calls tied is stored all the same and differs from the embedding table. Then it is used, as in transformers.
    fn complete(&self, config: &ModelConfig) -> ModelConfig {
        let mut config = config.clone();
        config.modules = stored_modules(config.modules, self.file_of.keys());
        config.tied_embeddings = config.tied_embeddings && !self.has_own_head();
        config
    }

    /// Checks that every tensor of `layout` exists with its shape and a supported dtype, that stacked tensors have
    /// equal dtypes, and that no tensor outside the layout would change the result.
    fn verify(&self, layout: &Layout) -> Result<()> {
        let stacks: Vec<&[TensorSpec]> = layout.layers.iter().flat_map(|layer| layer.stacks()).collect();
        let matrices = || stacks.iter().copied().flatten().chain(&layout.head);
        let names: HashSet<&str> = matrices().map(|spec| spec.name.as_str()).collect();
        for spec in layout.tensors().filter(|spec| !names.contains(spec.name.as_str())) {
            self.find(spec)?;
        }
        for spec in matrices() {
            self.matrix(spec, Check::Shapes)?;
        }
        for spec in layout.layers.iter().flat_map(LayerTensors::mxfp4) {
            self.mxfp4(spec, Check::Shapes)?;
        }
        for stacked in stacks {
            let Some(first) = self.matrix(&stacked[0], Check::Shapes)?.dense() else { continue };
            for spec in &stacked[1..] {
                let Some(other) = self.matrix(spec, Check::Shapes)?.dense() else { continue };
                if other != first {
                    let expected = format!("{first:?} as {}, with which it is stacked", stacked[0].name);
                    let path = self.find(spec)?.0.file.path();
                    return Err(Error::tensor(path, &spec.name, expected, format!("{other:?}")));
                }
            }
        }
        self.refuse_unread(layout)
    }

    /// The compute dtype: that of the layers' matrices or, if those are quantised, of the embedding table.
    fn dtype(&self, layout: &Layout) -> Result<Dtype> {
        let spec = layout.layers.first().map_or(&layout.embed, |layer| &layer.qkv.weights[0]);
        let has = |name: &str| self.tensor(name).is_some();
        let module = self.name_in_file(module_of(&spec.name));
        let is_packed = has(&format!("{module}.qweight")) || has(&format!("{module}.weight_packed"));
        match self.find(spec) {
            Ok((_, view)) => Ok(view.dtype),
            Err(_) if is_packed || self.quantisation.is_some() => Ok(self.find(&layout.embed)?.1.dtype),
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
        let left_out = UnreadNames::of(self.file_of.keys(), layout, &self.naming, self.quantisation.as_ref()).left_out;
        let path = self.path.display();
        let what = if self.naming.is_wrapped() { "beside the text model (of pictures or sound)" } else { "unknown" };
        match &left_out[..] {
            [] => {}
            [only] => log::warn!("{path}: a tensor {what} is left out: `{only}`"),
            [first, ..] => log::warn!("{path}: {} tensors {what} are left out: `{first}`, ...", left_out.len()),
        }
    }
}

/// The names of tensors that a layout does not read.
struct UnreadNames<'a> {
    /// Names in a layer, and a bias of the output layer, in order: ignoring them would silently change the arithmetic.
    refused: Vec<&'a str>,
    /// Names outside the text model, in order. Precomputed tables, a copy of the tied embedding, other heads, and keys
    /// and values of layers that read those of others are not among them.
    left_out: Vec<&'a str>,
}

impl<'a> UnreadNames<'a> {
    fn of(
        names: impl Iterator<Item = &'a String>,
        layout: &Layout,
        naming: &Naming,
        quantisation: Option<&Quantisation>,
    ) -> Self {
        const COMPUTED: [&str; 5] =
            ["rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "attn.bias", "lm_head.weight"];
        let read: HashSet<_> = layout.tensors().map(|spec| naming.in_file(&spec.name).into_owned()).collect();
        let unused: Vec<String> = layout.unused_keys().map(|module| naming.in_file(&module).into_owned()).collect();
        let layers = naming.in_file("model.layers.");
        // Of the modules that may have codes.
        let module = |spec: &TensorSpec| naming.in_file(module_of(&spec.name)).into_owned();
        let modules: HashSet<String> = match quantisation {
            Some(Quantisation::Published(_)) => layout.tensors().map(module).collect(),
            _ => HashSet::new(),
        };
        let is_unread = |name: &&str| {
            !read.contains(*name)
                && !COMPUTED.iter().any(|end| name.ends_with(end))
                && !unused.iter().any(|module| name.starts_with(module))
                && !is_companion(&modules, name)
        };
        let is_refused = |name: &&str| name.starts_with(&*layers) || name.ends_with("lm_head.bias");
        let (mut refused, mut left_out): (Vec<_>, Vec<_>) =
            names.map(String::as_str).filter(is_unread).partition(is_refused);
        refused.sort_unstable();
        left_out.sort_unstable();
        Self { refused, left_out }
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
    let naming = Naming::of(map.keys());
    let layout = Layout::of(&ModelConfig { modules: stored_modules(config.modules, map.keys()), ..config.clone() });
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
    let unread = UnreadNames::of(map.keys(), &layout, &naming, config.quantisation.as_ref());
    // Zeros beside codes belong to nothing; whether they are zeros only the files tell.
    let may_be_zeros = |name: &str| published && (name.ends_with(".bias") || name.ends_with(".input_zero_point"));
    if let Some(name) = unread.refused.iter().find(|name| !may_be_zeros(name)) {
        return Err(Error::field(&index, format!("weight_map.{name}"), nothing_of_this_name(&layout), "a file"));
    }
    let bytes = json.pointer("/metadata/total_size").and_then(Value::as_u64);
    Ok(Some(IndexFacts { tensors: map.len(), left_out: unread.left_out.len(), bytes }))
}

/// Whether the folder has its weights: the only file of them, or all that its index lists.
pub(super) fn are_there(folder: &Path) -> Result<bool> {
    let index = folder.join(INDEX);
    if folder.join(SINGLE).is_file() || !index.is_file() {
        return Ok(folder.join(SINGLE).is_file());
    }
    let json = read_json(&index)?;
    let files: HashSet<&str> = weight_map(&index, &json)?.values().filter_map(Value::as_str).collect();
    Ok(files.into_iter().all(|file| folder.join(file).is_file()))
}

fn weight_map<'a>(index: &Path, json: &'a Value) -> Result<&'a Map<String, Value>> {
    json.get("weight_map").and_then(Value::as_object).ok_or_else(|| {
        Error::field(index, "weight_map", "an object from tensor names to file names", "nothing of the kind")
    })
}

/// Index of the file of each tensor, by the tensor's name in the file.
type FileOfTensor = HashMap<String, usize>;

/// Opens the files listed in an index and checks that each has the tensors listed for it.
fn open_indexed(folder: &Path, index: &Path) -> Result<(Vec<SafetensorsFile>, FileOfTensor)> {
    let json = read_json(index)?;
    let map = weight_map(index, &json)?;
    let (mut files, mut file_of, mut numbers) = (Vec::new(), FileOfTensor::new(), HashMap::new());
    for (tensor, file) in map {
        let Some(file) = file.as_str() else {
            return Err(Error::field(index, format!("weight_map.{tensor}"), "a file name", file.to_string()));
        };
        let number = match numbers.get(file) {
            Some(&number) => number,
            None => {
                let path = folder.join(file);
                let wrong = |expected, found| Error::field(index, format!("weight_map.{tensor}"), expected, found);
                if !is_shard(file) {
                    return Err(wrong(
                        "the name of a .safetensors file, without a folder",
                        shortened(file.to_string(), 200),
                    ));
                }
                if !path.is_file() {
                    return Err(wrong("a file in the same folder", format!("{file}, which is not there")));
                }
                files.push(SafetensorsFile::open(path)?);
                numbers.insert(file, files.len() - 1);
                files.len() - 1
            }
        };
        if files[number].info(tensor).is_none() {
            let expected = format!("the tensor that {INDEX} says is here");
            return Err(Error::tensor(files[number].path(), tensor, expected, "nothing"));
        }
        file_of.insert(tensor.clone(), number);
    }
    Ok((files, file_of))
}

/// Whether the manifest's hash of the folder covers a file of this name.
fn is_shard(name: &str) -> bool {
    let path = Path::new(name);
    path.file_name() == Some(path.as_os_str()) && path.extension().is_some_and(|kind| kind == "safetensors")
}

/// The error for a folder without weights; names a file that looks like weights in another format.
fn no_weights(folder: &Path) -> Error {
    let others = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let other = others
        .filter_map(|name| name.into_string().ok())
        .find(|name| [".bin", ".pth", ".pt", ".ckpt"].iter().any(|end| name.ends_with(end)));
    let found = other.map_or_else(|| "neither".to_owned(), |name| format!("{name}, a format that is not read"));
    Error::format(folder, format!("expected {SINGLE} or {INDEX}, found {found}"))
}
