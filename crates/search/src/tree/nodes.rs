//! The nodes of a sampling tree, by their ids. Nodes are only added, so an id stays valid as long as the tree; what a
//! node holds is left to the tree.

use std::ops::{Index, IndexMut};

use super::ThoughtNode;
use offshoot_core::ids::NodeId;

/// Nodes, parents before children; the first is the root.
pub(super) struct Nodes(Vec<Placed>);

/// A node and its place in the tree.
struct Placed {
    node: ThoughtNode,
    /// `None` for the root.
    parent: Option<NodeId>,
    /// In the order of their creation.
    children: Vec<NodeId>,
}

impl Nodes {
    pub const ROOT: NodeId = NodeId(0);

    pub fn new(root: ThoughtNode) -> Self {
        Nodes(vec![Placed { node: root, parent: None, children: Vec::new() }])
    }

    /// Adds a child of `parent`.
    pub fn add(&mut self, parent: NodeId, node: ThoughtNode) -> NodeId {
        let id = NodeId::new(self.0.len());
        self.0.push(Placed { node, parent: Some(parent), children: Vec::new() });
        self.0[parent.ix()].children.push(id);
        id
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn parent(&self, at: NodeId) -> Option<NodeId> {
        self.0[at.ix()].parent
    }

    pub fn children(&self, at: NodeId) -> &[NodeId] {
        &self.0[at.ix()].children
    }
}

impl Index<NodeId> for Nodes {
    type Output = ThoughtNode;

    fn index(&self, at: NodeId) -> &ThoughtNode {
        &self.0[at.ix()].node
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, at: NodeId) -> &mut ThoughtNode {
        &mut self.0[at.ix()].node
    }
}
