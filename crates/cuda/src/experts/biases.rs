//! The biases of a mixture's experts.

use crate::driver::device::Device;
use crate::driver::memory::Memory;
use crate::memory::weights::Vector;
use offshoot_backend::MemoryPart;
use offshoot_core::error::Result;

/// One bias of `outputs` elements for each of `count` experts, in one piece of memory, that of `old` if it is
/// given; `None` where there are none.
pub fn stacked(
    device: &Device,
    biases: &[Vector],
    (count, outputs): (usize, usize),
    old: Option<&Memory>,
) -> Result<Option<Memory>> {
    if biases.is_empty() {
        return Ok(None);
    }
    assert_eq!(biases.len(), count, "experts: a bias for each");
    let bytes = outputs * size_of::<f32>();
    let all = device.alloc_over(MemoryPart::Weights, old, count * bytes)?;
    for (expert, bias) in biases.iter().enumerate() {
        assert_eq!(bias.len, outputs, "experts: length of a bias");
        device.copy(&all, expert * bytes, &bias.memory, 0..bytes)?;
    }
    Ok(Some(all))
}

/// Whether experts have the memory of those whose place they take.
pub fn is_over(memories: &[(&Memory, &Memory)], bias: Option<&Memory>, old_bias: Option<&Memory>) -> bool {
    memories.iter().all(|(memory, old)| memory.address() == old.address())
        && bias.map(Memory::address) == old_bias.map(Memory::address)
}

/// The bias of an expert; none: empty.
pub fn read_bias(device: &Device, biases: Option<&Memory>, expert: usize, outputs: usize) -> Result<Vec<f32>> {
    let Some(biases) = biases else { return Ok(Vec::new()) };
    let bytes = outputs * size_of::<f32>();
    let bias = device.download(biases, expert * bytes..(expert + 1) * bytes)?;
    Ok(bias.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}
