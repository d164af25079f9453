//! Which block has a key's bytes, and which of them goes first.
//!
//! The blocks form trees: a block hangs below the one whose key its own was made of. What nobody holds and
//! has no known block below it can be evicted, oldest first; then the block above it can. The owner of a
//! block usually holds those before it too, but need not (a link may read the last blocks of a sequence that
//! is gone). Where that leaves nothing to evict from below, a block goes with all that hangs below it: those
//! of them that are held stay their owners', and are forgotten here.

use std::collections::{BTreeSet, HashMap};

use super::key::PrefixKey;

/// What a pool knows of its blocks' contents.
#[derive(Debug, Default)]
pub(in super::super) struct PrefixIndex {
    /// Block ids (X1).
    by_key: HashMap<PrefixKey, u32>,
    /// The same blocks by id.
    nodes: HashMap<u32, Node>,
    /// Blocks that nobody holds, with none below them: when their last owner left, and which.
    evictable: BTreeSet<(u64, u32)>,
    /// Counts releases.
    now: u64,
}

#[derive(Debug)]
struct Node {
    key: PrefixKey,
    parent: Option<u32>,
    /// In a fixed order, for simulations.
    children: BTreeSet<u32>,
    /// When its last owner left, if so: it is cached then.
    unheld_since: Option<u64>,
}

impl PrefixIndex {
    /// How many of the first keys are known, by bisection (X2).
    pub(in super::super) fn run(&self, keys: &[PrefixKey]) -> usize {
        keys.partition_point(|key| self.by_key.contains_key(key))
    }

    /// The block of a key.
    pub(in super::super) fn block(&self, key: &PrefixKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// How many of these keys' blocks nobody holds.
    pub(super) fn unheld(&self, keys: &[PrefixKey]) -> usize {
        let ids = keys.iter().filter_map(|key| self.by_key.get(key));
        ids.filter(|id| self.nodes[id].unheld_since.is_some()).count()
    }

    /// Learns of a sealed block that it does not know and whose key it does not know. False, and nothing,
    /// where the key before is not known either (X2).
    pub(super) fn insert(&mut self, key: PrefixKey, parent: Option<&PrefixKey>, id: u32) -> bool {
        let parent = match parent {
            None => None,
            Some(parent) => {
                let Some(parent) = self.block(parent) else { return false };
                self.nodes.get_mut(&parent).expect("known by key").children.insert(id);
                self.update(parent);
                Some(parent)
            }
        };
        let node = Node { key, parent, children: BTreeSet::new(), unheld_since: None };
        let known = (self.by_key.insert(key, id), self.nodes.insert(id, node));
        assert!(known.0.is_none() && known.1.is_none(), "block {id} is known, or its key");
        true
    }

    /// Whether it knows this block.
    pub(super) fn knows(&self, id: u32) -> bool {
        self.nodes.contains_key(&id)
    }

    /// A cached block has an owner again.
    pub(in super::super) fn hold(&mut self, id: u32) {
        if let Some(node) = self.nodes.get_mut(&id)
            && let Some(since) = node.unheld_since.take()
        {
            self.evictable.remove(&(since, id));
        }
    }

    /// A sealed block's last owner left. False where the block is not known: it is free then.
    pub(in super::super) fn release(&mut self, id: u32) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else { return false };
        self.now += 1;
        node.unheld_since = Some(self.now);
        self.update(id);
        true
    }

    /// Forgets as few cached blocks as possible, at least one while there is one. They are free then.
    pub(in super::super) fn evict(&mut self) -> Vec<u32> {
        if let Some((_, id)) = self.evictable.pop_first() {
            self.forget(id);
            return vec![id];
        }
        // Whatever is cached has a held block below it.
        let cached = self.nodes.iter().filter_map(|(id, node)| Some((node.unheld_since?, *id)));
        let Some((_, top)) = cached.min() else { return vec![] };
        let mut below = vec![top];
        let mut at = 0;
        while at < below.len() {
            below.extend(&self.nodes[&below[at]].children);
            at += 1;
        }
        let mut freed = Vec::new();
        for id in below.into_iter().rev() {
            if self.forget(id) {
                freed.push(id);
            }
        }
        freed
    }

    /// Forgets a block without any below it. Says whether nobody holds it.
    fn forget(&mut self, id: u32) -> bool {
        let node = self.nodes.remove(&id).expect("known");
        assert!(node.children.is_empty(), "block {id} goes before those below it");
        self.by_key.remove(&node.key);
        if let Some(since) = node.unheld_since {
            self.evictable.remove(&(since, id));
        }
        if let Some(parent) = node.parent {
            self.nodes.get_mut(&parent).expect("known (X2)").children.remove(&id);
            self.update(parent);
        }
        node.unheld_since.is_some()
    }

    /// Puts a block among those that can be evicted, or takes it out.
    fn update(&mut self, id: u32) {
        let node = &self.nodes[&id];
        let Some(since) = node.unheld_since else { return };
        if node.children.is_empty() {
            self.evictable.insert((since, id));
        } else {
            self.evictable.remove(&(since, id));
        }
    }
}
