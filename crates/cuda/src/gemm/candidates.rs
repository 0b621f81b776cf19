//! The algorithms of cuBLASLt that are valid for a product: its own list, and those that it does not list.

use std::mem::MaybeUninit;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;
use cudarc::cublaslt::sys::cublasStatus_t as Status;

use super::algorithm::{Algorithm, REDUCTION};
use super::cublaslt::{Description, Library, Raw, log_failure};
use offshoot_core::error::Result;

/// An algorithm that is valid for a product.
#[derive(Clone, Copy)]
pub(super) struct AlgorithmCandidate {
    pub algorithm: Algorithm,
    /// Waves: how many times its thread blocks fill the device.
    pub waves: f32,
}

impl Description {
    /// At most `most` algorithms that need at most `workspace` bytes, in the library's order of preference. The same in
    /// every run: nothing is timed, and operands are aligned as the description says.
    pub(super) fn listed(&self, library: &Library, most: usize, workspace: usize) -> Result<Vec<AlgorithmCandidate>> {
        library.call("ask for algorithms", |handle| {
            let preference = Preference::new(workspace, self.aligned())?;
            let Raw { operation, w, x, out } = self.raw();
            let mut found = vec![MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed(); most];
            let mut count = 0;
            // SAFETY: handle and descriptors live; at most `most` results and one count are written.
            let status = unsafe {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    handle,
                    operation,
                    w,
                    x,
                    out,
                    out,
                    preference.0,
                    i32::try_from(most).unwrap_or(i32::MAX),
                    found.as_mut_ptr().cast(),
                    &mut count,
                )
            };
            match status {
                Status::CUBLAS_STATUS_SUCCESS => {}
                // The library has no algorithm for this combination of types, strides and epilogue.
                Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_INVALID_VALUE => return Ok(Vec::new()),
                _ => return Err(CublasError(status)),
            }
            let written = &found[..usize::try_from(count).unwrap_or(0)];
            // SAFETY: the library has written the first `count`; one without success is not looked at further.
            let written = written.iter().map(|result| unsafe { result.assume_init_ref() });
            Ok(written.filter_map(|result| candidate(result, workspace)).collect())
        })
    }

    /// `algorithm` as a candidate; `None` if it is not valid for this product, device and `workspace` in bytes.
    pub(super) fn fit(&self, library: &Library, algorithm: Algorithm, workspace: usize) -> Option<AlgorithmCandidate> {
        let checked = library.call("check an algorithm", |handle| {
            let Raw { operation, w, x, out } = self.raw();
            let raw = algorithm.raw();
            let mut result = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
            // SAFETY: handle and descriptors live; one result is written.
            let status =
                unsafe { sys::cublasLtMatmulAlgoCheck(handle, operation, w, x, out, out, &raw, result.as_mut_ptr()) };
            status.result()?;
            // SAFETY: written by the call that succeeded.
            Ok(unsafe { result.assume_init() })
        });
        // The check fills in the requirements; the algorithm stays the requested one.
        let checked = sys::cublasLtMatmulHeuristicResult_t { algo: algorithm.raw(), ..checked.ok()? };
        candidate(&checked, workspace)
    }
}

fn candidate(result: &sys::cublasLtMatmulHeuristicResult_t, workspace: usize) -> Option<AlgorithmCandidate> {
    let fits = result.state == Status::CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace;
    fits.then_some(AlgorithmCandidate { algorithm: Algorithm(result.algo.data), waves: result.wavesCount })
}

struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    /// `aligned`: bytes to which weights, `x` and output are.
    fn new(workspace: usize, aligned: [usize; 3]) -> Result<Self, CublasError> {
        let this = Self(result::create_matmul_pref()?);
        let [w, x, out] = aligned.map(|bytes| bytes as u32);
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, w)?;
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x)?;
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out)?;
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out)?;
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace)?;
        this.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, REDUCTION as u32)?;
        Ok(this)
    }

    fn set<T: Copy>(&self, attribute: PreferenceAttribute, value: T) -> Result<(), CublasError> {
        // SAFETY: the preference lives; the library copies `value`, whose type is the attribute's.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, std::ptr::from_ref(&value).cast(), size_of::<T>())
        }
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        log_failure(unsafe { result::destroy_matmul_pref(self.0) });
    }
}
