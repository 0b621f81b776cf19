//! cuBLASLt in a thin safe layer: a product of one shape is described once and then enqueued any number of times, also
//! while a graph is captured. `candidates` lists its algorithms; `gemm` defines the products.
//!
//! The library is column-major: a row-major `[rows, width]` matrix is its `[width, rows]`. So it computes
//! `out[N, R] = w[K, N]^T x[K, R]`, which is the row-major `out[R, N] = x[R, K] w[N, K]^T`.

use std::ffi::c_void;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as DescAttribute;
use cudarc::cublaslt::sys::cublasLtMatmulMatrixScale_t as MatrixScale;
use cudarc::cublaslt::sys::cublasLtMatrixLayoutAttribute_t as LayoutAttribute;
use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use crate::compile::elements::Fp8Scaling;
use crate::driver::device::Device;
use crate::driver::memory::{ALIGNED, Memory};
use offshoot_backend::{Dtype, WeightFormat};
use offshoot_core::error::{Error, Result};

/// `CUBLAS_OP_T`, which the bindings lack. By default operands are not transposed.
const TRANSPOSED: i32 = 1;

/// `out[rows, outputs] = x[rows, inner] w[outputs, inner]^T`, plus `out` itself (`accumulate`), plus a bias of the
/// dtype of `out` (`biased`). `w` is stored in `weights`, `x` is of the dtype `compute`, sums are f32. Where `weights`
/// are e4m3, `x` is e4m3 too, whatever `compute` is, and both have scales in f32 (`GemmScales`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GemmShape {
    pub rows: usize,
    pub outputs: usize,
    pub inner: usize,
    pub weights: WeightFormat,
    pub compute: Dtype,
    pub out: Dtype,
    pub accumulate: bool,
    pub biased: bool,
}

impl GemmShape {
    pub fn weight_bytes(&self) -> usize {
        self.weights.bytes(self.outputs, self.inner)
    }

    /// Bytes of `x`, unless it is e4m3.
    pub fn x_bytes(&self) -> usize {
        self.rows * self.inner * self.compute.bytes()
    }

    pub fn out_bytes(&self) -> usize {
        self.rows * self.outputs * self.out.bytes()
    }
}

/// What the library multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    Dense(Dtype),
    E4m3(Fp8Scaling),
}

impl Elements {
    /// The elements of weights, which are of a format that the library multiplies.
    fn of(weights: WeightFormat) -> Self {
        match weights.dense() {
            Some(element) => Elements::Dense(element),
            None => {
                let scaling = Fp8Scaling::of(weights, HOPPER);
                Elements::E4m3(scaling.expect("the library multiplies dense matrices and e4m3"))
            }
        }
    }
}

/// The compute capability of the GPUs on which it multiplies e4m3 here.
const HOPPER: u32 = 9;

/// The first version that has scales for rows and blocks of e4m3.
const SCALES_FROM: usize = 120_900;

/// Scales of operands of e4m3: f32, one for each output and row; or by blocks, those of the weights for each 128 x 128
/// of them (`Fp8Scales::compact`), those of rows `[ceil(inner / 128), rows]`.
#[derive(Clone, Copy)]
pub(super) struct GemmScales<'a> {
    pub w: &'a Memory,
    pub x: &'a Memory,
}

/// The memory of one product's operands.
#[derive(Clone, Copy)]
pub(super) struct GemmOperands<'a> {
    pub out: &'a Memory,
    pub x: &'a Memory,
    pub w: &'a Memory,
    /// Present if the shape is biased.
    pub bias: Option<&'a Memory>,
    /// Present if the weights are e4m3.
    pub scales: Option<GemmScales<'a>>,
}

/// Products of one shape that are enqueued as one: of columns of a wider operand `x`, each with a matrix and an output
/// of its own. Distances are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PartsLayout {
    pub parts: usize,
    /// From one row of `x` to the next, and from one part's columns to the next one's.
    pub rows_apart: usize,
    pub x_apart: usize,
    /// From one part's weights to the next one's, and how they lie.
    pub weights_apart: usize,
    pub order: WeightOrder,
    /// From one part's output to the next one's, and from one row of an output to the next.
    pub outs_apart: usize,
    pub out_rows_apart: usize,
}

/// How the weights of a product lie, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightOrder {
    /// `[outputs, inner]`
    ByOutput,
    /// `[inner, outputs]`
    ByInput,
}

/// The library's handle, and one workspace for all products, which run one after another, but for those of a branch,
/// which have another one: made before the first of them, as no memory is taken while a graph is captured.
pub struct Library {
    device: Device,
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
    of_branch: Option<Memory>,
}

/// A product of one shape as the library sees it.
pub(super) struct Description {
    shape: GemmShape,
    /// `None`: one product.
    layout: Option<PartsLayout>,
    operation: Operation,
    w: MatrixLayout,
    x: MatrixLayout,
    out: MatrixLayout,
}

struct Operation(sys::cublasLtMatmulDesc_t);
struct MatrixLayout(sys::cublasLtMatrixLayout_t);

/// The library's own handles of a description.
pub(super) struct Raw {
    pub operation: sys::cublasLtMatmulDesc_t,
    pub w: sys::cublasLtMatrixLayout_t,
    pub x: sys::cublasLtMatrixLayout_t,
    pub out: sys::cublasLtMatrixLayout_t,
}

// SAFETY: the handle may be used from any thread; nothing else refers to the descriptors.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Send for Description {}

impl Library {
    pub fn open(device: &Device) -> Result<Self> {
        // NVIDIA recommends 32 MiB; twice that on Hopper and later.
        let workspace = device.alloc(if device.facts().major >= 9 { 64 << 20 } else { 32 << 20 })?;
        let handle = bound(device, "open cuBLASLt", result::create_handle)?;
        Ok(Self { device: device.clone(), handle, workspace, of_branch: None })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of memory that an algorithm may use.
    pub fn workspace_bytes(&self) -> usize {
        self.workspace.bytes()
    }

    /// Makes the workspace of products of a branch, unless it is there.
    pub fn reserve_branch(&mut self) -> Result<()> {
        if self.of_branch.is_none() {
            self.of_branch = Some(self.device.alloc(self.workspace.bytes())?);
        }
        Ok(())
    }

    /// The workspace of a product that is enqueued now.
    fn workspace(&self) -> &Memory {
        match self.device.is_in_branch() {
            true => self.of_branch.as_ref().expect("libraries have it where there is a branch (`reserve_at_once`)"),
            false => &self.workspace,
        }
    }

    /// 130002 is 13.0.2.
    pub fn version() -> usize {
        // SAFETY: the library is open before a device is; the call reads a constant.
        unsafe { sys::cublasLtGetVersion() }
    }

    /// Whether it has scales for rows and blocks of e4m3.
    pub fn scales_e4m3() -> bool {
        Self::version() >= SCALES_FROM
    }

    /// Calls the library with the device's context current.
    pub fn call<T>(
        &self,
        doing: &str,
        call: impl FnOnce(sys::cublasLtHandle_t) -> Result<T, CublasError>,
    ) -> Result<T> {
        bound(&self.device, doing, || call(self.handle))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made in `open`, destroyed once. The driver's context outlives it through `device`.
        let destroyed = bound(&self.device, "close cuBLASLt", || unsafe { result::destroy_handle(self.handle) });
        if let Err(error) = destroyed {
            log::warn!("{error}");
        }
    }
}

impl Description {
    /// `layout`: of several products of this shape.
    pub fn new(library: &Library, shape: GemmShape, layout: Option<PartsLayout>) -> Result<Self> {
        library.call("describe a product", |_| {
            let GemmShape { rows, outputs, inner, weights, compute, out, .. } = shape;
            let elements = Elements::of(weights);
            let order = layout.map_or(WeightOrder::ByOutput, |layout| layout.order);
            let operation = Operation::new(&shape, elements, order, library.workspace.address())?;
            let (w, x) = match elements {
                Elements::Dense(element) => (data_type(element), data_type(compute)),
                Elements::E4m3(_) => (sys::cudaDataType::CUDA_R_8F_E4M3, sys::cudaDataType::CUDA_R_8F_E4M3),
            };
            let (x_rows, out_rows) =
                layout.map_or((inner, outputs), |layout| (layout.rows_apart, layout.out_rows_apart));
            let w = match order {
                WeightOrder::ByOutput => MatrixLayout::new(w, inner, outputs, inner)?,
                WeightOrder::ByInput => MatrixLayout::new(w, outputs, inner, outputs)?,
            };
            let x = MatrixLayout::new(x, inner, rows, x_rows)?;
            let out = MatrixLayout::new(data_type(out), outputs, rows, out_rows)?;
            if let Some(PartsLayout { parts, x_apart, weights_apart, outs_apart, .. }) = layout {
                w.repeat(parts, weights_apart)?;
                x.repeat(parts, x_apart)?;
                out.repeat(parts, outs_apart)?;
            }
            Ok(Self { shape, layout, operation, w, x, out })
        })
    }

    pub fn shape(&self) -> &GemmShape {
        &self.shape
    }

    /// Bytes to which every part's weights, `x` and output are aligned: distances alone limit it.
    pub fn aligned(&self) -> [usize; 3] {
        let Some(PartsLayout { x_apart, weights_apart, outs_apart, .. }) = self.layout else { return [ALIGNED; 3] };
        let GemmShape { weights, compute, out, .. } = self.shape;
        let weights = weights_apart * weights.dense().map_or(1, Dtype::bytes);
        [weights, x_apart * compute.bytes(), outs_apart * out.bytes()].map(common_alignment)
    }

    pub fn raw(&self) -> Raw {
        Raw { operation: self.operation.0, w: self.w.0, x: self.x.0, out: self.out.0 }
    }

    /// Enqueues it with an algorithm that `candidates` found valid for it. Panics if an operand's memory is too small.
    /// Of several products, weights and output are those of the first: that those of the others lie as the layout says
    /// is left to the caller.
    pub fn enqueue(&self, library: &Library, algorithm: &Algorithm, operands: &GemmOperands<'_>) -> Result<()> {
        let GemmShape { rows, outputs, inner, weights, compute, out, accumulate, biased } = self.shape;
        let (x_bytes, w_bytes) = match Elements::of(weights) {
            Elements::Dense(element) => (compute.bytes(), element.bytes()),
            Elements::E4m3(_) => (1, 1),
        };
        let layout = |layout: PartsLayout| (layout.rows_apart, (layout.parts - 1) * layout.x_apart);
        let (rows_apart, last_part) = self.layout.map_or((inner, 0), layout);
        let x_end = (rows.saturating_sub(1) * rows_apart + last_part + inner) * x_bytes;
        assert!(rows > 0 && operands.x.bytes() >= x_end, "x of {:?}", self.shape);
        assert!(operands.w.bytes() >= outputs * inner * w_bytes, "w of {:?}", self.shape);
        assert_eq!(operands.scales.is_some(), weights.dense().is_none(), "scales of {:?}", self.shape);
        assert!(operands.out.bytes() >= self.shape.out_bytes(), "out of {:?}", self.shape);
        assert_eq!(operands.bias.is_some(), biased, "bias of {:?}", self.shape);
        assert!(operands.bias.is_none_or(|bias| bias.bytes() >= outputs * out.bytes()), "bias of {:?}", self.shape);
        let (alpha, beta) = (1f32, if accumulate { 1f32 } else { 0f32 });
        let address = |memory: &Memory| memory.address() as *mut c_void;
        let (algorithm, workspace) = (algorithm.raw(), library.workspace());
        library.call("enqueue a product", |handle| {
            if let Some(bias) = operands.bias {
                self.operation.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address())?;
            }
            if let Some(GemmScales { w, x }) = operands.scales {
                self.operation.set(DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w.address())?;
                self.operation.set(DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x.address())?;
            }
            // SAFETY: descriptors and memory live and are as large as the descriptors say (asserted above); both
            // scalars are read before the call returns; the workspace is as large as the algorithm was told.
            unsafe {
                result::matmul(
                    handle,
                    self.operation.0,
                    std::ptr::from_ref(&alpha).cast(),
                    std::ptr::from_ref(&beta).cast(),
                    address(operands.w),
                    self.w.0,
                    address(operands.x),
                    self.x.0,
                    address(operands.out),
                    self.out.0,
                    address(operands.out),
                    self.out.0,
                    &algorithm,
                    address(workspace),
                    workspace.bytes(),
                    library.device.stream().cast(),
                )
            }
        })
    }
}

impl Operation {
    /// `somewhere`: an address in device memory, aligned to 16.
    fn new(shape: &GemmShape, elements: Elements, order: WeightOrder, somewhere: u64) -> Result<Self, CublasError> {
        // Plain f32 sums; of f32 operands no tensor-core approximation. Of e4m3 the tensor cores' sums are added in f32
        // now and then (`CUBLASLT_MATMUL_DESC_FAST_ACCUM` is off unless it is set).
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let this = Self(result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?);
        if order == WeightOrder::ByOutput {
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED)?;
        }
        if shape.biased {
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(shape.out))?;
        }
        if let Elements::E4m3(scaling) = elements {
            let (w, x) = match scaling {
                Fp8Scaling::Rows => (
                    MatrixScale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                    MatrixScale::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
                ),
                Fp8Scaling::Blocks => (
                    MatrixScale::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
                    MatrixScale::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                ),
            };
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w)?;
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x)?;
            // Algorithms are asked for before the scales are known; without any, others are listed.
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, somewhere)?;
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, somewhere)?;
        }
        Ok(this)
    }

    fn set<T: Copy>(&self, attribute: DescAttribute, value: T) -> Result<(), CublasError> {
        // SAFETY: the descriptor lives; the library copies `value`, whose type is the attribute's.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, std::ptr::from_ref(&value).cast(), size_of::<T>())
        }
    }
}

impl MatrixLayout {
    /// `columns` columns of `width` elements, which begin `apart` elements from each other.
    fn new(element: sys::cudaDataType, width: usize, columns: usize, apart: usize) -> Result<Self, CublasError> {
        let stride = i64::try_from(apart).expect("a width is far below 2^63");
        result::create_matrix_layout(element, width as u64, columns as u64, stride).map(Self)
    }

    /// As many such matrices, each `apart` elements behind the one before.
    fn repeat(&self, times: usize, apart: usize) -> Result<(), CublasError> {
        let times = i32::try_from(times).expect("parts of a sum are few");
        let apart = i64::try_from(apart).expect("device memory is far below 2^63");
        self.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, times)?;
        self.set(LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, apart)
    }

    fn set<T: Copy>(&self, attribute: LayoutAttribute, value: T) -> Result<(), CublasError> {
        // SAFETY: the layout lives; the library copies `value`, whose type is the attribute's.
        unsafe {
            result::set_matrix_layout_attribute(self.0, attribute, std::ptr::from_ref(&value).cast(), size_of::<T>())
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log_failure(unsafe { result::destroy_matmul_desc(self.0) });
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log_failure(unsafe { result::destroy_matrix_layout(self.0) });
    }
}

/// The largest power of two up to [`ALIGNED`] that divides `bytes`.
fn common_alignment(bytes: usize) -> usize {
    1 << bytes.trailing_zeros().min(ALIGNED.trailing_zeros())
}

/// For `drop`, which cannot return an error: logs it.
pub(super) fn log_failure(result: Result<(), CublasError>) {
    if let Err(CublasError(status)) = result {
        log::warn!("cannot free a descriptor of cuBLASLt: {status:?}");
    }
}

fn data_type(dtype: Dtype) -> sys::cudaDataType {
    match dtype {
        Dtype::F32 => sys::cudaDataType::CUDA_R_32F,
        Dtype::F16 => sys::cudaDataType::CUDA_R_16F,
        Dtype::Bf16 => sys::cudaDataType::CUDA_R_16BF,
    }
}

/// Calls the library with the device's context current.
fn bound<T>(device: &Device, doing: &str, call: impl FnOnce() -> Result<T, CublasError>) -> Result<T> {
    device.bind().map_err(|error| device.error(doing, error))?;
    call().map_err(|CublasError(status)| Error::Cuda {
        device: device.name(),
        doing: doing.to_string(),
        why: format!("cuBLASLt answers {status:?}"),
    })
}
