//! A buffer of which threads write different columns: linear layers divide the work by outputs, attention by heads.

use std::ops::Range;

use super::CpuBuffer;

/// A buffer that is written. Threads write different columns of a row.
pub struct OutputColumns {
    data: *mut f32,
    width: usize,
    len: usize,
}

// SAFETY: threads access the output through `of_row` and `rows_at` only, whose callers take different columns.
unsafe impl Sync for OutputColumns {}

impl OutputColumns {
    pub fn of(out: &mut CpuBuffer) -> Self {
        Self { data: out.data.as_mut_ptr(), width: out.width, len: out.data.len() }
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Where columns `from .. from + width` of `rows` begin. Panics if they do not lie in the buffer.
    pub fn rows_at(&self, rows: Range<usize>, from: usize, width: usize) -> *mut f32 {
        assert!(from + width <= self.width && rows.end * self.width <= self.len, "columns lie in the output");
        self.data.wrapping_add(rows.start * self.width + from)
    }

    /// Columns `from .. from + width` of `row`.
    ///
    /// # Safety
    /// The buffer is alive, and nothing else refers to these columns of this row.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn of_row(&self, row: usize, from: usize, width: usize) -> &mut [f32] {
        let at = row * self.width + from;
        assert!(from + width <= self.width && at + width <= self.len, "columns lie in the output");
        // SAFETY: inside the buffer by the assertion above; unaliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(at), width) }
    }
}
