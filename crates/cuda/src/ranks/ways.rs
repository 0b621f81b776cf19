//! What is exchanged of a buffer, and how: by which kernel of kernels/ranks, in how many launches and blocks. All ranks
//! find the same.
//!
//! The limit between the ways was measured on four H200s, and not tried on eight: of more than two ranks, one shot
//! sends `ranks - 1` buffers, and two shots send two at most, but wait for each other once more, which takes about 2 us
//! on NVLink. `bench allreduce` prints both.

use crate::compile::units::ExchangedSums;
use crate::driver::memory::Memory;
use crate::memory::buffer::Buffer;

/// Threads of a block of every exchange but sums in lines.
pub(super) const THREADS: u32 = 512;

/// Blocks of a launch that exchanges nothing.
pub(super) const BLOCKS: u32 = 128;

/// A rank's parts of sums, and where the sums go, or are added.
pub(super) struct SumBuffers<'a> {
    pub out: &'a Buffer,
    pub parts: &'a [&'a Buffer],
    pub adds: bool,
}

/// A member's partial states, and where the results of its heads go.
pub(super) struct MergedStates<'a> {
    pub out: &'a Buffer,
    /// The words of the plan, and what it says the places of.
    pub words: &'a Memory,
    pub partials: &'a Memory,
    /// The sinks of the first member.
    pub sinks: Option<&'a Memory>,
    /// Query heads of the states.
    pub q_heads: usize,
}

/// As in kernels/ranks/exchange.cuh.
pub const MOST_BLOCKS: usize = 512;

pub const MOST_CHUNKS: usize = 1024;

/// Threads of a block of sums, and of a warp.
pub const SUM_THREADS: u32 = 256;
const WARP: usize = 32;

/// Words of eight bytes in a warp's lines.
const WARP_WORDS: usize = 60;
const WARP_LINES: usize = 4;

/// Blocks of gathers and merges, which have a multiprocessor each.
const CHUNKED_BLOCKS: usize = 128;

/// Lines of sums that all ranks together would have in one half of a rank's memory, if it had a place of its own too.
const LINES: usize = 384 << 10;

/// Floats of gathers and merges that all ranks together would have in one half of a rank's memory, if it had a place of
/// its own too.
const FLOATS: usize = 8 << 20;

/// Floats of a chunk: a multiple of what a block of 512 threads moves at once, eight each.
const CHUNK_STEP: usize = 512 * 8;
const MOST_CHUNK: usize = 4 * CHUNK_STEP;

/// Units of a chunk where members merge: one for each warp of a block, and several where there are many.
const UNITS: usize = THREADS as usize / 32;
const MOST_UNITS: usize = 16 * UNITS;

/// Bytes on the link up to which one shot is used of more than two ranks, all receivers together; exact sums send more
/// in two.
const ONE_SHOT_BYTES: usize = 1 << 20;

/// The kernels of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    OneShot,
    TwoShot,
}

impl Way {
    pub const ALL: [Self; 2] = [Way::OneShot, Way::TwoShot];
}

/// What one launch adds up: elements `first`, .. of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumPiece {
    pub way: Way,
    pub first: usize,
    pub count: usize,
    pub blocks: usize,
}

/// What one launch gathers, or merges, in chunks of `chunk`: elements `first`, .. of each rank's buffer, or units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedPiece {
    pub first: usize,
    pub count: usize,
    pub chunk: usize,
    pub blocks: usize,
}

/// Lines that a rank takes of each other one.
pub const fn most_lines(ranks: usize) -> usize {
    LINES / ranks
}

/// Floats that a rank takes of each other one.
pub const fn most_floats(ranks: usize) -> usize {
    FLOATS / ranks
}

/// The best way for `count` elements.
pub fn way(sums: ExchangedSums, count: usize) -> Way {
    let ExchangedSums { ranks, wire, exact, .. } = sums;
    let bytes = count * wire.bytes() * ranks.saturating_sub(1);
    match ranks > 2 && bytes > ONE_SHOT_BYTES << u32::from(exact) {
        true => Way::TwoShot,
        false => Way::OneShot,
    }
}

/// The pieces in which `count` elements are added up.
pub fn pieces(sums: ExchangedSums, count: usize) -> impl Iterator<Item = SumPiece> {
    pieces_by(way(sums, count), sums, count)
}

/// The pieces in which `count` elements are added up by one way: by one shot if the buffer is too small for two.
pub fn pieces_by(way: Way, sums: ExchangedSums, count: usize) -> impl Iterator<Item = SumPiece> {
    let ExchangedSums { ranks, wire, exact, .. } = sums;
    let of_warp = WARP_WORDS * 8 / wire.bytes();
    // Lines of what a warp sends of a share in two shots: its elements, and their sums, which may be f32.
    let sum_bytes = if exact || ranks <= 2 { size_of::<f32>() } else { wire.bytes() };
    let lines_of_share = WARP_LINES * (1 + sum_bytes / wire.bytes());
    let most = of_warp
        * match way {
            // One rank sends nothing.
            Way::OneShot if ranks == 1 => usize::MAX / of_warp,
            Way::OneShot => most_lines(ranks) / WARP_LINES,
            Way::TwoShot => most_lines(ranks) / lines_of_share * ranks,
        };
    split(count, most).map(move |(first, count)| {
        let warps = count.div_ceil(of_warp);
        let share = warps.div_ceil(ranks);
        // No rank's share may be empty: it would not hear from all others.
        let (way, warps) = match way {
            Way::TwoShot if (ranks - 1) * share < warps => (Way::TwoShot, share),
            _ => (Way::OneShot, warps),
        };
        SumPiece { way, first, count, blocks: warps.div_ceil(SUM_THREADS as usize / WARP).min(MOST_BLOCKS) }
    })
}

/// The launches that gather `count` elements of each rank: half the blocks send, half bring what has come.
pub fn pieces_of_gather(ranks: usize, count: usize) -> impl Iterator<Item = ChunkedPiece> {
    split(count, most_floats(ranks)).map(move |(first, count)| {
        let chunk = count.div_ceil(CHUNKED_BLOCKS / 2).next_multiple_of(CHUNK_STEP).min(MOST_CHUNK);
        let blocks = 2 * count.div_ceil(chunk).min(CHUNKED_BLOCKS / 2);
        ChunkedPiece { first, count, chunk, blocks }
    })
}

/// The launches in which members merge `count` units of a row and a head each: half the blocks send, half merge. The
/// state of a unit has `floats` floats.
pub fn pieces_of_merge(ranks: usize, count: usize, floats: usize) -> impl Iterator<Item = ChunkedPiece> {
    let (blocks, most) = (CHUNKED_BLOCKS / 2, (most_floats(ranks) / floats).min(MOST_CHUNKS * MOST_UNITS));
    split(count, most).map(move |(first, count)| {
        let chunk = count.div_ceil(blocks).next_multiple_of(UNITS).min(MOST_UNITS);
        ChunkedPiece { first, count, chunk, blocks: 2 * count.div_ceil(chunk).min(blocks) }
    })
}

fn split(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count.div_ceil(most)).map(move |piece| (piece * most, most.min(count - piece * most)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use offshoot_backend::Dtype;

    fn sums(ranks: usize, wire: Dtype, exact: bool) -> ExchangedSums {
        ExchangedSums::of(ranks, wire, wire, exact)
    }

    #[test]
    fn launches_cover_a_buffer_and_fit_into_memory() {
        for (ranks, wire, exact) in [1, 2, 4, 8].into_iter().flat_map(|ranks| {
            [(Dtype::F32, false), (Dtype::Bf16, false), (Dtype::Bf16, true)].map(|(wire, exact)| (ranks, wire, exact))
        }) {
            let of_warp = WARP_WORDS * 8 / wire.bytes();
            let sums_as = if exact || ranks <= 2 { 4 } else { wire.bytes() };
            for count in [1, 3, 512, 4097, 65_536, 131_075, 1 << 20, (1 << 20) + 8, 5 << 20, 70 << 20] {
                for way in Way::ALL {
                    let mut next = 0;
                    for piece in pieces_by(way, sums(ranks, wire, exact), count) {
                        assert_eq!(piece.first, next);
                        next += piece.count;
                        assert!(piece.blocks > 0 && piece.blocks <= MOST_BLOCKS, "{piece:?}");
                        let warps = piece.count.div_ceil(of_warp);
                        let share = warps.div_ceil(ranks);
                        let lines = match piece.way {
                            Way::OneShot => warps * WARP_LINES,
                            Way::TwoShot => {
                                assert!((ranks - 1) * share < warps, "{piece:?}: a rank without a share");
                                share * WARP_LINES * (1 + sums_as / wire.bytes())
                            }
                        };
                        assert!(ranks == 1 || lines <= most_lines(ranks), "{ranks} ranks, {wire}: {piece:?}");
                        // A launch is aligned to 16 bytes of whatever is sent.
                        assert_eq!(piece.first % 8, 0);
                    }
                    assert_eq!(next, count);
                }
                let mut next = 0;
                for piece in pieces_of_gather(ranks, count) {
                    assert_eq!(piece.first, next);
                    next += piece.count;
                    assert!(piece.blocks > 0 && piece.blocks <= CHUNKED_BLOCKS, "{piece:?}");
                    let chunks = piece.count.div_ceil(piece.chunk);
                    assert!(chunks <= MOST_CHUNKS && piece.count <= most_floats(ranks), "{piece:?}");
                    // The last chunk ends in memory, too.
                    assert_eq!(piece.chunk % CHUNK_STEP, 0);
                    assert_eq!(piece.first % 8, 0);
                }
                assert_eq!(next, count);
            }
        }
    }

    #[test]
    fn large_buffers_of_many_ranks_go_in_two_shots() {
        let bf16 = |ranks| sums(ranks, Dtype::Bf16, false);
        let alone: Vec<usize> = pieces(bf16(1), 1024 * 4096).map(|piece| piece.blocks).collect();
        assert_eq!(alone, [MOST_BLOCKS], "one launch, all blocks");
        assert_eq!(pieces(bf16(2), 8 << 20).next().map(|piece| piece.blocks), Some(MOST_BLOCKS));
        assert_eq!(way(bf16(2), 64 << 20), Way::OneShot);
        assert_eq!(way(bf16(4), 128 << 10), Way::OneShot);
        assert_eq!(way(bf16(4), 256 << 10), Way::TwoShot);
        assert_eq!(way(sums(4, Dtype::Bf16, true), 256 << 10), Way::OneShot);
        assert_eq!(way(bf16(8), 64 << 20), Way::TwoShot);
        assert_eq!(pieces_by(Way::TwoShot, bf16(8), 1024).next().map(|piece| piece.way), Some(Way::OneShot));
    }

    #[test]
    fn units_of_members_fit_into_memory() {
        for ranks in [2, 4, 8] {
            for head_dim in [2, 16, 128, 512] {
                for count in [1, 8, 64, 4097, 131_072, 3 << 20] {
                    let mut next = 0;
                    for piece in pieces_of_merge(ranks, count, head_dim + 2) {
                        assert_eq!(piece.first, next);
                        next += piece.count;
                        assert!(piece.count * (head_dim + 2) <= most_floats(ranks), "{piece:?}");
                        assert!(piece.count.div_ceil(piece.chunk) <= MOST_CHUNKS, "{piece:?}");
                        // Both halves have blocks, and each of them a chunk.
                        assert!((2..=CHUNKED_BLOCKS).contains(&piece.blocks) && piece.blocks.is_multiple_of(2));
                        assert!(piece.blocks / 2 <= piece.count.div_ceil(piece.chunk), "{piece:?}");
                    }
                    assert_eq!(next, count);
                }
            }
        }
    }
}
