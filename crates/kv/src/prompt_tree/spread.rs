//! A depth-first order of a job's prompts that is made to be cut into parts of equal work: groups that share a prefix
//! are packed whole into bins where they fit, largest first into the emptiest bin; a group larger than a bin fills
//! neighbouring bins, and its own groups are packed in turn. `parts` decides where the order is cut.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use super::{PromptTree, SortedPrompt};

/// A subtree, or a part of it, that comes next.
struct Ahead {
    node: usize,
    /// Tokens that its first prompt shares with the prompt before it.
    shared: u32,
    /// The room in each of the bins over which its children are spread; none: it goes whole into one.
    bins: Vec<u64>,
}

impl PromptTree {
    /// All prompts depth-first, so that cuts between equal bins lose little: each with the number of tokens that it
    /// shares with the prompt before it. `work`: of each node, without the nodes beneath it.
    pub(super) fn spread(&self, work: impl Fn(usize) -> u64, bins: usize) -> Vec<SortedPrompt> {
        let beneath = self.sums_beneath(work);
        let children = self.children();
        let empty = self.nodes().first().map_or(self.sorted().len(), |first| first.prompts.start as usize);
        let mut order: Vec<SortedPrompt> = self.sorted()[..empty].to_vec();
        let mut ahead = arranged(&children.roots, &beneath, &vec![1; bins], 0, 0);
        while let Some(Ahead { node, shared, bins }) = ahead.pop() {
            if bins.len() <= 1 {
                let prompts = &self.nodes()[node].prompts;
                self.append(&mut order, prompts.start as usize..prompts.end as usize, shared);
                continue;
            }
            let own = self.own(node);
            let end = self.nodes()[node].end;
            let first = if own.is_empty() { shared } else { end };
            self.append(&mut order, own, shared);
            ahead.extend(arranged(children.of(node), &beneath, &bins, first, end));
        }
        order
    }

    /// Appends prompts of a range of `sorted`; the first shares `shared` tokens with the one before it.
    fn append(&self, order: &mut Vec<SortedPrompt>, range: Range<usize>, shared: u32) {
        let at = order.len();
        order.extend_from_slice(&self.sorted()[range]);
        if let Some(first) = order.get_mut(at) {
            first.shared = shared;
        }
    }
}

/// The siblings spread over bins of this room, at least one, the next one last. The first shares `first` tokens with
/// the prompt before it, the others `shared`.
fn arranged(siblings: &[u32], beneath: &[u64], room: &[u64], first: u32, shared: u32) -> Vec<Ahead> {
    let work = |node: &u32| beneath[*node as usize];
    let (all, total) = (siblings.iter().map(work).sum::<u64>(), room.iter().sum::<u64>().max(1));
    // The bins as if they held exactly these siblings.
    let scaled = |room: &u64| (u128::from(*room) * u128::from(all) / u128::from(total)) as u64;
    let bins: Vec<u64> = room.iter().map(scaled).collect();
    let largest = bins.iter().copied().max().unwrap_or(0);
    let mut by_work: Vec<u32> = siblings.to_vec();
    by_work.sort_by_key(|node| Reverse(work(node)));
    let large = by_work.iter().take_while(|node| work(node) > largest).count();

    // For each bin, what begins in it.
    let mut begun: Vec<Vec<Ahead>> = bins.iter().map(|_| Vec::new()).collect();
    let mut left = bins.clone();
    let (mut at, mut rest) = (0, by_work[..large].iter().map(work).sum::<u64>());
    for node in &by_work[..large] {
        let is_touched = left.get(at).is_some_and(|left| *left < bins[at]);
        if is_touched && bins[at + 1..].iter().sum::<u64>() >= rest {
            at += 1;
        }
        let begin = at.min(bins.len() - 1);
        let (mut wanted, mut taken) = (work(node), Vec::new());
        rest -= wanted;
        while let Some(left) = left.get_mut(at).filter(|_| wanted > 0) {
            let part = wanted.min(*left);
            (*left, wanted) = (*left - part, wanted - part);
            taken.extend(Some(part).filter(|part| *part > 0));
            at += usize::from(*left == 0);
        }
        begun[begin].push(Ahead { node: *node as usize, shared, bins: taken });
    }
    let room = |(bin, left): (usize, u64)| (i128::from(left), Reverse(bin));
    let mut emptiest: BinaryHeap<(i128, Reverse<usize>)> = left.into_iter().enumerate().map(room).collect();
    for node in &by_work[large..] {
        let mut bin = emptiest.peek_mut().expect("there is a bin");
        bin.0 -= i128::from(work(node));
        begun[bin.1.0].push(Ahead { node: *node as usize, shared, bins: Vec::new() });
    }
    let mut ahead: Vec<Ahead> = begun.into_iter().flatten().rev().collect();
    if let Some(next) = ahead.last_mut() {
        next.shared = first;
    }
    ahead
}
