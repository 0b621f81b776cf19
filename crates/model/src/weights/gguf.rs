//! The tensors of a GGUF model, found by the layout's names. Some are parts of what the file stores: an expert is a
//! part of a tensor of all experts. Some lie in another order: for architectures whose rope turns neighbouring
//! elements, the rows of queries and keys are stored in that order, and are put back into the one of transformers,
//! where the elements of a pair are half a head apart.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use offshoot_backend::{BlockView, Dtype, LatentHeads, MatrixPart, WeightFormat, WeightView};
use offshoot_core::error::{Error, Result};
use offshoot_gguf::{Gguf, GgufFile, TensorInfo, TensorType};

use super::super::config::{ModelConfig, PairedHeads, paired_heads};
use super::super::layout::{Layout, TensorSpec};
use super::files::{FileFacts, ModelFiles};
use super::stored::Check;

/// How the layout begins the names of a layer's tensors, and how files do.
const LAYER: (&str, &str) = ("model.layers.", "blk.");
/// Modules of a layer by the layout's names and those of files; others have the same in both.
const IN_LAYER: [(&str, &str); 15] = [
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.sinks", "attn_sinks.weight"),
    ("self_attn.q_a_proj", "attn_q_a"),
    ("self_attn.q_a_layernorm", "attn_q_a_norm"),
    ("self_attn.q_b_proj", "attn_q_b"),
    ("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    ("self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    (MAPS, "attn_kv_b"),
    ("shared_expert.gate_proj", "ffn_gate_shexp"),
    ("shared_expert.up_proj", "ffn_up_shexp"),
    ("shared_expert.down_proj", "ffn_down_shexp"),
];
/// The maps of latents.
const MAPS: &str = "self_attn.kv_b_proj";
const OUTSIDE: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// The mapped files of a GGUF model.
pub struct GgufModel {
    gguf: Gguf,
    paired: Option<PairedHeads>,
    /// Experts of a layer, if it has some.
    experts: usize,
    latents: Option<LatentHeads>,
    /// Layers of the model, and whether all that are behind them predict further tokens.
    layers: usize,
    predicts: bool,
    /// The compute dtype if the layers' matrices are quantised.
    dtype: Option<Dtype>,
}

/// Rows of a tensor in its file, or elements of a vector, in the order of the layout.
struct Rows<'a> {
    file: &'a GgufFile,
    info: &'a TensorInfo,
    rows: Range<usize>,
    /// Bytes of a row, or of a vector's element.
    width: usize,
    /// Groups of neighbouring rows and the paired heads that each holds, from the first row on. Other rows lie as the
    /// layout has them.
    paired: Vec<(usize, usize)>,
}

impl<'a> Rows<'a> {
    fn whole(file: &'a GgufFile, info: &'a TensorInfo) -> Self {
        let is_vector = info.shape.len() == 1 && info.kind.block_elements() == 1;
        let (rows, width) = match is_vector {
            true => (info.cols(), info.kind.block_bytes()),
            false => (info.rows(), info.kind.row_bytes(info.cols())),
        };
        Self { file, info, rows: 0..rows, width, paired: Vec::new() }
    }

    /// Where the rows are in the tensor's bytes.
    fn place(&self) -> Range<usize> {
        self.rows.start * self.width..self.rows.end * self.width
    }

    /// The bytes of all rows.
    fn bytes(&self) -> Cow<'a, [u8]> {
        let (width, stored) = (self.width, &self.file.bytes(self.info)[self.place()]);
        if self.paired.is_empty() {
            return Cow::Borrowed(stored);
        }
        let mut bytes = Vec::with_capacity(stored.len());
        for &(rows, heads) in &self.paired {
            let (first, head_dim) = (bytes.len() / width, rows / heads);
            for row in 0..rows {
                // Element `i` of a head's first or second half is beside its partner in the file.
                let (head, element) = (row / head_dim, row % head_dim);
                let (half, i) = (element / (head_dim / 2), element % (head_dim / 2));
                let from = first + head * head_dim + 2 * i + half;
                bytes.extend_from_slice(&stored[from * width..][..width]);
            }
        }
        bytes.extend_from_slice(&stored[bytes.len()..]);
        Cow::Owned(bytes)
    }

    fn values(&self) -> Vec<f32> {
        let (bytes, kind) = (self.bytes(), self.info.kind);
        let mut values = vec![0.0; bytes.len() / kind.block_bytes() * kind.block_elements()];
        kind.decode(&bytes, &mut values);
        values
    }

    fn release(&self) {
        self.file.release(self.info, self.place());
    }
}

/// What makes up a tensor of the layout.
enum Found<'a> {
    Rows(Rows<'a>),
    /// The rows of both in turn: an expert's gate and then its up.
    InTurn(Rows<'a>, Rows<'a>),
    /// The maps of latents to keys, `[heads, rank, nope]`, and to values, `[heads, value, rank]`.
    Maps {
        keys: Rows<'a>,
        values: Rows<'a>,
        heads: LatentHeads,
    },
}

impl<'a> Found<'a> {
    fn rows(&self) -> impl Iterator<Item = &Rows<'a>> {
        let (first, second) = match self {
            Found::Rows(rows) => (rows, None),
            Found::InTurn(first, second) | Found::Maps { keys: first, values: second, .. } => (first, Some(second)),
        };
        std::iter::once(first).chain(second)
    }

    /// The bytes of the layout's tensor as the file stores them.
    fn stored(&self) -> (WeightFormat, Cow<'a, [u8]>) {
        match self {
            Found::Rows(rows) if rows.info.kind.is_quantised() => (WeightFormat::Blocks(rows.info.kind), rows.bytes()),
            _ => {
                let (dtype, bytes) = self.dense();
                (WeightFormat::Dense(dtype), bytes)
            }
        }
    }

    /// The elements as the layout has them: their bytes where the file stores them without scales.
    fn dense(&self) -> (Dtype, Cow<'a, [u8]>) {
        match self {
            Found::Rows(rows) => match dense_dtype(rows.info.kind) {
                Some(dtype) => (dtype, rows.bytes()),
                None => (Dtype::F32, Cow::Owned(Dtype::F32.encode(&rows.values()))),
            },
            Found::InTurn(first, second) => {
                let (a, b, width) = (first.values(), second.values(), first.info.cols());
                let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
                let values: Vec<f32> = rows.flat_map(|(a, b)| [a, b].concat()).collect();
                let dtype = common_dtype(first, second);
                (dtype, Cow::Owned(dtype.encode(&values)))
            }
            Found::Maps { keys, values, heads } => {
                let maps = maps_of_heads(&keys.values(), &values.values(), *heads);
                let dtype = common_dtype(keys, values);
                (dtype, Cow::Owned(dtype.encode(&maps)))
            }
        }
    }
}

/// The dtype that two tensors have in the file, if it is the same one without scales; else f32.
fn common_dtype(a: &Rows<'_>, b: &Rows<'_>) -> Dtype {
    let of = |rows: &Rows<'_>| dense_dtype(rows.info.kind);
    of(a).filter(|&dtype| of(b) == Some(dtype)).unwrap_or(Dtype::F32)
}

impl GgufModel {
    /// `dtype`: the compute dtype if the layers' matrices are quantised.
    pub fn new(gguf: Gguf, config: &ModelConfig, dtype: Option<Dtype>) -> Result<Self> {
        let paired = paired_heads(&gguf, config)?;
        let experts = config.layers.iter().find_map(|layer| layer.feed_forward.experts());
        let (experts, latents) = (experts.map_or(0, |experts| experts.count), config.latents());
        let (layers, predicts) = (config.layers.len(), config.family.predicts_further());
        Ok(Self { gguf, paired, experts, latents, layers, predicts, dtype })
    }

    /// Refuses tensors in layers that the layout does not read: ignoring them would silently change the arithmetic.
    fn refuse_unread(&self, layout: &Layout, read: &HashSet<&String>) -> Result<()> {
        /// Precomputed, or read with the configuration.
        const KNOWN: [&str; 3] = ["rope_freqs", "rope_factors", "attn_rot_embd"];
        for (file, tensor) in self.gguf.files().iter().flat_map(|file| file.tensors().iter().map(move |t| (file, t))) {
            let is_known = read.contains(&tensor.name) || KNOWN.iter().any(|known| tensor.name.contains(known));
            if is_known || self.is_predicting(&tensor.name) {
                continue;
            }
            if tensor.name.starts_with(LAYER.1) || tensor.name == "output.bias" {
                let expected =
                    format!("nothing of this name by the metadata ({} layers, its architecture)", layout.layers.len());
                let found = format!("a tensor of shape {:?}", tensor.shape);
                return Err(Error::tensor(file.path(), &tensor.name, expected, found));
            }
            log::warn!("{}: tensor `{}` is not part of the model and is left out", file.path().display(), tensor.name);
        }
        Ok(())
    }

    /// Whether a tensor is in a layer that predicts further tokens: one behind the model's, of a family that has such
    /// layers or with a projection that joins a row and the next token's embedding.
    fn is_predicting(&self, name: &str) -> bool {
        let layer = name.strip_prefix(LAYER.1).and_then(|rest| rest.split_once('.')).map(|(layer, _)| layer);
        let Some(layer) = layer.filter(|layer| layer.parse().is_ok_and(|layer: usize| layer >= self.layers)) else {
            return false;
        };
        self.predicts || self.gguf.tensor(&format!("{}{layer}.nextn.eh_proj.weight", LAYER.1)).is_some()
    }

    /// How each tensor of the layout is stored, by its name there.
    pub fn formats(&self, layout: &Layout) -> Result<HashMap<String, WeightFormat>> {
        let format = |spec: &TensorSpec| {
            let found = self.find(spec)?;
            let kind = found.rows().map(|rows| rows.info.kind).next().filter(|_| spec.shape.len() > 1);
            let format = match kind {
                // They become dense, whatever they are stored as.
                Some(kind) if kind.is_quantised() && is_of_maps(spec) => {
                    WeightFormat::Dense(self.dtype.unwrap_or(Dtype::Bf16))
                }
                Some(kind) if kind.is_quantised() => WeightFormat::Blocks(kind),
                kind => WeightFormat::Dense(kind.and_then(dense_dtype).unwrap_or(Dtype::F32)),
            };
            Ok((spec.name.clone(), format))
        };
        layout.tensors().map(format).collect()
    }

    /// The rows that make up tensors of the layout, and what `read` makes of them.
    fn found<'a, T>(
        &'a self,
        specs: &[TensorSpec],
        read: impl Fn(&Found<'a>) -> T,
    ) -> Result<(Vec<Found<'a>>, Vec<T>)> {
        let found = specs.iter().map(|spec| self.find(spec)).collect::<Result<Vec<_>>>()?;
        let bytes = found.iter().map(read).collect();
        Ok((found, bytes))
    }

    /// The rows that make up a tensor of the layout.
    fn find(&self, spec: &TensorSpec) -> Result<Found<'_>> {
        let name = name_in_file(&spec.name);
        if let (Some(heads), true) = (self.latents.filter(|_| is_of_maps(spec)), self.gguf.tensor(&name).is_none()) {
            return self.maps(spec, &name, heads);
        }
        let found = match expert(&name) {
            Some(ExpertTensor::Matrix { layer, expert, module }) => self.expert(spec, layer, expert, module)?,
            Some(ExpertTensor::UpBiases { layer }) => return self.up_biases(spec, layer),
            Some(ExpertTensor::DownBiases { layer }) => {
                self.tensor(spec, &format!("blk.{layer}.ffn_down_exps.bias"), &shape(spec))?
            }
            None => self.tensor(spec, &name, &shape(spec))?,
        };
        Ok(Found::Rows(Rows { paired: self.paired_rows(&name, found.rows.len()), ..found }))
    }

    /// The tensor `name`, of this shape.
    fn tensor(&self, spec: &TensorSpec, name: &str, shape: &[usize]) -> Result<Rows<'_>> {
        let Some((file, info)) = self.gguf.tensor(name) else {
            return Err(Error::tensor(self.gguf.path(), name, spec.describe_shape(), "nothing"));
        };
        if info.shape != shape {
            let expected = format!("{shape:?}, as {} says", spec.describe_shape());
            return Err(Error::tensor(file.path(), name, expected, format!("{:?}", info.shape)));
        }
        if shape.len() == 1 && dense_dtype(info.kind).is_none() {
            return Err(Error::tensor(file.path(), name, "F32, F16 or BF16", info.kind.to_string()));
        }
        Ok(Rows::whole(file, info))
    }

    /// The matrix of an expert: in a tensor of all experts, in one of all experts' gates and ups, or, in the first
    /// files of Mixtral, in one of its own.
    fn expert(&self, spec: &TensorSpec, layer: &str, expert: usize, module: &str) -> Result<Rows<'_>> {
        let own = format!("blk.{layer}.{module}.{expert}.weight");
        if self.gguf.tensor(&own).is_some() {
            return self.tensor(spec, &own, &shape(spec));
        }
        let (rows, cols) = (spec.rows(), spec.cols());
        let fused = format!("blk.{layer}.ffn_gate_up_exps.weight");
        let (name, stored, first) = match (self.gguf.tensor(&fused), module) {
            (Some(_), "ffn_gate") => (fused, 2 * rows, 0),
            (Some(_), "ffn_up") => (fused, 2 * rows, rows),
            _ => (format!("blk.{layer}.{module}_exps.weight"), rows, 0),
        };
        let found = self.tensor(spec, &name, &[self.experts, stored, cols])?;
        let first = expert * stored + first;
        Ok(Rows { rows: first..first + rows, ..found })
    }

    /// The biases of all experts' gates and ups.
    fn up_biases(&self, spec: &TensorSpec, layer: &str) -> Result<Found<'_>> {
        let [experts, both] = shape(spec)[..] else { unreachable!("biases of experts have two sizes") };
        let half = |module: &str| self.tensor(spec, &format!("blk.{layer}.{module}.bias"), &[experts, both / 2]);
        Ok(Found::InTurn(half("ffn_gate_exps")?, half("ffn_up_exps")?))
    }

    /// The maps of latents, of which newer files have two tensors: those to keys lie transposed in each head. `name`:
    /// that of the one tensor of older files.
    fn maps(&self, spec: &TensorSpec, name: &str, heads: LatentHeads) -> Result<Found<'_>> {
        let part = |letter: char| name.replace("attn_kv_b", &format!("attn_{letter}_b"));
        let (of_keys, of_values) = (part('k'), part('v'));
        if [&of_keys, &of_values].iter().all(|part| self.gguf.tensor(part).is_none()) {
            let expected = format!("{}, or `{of_keys}` and `{of_values}`", spec.describe_shape());
            return Err(Error::tensor(self.gguf.path(), name, expected, "nothing"));
        }
        let LatentHeads { heads: count, rank, nope, value, .. } = heads;
        let keys = self.tensor(spec, &of_keys, &[count, rank, nope])?;
        Ok(Found::Maps { keys, values: self.tensor(spec, &of_values, &[count, value, rank])?, heads })
    }

    /// The paired heads among the rows of a tensor, or among the elements of a bias.
    fn paired_rows(&self, name: &str, rows: usize) -> Vec<(usize, usize)> {
        let Some(PairedHeads { q_heads, kv_heads }) = self.paired else { return Vec::new() };
        let module = name.strip_prefix(LAYER.1).and_then(|name| name.split('.').nth(1));
        match module {
            Some("attn_q") => vec![(rows, q_heads)],
            Some("attn_k") => vec![(rows, kv_heads)],
            Some("attn_qkv") => {
                let head_dim = rows / (q_heads + 2 * kv_heads);
                vec![(q_heads * head_dim, q_heads), (kv_heads * head_dim, kv_heads)]
            }
            _ => Vec::new(),
        }
    }
}

impl ModelFiles for GgufModel {
    fn formats(&self, layout: &Layout) -> Result<HashMap<String, WeightFormat>> {
        self.formats(layout)
    }

    fn facts(&self) -> FileFacts {
        let bytes = self.gguf.tensors().map(|tensor| tensor.place.len()).sum();
        FileFacts::of(self.gguf.files().len(), bytes, self.gguf.tensors().map(|tensor| tensor.kind.to_string()))
    }

    fn verify(&self, layout: &Layout) -> Result<()> {
        let mut read = HashSet::new();
        for spec in layout.tensors() {
            read.extend(self.find(spec)?.rows().map(|rows| &rows.info.name));
        }
        self.refuse_unread(layout, &read)
    }

    /// The compute dtype: that of the layers' matrices; bf16 where they are quantised.
    fn dtype(&self, layout: &Layout) -> Result<Dtype> {
        let spec = layout.first_matrix();
        let kind = self.find(spec)?.rows().map(|rows| rows.info.kind).next();
        Ok(kind.and_then(dense_dtype).or(self.dtype).unwrap_or(Dtype::Bf16))
    }

    /// Calls `pack` with the matrices of `specs` as they are stored. Activations are rounded unless `dtype` is f32.
    fn parts(
        &self,
        specs: &[TensorSpec],
        dtype: Dtype,
        _: Check,
        pack: &mut dyn FnMut(&[MatrixPart<'_>]) -> Result<()>,
    ) -> Result<()> {
        let (found, bytes) = self.found(specs, Found::stored)?;
        let parts = bytes.iter().zip(specs).map(|((format, bytes), spec)| {
            let (rows, cols) = (spec.rows(), spec.cols());
            match *format {
                WeightFormat::Blocks(kind) => {
                    MatrixPart::Blocks(BlockView { kind, rows, cols, bytes, exact: dtype == Dtype::F32 })
                }
                _ => {
                    let dtype = format.dense().expect("files have blocks or dense tensors");
                    MatrixPart::Dense(WeightView { dtype, rows, cols, bytes })
                }
            }
        });
        pack(&parts.collect::<Vec<_>>())?;
        found.iter().flat_map(Found::rows).for_each(Rows::release);
        Ok(())
    }

    fn packed(&self, specs: &[TensorSpec], pack: &mut dyn FnMut(&[WeightView<'_>]) -> Result<()>) -> Result<()> {
        let (found, bytes) = self.found(specs, Found::dense)?;
        let views = bytes.iter().zip(specs).map(|((dtype, bytes), spec)| WeightView {
            dtype: *dtype,
            rows: spec.rows(),
            cols: spec.cols(),
            bytes,
        });
        pack(&views.collect::<Vec<_>>())?;
        found.iter().flat_map(Found::rows).for_each(Rows::release);
        Ok(())
    }
}

fn is_of_maps(spec: &TensorSpec) -> bool {
    spec.name.strip_suffix(".weight").is_some_and(|module| module.ends_with(MAPS))
}

/// `[heads, nope + value, rank]` of `keys` `[heads, rank, nope]` and `values` `[heads, value, rank]`.
fn maps_of_heads(keys: &[f32], values: &[f32], heads: LatentHeads) -> Vec<f32> {
    let LatentHeads { rank, nope, value, .. } = heads;
    let of_head = |(keys, values): (&[f32], &[f32])| {
        let transposed = (0..nope).flat_map(|row| (0..rank).map(move |col| (row, col)));
        let mut maps: Vec<f32> = transposed.map(|(row, col)| keys[col * nope + row]).collect();
        maps.extend_from_slice(values);
        maps
    };
    keys.chunks_exact(rank * nope).zip(values.chunks_exact(value * rank)).flat_map(of_head).collect()
}

/// The dtype of types without scales.
fn dense_dtype(kind: TensorType) -> Option<Dtype> {
    match kind {
        TensorType::F32 => Some(Dtype::F32),
        TensorType::F16 => Some(Dtype::F16),
        TensorType::Bf16 => Some(Dtype::Bf16),
        _ => None,
    }
}

fn shape(spec: &TensorSpec) -> Vec<usize> {
    spec.shape.iter().map(|dim| dim.size).collect()
}

/// A name of the layout as files have it.
fn name_in_file(name: &str) -> String {
    let renamed = |name: &str, table: &[(&str, &str)]| {
        let of = |(ours, theirs): &(&str, &str)| Some(format!("{theirs}{}", name.strip_prefix(ours)?));
        table.iter().find_map(of).unwrap_or_else(|| name.to_owned())
    };
    match name.strip_prefix(LAYER.0).and_then(|rest| rest.split_once('.')) {
        Some((layer, module)) => format!("{}{layer}.{}", LAYER.1, renamed(module, &IN_LAYER)),
        None => renamed(name, &OUTSIDE),
    }
}

/// A tensor of the layout that is a part, or several, of what files store.
enum ExpertTensor<'a> {
    Matrix { layer: &'a str, expert: usize, module: &'a str },
    UpBiases { layer: &'a str },
    DownBiases { layer: &'a str },
}

/// `name`: with the beginning of files, as in `blk.0.experts.7.ffn_up.weight`.
fn expert(name: &str) -> Option<ExpertTensor<'_>> {
    let (layer, rest) = name.strip_prefix(LAYER.1)?.split_once(".experts.")?;
    match rest.split('.').collect::<Vec<_>>()[..] {
        ["gate_up_proj_bias"] => Some(ExpertTensor::UpBiases { layer }),
        ["down_proj_bias"] => Some(ExpertTensor::DownBiases { layer }),
        [expert, module, "weight"] => Some(ExpertTensor::Matrix { layer, expert: expert.parse().ok()?, module }),
        _ => None,
    }
}
