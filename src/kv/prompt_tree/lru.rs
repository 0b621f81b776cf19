//! An exact cache of pages that forgets what was used longest ago, walked through by a job's prompts in order of
//! arrival.
//!
//! A page is known by all tokens up to its end, so it belongs to the node in which it ends; all pages of a node are
//! used together, by every prompt beneath it, and are forgotten from the last. So it is enough to keep for each node
//! when it was used and how many of its pages, the first ones, are still held: the work is one step a node of each
//! prompt's path, not one a page.

use std::collections::VecDeque;

use super::{PromptNode, PromptTree};

/// Tokens of all prompts that are found in a cache of `capacity` tokens, see [`PromptTree::lru`].
pub fn found(tree: &PromptTree, capacity: u64, page_tokens: u32) -> u64 {
    assert!(page_tokens > 0, "a page holds tokens");
    let mut cache = Cache::new(tree.nodes().len(), capacity / u64::from(page_tokens));
    let pages = |node: &PromptNode| u64::from(node.end / page_tokens - node.first / page_tokens);
    let mut found = 0;
    for last in tree.ends() {
        let mut next = last;
        while let Some(index) = next {
            let node = &tree.nodes()[index as usize];
            found += cache.use_node(index, pages(node));
            next = node.parent;
        }
        cache.forget_surplus();
    }
    found * u64::from(page_tokens)
}

#[derive(Clone, Copy, Default)]
struct Held {
    pages: u64,
    /// The number of its latest use.
    used: u64,
}

struct Cache {
    /// Pages it may hold between two prompts.
    most: u64,
    pages: u64,
    nodes: Vec<Held>,
    uses: u64,
    /// Nodes with the numbers of their uses, rising; only a node's latest use counts.
    queue: VecDeque<(u32, u64)>,
}

impl Cache {
    fn new(nodes: usize, most: u64) -> Self {
        Self { most, pages: 0, nodes: vec![Held::default(); nodes], uses: 0, queue: VecDeque::new() }
    }

    /// Pages of the node that were held; all of them are then.
    fn use_node(&mut self, node: u32, pages: u64) -> u64 {
        self.uses += 1;
        let held = std::mem::replace(&mut self.nodes[node as usize], Held { pages, used: self.uses });
        self.pages += pages - held.pages;
        self.queue.push_back((node, self.uses));
        if self.queue.len() > 2 * self.nodes.len() {
            let nodes = &self.nodes;
            self.queue.retain(|&(node, used)| nodes[node as usize].used == used);
        }
        held.pages
    }

    fn forget_surplus(&mut self) {
        while self.pages > self.most {
            let &(node, used) = self.queue.front().expect("every page that is held belongs to a node in the queue");
            let held = &mut self.nodes[node as usize];
            if held.used == used {
                let gone = held.pages.min(self.pages - self.most);
                held.pages -= gone;
                self.pages -= gone;
            }
            if held.used != used || held.pages == 0 {
                self.queue.pop_front();
            }
        }
    }
}
