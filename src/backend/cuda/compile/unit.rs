//! What is compiled: a kernel source with the values of its defines. The files themselves are listed in `units`;
//! `compile` turns a unit into machine code.

use std::fmt;
use std::hash::{Hash, Hasher};

/// One file of `kernels/`. Known by its name: no two files share one.
#[derive(Debug)]
pub struct Source {
    /// File name without folder: `rms_norm.cu`.
    pub name: &'static str,
    pub text: &'static str,
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Source {}

impl Hash for Source {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// A source and its defines: the unit of compiling, caching and loading.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    pub source: &'static Source,
    /// `("ELEMENT", "bf16")` becomes `-DELEMENT=bf16`.
    pub defines: Vec<(&'static str, String)>,
}

impl Unit {
    pub fn new(source: &'static Source) -> Self {
        Self { source, defines: Vec::new() }
    }

    #[must_use]
    pub fn define(mut self, name: &'static str, value: impl ToString) -> Self {
        self.defines.push((name, value.to_string()));
        self
    }
}

/// `merge_states.cu ELEMENT=bf16 HEAD_DIM=128`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source.name)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
