//! A picture of the tree for people: its largest subtrees, with what each segment holds.

use super::PrefixTree;
use offshoot_core::ids::{SegmentId, TokenId};

/// First tokens of a segment that a map shows.
const SHOWN: usize = 16;

/// A segment of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSegment {
    pub id: SegmentId,
    /// Index of its parent in the map; smaller than its own.
    pub parent: Option<usize>,
    /// Its own tokens, and how many of them have keys and values.
    pub tokens: usize,
    pub computed: usize,
    /// Pages of its own: one shared with its parent counts there.
    pub pages: usize,
    /// Pages of the segments beneath it, also of those that are not in the map.
    pub pages_beneath: usize,
    /// Leases that end here.
    pub leases: usize,
    /// Leases that end here, and children that a lease keeps.
    pub users: usize,
    /// Its first tokens, 16 at most.
    pub begin: Vec<TokenId>,
}

impl PrefixTree {
    /// The `most` segments with the most pages in their subtrees; parents come before their children. Visits the whole
    /// tree.
    pub fn map(&self, most: usize) -> Vec<MappedSegment> {
        let mut ids: Vec<SegmentId> =
            (0..self.arena.len()).map(SegmentId::new).filter(|id| self.arena[id.ix()].is_some()).collect();
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
                id,
                parent: segment.parent.and_then(|parent| index[parent.ix()]),
                tokens: segment.len() as usize,
                computed: segment.computed as usize,
                pages: self.own_pages(id),
                pages_beneath: beneath[id.ix()],
                leases: segment.leases as usize,
                users: segment.users as usize,
                begin: segment.tokens.iter().take(SHOWN).copied().collect(),
            }
        };
        ids.iter().map(mapped).collect()
    }
}
