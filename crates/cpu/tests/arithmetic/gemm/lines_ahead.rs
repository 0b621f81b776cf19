//! Which lines of weights are prefetched.

use offshoot_cpu::gemm::lines_ahead::LinesAhead;
use offshoot_cpu::memory::CacheLine;

/// As many lines as the strip has, of both strips in a row, beginning `DISTANCE` further on.
#[test]
fn lines_that_are_read_soon_are_those_of_this_strip_and_then_of_the_next() {
    let at = |line: usize| std::ptr::without_provenance::<u8>(line * size_of::<CacheLine>());
    for lines in [1, 20, 31, 32, 33, 100, 256] {
        let mut ahead = LinesAhead::soon(at(1000), lines, at(5000));
        let found: Vec<_> = (0..lines).map(|_| ahead.next_line()).collect();
        let both = (1000..1000 + lines).chain(5000..).skip(LinesAhead::DISTANCE).take(lines);
        assert_eq!(found, both.map(at).collect::<Vec<_>>(), "{lines} lines");
    }
}
