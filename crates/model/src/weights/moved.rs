//! Parts of matrices that lie on a device, as a backend takes them: from there, rounded there if they must be, or from
//! the host where the backend copies from no device or the device lacks memory to round them.

use std::sync::Arc;

use offshoot_backend::{
    DeviceBytes, DeviceMemory, DeviceView, Dtype, HeldPart, MatrixPart, WeightView,
};
use offshoot_core::error::{Error, Result};

/// A part, wherever it lies now.
pub enum Moved<'a> {
    Stays(HeldPart<'a>),
    Host { dtype: Dtype, rows: usize, cols: usize, bytes: Vec<u8>, becomes: Option<Dtype> },
    /// Rounded on the device.
    Rounded { dtype: Dtype, rows: usize, cols: usize, memory: Arc<dyn DeviceMemory> },
}

impl Moved<'_> {
    pub fn held(&self) -> HeldPart<'_> {
        match self {
            Moved::Stays(held) => *held,
            Moved::Host { dtype, rows, cols, bytes, becomes } => {
                let view = WeightView { dtype: *dtype, rows: *rows, cols: *cols, bytes };
                HeldPart { part: MatrixPart::Dense(view), becomes: *becomes }
            }
            Moved::Rounded { dtype, rows, cols, memory } => {
                let bytes = DeviceBytes::whole(&**memory);
                let view = DeviceView { dtype: *dtype, rows: *rows, cols: *cols, bytes };
                HeldPart { part: MatrixPart::Device(view), becomes: None }
            }
        }
    }
}

/// The parts as a backend takes them. `from_devices`: whether it copies from devices. What is quantised or drawn stays.
pub fn moved<'a>(held: &[HeldPart<'a>], from_devices: bool) -> Result<Vec<Moved<'a>>> {
    // A stack of which the host makes one part anew is stacked there.
    let is_dense = |held: &HeldPart<'_>| held.part.format().dense().is_some();
    let from_devices = from_devices && held.iter().all(is_dense);
    held.iter().map(|held| part(held, from_devices)).collect()
}

/// The parts in host memory.
pub fn all_on_host<'a>(parts: &[MatrixPart<'a>]) -> Result<Vec<Moved<'a>>> {
    parts.iter().map(|&part| self::part(&HeldPart { part, becomes: None }, false)).collect()
}

fn part<'a>(held: &HeldPart<'a>, from_devices: bool) -> Result<Moved<'a>> {
    let MatrixPart::Device(view) = held.part else { return Ok(Moved::Stays(*held)) };
    let DeviceView { dtype, rows, cols, bytes } = view;
    match held.becomes {
        None if from_devices => return Ok(Moved::Stays(*held)),
        Some(to) if from_devices => match bytes.cast(dtype, to) {
            Ok(memory) => return Ok(Moved::Rounded { dtype: to, rows, cols, memory }),
            Err(Error::DeviceMemory { .. }) => {}
            Err(error) => return Err(error),
        },
        _ => {}
    }
    Ok(Moved::Host { dtype, rows, cols, bytes: bytes.download()?, becomes: held.becomes })
}
