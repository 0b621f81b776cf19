//! cuBLASLt in a thin safe layer: a product of one shape is described once, its algorithm chosen once, and then enqueued any
//! number of times, also while a graph is captured. Which products there are is `gemm`'s affair.
//!
//! The library thinks in columns: a row-major `[rows, width]` matrix is its `[width, rows]`. So it is asked for
//! `out[N, R] = w[K, N]^T x[K, R]`, which is the row-major `out[R, N] = x[R, K] w[N, K]^T`.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t as DescAttribute;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;
use cudarc::cublaslt::sys::cublasStatus_t as Status;

use super::device::Device;
use super::memory::Memory;
use crate::backend::Dtype;
use crate::error::{Error, Result};

/// Candidates that the heuristic is asked for; the first that fits is taken.
const CANDIDATES: usize = 8;

/// `CUBLAS_OP_T`, which the bindings lack; an operand is taken as it is unless told otherwise.
const TRANSPOSED: i32 = 1;

/// `out[rows, outputs] = x[rows, inner] w[outputs, inner]^T`, plus `out` itself (`accumulate`), plus a bias of the dtype of
/// `out` (`biased`). `x` and `w` are of `element`, sums are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub rows: usize,
    pub outputs: usize,
    pub inner: usize,
    pub element: Dtype,
    pub out: Dtype,
    pub accumulate: bool,
    pub biased: bool,
}

/// The memory of one product's operands.
pub(super) struct Operands<'a> {
    pub out: &'a Memory,
    pub x: &'a Memory,
    pub w: &'a Memory,
    /// Present where the shape is biased.
    pub bias: Option<&'a Memory>,
}

/// The library's handle, and memory for algorithms that need some: products run one after another, so one serves all.
pub(super) struct Library {
    device: Device,
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
}

/// A product of one shape, ready to enqueue.
pub(super) struct Product {
    shape: Shape,
    operation: Operation,
    w: Layout,
    x: Layout,
    out: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

struct Operation(sys::cublasLtMatmulDesc_t);
struct Layout(sys::cublasLtMatrixLayout_t);
struct Preference(sys::cublasLtMatmulPreference_t);

// SAFETY: the handle may be used from any thread; nothing else refers to the descriptors.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Send for Product {}

impl Library {
    pub fn open(device: &Device) -> Result<Self> {
        // NVIDIA's advice: 32 MiB, and on Hopper and later twice the 32 that it calls enough there.
        let workspace = device.alloc(if device.facts().major >= 9 { 64 << 20 } else { 32 << 20 })?;
        let handle = bound(device, "open cuBLASLt", result::create_handle)?;
        Ok(Self { device: device.clone(), handle, workspace })
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

impl Product {
    /// Describes the product and chooses its algorithm; `None` where the library has none. The same shape gets the same
    /// algorithm in every run: nothing is timed, and all operands are as aligned as device memory is (256 bytes, the library's
    /// assumption).
    pub fn plan(library: &Library, shape: Shape) -> Result<Option<Self>> {
        bound(&library.device, "describe a product", || {
            let Shape { rows, outputs, inner, element, out, .. } = shape;
            let operation = Operation::new(&shape)?;
            let (w, x) = (Layout::new(element, inner, outputs)?, Layout::new(element, inner, rows)?);
            let out = Layout::new(out, outputs, rows)?;
            let preference = Preference::new(library.workspace.bytes())?;
            let found = heuristic(library, &operation, [&w, &x, &out], &preference)?;
            Ok(found.map(|algorithm| Self { shape, operation, w, x, out, algorithm }))
        })
    }

    /// Enqueues it. Panics when an operand's memory is too small.
    pub fn enqueue(&self, library: &Library, operands: &Operands<'_>) -> Result<()> {
        let Shape { rows, outputs, inner, element, out, accumulate, biased } = self.shape;
        assert!(operands.x.bytes() >= rows * inner * element.bytes(), "x of {:?}", self.shape);
        assert!(operands.w.bytes() >= outputs * inner * element.bytes(), "w of {:?}", self.shape);
        assert!(operands.out.bytes() >= rows * outputs * out.bytes(), "out of {:?}", self.shape);
        assert_eq!(operands.bias.is_some(), biased, "bias of {:?}", self.shape);
        assert!(operands.bias.is_none_or(|bias| bias.bytes() >= outputs * out.bytes()), "bias of {:?}", self.shape);
        let (alpha, beta) = (1f32, if accumulate { 1f32 } else { 0f32 });
        let address = |memory: &Memory| memory.address() as *mut c_void;
        bound(&library.device, "enqueue a product", || {
            if let Some(bias) = operands.bias {
                self.operation.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.address())?;
            }
            // SAFETY: descriptors and memory live and are as large as the descriptors say (asserted above); both scalars are
            // read before the call returns; the workspace is as large as the algorithm was told.
            unsafe {
                result::matmul(
                    library.handle,
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
                    &self.algorithm,
                    address(&library.workspace),
                    library.workspace.bytes(),
                    library.device.stream().cast(),
                )
            }
        })
    }
}

/// The first of the library's candidates that fits the workspace.
fn heuristic(
    library: &Library,
    operation: &Operation,
    [w, x, out]: [&Layout; 3],
    preference: &Preference,
) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CublasError> {
    let mut candidates = [const { MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed() }; CANDIDATES];
    let mut count = 0;
    // SAFETY: handle and descriptors live; at most CANDIDATES results and one count are written.
    let status = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            library.handle,
            operation.0,
            w.0,
            x.0,
            out.0,
            out.0,
            preference.0,
            CANDIDATES as i32,
            candidates.as_mut_ptr().cast(),
            &mut count,
        )
    };
    match status {
        Status::CUBLAS_STATUS_SUCCESS => {}
        // How it says that it has nothing for this combination of types, strides and epilogue.
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE => return Ok(None),
        _ => return Err(CublasError(status)),
    }
    let written = &candidates[..usize::try_from(count).unwrap_or(0)];
    // SAFETY: the library has written the first `count`; an algorithm without success is not looked at further.
    let mut written = written.iter().map(|candidate| unsafe { candidate.assume_init_ref() });
    let fits = |candidate: &&sys::cublasLtMatmulHeuristicResult_t| {
        candidate.state == Status::CUBLAS_STATUS_SUCCESS && candidate.workspaceSize <= library.workspace.bytes()
    };
    Ok(written.find(fits).map(|candidate| candidate.algo))
}

impl Operation {
    fn new(shape: &Shape) -> Result<Self, CublasError> {
        // Plain f32 sums; of f32 operands no tensor-core approximation.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let this = Self(result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F)?);
        this.set(DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED)?;
        if shape.biased {
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS)?;
            this.set(DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(shape.out))?;
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

impl Layout {
    /// `width` elements a column, `columns` of them, without gaps.
    fn new(dtype: Dtype, width: usize, columns: usize) -> Result<Self, CublasError> {
        let stride = i64::try_from(width).expect("a width is far below 2^63");
        result::create_matrix_layout(data_type(dtype), width as u64, columns as u64, stride).map(Self)
    }
}

impl Preference {
    fn new(workspace: usize) -> Result<Self, CublasError> {
        let this = Self(result::create_matmul_pref()?);
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace)?;
        // Parts of a split sum are kept in f32 beside the output and added in order: exact as one sum is, and the same from
        // run to run.
        let in_f32 = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, in_f32)?;
        Ok(this)
    }

    fn set<T: Copy>(&self, attribute: PreferenceAttribute, value: T) -> Result<(), CublasError> {
        // SAFETY: the preference lives; the library copies `value`, whose type is the attribute's.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, std::ptr::from_ref(&value).cast(), size_of::<T>())
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log_failure(unsafe { result::destroy_matmul_desc(self.0) });
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log_failure(unsafe { result::destroy_matrix_layout(self.0) });
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log_failure(unsafe { result::destroy_matmul_pref(self.0) });
    }
}

fn log_failure(result: Result<(), CublasError>) {
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
