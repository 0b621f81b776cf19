//! Random forests, as `offshoot check` grows them.

pub use offshoot::check::forests::{Grown, Shape, grow};
