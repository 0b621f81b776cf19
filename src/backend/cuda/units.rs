//! Every file of `kernels/` and every unit that the backend can ask for. Who adds a kernel adds its source and its units here:
//! the compile check and the loading at start read these tables, and a test compares them with the folder.

use super::unit::{Source, Unit};

/// A file of `kernels/` as a [`Source`].
macro_rules! source {
    ($name:literal) => {
        Source { name: $name, text: include_str!(concat!("../../../kernels/", $name)) }
    };
}

/// What kernels may include, by file name.
pub static HEADERS: &[Source] = &[
    source!("element.cuh"),
    source!("sample.cuh"),
    source!("sample_row.cuh"),
    source!("sample_select.cuh"),
    source!("sample_edit.cuh"),
];

/// The kernels of `sample`, in the order of their launches.
pub static SAMPLE: [Source; 5] = [
    source!("sample_chunks.cu"),
    source!("sample_top.cu"),
    source!("sample_edit.cu"),
    source!("sample_filter.cu"),
    source!("sample_draw.cu"),
];

/// Every unit, all combinations of defines that the backend supports.
pub fn all() -> Vec<Unit> {
    SAMPLE.iter().map(Unit::new).collect()
}
