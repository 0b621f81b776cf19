//! Tensors that lie on a device, which a test plays: what a backend that copies from no device computes with them is
//! what it computes with the same tensors in host memory, and a device that fails changes nothing.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use offshoot_backend::{DeviceBytes, DeviceMemory, Dtype, WeightView};
use offshoot_core::error::{Error, Result};
use offshoot_cpu::Cpu;
use offshoot_model::{
    Decoder, MadeFormat, ModelFolder, ModelWeights, TensorData, TensorDtype, TensorFolder, TensorSource, TensorView,
    UpdateScope, WeightChoice,
};

use super::updates::{golden, logits};
use crate::shared::shared;

/// Memory of the device: all tensors, one behind the other.
#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    fails: AtomicBool,
}

impl Memory {
    fn check(&self) -> Result<()> {
        match self.fails.load(Ordering::Relaxed) {
            true => Err(Error::value("the device", "one that works", "one that has failed")),
            false => Ok(()),
        }
    }
}

impl DeviceMemory for Memory {
    fn ordinal(&self) -> usize {
        0
    }

    fn address(&self) -> u64 {
        1 << 40
    }

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn download(&self, range: Range<usize>) -> Result<Vec<u8>> {
        self.check()?;
        Ok(self.bytes[range].to_vec())
    }

    fn not_finite(&self, range: Range<usize>, dtype: Dtype, becomes: Dtype) -> Result<Option<usize>> {
        self.check()?;
        let bytes = &self.bytes[range];
        let view = WeightView { dtype, rows: 1, cols: bytes.len() / dtype.bytes(), bytes };
        Ok((0..view.cols).find(|&i| !becomes.round(view.get(i)).is_finite()))
    }

    fn cast(&self, _: Range<usize>, _: Dtype, _: Dtype) -> Result<Arc<dyn DeviceMemory>> {
        panic!("a backend that copies from no device rounds none there")
    }

    fn columns(&self, _: Range<usize>, _: usize, _: Range<usize>) -> Result<Arc<dyn DeviceMemory>> {
        panic!("a backend that copies from no device divides none there")
    }
}

/// Tensors on the device.
struct OnDevice {
    memory: Memory,
    tensors: Vec<(String, TensorDtype, Vec<usize>, Range<usize>)>,
}

impl OnDevice {
    fn of(source: &dyn TensorSource) -> Self {
        // One byte before them: no tensor is aligned.
        let (mut bytes, mut tensors) = (vec![0], Vec::new());
        for name in source.names() {
            let tensor = source.tensor(name).unwrap();
            let start = bytes.len();
            bytes.extend_from_slice(&tensor.data.on_host().unwrap());
            tensors.push((name.to_owned(), tensor.dtype, tensor.shape.to_vec(), start..bytes.len()));
        }
        Self { memory: Memory { bytes, fails: AtomicBool::new(false) }, tensors }
    }
}

impl TensorSource for OnDevice {
    fn names(&self) -> Vec<&str> {
        self.tensors.iter().map(|(name, ..)| &**name).collect()
    }

    fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let (name, dtype, shape, range) = self.tensors.iter().find(|(own, ..)| own == name)?;
        let data = TensorData::Device(DeviceBytes::whole(&self.memory).part(range.clone()));
        Some(TensorView { name, dtype: *dtype, shape, data })
    }

    fn place(&self, _: Option<&str>) -> &Path {
        Path::new("tensors on a device")
    }
}

#[test]
fn tensors_on_a_device_give_the_bits_of_those_of_the_host() {
    for name in ["llama3-gqa-ropescaled", "qwen2-tied", "qwen3-moe"] {
        let folder = golden(name);
        let weights = ModelWeights::open(&ModelFolder::open(folder.path()).unwrap()).unwrap();
        let mut cpu = Cpu::open().unwrap();
        let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
        let expected = logits(&mut cpu, &mut fresh);
        let device = OnDevice::of(&TensorFolder::open(folder.path()).unwrap());
        // f32 becomes bf16 in the second, and is compared with the same from the host.
        for dtype in [weights.dtype(), Dtype::Bf16] {
            let mut models =
                [5, 6].map(|seed| Decoder::random(&mut cpu, weights.config().clone(), dtype, seed).unwrap());
            let host = TensorFolder::open(folder.path()).unwrap();
            let sources: [&dyn TensorSource; 2] = [&device, &host];
            for (model, source) in models.iter_mut().zip(sources) {
                let form = model.weight_form();
                model.update(&mut cpu, &form.check(source, UpdateScope::Whole).unwrap()).unwrap();
            }
            let [of_device, of_host] = &mut models;
            let found = logits(&mut cpu, of_device);
            assert!(found == logits(&mut cpu, of_host), "{name}, {dtype}");
            assert!(dtype != weights.dtype() || found == expected, "{name}");
        }
    }
}

#[test]
fn codes_are_made_of_tensors_on_a_device() {
    let Some(root) = shared("data/models/babyllama-tok105") else { return };
    let choice = WeightChoice { weights: Some(MadeFormat::Int8), ..WeightChoice::default() };
    let folder = ModelFolder::open(&root).unwrap().with(choice).unwrap();
    let weights = ModelWeights::open(&folder).unwrap();
    let mut cpu = Cpu::open().unwrap();
    let mut fresh = Decoder::of(&mut cpu, &weights).unwrap();
    let expected = logits(&mut cpu, &mut fresh);
    let mut model = Decoder::random(&mut cpu, weights.config().clone(), weights.dtype(), 3).unwrap();
    let device = OnDevice::of(&TensorFolder::open(&root).unwrap());
    let form = model.weight_form();
    model.update(&mut cpu, &form.check(&device, UpdateScope::Whole).unwrap()).unwrap();
    assert!(logits(&mut cpu, &mut model) == expected);
}

#[test]
fn what_is_wrong_on_a_device_changes_nothing() {
    let folder = golden("llama3-gqa-ropescaled");
    let mut cpu = Cpu::open().unwrap();
    let mut model = Decoder::load(&mut cpu, &ModelFolder::open(folder.path()).unwrap()).unwrap();
    let expected = logits(&mut cpu, &mut model);
    let mut device = OnDevice::of(&TensorFolder::open(folder.path()).unwrap());
    let form = model.weight_form();
    let name = "model.layers.0.self_attn.q_proj.weight";
    let start = device.tensors.iter().find(|(own, ..)| own == name).unwrap().3.start;
    let before = device.memory.bytes[start + 20..start + 24].to_vec();
    device.memory.bytes[start + 20..start + 24].copy_from_slice(&f32::NAN.to_le_bytes());
    let error = form.check(&device, UpdateScope::Whole).err().unwrap().to_string();
    assert!(error.contains("q_proj") && error.contains("finite") && error.contains("place 5"), "{error}");
    device.memory.bytes[start + 20..start + 24].copy_from_slice(&before);
    let checked = form.check(&device, UpdateScope::Whole).unwrap();
    device.memory.fails.store(true, Ordering::Relaxed);
    let error = form.check(&device, UpdateScope::Whole).err().unwrap().to_string();
    assert!(error.contains("one that has failed"), "{error}");
    let error = model.update(&mut cpu, &checked).unwrap_err().to_string();
    assert!(error.contains("one that has failed"), "{error}");
    assert!(logits(&mut cpu, &mut model) == expected);
}
