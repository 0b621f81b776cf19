//! The biases of a mixture's experts.

use crate::driver::device::Device;
use crate::driver::memory::Memory;
use crate::memory::weights::Vector;
use offshoot_backend::MemoryPart;
use offshoot_core::error::Result;

/// One bias of `outputs` elements for each of `count` experts, in one piece of memory; `None` where there are none.
pub fn stacked(device: &Device, biases: &[Vector], count: usize, outputs: usize) -> Result<Option<Memory>> {
    if biases.is_empty() {
        return Ok(None);
    }
    assert_eq!(biases.len(), count, "experts: a bias for each");
    let bytes = outputs * size_of::<f32>();
    let all = device.alloc_of(MemoryPart::Weights, count * bytes)?;
    for (expert, bias) in biases.iter().enumerate() {
        assert_eq!(bias.len, outputs, "experts: length of a bias");
        device.copy(&all, expert * bytes, &bias.memory, 0..bytes)?;
    }
    Ok(Some(all))
}

/// The bias of an expert; none: empty.
pub fn read_bias(device: &Device, biases: Option<&Memory>, expert: usize, outputs: usize) -> Result<Vec<f32>> {
    let Some(biases) = biases else { return Ok(Vec::new()) };
    let bytes = outputs * size_of::<f32>();
    let bias = device.download(biases, expert * bytes..(expert + 1) * bytes)?;
    Ok(bias.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
