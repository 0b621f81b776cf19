//! The layouts of codes that kernels are compiled for. How they are unpacked is said in `avx2` and `avx512`.

use super::codes::CodeLines;

/// A [`CodeLines`] that is known where a kernel is compiled.
pub trait KnownLines {
    const LINES: CodeLines;
}

pub struct Two;
pub struct Three;
pub struct Bytes;
pub struct Nibbles;
pub struct Five;
pub struct Six;
pub struct Fp4Lines;
pub struct Iq4Lines;

impl KnownLines for Two {
    const LINES: CodeLines = CodeLines::Two;
}

impl KnownLines for Three {
    const LINES: CodeLines = CodeLines::Three;
}

impl KnownLines for Bytes {
    const LINES: CodeLines = CodeLines::Bytes;
}

impl KnownLines for Nibbles {
    const LINES: CodeLines = CodeLines::Nibbles;
}

impl KnownLines for Five {
    const LINES: CodeLines = CodeLines::Five;
}

impl KnownLines for Six {
    const LINES: CodeLines = CodeLines::Six;
}

impl KnownLines for Fp4Lines {
    const LINES: CodeLines = CodeLines::Fp4;
}

impl KnownLines for Iq4Lines {
    const LINES: CodeLines = CodeLines::Iq4;
}

/// `$kernel` of the layout of the type `$kind`, and of whether it has smallest values; and of `$more`.
macro_rules! kernel_of {
    ($kind:ident, $kernel:ident $(, $more:ident)?) => {
        match (CodeLines::of($kind), $kind.has_least()) {
            (CodeLines::Two, true) => $kernel::<layouts::Two, true $(, $more)?>,
            (CodeLines::Three, false) => $kernel::<layouts::Three, false $(, $more)?>,
            (CodeLines::Bytes, false) => $kernel::<layouts::Bytes, false $(, $more)?>,
            (CodeLines::Nibbles, false) => $kernel::<layouts::Nibbles, false $(, $more)?>,
            (CodeLines::Nibbles, true) => $kernel::<layouts::Nibbles, true $(, $more)?>,
            (CodeLines::Five, false) => $kernel::<layouts::Five, false $(, $more)?>,
            (CodeLines::Five, true) => $kernel::<layouts::Five, true $(, $more)?>,
            (CodeLines::Six, false) => $kernel::<layouts::Six, false $(, $more)?>,
            (CodeLines::Fp4, false) => $kernel::<layouts::Fp4Lines, false $(, $more)?>,
            (CodeLines::Iq4, false) => $kernel::<layouts::Iq4Lines, false $(, $more)?>,
            (CodeLines::Two, false) => unreachable!("{} has smallest values", $kind),
            (codes, true) => unreachable!("{} has no smallest values beside {codes:?}", $kind),
        }
    };
}
pub(super) use kernel_of;
