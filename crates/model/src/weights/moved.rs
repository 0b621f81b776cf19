//! Parts of matrices that lie on a device, as a backend takes them: from there, rounded there if they must be, or from
//! the host where the backend copies from no device or the device lacks memory to round them.

use std::sync::Arc;

use offshoot_backend::{DeviceBytes, DeviceMemory, DeviceView, Dtype, HeldPart, MatrixPart, WeightView};
use offshoot_core::error::{Error, Result};

/// A part, wherever it lies now.
pub enum Moved<'a> {
    Stays(HeldPart<'a>),
    Host {
        dtype: Dtype,
        rows: usize,
        cols: usize,
        bytes: Vec<u8>,
        becomes: Option<Dtype>,
    },
    /// Rounded on the device.
    Rounded {
        dtype: Dtype,
        rows: usize,
        cols: usize,
        memory: Arc<dyn DeviceMemory>,
    },
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

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// Memory of zeros; `has_room`: whether the device has memory to round it.
    #[derive(Debug)]
    struct Zeros {
        bytes: usize,
        has_room: bool,
    }

    impl DeviceMemory for Zeros {
        fn ordinal(&self) -> usize {
            0
        }

        fn address(&self) -> u64 {
            0
        }

        fn bytes(&self) -> usize {
            self.bytes
        }

        fn download(&self, range: Range<usize>) -> Result<Vec<u8>> {
            Ok(vec![0; range.len()])
        }

        fn not_finite(&self, _: Range<usize>, _: Dtype, _: Dtype) -> Result<Option<usize>> {
            Ok(None)
        }

        fn cast(&self, range: Range<usize>, from: Dtype, to: Dtype) -> Result<Arc<dyn DeviceMemory>> {
            let bytes = range.len() / from.bytes() * to.bytes();
            match self.has_room {
                true => Ok(Arc::new(Zeros { bytes, has_room: true })),
                false => {
                    Err(Error::DeviceMemory { device: "cuda:0".to_owned(), asked: Some(bytes), free: 0, total: 1 })
                }
            }
        }

        fn columns(&self, _: Range<usize>, _: usize, _: Range<usize>) -> Result<Arc<dyn DeviceMemory>> {
            Err(Error::Internal("nothing is divided".to_owned()))
        }
    }

    #[test]
    fn parts_on_a_device_stay_there_where_that_is_possible() {
        let found = |has_room, becomes, from_devices| {
            let memory = Zeros { bytes: 24, has_room };
            let view = DeviceView { dtype: Dtype::F32, rows: 2, cols: 3, bytes: DeviceBytes::whole(&memory) };
            let held = [HeldPart { part: MatrixPart::Device(view), becomes }];
            let moved = moved(&held, from_devices).expect("nothing fails");
            let HeldPart { part, becomes } = moved[0].held();
            assert_eq!((part.rows(), part.cols()), (2, 3));
            match part {
                MatrixPart::Device(view) => ("device", view.dtype, view.bytes.len(), becomes),
                MatrixPart::Dense(view) => ("host", view.dtype, view.bytes.len(), becomes),
                _ => panic!("it is dense"),
            }
        };
        let bf16 = Some(Dtype::Bf16);
        assert_eq!(found(true, None, true), ("device", Dtype::F32, 24, None));
        assert_eq!(found(true, bf16, true), ("device", Dtype::Bf16, 12, None));
        // The host rounds where the device cannot, or where its memory is not read.
        assert_eq!(found(false, bf16, true), ("host", Dtype::F32, 24, bf16));
        assert_eq!(found(true, bf16, false), ("host", Dtype::F32, 24, bf16));
        assert_eq!(found(true, None, false), ("host", Dtype::F32, 24, None));
    }
}
