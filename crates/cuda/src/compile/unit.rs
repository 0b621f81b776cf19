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

/// Whether a source, with those of `headers` that it includes, is another program for architecture `number` (890:
/// sm_89) than for `other`: whether a comparison of `__CUDA_ARCH__` with a number has another result.
pub fn differs_by_arch(source: &Source, headers: &[Source], number: u32, other: u32) -> bool {
    let includes = |text: &str, name: &str| text.contains(&format!("#include \"{name}\""));
    let mut texts = vec![source.text];
    let mut seen = 0;
    while let Some(&text) = texts.get(seen) {
        seen += 1;
        let more = headers.iter().filter(|header| includes(text, header.name));
        let more: Vec<&str> = more.map(|header| header.text).filter(|text| !texts.contains(text)).collect();
        texts.extend(more);
    }
    texts.iter().flat_map(|text| text.split("__CUDA_ARCH__ ").skip(1)).any(|comparison| {
        let mut words = comparison.split_whitespace();
        let (comparator, limit) = (words.next(), words.next().and_then(|limit| limit.parse::<u32>().ok()));
        let holds = |arch: u32| match (comparator, limit) {
            (Some(">="), Some(limit)) => Some(arch >= limit),
            (Some("<"), Some(limit)) => Some(arch < limit),
            (Some("=="), Some(limit)) => Some(arch == limit),
            _ => None, // Not understood: it may differ.
        };
        holds(number).is_none() || holds(number) != holds(other)
    })
}

/// `merge_states.cu ELEMENT=bf16 VALUE_DIM=128`.
impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.source.name)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, differs_by_arch};

    #[test]
    fn a_source_differs_where_a_comparison_does() {
        let headers = [
            Source { name: "new.cuh", text: "#if __CUDA_ARCH__ >= 890\n#endif\n" },
            Source { name: "around.cuh", text: "#include \"new.cuh\"\n" },
            Source { name: "other.cuh", text: "#if __CUDA_ARCH__ == 800 || __CUDA_ARCH__ < 900\n#endif\n" },
            Source { name: "strange.cuh", text: "#if __CUDA_ARCH__ > X\n#endif\n" },
        ];
        let differs = |text, number, other| differs_by_arch(&Source { name: "x.cu", text }, &headers, number, other);
        assert!(!differs("int x;", 890, 800));
        assert!(differs("#include \"around.cuh\"", 890, 800));
        assert!(!differs("#include \"around.cuh\"", 900, 890));
        assert!(differs("#include \"other.cuh\"", 890, 800));
        assert!(!differs("#include \"other.cuh\"", 890, 860));
        assert!(differs("#include \"strange.cuh\"", 890, 860), "what is not understood may differ");
    }
}
