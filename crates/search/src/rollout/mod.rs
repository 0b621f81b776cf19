//! Rollouts for a trainer as one packed trie: what samples share is stored, and can be trained, once. A trie is built
//! of finished groups or of sampling trees; what the rewards are is left to the caller, and so is the loss.

mod build;
mod columns;
mod file;
mod row;
mod trie;

pub use build::{TreeLeaf, TrieBuilder, TriePlace};
pub use columns::{LeafColumns, TokenColumns};
pub use row::TreeRow;
pub use trie::{DrawnToken, Leaf, RolloutTrie, TrieToken};
