//! An adapter in host memory, from a folder as PEFT writes it or from a trainer's tensors: the matrices A and B of each
//! module, and their scales. Everything is checked before a device sees it: names and shapes, numbers, and the model's
//! modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;

use offshoot_backend::{Dtype, LoraWeights, RandomWeight, Uniform, WeightView};
use offshoot_core::error::{Error, Result};

use super::peft::PeftConfig;
use crate::config::{ModelConfig, module_of, read_json};
use crate::layout::{HEAD, Layout};
use crate::weights::{SafetensorsFile, TensorData, TensorSource, TensorView, dense_dtype};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// A low-rank adapter in host memory.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// What errors name: the file of its tensors.
    path: PathBuf,
    /// Where it was read from; `None`: it came from memory.
    files: Option<AdapterFiles>,
    /// By their names in the layout.
    modules: BTreeMap<String, AdapterModule>,
}

/// A tensor of an adapter: `shape`, row-major, little-endian.
#[derive(Clone, Debug)]
pub struct AdapterTensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The files of an adapter.
#[derive(Clone, Debug)]
struct AdapterFiles {
    folder: PathBuf,
    /// BLAKE3 of what was read from them: whoever writes the next version of the adapter there may do so meanwhile.
    hash: String,
}

impl AdapterFiles {
    fn of(folder: &Path, config: &Value, tensors: &[(String, AdapterTensor)]) -> Self {
        let line = |(name, tensor): &(String, AdapterTensor)| {
            let AdapterTensor { dtype, shape, bytes } = tensor;
            format!("{name:?} {dtype} {shape:?} {}", blake3::hash(bytes))
        };
        let mut lines: Vec<String> = tensors.par_iter().map(line).collect();
        lines.sort_unstable();
        let hash = blake3::hash(format!("{config}\n{}", lines.join("\n")).as_bytes()).to_hex().to_string();
        Self { folder: folder.to_path_buf(), hash }
    }
}

/// The adapter of one module.
#[derive(Clone, Debug)]
struct AdapterModule {
    /// What its tensors' names begin with.
    name: String,
    scale: f32,
    /// `[rank, inputs]` and `[outputs, rank]`
    a: AdapterTensor,
    b: AdapterTensor,
}

impl AdapterTensor {
    /// A copy of a tensor that is in `path`.
    fn of(path: &Path, tensor: &TensorView<'_>) -> Result<Self> {
        let wrong = || Error::tensor(path, tensor.name, "F32, F16 or BF16", format!("{:?}", tensor.dtype));
        let dtype = dense_dtype(tensor.dtype).ok_or_else(wrong)?;
        Ok(Self { dtype, shape: tensor.shape.to_vec(), bytes: tensor.data.on_host()?.into_owned() })
    }

    fn view(&self) -> WeightView<'_> {
        WeightView { dtype: self.dtype, rows: self.shape[0], cols: self.shape[1], bytes: &self.bytes }
    }

    /// The first number that is infinite or NaN.
    fn not_finite(&self) -> Option<f32> {
        let view = self.view();
        (0..view.rows * view.cols).map(|i| view.get(i)).find(|x| !x.is_finite())
    }
}

/// Which of a module's two matrices a tensor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    A,
    B,
}

impl Adapter {
    /// Reads a folder with adapter_config.json and adapter_model.safetensors.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or holds what is not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        let config_path = folder.join(CONFIG);
        let fields = read_json(&config_path)?;
        let config = PeftConfig::of(&config_path, &fields)?;
        let path = folder.join(TENSORS);
        if !path.is_file() && folder.join("adapter_model.bin").is_file() {
            let what = format!("expected {TENSORS}, found adapter_model.bin, a format that is not read");
            return Err(Error::format(folder, what));
        }
        let file = SafetensorsFile::open(path.clone())?;
        let tensor = |name: String| {
            let info = file.info(&name).expect("the file lists it");
            let data = TensorData::Host(file.bytes(info));
            let view = TensorView { name: &name, dtype: info.dtype, shape: &info.shape, data };
            let tensor = AdapterTensor::of(&path, &view)?;
            Ok((name, tensor))
        };
        let tensors = file.names().into_iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let files = AdapterFiles::of(folder, &fields, &tensors);
        Ok(Self { files: Some(files), ..Self::of(&path, &config, tensors)? })
    }

    /// The folder that it was read from; `None`: it came from memory.
    pub fn folder(&self) -> Option<&Path> {
        self.files.as_ref().map(|files| &*files.folder)
    }

    /// Identifies its weights among all adapters that there are: a hash of what was read of its files. `None`: it came
    /// from memory.
    pub fn identity(&self) -> Option<&str> {
        self.files.as_ref().map(|files| &*files.hash)
    }

    /// The largest rank of its modules.
    pub fn rank(&self) -> usize {
        self.modules.values().map(|module| module.a.shape[0]).max().unwrap_or(0)
    }

    /// An adapter of the tensors of a source, by the names that PEFT gives them. `config`: the fields of
    /// adapter_config.json.
    ///
    /// # Errors
    ///
    /// The configuration or a tensor is not one that is supported.
    pub fn from_source(config: &Value, source: &dyn TensorSource) -> Result<Self> {
        let mut names = source.names();
        names.sort_unstable();
        let tensor = |name: &str| {
            let view = source.tensor(name).expect("the source lists it");
            Ok((name.to_owned(), AdapterTensor::of(source.place(Some(name)), &view)?))
        };
        let tensors = names.into_iter().map(tensor).collect::<Result<Vec<_>>>()?;
        Self::of(source.place(None), &PeftConfig::of(Path::new(CONFIG), config)?, tensors)
    }

    /// An adapter of tensors in memory. `name`: what errors call it. `config`: the fields of adapter_config.json.
    ///
    /// # Errors
    ///
    /// The configuration or a tensor is not one that is supported.
    pub fn from_tensors(name: &str, config: &Value, tensors: Vec<(String, AdapterTensor)>) -> Result<Self> {
        let path = Path::new(name);
        Self::of(path, &PeftConfig::of(&path.join(CONFIG), config)?, tensors)
    }

    fn of(path: &Path, config: &PeftConfig, tensors: Vec<(String, AdapterTensor)>) -> Result<Self> {
        let mut sides: BTreeMap<String, BTreeMap<Side, (String, AdapterTensor)>> = BTreeMap::new();
        for (name, tensor) in tensors {
            let Some((module, side)) = module_and_side(&name) else {
                let expected = "`lora_A.weight` or `lora_B.weight` of a linear layer";
                return Err(Error::tensor(path, name, expected, "a tensor that is neither"));
            };
            let bytes = tensor.shape.iter().try_fold(tensor.dtype.bytes(), |all, &size| all.checked_mul(size));
            if bytes != Some(tensor.bytes.len()) {
                let expected = format!("as many bytes as {:?} has in {}", tensor.shape, tensor.dtype);
                return Err(Error::tensor(path, name, expected, tensor.bytes.len().to_string()));
            }
            if tensor.shape.len() != 2 {
                return Err(Error::tensor(path, name, "a matrix of a linear layer", format!("{:?}", tensor.shape)));
            }
            if !config.targets(module) {
                let expected = format!("a module that `target_modules` of {} names", config.path().display());
                return Err(Error::tensor(path, &name, expected, module));
            }
            let module = module.to_owned();
            if let Some((other, _)) = sides.entry(module).or_default().insert(side, (name.clone(), tensor)) {
                return Err(Error::tensor(path, name, "each matrix once", format!("`{other}` too")));
            }
        }
        if sides.is_empty() {
            return Err(Error::format(path, "expected an adapter of at least one module, found no tensors"));
        }
        let module = |(module, mut sides): (String, BTreeMap<Side, (String, AdapterTensor)>)| {
            let (a, b) = match (sides.remove(&Side::A), sides.remove(&Side::B)) {
                (Some(a), Some(b)) => (a, b),
                (a, b) => {
                    let (name, _) = a.or(b).expect("a module has a matrix");
                    return Err(Error::tensor(path, name, "A and B of each module", "one of them"));
                }
            };
            let rank = config.rank(&module);
            if a.1.shape[0] != rank || b.1.shape[1] != rank {
                let (name, tensor) = if a.1.shape[0] == rank { &b } else { &a };
                let expected = format!("rank {rank}, as {} says", config.path().display());
                return Err(Error::tensor(path, name, expected, format!("{:?}", tensor.shape)));
            }
            if let Some((name, x)) = [&a, &b].into_iter().find_map(|(name, tensor)| Some((name, tensor.not_finite()?)))
            {
                return Err(Error::tensor(path, name, "finite numbers", x.to_string()));
            }
            let made = AdapterModule { name: module.clone(), scale: config.scale(&module), a: a.1, b: b.1 };
            Ok((name_in_layout(&module), made))
        };
        let modules = sides.into_par_iter().map(module).collect::<Result<Vec<_>>>()?;
        let count = modules.len();
        let modules: BTreeMap<_, _> = modules.into_iter().collect();
        match modules.len() == count {
            true => Ok(Self { path: path.to_path_buf(), files: None, modules }),
            false => Err(Error::format(path, "expected each module once, found one under two prefixes")),
        }
    }

    /// An adapter of every linear layer of a model, of random numbers: A about 1 / sqrt(inputs), B about 0.3.
    pub fn random(config: &ModelConfig, rank: usize, seed: u64) -> Self {
        let layout = Layout::of(config);
        let weights = layout.linears().flat_map(|linear| &linear.weights);
        let shapes = weights.map(|spec| (module_of(&spec.name), spec.rows(), spec.cols()));
        let shapes = shapes.chain([(HEAD, layout.embed.rows(), layout.embed.cols())]);
        let mut stream = seed;
        let mut tensor = |rows: usize, cols: usize, reach: f32| {
            let numbers = Uniform { stream, centre: 0.0, reach };
            stream = stream.wrapping_add((rows * cols) as u64);
            let bytes = RandomWeight::of(Dtype::F32, rows, cols, numbers).generate();
            AdapterTensor { dtype: Dtype::F32, shape: vec![rows, cols], bytes }
        };
        let mut modules = BTreeMap::new();
        for (name, outputs, inputs) in shapes {
            let a = tensor(rank, inputs, 1.7 / (inputs as f32).sqrt());
            let b = tensor(outputs, rank, 0.5);
            modules.insert(name.to_owned(), AdapterModule { name: name.to_owned(), scale: 1.0 / rank as f32, a, b });
        }
        Self { path: PathBuf::from("a random adapter"), files: None, modules }
    }

    /// Bytes of a rank of an adapter that has every linear layer of a model, each number of `element_bytes`: those of
    /// an adapter are at most its largest rank times as many.
    pub fn bytes_of_rank(config: &ModelConfig, element_bytes: usize) -> usize {
        let layout = Layout::of(config);
        let weights = layout.linears().flat_map(|linear| &linear.weights).chain([&layout.embed]);
        weights.map(|spec| (spec.rows() + spec.cols()) * element_bytes).sum()
    }

    /// Without what it adds to the output layer.
    pub fn without_head(mut self) -> Self {
        self.modules.remove(HEAD);
        self
    }

    /// The number of its weights.
    pub fn parameters(&self) -> usize {
        let of_module = |module: &AdapterModule| -> usize {
            [&module.a, &module.b].into_iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
        };
        self.modules.values().map(of_module).sum()
    }

    /// Checks that the model has every module of the adapter, of its shape.
    ///
    /// # Errors
    ///
    /// The first that it has not.
    pub fn check(&self, config: &ModelConfig) -> Result<()> {
        let layout = Layout::of(config);
        let mut shapes: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
        for linear in layout.linears() {
            shapes.extend(linear.weights.iter().map(|spec| (module_of(&spec.name), [spec.rows(), spec.cols()])));
        }
        shapes.insert(HEAD, [layout.embed.rows(), layout.embed.cols()]);
        for (module, AdapterModule { name, a, b, .. }) in &self.modules {
            let wrong = |side: &str, expected: String, found: String| {
                Error::tensor(&self.path, format!("{name}.{side}.weight"), expected, found)
            };
            let Some(&[outputs, inputs]) = shapes.get(module.as_str()) else {
                let expected = match module {
                    _ if module.contains(".experts") => "no adapters of experts, which are not supported",
                    _ if module.ends_with(".kv_b_proj") => {
                        "no adapter of kv_b_proj, which is no linear layer here, but maps latents: merge the adapter \
                         into the model, or train without this layer (PEFT's \"all-linear\" has it: list \
                         target_modules)"
                    }
                    _ => "a linear layer of the model (its attention, dense feed-forward block or lm_head)",
                };
                return Err(wrong("lora_A", expected.to_owned(), "no such layer".to_owned()));
            };
            if a.shape[1] != inputs {
                return Err(wrong("lora_A", format!("[{}, {inputs}]", a.shape[0]), format!("{:?}", a.shape)));
            }
            if b.shape[0] != outputs {
                return Err(wrong("lora_B", format!("[{outputs}, {}]", b.shape[1]), format!("{:?}", b.shape)));
            }
        }
        Ok(())
    }

    /// What it adds to a module of the layout.
    pub(super) fn weights(&self, module: &str) -> Option<LoraWeights<'_>> {
        let AdapterModule { scale, a, b, .. } = self.modules.get(module)?;
        Some(LoraWeights { scale: *scale, a: a.view(), b: b.view() })
    }
}

/// The module of a tensor, as the trained model names it, and which of its matrices it is. PEFT writes
/// `base_model.model.MODULE.lora_A.weight`; a model in memory has the adapter's name before `weight`.
fn module_and_side(name: &str) -> Option<(&str, Side)> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    let stem = name.strip_suffix(".weight")?;
    let ends = |stem: &'_ str| {
        let (module, side) = stem.rsplit_once('.')?;
        match side {
            "lora_A" => Some((module.len(), Side::A)),
            "lora_B" => Some((module.len(), Side::B)),
            _ => None,
        }
    };
    let (length, side) = ends(stem).or_else(|| ends(stem.rsplit_once('.')?.0))?;
    Some((&stem[..length], side))
}

/// The layout's name of a module of a trained model, whose text model may be part of a wrapper.
fn name_in_layout(module: &str) -> String {
    const TEXT_MODELS: [&str; 3] = ["model.language_model.", "language_model.model.", "base_model."];
    let rest = TEXT_MODELS.iter().find_map(|prefix| module.strip_prefix(prefix));
    match (rest, module.strip_prefix("language_model.")) {
        (Some(rest), _) => format!("model.{rest}"),
        (None, Some(head)) if head == HEAD => head.to_owned(),
        (None, _) if module.starts_with("layers.") => format!("model.{module}"),
        (None, _) => module.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_files_and_of_memory_name_the_same_module() {
        let module = "model.layers.0.self_attn.q_proj";
        let found = |name: &str| module_and_side(name).map(|(module, side)| (name_in_layout(module), side));
        for name in ["lora_A.weight", "lora_A.default.weight"] {
            assert_eq!(found(&format!("base_model.model.{module}.{name}")), Some((module.to_owned(), Side::A)));
            assert_eq!(found(&format!("{module}.{name}")), Some((module.to_owned(), Side::A)));
        }
        let wrapped = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_B.weight";
        assert_eq!(found(wrapped), Some((module.to_owned(), Side::B)));
        assert_eq!(found("base_model.model.lm_head.lora_B.weight"), Some((HEAD.to_owned(), Side::B)));
        for other in ["lora_embedding_A", "lora_magnitude_vector.weight", "lora_B.bias", "weight"] {
            assert_eq!(found(&format!("base_model.model.{module}.{other}")), None, "{other}");
        }
    }

    /// Not by its files: their next version may be there by now. So the order of the tensors in the file is no matter.
    #[test]
    fn an_adapter_is_identified_by_what_was_read() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(folder.path().join(name), bytes).expect("the temporary folder is writable");
        };
        let identity = |alpha: u32, tensors: [(&str, f32); 2]| {
            let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": alpha, "target_modules": ["q_proj"] });
            write(CONFIG, config.to_string().into_bytes());
            let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
            for (name, x) in tensors {
                let begin = data.len();
                data.extend(x.to_le_bytes());
                let name = format!("base_model.model.model.layers.0.self_attn.q_proj.{name}.weight");
                let tensor = json!({ "dtype": "F32", "shape": [1, 1], "data_offsets": [begin, data.len()] });
                header.insert(name, tensor);
            }
            let header = Value::Object(header).to_string().into_bytes();
            write(TENSORS, [(header.len() as u64).to_le_bytes().to_vec(), header, data].concat());
            let adapter = Adapter::open(folder.path()).expect("a sound adapter");
            adapter.identity().expect("it came from files").to_owned()
        };
        let (a, b) = (("lora_A", 0.5), ("lora_B", 2.0));
        let own = identity(1, [a, b]);
        assert_eq!(identity(1, [b, a]), own);
        for (alpha, tensors) in [(2, [a, b]), (1, [a, ("lora_B", 3.0)]), (1, [("lora_A", 2.0), ("lora_B", 0.5)])] {
            assert_ne!(identity(alpha, tensors), own, "{alpha} {tensors:?}");
        }
    }
}
