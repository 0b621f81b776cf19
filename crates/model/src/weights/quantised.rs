//! Finds the tensors of quantised matrices in a checkpoint, checks their shapes, scales and groups, and describes them
//! to the backend as views of mapped bytes. Which tensors are there decides whether a matrix is quantised; config.json
//! says how to read them.

use rayon::prelude::*;

use super::super::config::{CodePacking, Nvfp4Form, Quantisation, Scheme, module_of};
use super::super::layout::TensorSpec;
use super::checkpoint::Checkpoint;
use super::files::ModelFiles;
use super::stored::{Check, StoredMatrix, StoredPart, Tensor};
use super::tensor_source::TensorData;
use offshoot_backend::{
    DeviceView, QuantSource, QuantView, Rounding, ScaleSource, WeightView,
    quantised::{ActivationScale, e4m3_value, power_of_two},
};
use offshoot_core::error::{Error, Result};

/// Tensors of 8-bit codes may name their scales in one of these ways, and the scale of static activations in one of
/// those.
const SCALE_NAMES: [&str; 2] = ["weight_scale_inv", "weight_scale"];
const INPUT_SCALE_NAMES: [&str; 2] = ["input_scale", "activation_scale"];
impl Checkpoint<'_> {
    /// The matrix of `spec`, as it is stored, or to be made as the user asks.
    pub fn matrix(&self, spec: &TensorSpec, check: Check) -> Result<StoredMatrix<'_>> {
        let module = self.name_in_file(module_of(&spec.name)).into_owned();
        let has = |suffix: &str| self.tensor(&format!("{module}{suffix}")).is_some();
        let codes_type = self.tensor(&format!("{module}.weight")).map(|tensor| tensor.info.dtype);
        let is_bytes = match codes_type {
            Some(safetensors::Dtype::F8_E4M3 | safetensors::Dtype::I8) => true,
            // Of ModelOpt's NVFP4.
            Some(safetensors::Dtype::U8) => has(".weight_scale"),
            _ => false,
        };
        if !(is_bytes || has(".qweight") || has(".weight_packed") || has("_blocks")) {
            let published = matches!(self.quantisation, Some(Quantisation::Published(_)));
            let scales = SCALE_NAMES.iter().find(|name| published && has(&format!(".{name}")));
            return match (self.tensor(&format!("{module}.weight")), scales) {
                (Some(tensor), Some(scales)) => {
                    let expected = format!("codes (F8_E4M3 or I8), as {scales} lies beside them");
                    let found = format!("{:?}", tensor.info.dtype);
                    Err(Error::tensor(tensor.path(), format!("{module}.weight"), expected, found))
                }
                _ => self.dense_matrix(spec, check),
            };
        }
        let scheme = self.scheme(spec, &module)?;
        let finder = Finder { checkpoint: self, module: &module, spec, scheme, check };
        let stored = match scheme.packing {
            CodePacking::Bytes { block } => finder.bytes(block),
            CodePacking::Awq => finder.awq(),
            CodePacking::Gptq { zero_offset } => finder.gptq(zero_offset),
            CodePacking::Packed => finder.packed(),
            CodePacking::Mxfp4 => finder.mxfp4(),
            CodePacking::Nvfp4(form) => finder.nvfp4(form),
        }?;
        Ok(stored)
    }

    /// Stacked experts in OpenAI's MXFP4: `_blocks` and `_scales`.
    pub fn mxfp4_experts(&self, spec: &TensorSpec, check: Check) -> Result<StoredMatrix<'_>> {
        let module = self.name_in_file(module_of(&spec.name)).into_owned();
        let scheme = self.scheme(spec, &module)?;
        Finder { checkpoint: self, module: &module, spec, scheme, check }.mxfp4()
    }

    fn scheme(&self, spec: &TensorSpec, module: &str) -> Result<Scheme> {
        let published = match &self.quantisation {
            Some(Quantisation::Published(published)) => Some(published),
            _ => None,
        };
        let names = [module_of(&spec.name), module];
        let lacks_scheme = || {
            let expected = "F32, F16 or BF16, or a scheme for its codes in config.json's quantization_config";
            Error::tensor(self.path(), module, expected, "codes without one")
        };
        published.and_then(|published| published.scheme_of(&names)).copied().ok_or_else(lacks_scheme)
    }

    fn dense_matrix(&self, spec: &TensorSpec, check: Check) -> Result<StoredMatrix<'_>> {
        let (tensor, dtype) = self.locate(spec)?;
        let (rows, cols) = (spec.rows(), spec.cols());
        let part = match (self.made_format(spec), tensor.info.data) {
            (None, TensorData::Device(bytes)) => StoredPart::Device(DeviceView { dtype, rows, cols, bytes }),
            (None, TensorData::Host(bytes)) => StoredPart::Dense(WeightView { dtype, rows, cols, bytes }),
            // Codes are made by the host.
            (Some(format), _) => {
                let view = WeightView { dtype, rows, cols, bytes: tensor.bytes()? };
                if check == Check::Values {
                    self.refuse_nan(&view, spec)?;
                }
                StoredPart::Quantised(QuantView::of(format, rows, cols, QuantSource::Dense(view)))
            }
        };
        Ok(StoredMatrix { part, order: None, tensors: vec![tensor] })
    }
}

/// Finds the tensors of one module.
struct Finder<'a, 'b> {
    checkpoint: &'a Checkpoint<'a>,
    module: &'b str,
    spec: &'b TensorSpec,
    scheme: Scheme,
    check: Check,
}

impl<'a> Finder<'a, '_> {
    fn rows(&self) -> usize {
        self.spec.rows()
    }

    fn cols(&self) -> usize {
        self.spec.cols()
    }

    fn error(&self, tensor: Option<Tensor<'_>>, suffix: &str, expected: String, found: String) -> Error {
        let path = tensor.map_or(self.checkpoint.path(), |tensor| tensor.path());
        Error::tensor(path, format!("{}{suffix}", self.module), expected, found)
    }

    /// A tensor that must be there with one of these types and shapes; the first shape is said.
    fn find(&self, suffix: &str, what: &str, types: &[safetensors::Dtype], shapes: &[&[usize]]) -> Result<Tensor<'a>> {
        let types_said: Vec<String> = types.iter().map(|kind| format!("{kind:?}")).collect();
        let expected = || format!("{what}: {} of shape {:?}", types_said.join(" or "), shapes[0]);
        let Some(tensor) = self.checkpoint.tensor(&format!("{}{suffix}", self.module)) else {
            return Err(self.error(None, suffix, expected(), "nothing".to_owned()));
        };
        if types.contains(&tensor.info.dtype) && shapes.contains(&tensor.info.shape) {
            return Ok(tensor);
        }
        let found = format!("{:?} of shape {:?}", tensor.info.dtype, tensor.info.shape);
        Err(self.error(Some(tensor), suffix, expected(), found))
    }

    fn has(&self, suffix: &str) -> bool {
        self.checkpoint.tensor(&format!("{}{suffix}", self.module)).is_some()
    }

    /// Scales of these shapes, none of them zero, infinite or NaN.
    fn scales(&self, suffix: &str, what: &str, shapes: &[&[usize]]) -> Result<(Tensor<'a>, WeightView<'a>)> {
        use safetensors::Dtype::{BF16, F16, F32};
        let tensor = self.find(suffix, what, &[F32, F16, BF16], shapes)?;
        let dtype = tensor.dtype().expect("these types are dense");
        let view = WeightView { dtype, rows: 1, cols: tensor.info.shape.iter().product(), bytes: tensor.bytes()? };
        if self.check == Check::Values {
            let bad = (0..view.cols).find(|&i| !view.get(i).is_finite() || view.get(i) == 0.0);
            if let Some(i) = bad {
                let found = format!("{} at place {i}", view.get(i));
                return Err(self.error(Some(tensor), suffix, "scales that are finite and not zero".to_owned(), found));
            }
        }
        Ok((tensor, view))
    }

    /// Checks that groups of inputs divide all of them, and returns their number.
    fn groups(&self, suffix: &str) -> Result<usize> {
        let (group, cols) = (self.scheme.format.group_inputs(self.cols()), self.cols());
        if group == 0 || !cols.is_multiple_of(group) {
            let expected = format!("inputs in groups of {group}, as config.json's quantization_config says");
            return Err(self.error(None, suffix, expected, format!("{cols} inputs")));
        }
        Ok(cols / group)
    }

    /// Checks that eight outputs, or inputs, fill a word.
    fn words(&self, suffix: &str, count: usize, what: &str) -> Result<usize> {
        if !count.is_multiple_of(8) {
            return Err(self.error(None, suffix, format!("{what} in words of eight"), format!("{count} {what}")));
        }
        Ok(count / 8)
    }

    fn stored(
        &self,
        source: QuantSource<'a>,
        tensors: Vec<Tensor<'a>>,
        order: Option<Vec<u32>>,
        static_scale: Option<f32>,
    ) -> StoredMatrix<'a> {
        let view = QuantView::of(self.scheme.format, self.rows(), self.cols(), source);
        let activations = ActivationScale { fixed: static_scale, most: self.scheme.most };
        StoredMatrix { part: StoredPart::Quantised(QuantView { activations, ..view }), order, tensors }
    }

    fn bytes(&self, block: Option<[usize; 2]>) -> Result<StoredMatrix<'a>> {
        use safetensors::Dtype::{F8_E4M3, I8};
        let (rows, cols) = (self.rows(), self.cols());
        let is_fp8 = self.scheme.format.codes == offshoot_backend::CodeFormat::Fp8;
        let codes = self.find(".weight", "codes", &[if is_fp8 { F8_E4M3 } else { I8 }], &[&[rows, cols]])?;
        if self.check == Check::Values && is_fp8 {
            let nan = codes.bytes()?.par_chunks(1 << 16).any(|part| part.iter().any(|code| code & 0x7f == 0x7f));
            if nan {
                let expected = "codes that are numbers".to_owned();
                return Err(self.error(Some(codes), ".weight", expected, "NaN".to_owned()));
            }
        }
        self.no_zero_points()?;
        let suffix = |names: [&str; 2], missing: usize| {
            let found = names.into_iter().find(|name| self.has(&format!(".{name}")));
            format!(".{}", found.unwrap_or(names[missing]))
        };
        // What is missing is named as its form has it.
        let name = suffix(SCALE_NAMES, usize::from(block.is_none()));
        let (scales, source) = match block {
            Some([block_rows, block_cols]) => {
                let shape = [rows.div_ceil(block_rows), cols.div_ceil(block_cols)];
                let what = format!("a scale for each block of {block_rows} x {block_cols}");
                let (tensor, scales) = self.scales(&name, &what, &[&shape])?;
                (tensor, ScaleSource { scales, block_rows, block_cols })
            }
            None => {
                let shapes: [&[usize]; 4] = [&[rows, 1], &[rows], &[], &[1]];
                let (tensor, scales) = self.scales(&name, "a scale for each output, or one for all", &shapes)?;
                let block_rows = if scales.cols == rows { 1 } else { rows.max(1) };
                (tensor, ScaleSource { scales, block_rows, block_cols: cols.max(1) })
            }
        };
        let mut tensors = vec![codes, scales];
        let static_scale = match self.scheme.format.rounding {
            Rounding::Static { .. } => {
                let name = suffix(INPUT_SCALE_NAMES, 0);
                let (tensor, scales) = self.scales(&name, "the scale of its activations", &[&[], &[1]])?;
                let scale = scales.get(0);
                if self.check == Check::Values && (!scale.is_normal() || scale < 0.0) {
                    let expected = "a positive scale, no less than 1.2e-38".to_owned();
                    return Err(self.error(Some(tensor), &name, expected, scale.to_string()));
                }
                tensors.push(tensor);
                Some(scale)
            }
            Rounding::Exact | Rounding::Dynamic { .. } => None,
        };
        let source = QuantSource::Bytes { codes: codes.bytes()?, scales: source };
        Ok(self.stored(source, tensors, None, static_scale))
    }

    /// Symmetric codes may have zero points beside them, all zero.
    fn no_zero_points(&self) -> Result<()> {
        const NAME: &str = ".weight_zero_point";
        match self.checkpoint.tensor(&format!("{}{NAME}", self.module)) {
            Some(zeros) if self.check == Check::Values && zeros.bytes()?.iter().any(|&byte| byte != 0) => {
                let expected = "zeros, as config.json's scheme is symmetric".to_owned();
                Err(self.error(Some(zeros), NAME, expected, "other zero points".to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn awq(&self) -> Result<StoredMatrix<'a>> {
        use safetensors::Dtype::I32;
        let (rows, cols) = (self.rows(), self.cols());
        let (groups, across) = (self.groups(".qweight")?, self.words(".qweight", rows, "outputs")?);
        let words = self.find(".qweight", "codes", &[I32], &[&[cols, across]])?;
        let zeros = self.find(".qzeros", "zero points", &[I32], &[&[groups, across]])?;
        let (scales, view) = self.scales(".scales", "scales", &[&[groups, rows]])?;
        let source = QuantSource::Awq { words: words.bytes()?, zeros: zeros.bytes()?, scales: view };
        Ok(self.stored(source, vec![words, zeros, scales], None, None))
    }

    fn gptq(&self, zero_offset: u8) -> Result<StoredMatrix<'a>> {
        use safetensors::Dtype::I32;
        let (rows, cols) = (self.rows(), self.cols());
        let (groups, down) = (self.groups(".qweight")?, self.words(".qweight", cols, "inputs")?);
        let across = self.words(".qzeros", rows, "outputs")?;
        let words = self.find(".qweight", "codes", &[I32], &[&[down, rows]])?;
        let zeros = self.find(".qzeros", "zero points", &[I32], &[&[groups, across]])?;
        let (scales, view) = self.scales(".scales", "scales", &[&[groups, rows]])?;
        let mut tensors = vec![words, zeros, scales];
        let order = self.order(".g_idx", groups, &mut tensors)?;
        let source = QuantSource::Gptq { words: words.bytes()?, zeros: zeros.bytes()?, zero_offset, scales: view };
        Ok(self.stored(source, tensors, order, None))
    }

    fn packed(&self) -> Result<StoredMatrix<'a>> {
        use safetensors::Dtype::I32;
        let (rows, cols) = (self.rows(), self.cols());
        let groups = self.groups(".weight_packed")?;
        let words = self.find(".weight_packed", "codes", &[I32], &[&[rows, cols.div_ceil(8)]])?;
        let (scales, view) = self.scales(".weight_scale", "scales", &[&[rows, groups]])?;
        let mut tensors = vec![words, scales];
        let zeros = match self.scheme.format.zeros {
            true => {
                let shape = [rows.div_ceil(8), groups];
                let zeros = self.find(".weight_zero_point", "zero points", &[I32], &[&shape])?;
                tensors.push(zeros);
                Some(zeros.bytes()?)
            }
            false => {
                self.no_zero_points()?;
                None
            }
        };
        let order = self.order(".weight_g_idx", groups, &mut tensors)?;
        let source = QuantSource::Packed { words: words.bytes()?, scales: view, zeros };
        Ok(self.stored(source, tensors, order, None))
    }

    /// The inputs in the order of their groups, if the checkpoint has a group for each input that is not that of its
    /// place.
    fn order(&self, suffix: &str, groups: usize, tensors: &mut Vec<Tensor<'a>>) -> Result<Option<Vec<u32>>> {
        let (cols, types) = (self.cols(), [safetensors::Dtype::I32, safetensors::Dtype::I64]);
        if !self.has(suffix) {
            return Ok(None);
        }
        let tensor = self.find(suffix, "the group of each input", &types, &[&[cols]])?;
        tensors.push(tensor);
        if self.check == Check::Shapes {
            return Ok(None);
        }
        let of_groups: Vec<i64> = match tensor.info.dtype {
            safetensors::Dtype::I32 => {
                let groups = tensor.bytes()?.as_chunks::<4>().0.iter();
                groups.map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect()
            }
            _ => tensor.bytes()?.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect(),
        };
        // compressed-tensors writes -1 where inputs are in order.
        if of_groups.iter().all(|&group| group == -1) {
            return Ok(None);
        }
        let size = cols / groups.max(1);
        let mut order: Vec<u32> = (0..cols as u32).collect();
        order.sort_by_key(|&k| of_groups[k as usize]);
        let fits = order.iter().enumerate().all(|(place, &k)| of_groups[k as usize] == (place / size) as i64);
        if !fits {
            let expected = format!("{groups} groups from 0 on, each of {size} inputs");
            return Err(self.error(Some(tensor), suffix, expected, "other groups".to_owned()));
        }
        Ok((!order.is_sorted()).then_some(order))
    }

    fn mxfp4(&self) -> Result<StoredMatrix<'a>> {
        use safetensors::Dtype::{F8_E8M0, U8};
        let (groups, cols) = (self.groups("_blocks")?, self.cols());
        let mut shape: Vec<usize> = self.spec.shape.iter().map(|dim| dim.size).collect();
        shape.pop();
        let mut blocks = shape.clone();
        shape.push(groups);
        blocks.extend([groups, cols / groups.max(1) / 2]);
        let bytes = self.find("_blocks", "codes", &[U8], &[&blocks])?;
        let scales = self.find("_scales", "scales", &[U8, F8_E8M0], &[&shape])?;
        if self.check == Check::Values
            && let Some(i) = scales.bytes()?.iter().position(|&scale| !(6.0 * power_of_two(scale)).is_finite())
        {
            // The largest code is 6.
            let expected = "powers of two, 0 to 252, by which all codes are finite".to_owned();
            return Err(self.error(Some(scales), "_scales", expected, format!("{} at place {i}", scales.bytes()?[i])));
        }
        let source = QuantSource::Mxfp4 { bytes: bytes.bytes()?, scales: scales.bytes()? };
        Ok(self.stored(source, vec![bytes, scales], None, None))
    }

    fn nvfp4(&self, form: Nvfp4Form) -> Result<StoredMatrix<'a>> {
        use safetensors::Dtype::{F8_E4M3, F32, U8};
        let (codes_name, factor_name) = match form {
            Nvfp4Form::CompressedTensors => (".weight_packed", ".weight_global_scale"),
            Nvfp4Form::ModelOpt => (".weight", ".weight_scale_2"),
        };
        let (rows, groups) = (self.rows(), self.groups(codes_name)?);
        let bytes = self.find(codes_name, "codes, two in a byte", &[U8], &[&[rows, self.cols() / 2]])?;
        let scales = self.find(".weight_scale", "scales", &[F8_E4M3], &[&[rows, groups]])?;
        let given = self.find(factor_name, "a scale for all", &[F32], &[&[], &[1]])?;
        let number = given.bytes()?.first_chunk().map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes));
        let factor = if form == Nvfp4Form::CompressedTensors { 1.0 / number } else { number };
        if self.check == Check::Values {
            // The largest scale is 448, and the largest code 6.
            if !factor.is_normal() || factor < 0.0 || !(6.0 * 448.0 * factor).is_finite() {
                let expected = "a positive scale by which all numbers are finite".to_owned();
                return Err(self.error(Some(given), factor_name, expected, number.to_string()));
            }
            // The sign is the highest bit, and NaN all others.
            if let Some(i) = scales.bytes()?.iter().position(|&scale| scale >= 0x7f) {
                let expected = "scales from 0 on".to_owned();
                let found = format!("{} at place {i}", e4m3_value(scales.bytes()?[i]));
                return Err(self.error(Some(scales), ".weight_scale", expected, found));
            }
        }
        let source = QuantSource::Nvfp4 { bytes: bytes.bytes()?, scales: scales.bytes()?, factor };
        Ok(self.stored(source, vec![bytes, scales, given], None, None))
    }
}
