//! A matrix as a checkpoint stores it, dense or in codes, and the names of what lies beside codes. `quantised` finds
//! its tensors.

use std::collections::HashSet;
use std::path::Path;
use std::sync::OnceLock;

use super::tensor_source::{TensorData, TensorSource, TensorView};
use offshoot_backend::{DeviceView, Dtype, MatrixPart, QuantView, WeightView};
use offshoot_core::error::{Error, Result};

/// What may lie beside the codes of a module, to be read or passed over: scales, zero points, groups, shapes, the
/// scales of fp8 keys and values.
const COMPANIONS: [&str; 20] = [
    "weight_scale_inv",
    "weight_scale",
    "weight_scale_2",
    "weight_global_scale",
    "input_scale",
    "input_global_scale",
    "activation_scale",
    "weight_packed",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "q_scale",
    "k_scale",
    "v_scale",
    "kv_scale",
    "output_scale",
];

/// A matrix as its checkpoint has it.
pub struct StoredMatrix<'a> {
    pub part: StoredPart<'a>,
    /// The inputs in the order of their groups.
    pub order: Option<Vec<u32>>,
    pub tensors: Vec<Tensor<'a>>,
}

pub enum StoredPart<'a> {
    Dense(WeightView<'a>),
    Device(DeviceView<'a>),
    Quantised(QuantView<'a>),
}

/// A tensor in its file, or wherever its source has it.
#[derive(Clone, Copy)]
pub struct Tensor<'a> {
    pub source: &'a dyn TensorSource,
    pub info: TensorView<'a>,
    /// For a tensor on a device: its copy in host memory, once it is made.
    pub copy: Option<&'a OnceLock<Vec<u8>>>,
}

impl<'a> Tensor<'a> {
    /// Its bytes in host memory. Those of a tensor on a device are copied when they are first asked for.
    ///
    /// # Errors
    ///
    /// The device fails.
    pub fn bytes(self) -> Result<&'a [u8]> {
        match (self.info.data, self.copy) {
            (TensorData::Host(bytes), _) => Ok(bytes),
            (TensorData::Device(bytes), Some(copy)) => match copy.get() {
                Some(copy) => Ok(copy),
                None => {
                    let bytes = bytes.download()?;
                    Ok(copy.get_or_init(|| bytes))
                }
            },
            (TensorData::Device(_), None) => {
                Err(Error::tensor(self.path(), self.info.name, "a tensor in host memory", "one on a device"))
            }
        }
    }

    /// What errors call its place.
    pub fn path(self) -> &'a Path {
        self.source.place(Some(self.info.name))
    }

    /// That of a dense tensor.
    pub fn dtype(self) -> Option<Dtype> {
        dense_dtype(self.info.dtype)
    }

    /// Releases its mapped pages.
    pub fn release(self) {
        self.source.release(self.info.name);
    }
}

impl StoredMatrix<'_> {
    /// As the backend stacks it.
    pub fn part(&self) -> MatrixPart<'_> {
        match self.part {
            StoredPart::Dense(view) => MatrixPart::Dense(view),
            StoredPart::Device(view) => MatrixPart::Device(view),
            StoredPart::Quantised(view) => MatrixPart::Quantised(QuantView { order: self.order.as_deref(), ..view }),
        }
    }

    /// The dtype of a dense matrix.
    pub fn dense(&self) -> Option<Dtype> {
        match self.part {
            StoredPart::Dense(view) => Some(view.dtype),
            StoredPart::Device(view) => Some(view.dtype),
            StoredPart::Quantised(_) => None,
        }
    }

    /// Releases the mapped pages.
    pub fn release(&self) {
        self.tensors.iter().for_each(|tensor| tensor.release());
    }

    /// Expert `expert` of `experts` stacked matrices, as the parts that are stacked: all rows, or gate and up where
    /// they alternate.
    pub fn expert(&self, expert: usize, experts: usize, alternating: bool) -> Vec<MatrixPart<'_>> {
        let StoredPart::Quantised(view) = self.part else { unreachable!("`Checkpoint::mxfp4` reads blocks only") };
        let rows = view.rows / experts;
        let first = expert * rows;
        match alternating {
            false => vec![MatrixPart::Quantised(QuantView { rows, first, ..view })],
            true => [0, 1]
                .map(|half| MatrixPart::Quantised(QuantView { rows: rows / 2, first: first + half, step: 2, ..view }))
                .to_vec(),
        }
    }
}

/// Whether a tensor of this name is read beside the codes of one of `modules`, or passed over knowingly.
pub fn is_companion(modules: &HashSet<String>, name: &str) -> bool {
    let of_module = |end: &str| name.strip_suffix(end).is_some_and(|module| modules.contains(module));
    let dotted = name.rsplit_once('.').filter(|(_, end)| COMPANIONS.contains(end));
    dotted.is_some_and(|(module, _)| modules.contains(module))
        || of_module("_blocks")
        || of_module("_scales")
        // Scales of fp8 keys and values; this program stores them in formats of its own.
        || ["q", "k", "v", "kv"].iter().any(|of| name.ends_with(&format!(".self_attn.{of}_scale")))
}

/// The dtype of dense tensors that a file stores so.
pub fn dense_dtype(stored: safetensors::Dtype) -> Option<Dtype> {
    match stored {
        safetensors::Dtype::F32 => Some(Dtype::F32),
        safetensors::Dtype::F16 => Some(Dtype::F16),
        safetensors::Dtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}

/// The module beside whose codes a tensor of this name would lie.
pub fn companion_module(name: &str) -> Option<&str> {
    let dotted = name.rsplit_once('.').filter(|(_, end)| COMPANIONS.contains(end)).map(|(module, _)| module);
    dotted.or_else(|| ["_blocks", "_scales"].into_iter().find_map(|end| name.strip_suffix(end)))
}

/// How closely a matrix is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Its tensors' names, types and shapes.
    Shapes,
    /// And its groups: enough to multiply it, if its values are checked elsewhere.
    Groups,
    /// And its scales and codes, which reads them.
    Values,
}

impl Check {
    /// That of a device which loads the matrix: of several that load a model together, the first checks values for all.
    pub fn by(is_first: bool) -> Self {
        if is_first { Check::Values } else { Check::Groups }
    }
}
