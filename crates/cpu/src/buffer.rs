//! Activations as the CPU's ops read and write them.

/// f32 activations, `rows x width`, row-major.
#[derive(Clone, Debug, Default)]
pub struct CpuBuffer {
    pub rows: usize,
    pub width: usize,
    pub data: Vec<f32>,
}

impl CpuBuffer {
    pub fn new(rows: usize, width: usize) -> Self {
        Self { rows, width, data: vec![0.0; rows * width] }
    }

    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.width..][..self.width]
    }
}
