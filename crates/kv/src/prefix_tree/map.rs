//! A picture of the tree for people, such as a page that draws the memory for keys and values as a tree map: its
//! largest subtrees, with what each segment holds.

use std::collections::HashSet;

use super::PrefixTree;
use offshoot_core::ids::{SegmentId, TokenId};

/// First tokens of a segment that a map shows.
const SHOWN: usize = 16;

/// A segment of a map: a run of tokens whose keys and values are kept together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSegment {
    /// Index in the map of the segment that it continues; smaller than its own. `None` for a root.
    pub parent: Option<usize>,
    /// Its own tokens, and how many of them have keys and values.
    pub tokens: usize,
    pub computed: usize,
    /// Bytes of its pages, all layers; a page shared with its parent counts there.
    pub bytes: usize,
    /// Bytes of all segments beneath it, also of those that are not in the map.
    pub bytes_beneath: usize,
    /// Leases that end here.
    pub leases: usize,
    /// Leases that end here, and children that a lease keeps. 0: it is only cached.
    pub users: usize,
    /// Whether it is on the path of a pin.
    pub is_pinned: bool,
    /// Whether its prompts have a salt, and so may be another client's than those of others.
    pub is_salted: bool,
    /// Its first tokens, 16 at most.
    pub begin: Vec<TokenId>,
}

impl PrefixTree {
    /// The `most` segments with the most pages, of so many bytes, in their subtrees; parents come before their
    /// children.
    /// `pins`: where the paths of pins end. Visits the whole tree.
    pub fn map(&self, most: usize, page_bytes: usize, pins: impl Iterator<Item = SegmentId>) -> Vec<MappedSegment> {
        let pinned: HashSet<SegmentId> = pins.flat_map(|end| self.ancestry(end)).collect();
        let mut ids = self.ids();
        // Children begin after their parents' first positions: from the leaves up.
        ids.sort_by_key(|&id| (self.at(id).first_position, self.at(id).len() == 0, id));
        let mut beneath = vec![0; self.arena.len()];
        for &id in ids.iter().rev() {
            if let Some(parent) = self.at(id).parent {
                beneath[parent.ix()] += self.own_pages(id) + beneath[id.ix()];
            }
        }
        // Stable: of equal subtrees the one nearer to the root is first.
        ids.sort_by_key(|&id| std::cmp::Reverse(self.own_pages(id) + beneath[id.ix()]));
        ids.truncate(most);
        let mut index = vec![None; self.arena.len()];
        ids.iter().enumerate().for_each(|(at, id)| index[id.ix()] = Some(at));
        let mapped = |&id: &SegmentId| {
            let segment = self.at(id);
            MappedSegment {
                parent: segment.parent.and_then(|parent| index[parent.ix()]),
                tokens: segment.len() as usize,
                computed: segment.computed as usize,
                bytes: self.own_pages(id) * page_bytes,
                bytes_beneath: beneath[id.ix()] * page_bytes,
                leases: segment.leases as usize,
                users: segment.users as usize,
                is_pinned: pinned.contains(&id),
                is_salted: segment.origin.salt.is_some(),
                begin: segment.tokens.iter().take(SHOWN).copied().collect(),
            }
        };
        ids.iter().map(mapped).collect()
    }
}
