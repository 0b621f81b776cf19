//! Exact simulation of an LRU page cache over a job's prompts in order of arrival.
//!
//! A page is identified by all tokens up to its end, so it belongs to the node in which it ends. All pages of a node
//! are used together, by every prompt beneath it, and evicted last page first. So it is enough to record for each node
//! when it was used and how many of its first pages are cached: the work is per node of each prompt's path, not per
//! page.

use std::collections::VecDeque;

use super::{PromptNode, PromptTree};

/// The number of prompt tokens found in a cache of `capacity` tokens; see [`PromptTree::lru`].
pub fn hit_tokens(tree: &PromptTree, capacity: u64, page_tokens: u32) -> u64 {
    assert!(page_tokens > 0, "a page holds tokens");
    let mut cache = LruPages::new(tree.nodes().len(), capacity / u64::from(page_tokens));
    let pages = |node: &PromptNode| u64::from(node.end / page_tokens - node.first / page_tokens);
    let mut hits = 0;
    for last in tree.ends() {
        let mut next = last;
        while let Some(index) = next {
            let node = &tree.nodes()[index as usize];
            hits += cache.use_node(index, pages(node));
            next = node.parent;
        }
        cache.evict_surplus();
    }
    hits * u64::from(page_tokens)
}

#[derive(Clone, Copy, Default)]
struct CachedNode {
    /// Cached pages, the node's first ones.
    pages: u64,
    /// Number of its latest use.
    used: u64,
}

struct LruPages {
    /// Pages the cache may hold between two prompts.
    capacity: u64,
    pages: u64,
    nodes: Vec<CachedNode>,
    /// Uses so far.
    uses: u64,
    /// Nodes with the numbers of their uses, rising. Entries other than a node's latest use are stale.
    queue: VecDeque<(u32, u64)>,
}

impl LruPages {
    fn new(nodes: usize, capacity: u64) -> Self {
        Self { capacity, pages: 0, nodes: vec![CachedNode::default(); nodes], uses: 0, queue: VecDeque::new() }
    }

    /// Uses all `pages` pages of the node. Returns how many of them were cached.
    fn use_node(&mut self, node: u32, pages: u64) -> u64 {
        self.uses += 1;
        let cached = std::mem::replace(&mut self.nodes[node as usize], CachedNode { pages, used: self.uses });
        self.pages += pages - cached.pages;
        self.queue.push_back((node, self.uses));
        if self.queue.len() > 2 * self.nodes.len() {
            let nodes = &self.nodes;
            self.queue.retain(|&(node, used)| nodes[node as usize].used == used);
        }
        cached.pages
    }

    /// Evicts the least recently used pages beyond the capacity.
    fn evict_surplus(&mut self) {
        while self.pages > self.capacity {
            let &(node, used) = self.queue.front().expect("every cached page belongs to a node in the queue");
            let cached = &mut self.nodes[node as usize];
            if cached.used == used {
                let evicted = cached.pages.min(self.pages - self.capacity);
                cached.pages -= evicted;
                self.pages -= evicted;
            }
            if cached.used != used || cached.pages == 0 {
                self.queue.pop_front();
            }
        }
    }
}
