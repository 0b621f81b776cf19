//! The nodes of a sampling tree, by their ids. Nodes are only added, so an id stays valid as long as the tree; what a
//! node holds is left to the tree.

use std::ops::{Index, IndexMut};

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};

use super::ThoughtNode;
use offshoot_core::ids::NodeId;

/// Nodes, parents before children, each with an edge from its parent; the first is the root.
pub(super) struct Nodes(DiGraph<ThoughtNode, ()>);

impl Nodes {
    pub const ROOT: NodeId = NodeId(0);

    pub fn new(root: ThoughtNode) -> Self {
        let mut graph = DiGraph::new();
        graph.add_node(root);
        Nodes(graph)
    }

    /// Adds a child of `parent`.
    pub fn add(&mut self, parent: NodeId, node: ThoughtNode) -> NodeId {
        let child = self.0.add_node(node);
        self.0.add_edge(index(parent), child, ());
        id(child)
    }

    pub fn len(&self) -> usize {
        self.0.node_count()
    }

    /// `None` for the root.
    pub fn parent(&self, at: NodeId) -> Option<NodeId> {
        self.0.neighbors_directed(index(at), Direction::Incoming).next().map(id)
    }

    /// The youngest first.
    pub fn children(&self, at: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        self.0.neighbors(index(at)).map(id)
    }
}

impl Index<NodeId> for Nodes {
    type Output = ThoughtNode;

    fn index(&self, at: NodeId) -> &ThoughtNode {
        &self.0[index(at)]
    }
}

impl IndexMut<NodeId> for Nodes {
    fn index_mut(&mut self, at: NodeId) -> &mut ThoughtNode {
        &mut self.0[index(at)]
    }
}

fn index(id: NodeId) -> NodeIndex {
    NodeIndex::from(id.0)
}

fn id(index: NodeIndex) -> NodeId {
    NodeId::new(index.index())
}
