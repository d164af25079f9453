//! Sets of tags in little memory: what was ever posted, and what was cancelled.

use std::collections::VecDeque;

use super::StreamTag;

/// Runs remembered. When there are more, the two lowest are joined: a set of posted or of cancelled
/// tags then has old members too many, whose payload is dropped instead of refused.
const RUNS_MAX: usize = 1024;

/// Tags as rising runs `(first, last)` with gaps between them.
#[derive(Debug, Default)]
pub struct TagSet(VecDeque<(u64, u64)>);

impl TagSet {
    /// The largest tag.
    pub fn last(&self) -> Option<StreamTag> {
        self.0.back().map(|(_, last)| StreamTag(*last))
    }

    /// Whether a tag is in the set.
    pub fn contains(&self, StreamTag(tag): StreamTag) -> bool {
        let above = self.runs_up_to(tag);
        above > 0 && tag <= self.0[above - 1].1
    }

    /// Adds a tag.
    pub fn insert(&mut self, StreamTag(tag): StreamTag) {
        if self.contains(StreamTag(tag)) {
            return;
        }
        let above = self.runs_up_to(tag);
        let extends_lower = above > 0 && self.0[above - 1].1 + 1 == tag;
        let extends_upper = self.0.get(above).is_some_and(|(first, _)| first - 1 == tag);
        match (extends_lower, extends_upper) {
            (true, true) => {
                self.0[above - 1].1 = self.0[above].1;
                self.0.remove(above);
            }
            (true, false) => self.0[above - 1].1 = tag,
            (false, true) => self.0[above].0 = tag,
            (false, false) => self.0.insert(above, (tag, tag)),
        }
        if self.0.len() > RUNS_MAX
            && let Some((first, _)) = self.0.pop_front()
        {
            self.0[0].0 = first;
        }
    }

    /// Runs that begin at or below a tag.
    fn runs_up_to(&self, tag: u64) -> usize {
        self.0.partition_point(|(first, _)| *first <= tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(tags: impl IntoIterator<Item = u64>) -> TagSet {
        let mut set = TagSet::default();
        tags.into_iter().for_each(|tag| set.insert(StreamTag(tag)));
        set
    }

    #[test]
    fn a_set_holds_what_was_added_in_any_order() {
        let set = set([5, 0, u64::MAX, 2, 1, 6, 9, 5, u64::MAX]);
        let held: Vec<u64> = (0..12).filter(|tag| set.contains(StreamTag(*tag))).collect();
        assert_eq!(held, [0, 1, 2, 5, 6, 9]);
        assert_eq!(set.0, [(0, 2), (5, 6), (9, 9), (u64::MAX, u64::MAX)]);
        assert_eq!(set.last(), Some(StreamTag(u64::MAX)));
        assert_eq!(TagSet::default().last(), None);
    }

    #[cfg_attr(miri, ignore = "it counts to ten thousand, in a list")]
    #[test]
    fn gaps_take_bounded_memory() {
        let set = set((0..10_000).step_by(2));
        assert_eq!(set.0.len(), RUNS_MAX);
        assert!(set.contains(StreamTag(0)) && set.contains(StreamTag(9_998)));
        assert!(!set.contains(StreamTag(9_997)) && !set.contains(StreamTag(10_000)));
    }
}
