//! Which node has computed the beginning of a prompt.
//!
//! The router does not know what nodes keep; it remembers where it sent what. That is a guess, and costs
//! nothing when it is wrong: a node computes what it does not have.

use std::collections::{BTreeMap, HashMap};

use blockwire::pool::{PrefixChain, PrefixKey, PrefixRoot};
use uuid::Uuid;

use crate::backend::GenerateRequest;

/// Tokens a step: what begins alike in fewer is not worth another node.
const STEP: u32 = 64;
/// Most steps of a prompt that are looked at.
const STEPS_MAX: usize = 512;
/// Most beginnings that are remembered.
const REMEMBERED_MAX: usize = 1 << 16;

/// The steps that lie in the first `tokens`.
pub(super) fn steps_of(tokens: usize) -> usize {
    tokens / STEP as usize
}

/// What a prompt begins with, in steps. They are the router's own names: nodes have others.
pub(super) fn beginnings(request: &GenerateRequest) -> Vec<PrefixKey> {
    let salt = request.cache_salt.as_deref().unwrap_or_default();
    let len = request.prompt.len().min(STEPS_MAX * STEP as usize);
    let root = PrefixRoot::new(b"router", "", salt);
    PrefixChain::new(root, STEP).keys(&request.prompt[..len]).to_vec()
}

/// Where prompts were sent; of those sent longest ago nothing is known any more.
#[derive(Debug, Default)]
pub(super) struct Affinity {
    sent: HashMap<PrefixKey, (u64, Uuid)>,
    oldest: BTreeMap<u64, PrefixKey>,
    now: u64,
}

impl Affinity {
    /// The node that the longest of these beginnings was sent to.
    pub(super) fn node(&self, beginnings: &[PrefixKey]) -> Option<Uuid> {
        let (_, node) = beginnings.iter().rev().find_map(|key| self.sent.get(key))?;
        Some(*node)
    }

    /// How many tokens of a prompt with these beginnings went to `node`.
    pub(super) fn known(&self, beginnings: &[PrefixKey], node: Uuid) -> usize {
        let is_there = |key: &&PrefixKey| self.sent.get(key).is_some_and(|(_, at)| *at == node);
        beginnings.iter().take_while(is_there).count() * STEP as usize
    }

    /// A prompt with these beginnings goes to `node`.
    pub(super) fn note(&mut self, beginnings: &[PrefixKey], node: Uuid) {
        // The first step last: it is the one that most others share.
        for key in beginnings.iter().rev() {
            self.now += 1;
            if let Some((before, _)) = self.sent.insert(*key, (self.now, node)) {
                self.oldest.remove(&before);
            }
            self.oldest.insert(self.now, *key);
        }
        while self.sent.len() > REMEMBERED_MAX {
            let Some((_, key)) = self.oldest.pop_first() else { break };
            self.sent.remove(&key);
        }
    }
}

/// How many requests more than the least loaded node one may have that has a prompt's beginning.
pub(super) fn slack(least: usize) -> usize {
    (least / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(first: u32, len: u32) -> Vec<PrefixKey> {
        let tokens: Vec<u32> = (0..len).map(|at| if at < 128 { at } else { first + at }).collect();
        PrefixChain::new(PrefixRoot::new(b"", "", ""), STEP).keys(&tokens).to_vec()
    }

    #[test]
    fn the_node_with_the_longest_beginning_is_found() {
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut affinity = Affinity::default();
        assert_eq!(affinity.node(&keys(1000, 400)), None);
        affinity.note(&keys(1000, 400), one);
        assert_eq!(affinity.node(&keys(2000, 400)), Some(one), "two steps are alike");
        affinity.note(&keys(2000, 400), other);
        assert_eq!(affinity.node(&keys(1000, 300)), Some(one));
        assert_eq!(affinity.node(&keys(2000, 300)), Some(other));
        assert_eq!(affinity.node(&keys(3000, 300)), Some(other), "the last one that began so");
        assert_eq!(affinity.node(&keys(1000, 63)), None, "less than a step");
        assert_eq!(affinity.known(&keys(2000, 400), other), 384);
        assert_eq!(affinity.known(&keys(3000, 400), other), 128);
        assert_eq!(affinity.known(&keys(2000, 400), one), 0);
    }

    #[test]
    fn what_was_sent_longest_ago_is_forgotten() {
        let node = Uuid::from_u128(1);
        let mut affinity = Affinity::default();
        let prompts = (REMEMBERED_MAX / 13) as u32 + 100;
        for first in 0..prompts {
            affinity.note(&keys(1000 * first, 1000), node);
            assert_eq!(affinity.sent.len(), affinity.oldest.len());
        }
        assert_eq!(affinity.sent.len(), REMEMBERED_MAX);
        assert_eq!(affinity.node(&keys(1000, 1000)[2..]), None);
        assert_eq!(affinity.node(&keys(1000 * (prompts - 1), 1000)), Some(node));
        assert_eq!(affinity.node(&keys(7, 128)), Some(node), "what many share stays");
    }
}
