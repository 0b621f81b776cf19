//! How a buffer is exchanged: by which kernel of kernels/ranks, in how many launches, chunks and blocks. All ranks find
//! the same.
//!
//! The limits between the ways were measured on two and four H200s: packets carry twice the bytes, but save two ways of
//! the link (about 2 us on NVLink, the time of about 512 KiB); of more than two ranks, one shot sends `ranks - 1`
//! buffers, and two shots send two at most, but wait for each other once more. `bench allreduce` prints all of them.

use crate::backend::Dtype;

/// As in kernels/ranks/exchange.cuh.
pub const MOST_BLOCKS: usize = 256;

pub const MOST_CHUNKS: usize = 1024;

/// Blocks of exchanges whose blocks have a multiprocessor each: all but one shot of two ranks.
const LARGE_BLOCKS: usize = MOST_BLOCKS / 2;

/// Packets that a rank takes of each other one.
pub const MOST_PACKETS: usize = 64 << 10;

/// Floats of all ranks' places in one half of a rank's memory.
const FLOATS: usize = 16 << 20;

/// Floats of a chunk: a multiple of what a block of 512 threads moves at once, eight each.
const CHUNK_STEP: usize = 512 * 8;
const MOST_CHUNK: usize = 4 * CHUNK_STEP;

/// Units of a chunk where members merge: one for each warp of a block, and several where there are many.
const UNITS: usize = super::THREADS as usize / 32;
const MOST_UNITS: usize = 16 * UNITS;

/// Bytes on the link up to which packets are used, all receivers together, and one shot.
const PACKET_BYTES: usize = 512 << 10;
const ONE_SHOT_BYTES: usize = 2 << 20;

/// The kernels of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Packets,
    OneShot,
    TwoShot,
}

impl Way {
    pub const ALL: [Self; 3] = [Way::Packets, Way::OneShot, Way::TwoShot];
}

/// What one launch exchanges: elements `first`, .. of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExchangePiece {
    pub way: Way,
    pub first: usize,
    pub count: usize,
    /// Elements of a chunk.
    pub chunk: usize,
    pub blocks: usize,
}

/// Floats that a rank takes of each other one.
pub const fn most_floats(ranks: usize) -> usize {
    FLOATS / ranks
}

/// The best way for `count` elements. One rank sends nothing, so it adds up in large chunks.
pub fn way(ranks: usize, count: usize, wire: Dtype) -> Way {
    let bytes = count * wire.bytes() * (ranks - 1);
    if ranks == 1 {
        Way::OneShot
    } else if bytes <= PACKET_BYTES {
        Way::Packets
    } else if ranks <= 2 || bytes <= ONE_SHOT_BYTES {
        Way::OneShot
    } else {
        Way::TwoShot
    }
}

/// The pieces in which `count` elements are added up.
pub fn pieces(ranks: usize, count: usize, wire: Dtype) -> impl Iterator<Item = ExchangePiece> {
    pieces_by(way(ranks, count, wire), ranks, count, wire)
}

/// The same by one way. Of a buffer that is too small for two shots, one shot.
pub fn pieces_by(way: Way, ranks: usize, count: usize, wire: Dtype) -> impl Iterator<Item = ExchangePiece> {
    let in_packet = 8 / wire.bytes();
    let most = match way {
        Way::Packets => MOST_PACKETS * in_packet,
        Way::OneShot | Way::TwoShot => most_floats(ranks),
    };
    split(count, most).map(move |(first, count)| match way {
        Way::Packets => {
            let blocks = count.div_ceil(in_packet * super::THREADS as usize).min(LARGE_BLOCKS);
            ExchangePiece { way, first, count, chunk: 0, blocks }
        }
        Way::OneShot => one_shot(ranks, first, count),
        Way::TwoShot => two_shots(ranks, first, count).unwrap_or_else(|| one_shot(ranks, first, count)),
    })
}

/// The launches that gather `count` elements of each rank: half the blocks send, half bring what has come.
pub fn pieces_of_gather(ranks: usize, count: usize) -> impl Iterator<Item = ExchangePiece> {
    split(count, most_floats(ranks)).map(move |(first, count)| {
        let chunk = chunk_of(count, LARGE_BLOCKS / 2);
        let blocks = 2 * count.div_ceil(chunk).min(LARGE_BLOCKS / 2);
        ExchangePiece { way: Way::OneShot, first, count, chunk, blocks }
    })
}

/// The launches in which members merge `count` units of a row and a head each: half the blocks send, half merge. A unit's
/// state has `floats` floats.
pub fn pieces_of_merge(ranks: usize, count: usize, floats: usize) -> impl Iterator<Item = ExchangePiece> {
    let (blocks, most) = (LARGE_BLOCKS / 2, (most_floats(ranks) / floats).min(MOST_CHUNKS * MOST_UNITS));
    split(count, most).map(move |(first, count)| {
        let chunk = count.div_ceil(blocks).next_multiple_of(UNITS).min(MOST_UNITS);
        ExchangePiece { way: Way::OneShot, first, count, chunk, blocks: 2 * count.div_ceil(chunk).min(blocks) }
    })
}

fn split(count: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count.div_ceil(most)).map(move |piece| (piece * most, most.min(count - piece * most)))
}

/// Elements of a chunk where `blocks` blocks have one each, as far as those are not too long.
fn chunk_of(count: usize, blocks: usize) -> usize {
    count.div_ceil(blocks).next_multiple_of(CHUNK_STEP).min(MOST_CHUNK)
}

/// Half the blocks send, half add up; of one rank all do.
fn one_shot(ranks: usize, first: usize, count: usize) -> ExchangePiece {
    let roles = ranks.min(2);
    let (blocks, most_chunk) =
        if ranks == 2 { (MOST_BLOCKS / roles, MOST_CHUNK / 2) } else { (LARGE_BLOCKS / roles, MOST_CHUNK) };
    let chunk = chunk_of(count, blocks).min(most_chunk);
    ExchangePiece { way: Way::OneShot, first, count, chunk, blocks: roles * count.div_ceil(chunk).min(blocks) }
}

/// `None` if a rank's share would have no chunk: it would then not hear from the others.
fn two_shots(ranks: usize, first: usize, count: usize) -> Option<ExchangePiece> {
    let chunk = chunk_of(count, LARGE_BLOCKS / 3);
    let chunks = count.div_ceil(chunk);
    let share = chunks.div_ceil(ranks);
    let blocks = 3 * chunks.min(LARGE_BLOCKS / 3);
    ((ranks - 1) * share < chunks).then_some(ExchangePiece { way: Way::TwoShot, first, count, chunk, blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_cover_a_buffer_and_fit_into_memory() {
        for ranks in [1, 2, 4, 8] {
            for wire in [Dtype::F32, Dtype::Bf16] {
                for count in [1, 3, 512, 4097, 65_536, 131_075, 1 << 20, (1 << 20) + 8, 5 << 20, 70 << 20] {
                    for way in Way::ALL {
                        let pieces: Vec<ExchangePiece> = pieces_by(way, ranks, count, wire).collect();
                        let mut next = 0;
                        for piece in &pieces {
                            assert_eq!(piece.first, next);
                            next += piece.count;
                            assert!(piece.blocks > 0 && piece.blocks <= MOST_BLOCKS, "{piece:?}");
                            match piece.way {
                                Way::Packets => assert!(piece.count.div_ceil(8 / wire.bytes()) <= MOST_PACKETS),
                                Way::OneShot | Way::TwoShot => {
                                    let chunks = piece.count.div_ceil(piece.chunk);
                                    assert!(chunks <= MOST_CHUNKS && piece.count <= most_floats(ranks), "{piece:?}");
                                    // The last chunk of the last share ends in memory, too.
                                    assert_eq!(piece.chunk % CHUNK_STEP, 0);
                                }
                            }
                            // A launch is aligned to 16 bytes of whatever is sent.
                            assert_eq!(piece.first % 8, 0);
                        }
                        assert_eq!(next, count);
                    }
                }
            }
        }
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
                        assert!((2..=MOST_BLOCKS).contains(&piece.blocks) && piece.blocks.is_multiple_of(2));
                        assert!(piece.blocks / 2 <= piece.count.div_ceil(piece.chunk), "{piece:?}");
                    }
                    assert_eq!(next, count);
                }
            }
        }
    }

    #[test]
    fn small_buffers_go_in_packets_and_large_ones_of_many_ranks_in_two_shots() {
        assert_eq!(way(1, 1, Dtype::Bf16), Way::OneShot);
        let alone: Vec<usize> = pieces(1, 1024 * 4096, Dtype::Bf16).map(|piece| piece.blocks).collect();
        assert_eq!(alone, [LARGE_BLOCKS], "one launch, all blocks");
        assert_eq!(pieces(2, 8 << 20, Dtype::Bf16).next().map(|piece| piece.blocks), Some(MOST_BLOCKS));
        assert_eq!(way(2, 128 << 10, Dtype::F32), Way::Packets);
        assert_eq!(way(2, 129 << 10, Dtype::F32), Way::OneShot);
        assert_eq!(way(2, 64 << 20, Dtype::F32), Way::OneShot);
        assert_eq!(way(8, 64 << 20, Dtype::Bf16), Way::TwoShot);
        assert_eq!(pieces_by(Way::TwoShot, 8, 4096, Dtype::F32).next().map(|piece| piece.way), Some(Way::OneShot));
    }
}
