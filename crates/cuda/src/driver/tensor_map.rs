//! Tensor maps: how the copy engine of Hopper sees a matrix in device memory (kernels/tensor_map.cuh). An argument of a
//! kernel.

use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill as Fill,
    CUtensorMapInterleave as Interleave, CUtensorMapL2promotion as Promotion, CUtensorMapSwizzle as Swizzle,
};

use super::device::Device;
use super::memory::Memory;
use offshoot_core::error::Result;

/// A matrix `[rows, width]`, of which a kernel copies boxes of `box_rows` x `box_width` elements. What lies outside of
/// the matrix is zero.
#[derive(Clone, Copy, Debug)]
pub struct MatrixBoxes {
    pub element: BoxElement,
    pub rows: usize,
    pub width: usize,
    /// Bytes from a row to the next: a multiple of 16.
    pub apart: usize,
    /// At most 256.
    pub box_rows: usize,
    /// At most 256; a multiple of 16 bytes.
    pub box_width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxElement {
    /// Bytes; rows of a box are 128 of them, swizzled (kernels/attention/wgmma.cuh).
    SwizzledBytes,
    F32,
}

/// The driver's encoding.
#[derive(Clone, Copy, Debug)]
pub struct TensorMap([u64; TensorMap::WORDS]);

impl TensorMap {
    pub(super) const WORDS: usize = 16;

    /// The map of the matrix that begins at byte `at` of `memory`, a multiple of 16. Panics if it does not lie there.
    pub fn new(device: &Device, memory: &Memory, at: usize, boxes: MatrixBoxes) -> Result<Self> {
        let MatrixBoxes { element, rows, width, apart, box_rows, box_width } = boxes;
        let (data_type, bytes, swizzle) = match element {
            BoxElement::SwizzledBytes => {
                (DataType::CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, Swizzle::CU_TENSOR_MAP_SWIZZLE_128B)
            }
            BoxElement::F32 => (DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE),
        };
        let end = rows.checked_sub(1).map_or(at, |last| at + last * apart + width * bytes);
        assert!(end <= memory.bytes(), "{boxes:?} from byte {at} of {} bytes", memory.bytes());
        let mut map = CUtensorMap { opaque: [0; Self::WORDS] };
        let (sizes, strides) = ([width as u64, rows as u64], [apart as u64]);
        let (box_sizes, steps) = ([box_width as u32, box_rows as u32], [1, 1]);
        let address = memory.address() + at as u64;
        device.call("describe a matrix to the copy engine", || {
            // SAFETY: the driver writes `map` and reads arrays of two sizes and one stride; it checks the numbers. The
            // matrix lies in the memory (asserted above).
            unsafe {
                sys::cuTensorMapEncodeTiled(
                    &mut map,
                    data_type,
                    2,
                    address as *mut std::ffi::c_void,
                    sizes.as_ptr(),
                    strides.as_ptr(),
                    box_sizes.as_ptr(),
                    steps.as_ptr(),
                    Interleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                    swizzle,
                    Promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                    Fill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                )
            }
            .result()
        })?;
        Ok(Self(map.opaque))
    }

    pub(super) fn words(&self) -> &[u64; Self::WORDS] {
        &self.0
    }
}
