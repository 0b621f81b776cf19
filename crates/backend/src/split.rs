//! How matrices and buffers are divided among ranks: devices that compute one model together (Megatron-LM, Shoeybi et
//! al. 2019, arXiv 1909.08053, section 3). Of two linear layers behind each other the first has its outputs divided and
//! the second its inputs; what the second computes is then summed over the ranks. The decoder says how everything would
//! be divided, `ranks` divides it, and a single device has all.

use std::ops::Range;

use super::latent::LatentHeads;
use super::shapes::HeadLayout;
use super::weights::{ActivationDtype, Dtype};

/// How a matrix, or the bias beside it, is divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has all of it.
    Whole,
    /// Every rank has its share of the outputs of each of these segments, which are neighbours. Where a segment has
    /// none for some number of ranks, every rank has all of the matrix.
    Outputs(Vec<Segment>),
    /// Every rank has an equal share of the inputs. A bias belongs to the first share.
    Inputs,
}

/// Neighbouring outputs, of whole units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub width: usize,
    /// Outputs that belong together: all of a head.
    pub unit: usize,
    /// Whether they are what meets keys: of each query head, so that ranks which divide the positions of a key head
    /// have all of its queries.
    pub meets_keys: bool,
}

impl Split {
    /// Segments of these widths, whose outputs do not belong together.
    pub fn outputs(widths: impl IntoIterator<Item = usize>) -> Self {
        Split::Outputs(widths.into_iter().map(|width| Segment { width, unit: 1, meets_keys: false }).collect())
    }
}

impl Segment {
    /// `unit` outputs for each query head, which meet keys.
    pub fn of_queries(heads: HeadLayout, unit: usize) -> Self {
        Self { width: heads.q_heads * unit, unit, meets_keys: true }
    }

    /// The outputs of rank `rank` of `ranks`: as many units as any other rank has or, where there are fewer units than
    /// ranks, one that neighbouring ranks have too. `None`: neither is possible. `sharing`: how many neighbouring ranks
    /// divide the positions of a key head.
    pub fn share(self, rank: usize, ranks: usize, sharing: usize) -> Option<Range<usize>> {
        let groups = if self.meets_keys { sharing } else { 1 };
        let (rank, ranks) = (rank / groups, ranks / groups);
        let units = units_of_rank(self.width / self.unit, rank, ranks)?;
        Some(units.start * self.unit..units.end * self.unit)
    }
}

/// Which of `count` units a rank has; see [`Segment::share`].
fn units_of_rank(count: usize, rank: usize, ranks: usize) -> Option<Range<usize>> {
    if count.is_multiple_of(ranks) {
        let own = count / ranks;
        return Some(rank * own..(rank + 1) * own);
    }
    let first = rank * count / ranks;
    ranks.is_multiple_of(count).then_some(first..first + 1)
}

impl HeadLayout {
    /// The heads of one of `ranks` ranks: a share of the query heads, and the key heads that these read. Several ranks
    /// have the same key head where there are fewer than ranks. `None`: the ranks do not divide the heads.
    pub fn of_rank(self, ranks: usize) -> Option<Self> {
        let queries = self.q_heads.is_multiple_of(ranks).then_some(self.q_heads / ranks)?;
        Some(Self { q_heads: queries, kv_heads: units_of_rank(self.kv_heads, 0, ranks)?.len(), ..self })
    }

    /// How many of `ranks` ranks have each key head.
    pub fn copies(self, ranks: usize) -> usize {
        ranks.checked_div(self.kv_heads).map_or(1, |copies| copies.max(1))
    }
}

/// What every rank has of a buffer, and which layers write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All of it, the same numbers in each.
    Whole,
    /// All of it, the same numbers in each: also a sum over all ranks, which a layer with divided inputs writes or
    /// adds. `parts`: what each rank's part of the sum is held as; `inputs`: what the part is computed from.
    Summed { parts: ActivationDtype, inputs: Dtype },
    /// All of it, the same numbers in each: every rank writes the columns that it computes, and receives the others.
    Gathered,
    /// The columns of a matrix whose outputs are divided: a share as large as any other rank's.
    Columns,
    /// The columns of a matrix whose outputs are the query, key and value heads of these.
    Heads(HeadLayout),
    /// The columns of a matrix whose outputs are queries of these heads, then latents, which every rank has.
    Latents(LatentHeads),
    /// All columns, of the parts of a sum: what experts write whose inputs are divided, until they are combined.
    Parts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_units_than_ranks_are_had_by_neighbours() {
        let heads = Segment { width: 32, unit: 16, meets_keys: false };
        let shares = |ranks: usize| (0..ranks).map(|rank| heads.share(rank, ranks, 1)).collect::<Option<Vec<_>>>();
        assert_eq!(heads.share(0, 1, 1), Some(0..32));
        assert_eq!(shares(2), Some(vec![0..16, 16..32]));
        assert_eq!(shares(4), Some(vec![0..16, 0..16, 16..32, 16..32]));
        let three = Segment { width: 48, ..heads };
        assert_eq!(three.share(0, 2, 1), None);
        assert_eq!(Segment { width: 0, ..heads }.share(1, 2, 1), Some(0..0));
    }

    #[test]
    fn a_rank_has_the_key_heads_that_its_queries_read() {
        let heads = HeadLayout::new(16, 2, 8);
        let (queries, keys) = (Segment::of_queries(heads, 1), Segment { width: 2, unit: 1, meets_keys: false });
        for ranks in [1, 2, 4, 8] {
            let own = heads.of_rank(ranks).unwrap();
            assert_eq!((own.q_heads, own.kv_heads), (16 / ranks, if ranks == 1 { 2 } else { 1 }));
            assert_eq!(heads.copies(ranks), if ranks > 2 { ranks / 2 } else { 1 });
            for rank in 0..ranks {
                let (queries, keys) = (queries.share(rank, ranks, 1).unwrap(), keys.share(rank, ranks, 1).unwrap());
                let place = |query: usize| query / heads.group() - keys.start;
                assert!(queries.clone().all(|query| place(query) == (query - queries.start) / own.group()), "{rank}");
            }
        }
        // Ranks that divide positions have all queries of their key head.
        let eight: Vec<_> = (0..8).map(|rank| Segment::of_queries(heads, 1).share(rank, 8, 4).unwrap()).collect();
        assert_eq!(eight, [vec![0..8; 4], vec![8..16; 4]].concat());
        assert_eq!(HeadLayout { kv_heads: 3, ..heads }.of_rank(2), None);
        // Layers that read another one's keys have none of their own.
        assert_eq!(HeadLayout { kv_heads: 0, ..heads }.of_rank(2).unwrap().kv_heads, 0);
        assert_eq!(HeadLayout { kv_heads: 0, ..heads }.copies(2), 1);
    }
}
