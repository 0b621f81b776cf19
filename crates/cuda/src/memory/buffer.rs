//! Activations on the device: a matrix whose row count changes from step to step while its memory stays.

use crate::driver::device::Device;
use crate::driver::memory::{ALIGNED, Memory};
use offshoot_backend::{Dtype, WeightView};
use offshoot_core::error::Result;

/// `rows x width` elements, row-major.
pub struct Buffer {
    /// Absent until the buffer has had a row.
    memory: Option<Memory>,
    pub rows: usize,
    pub width: usize,
    pub element: Dtype,
}

impl Buffer {
    /// A buffer without rows.
    pub fn new(width: usize, element: Dtype) -> Self {
        Self { memory: None, rows: 0, width, element }
    }

    /// Sets the row count; contents are unspecified afterwards. Returns whether the address has changed, which a
    /// captured graph does not survive: memory is kept unless it is too small, and freed before the larger one is asked
    /// for.
    pub fn resize(&mut self, device: &Device, rows: usize) -> Result<bool> {
        let bytes = rows.saturating_mul(self.row_bytes());
        let grows = self.memory.as_ref().map_or(0, Memory::bytes) < bytes;
        if grows {
            self.rows = 0;
            self.memory = None;
            self.memory = Some(device.alloc(bytes)?);
        }
        self.rows = rows;
        Ok(grows)
    }

    /// Does what `resize` does for several buffers of one width and dtype, whose memory then is that of neighbours:
    /// each as far behind the one before as the second behind the first.
    pub fn resize_beside(buffers: &mut [&mut Buffer], device: &Device, rows: usize) -> Result<bool> {
        let Some(share) = buffers.first().map(|first| rows.saturating_mul(first.row_bytes())) else { return Ok(false) };
        let grows = buffers.iter().any(|buffer| buffer.memory.as_ref().map_or(0, Memory::bytes) < share);
        if grows {
            for buffer in buffers.iter_mut() {
                (buffer.rows, buffer.memory) = (0, None);
            }
            let share = share.next_multiple_of(ALIGNED);
            let memories = device.alloc(share.saturating_mul(buffers.len()))?.divided(buffers.len());
            for (buffer, memory) in buffers.iter_mut().zip(memories) {
                buffer.memory = Some(memory);
            }
        }
        buffers.iter_mut().for_each(|buffer| buffer.rows = rows);
        Ok(grows)
    }

    /// Panics when the buffer has never had a row.
    pub fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("an op is enqueued only for buffers with rows")
    }

    pub fn row_bytes(&self) -> usize {
        self.width * self.element.bytes()
    }

    /// Puts `values` in the first `rows` rows, rounded to nearest even.
    pub fn write(&mut self, device: &Device, rows: usize, values: &[f32]) -> Result<()> {
        assert!(rows <= self.rows, "{rows} rows of a buffer of {}", self.rows);
        assert_eq!(values.len(), rows * self.width, "as many values as rows of {} hold", self.width);
        match rows {
            0 => Ok(()),
            _ => device.upload(self.memory(), 0, &self.element.encode(values)),
        }
    }

    /// The first `rows` rows, widened to f32. Waits for the device.
    pub fn read(&self, device: &Device, rows: usize) -> Result<Vec<f32>> {
        assert!(rows <= self.rows, "{rows} rows of a buffer of {}", self.rows);
        if rows == 0 {
            return Ok(Vec::new());
        }
        let bytes = device.download(self.memory(), 0..rows * self.row_bytes())?;
        let read = WeightView { dtype: self.element, rows, cols: self.width, bytes: &bytes };
        Ok((0..rows * self.width).map(|i| read.get(i)).collect())
    }
}
