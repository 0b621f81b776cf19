//! Tensors of other Python libraries as weights: lent by DLPack, in host memory or that of a GPU, without a copy, or
//! copied where their owner may change them before they are read. See
//! <https://dmlc.github.io/dlpack/latest/c_api.html>; the names of fields are its own.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use offshoot::{Error, Result};
use offshoot_backend::{DeviceBytes, DeviceMemory, MemoryBlock};
use offshoot_launch::device_lender;
use offshoot_model::{TensorData, TensorDtype, TensorSource, TensorView};
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// What errors call the place of these tensors.
const PLACE: &str = "tensors in memory";

/// Host memory, and host memory that a GPU may read.
const HOST: [i32; 2] = [1, 3];
/// Memory of a GPU of CUDA.
const GPU: i32 = 2;
/// A tensor of unsigned numbers: what bf16 is lent as by libraries that have no such type.
const UNSIGNED: u8 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    /// In elements; null: row-major.
    strides: *mut i64,
    byte_offset: u64,
}

/// A tensor lent in the first layout of DLPack.
#[repr(C)]
struct DlManaged {
    dl_tensor: DlTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManaged)>,
}

/// A tensor lent in the layout since version 1.0.
#[repr(C)]
struct DlVersioned {
    version: [u32; 2],
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlVersioned)>,
    flags: u64,
    dl_tensor: DlTensor,
}

/// A tensor of another library, which keeps its memory until this is dropped.
enum Lent {
    First(NonNull<DlManaged>),
    Versioned(NonNull<DlVersioned>),
}

// SAFETY: the memory is read only, and an owner's deleter may be called on any thread: it takes Python's lock by itself
// where it needs it.
unsafe impl Send for Lent {}
// SAFETY: as above; nothing is written.
unsafe impl Sync for Lent {}

impl Lent {
    /// Takes what a capsule of `__dlpack__` holds.
    fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Lent> {
        if let Some(lent) = taken(capsule, c"dltensor", c"used_dltensor") {
            return Ok(Lent::First(lent));
        }
        if let Some(lent) = taken(capsule, c"dltensor_versioned", c"used_dltensor_versioned") {
            return Ok(Lent::Versioned(lent));
        }
        Err(PyTypeError::new_err(format!("expected a capsule of __dlpack__ that nobody has used, found {capsule}")))
    }

    fn tensor(&self) -> &DlTensor {
        match self {
            // SAFETY: the owner keeps it until its deleter is called, in `drop`.
            Lent::First(lent) => unsafe { &lent.as_ref().dl_tensor },
            // SAFETY: as above.
            Lent::Versioned(lent) => unsafe { &lent.as_ref().dl_tensor },
        }
    }
}

/// The struct that a capsule of this name holds, which from now on is the caller's to delete.
fn taken<T>(capsule: &Bound<'_, PyAny>, name: &'static CStr, used: &'static CStr) -> Option<NonNull<T>> {
    let capsule = capsule.as_ptr();
    // SAFETY: `capsule` is a Python object; what is no capsule of this name is not valid. Names live for ever.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, name.as_ptr()) == 0 {
            return None;
        }
        let held = NonNull::new(ffi::PyCapsule_GetPointer(capsule, name.as_ptr()).cast());
        ffi::PyCapsule_SetName(capsule, used.as_ptr());
        held
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        match *self {
            Lent::First(lent) => {
                // SAFETY: it is deleted once, here.
                unsafe { lent.as_ref().deleter.map(|delete| delete(lent.as_ptr())) };
            }
            Lent::Versioned(lent) => {
                // SAFETY: as above.
                unsafe { lent.as_ref().deleter.map(|delete| delete(lent.as_ptr())) };
            }
        }
    }
}

enum Held {
    Lent(Lent),
    Copied(Vec<u8>),
    /// Lent, or a copy.
    OnDevice(Arc<dyn DeviceMemory>),
}

/// A tensor in host memory or that of a GPU, row-major.
struct Tensor {
    dtype: TensorDtype,
    shape: Vec<usize>,
    held: Held,
}

impl Tensor {
    /// A lent tensor. `is_bf16`: its 16-bit numbers are bf16.
    fn lent(name: &str, lent: Lent, is_bf16: bool) -> Result<Tensor> {
        let tensor = *lent.tensor();
        let wrong = |expected: &str, found: String| Err(Error::tensor(Path::new(PLACE), name, expected, found));
        let DlDevice { device_type, device_id } = tensor.device;
        if !HOST.contains(&device_type) && device_type != GPU {
            let found = format!("one on a device of DLPack's type {device_type}");
            return wrong("a tensor in host memory or that of a GPU of CUDA", found);
        }
        let DlDataType { code, bits, lanes } = tensor.dtype;
        let dtype = match (code, bits, lanes) {
            (UNSIGNED, 16, 1) if is_bf16 => TensorDtype::BF16,
            _ if is_bf16 => return wrong("16-bit numbers, as bf16 has", format!("{bits} bits of kind {code}")),
            (4, 16, 1) => TensorDtype::BF16,
            (2, 16, 1) => TensorDtype::F16,
            (2, 32, 1) => TensorDtype::F32,
            (2, 64, 1) => TensorDtype::F64,
            (10, 8, 1) => TensorDtype::F8_E4M3,
            (0, 32, 1) => TensorDtype::I32,
            (0, 64, 1) => TensorDtype::I64,
            (0, 8, 1) => TensorDtype::I8,
            (UNSIGNED, 8, 1) => TensorDtype::U8,
            _ => return wrong("bf16, f16 or f32", format!("{bits} bits of DLPack's kind {code}, {lanes} at a time")),
        };
        let dims = usize::try_from(tensor.ndim).unwrap_or(0);
        let sizes = match dims {
            0 => &[][..],
            // SAFETY: DLPack: `ndim` sizes.
            _ => unsafe { slice::from_raw_parts(tensor.shape, dims) },
        };
        let shape: Vec<usize> = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
        if dims > 0 && !tensor.strides.is_null() {
            // SAFETY: DLPack: `ndim` strides, if there are any.
            let strides = unsafe { slice::from_raw_parts(tensor.strides, dims) };
            let mut step = 1;
            let is_whole = sizes.iter().zip(strides).rev().all(|(&size, &stride)| {
                let fits = size <= 1 || stride == step;
                step *= size.max(1);
                fits
            });
            if !is_whole && !shape.contains(&0) {
                return wrong("a tensor whose rows lie one after the other", format!("strides {strides:?}"));
            }
        }
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let held = match bytes {
            0 => Held::Copied(Vec::new()),
            _ if device_type == GPU => {
                let ordinal = usize::try_from(device_id).unwrap_or(usize::MAX);
                let address = tensor.data.addr() as u64 + tensor.byte_offset;
                Held::OnDevice(device_lender(ordinal)?.lent(address, bytes, Box::new(lent))?)
            }
            _ => Held::Lent(lent),
        };
        Ok(Tensor { dtype, shape, held })
    }

    fn data(&self) -> TensorData<'_> {
        match &self.held {
            Held::Copied(bytes) => TensorData::Host(bytes),
            Held::OnDevice(memory) => TensorData::Device(DeviceBytes::whole(&**memory)),
            Held::Lent(lent) => {
                let (tensor, bytes) = (lent.tensor(), self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8);
                // SAFETY: a row-major tensor of this shape and dtype, which has bytes, begins `byte_offset` behind
                // `data`; `lent` keeps it.
                let bytes =
                    unsafe { slice::from_raw_parts(tensor.data.cast::<u8>().add(tensor.byte_offset as usize), bytes) };
                TensorData::Host(bytes)
            }
        }
    }

    /// The same in memory of its own: of the GPU, if it lies there and there is enough, or of the host.
    fn copied(self) -> Result<Tensor> {
        let held = match self.data() {
            TensorData::Host(bytes) => Held::Copied(bytes.to_vec()),
            TensorData::Device(bytes) => match device_lender(bytes.ordinal())?.copied(bytes)? {
                MemoryBlock::Host(bytes) => Held::Copied(bytes),
                MemoryBlock::Device(memory) => Held::OnDevice(memory),
            },
        };
        Ok(Tensor { held, ..self })
    }
}

/// Tensors by name, in the order of names.
#[derive(Default)]
pub struct GivenTensors(BTreeMap<String, Tensor>);

impl TensorSource for GivenTensors {
    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, tensor) = self.0.get_key_value(name)?;
        Some(TensorView { name, dtype: tensor.dtype, shape: &tensor.shape, data: tensor.data() })
    }

    fn place(&self, _: Option<&str>) -> &Path {
        Path::new(PLACE)
    }
}

/// Tensors that were given for an update of weights, until the engine takes them.
#[pyclass(frozen, module = "offshoot._offshoot")]
#[derive(Default)]
pub struct Tensors(Mutex<GivenTensors>);

impl Tensors {
    /// All tensors; none are left.
    pub fn take(&self) -> GivenTensors {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Tensors {
    #[new]
    fn new() -> Tensors {
        Tensors::default()
    }

    /// Adds a tensor, in place of one of the same name. `capsule`: of `__dlpack__`. `is_bf16`: its 16-bit numbers are
    /// bf16. `copy`: whether its owner may change it before it is taken.
    #[pyo3(signature = (name, capsule, *, is_bf16=false, copy=true))]
    fn add(&self, py: Python<'_>, name: String, capsule: &Bound<'_, PyAny>, is_bf16: bool, copy: bool) -> PyResult<()> {
        let lent = Lent::take(capsule)?;
        let tensor = py.detach(|| {
            let tensor = Tensor::lent(&name, lent, is_bf16)?;
            if copy { tensor.copied() } else { Ok(tensor) }
        });
        let tensor = tensor.or_raise()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.insert(name, tensor);
        Ok(())
    }

    /// Whether tensors in the memory of this GPU of CUDA are taken from there.
    #[staticmethod]
    fn takes_from_gpu(ordinal: usize) -> bool {
        device_lender(ordinal).inspect_err(|error| log::debug!("tensors go through the host: {error}")).is_ok()
    }

    fn __len__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// Gives up all tensors.
    fn clear(&self) {
        drop(self.take());
    }
}
