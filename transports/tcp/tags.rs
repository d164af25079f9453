//! Which tags were ever posted, in little memory.

use std::collections::VecDeque;

use blockwire::transport::StreamTag;

/// Runs remembered. Tags that rise by one make one run; a caller that leaves gaps makes more, and
/// then the oldest are joined: payload for a tag in such a gap is dropped instead of refused.
const RUNS_MAX: usize = 1024;

/// Posted tags, as rising runs `(first, last)`.
#[derive(Debug, Default)]
pub(crate) struct PostedTags(VecDeque<(u64, u64)>);

impl PostedTags {
    /// Adds a tag; false when it does not rise.
    pub(crate) fn post(&mut self, StreamTag(tag): StreamTag) -> bool {
        match self.0.back_mut() {
            Some((_, last)) if tag <= *last => return false,
            Some((_, last)) if tag == *last + 1 => *last = tag,
            _ => self.0.push_back((tag, tag)),
        }
        if self.0.len() > RUNS_MAX
            && let Some((first, _)) = self.0.pop_front()
        {
            self.0[0].0 = first;
        }
        true
    }

    /// Whether a tag was posted.
    pub(crate) fn contains(&self, StreamTag(tag): StreamTag) -> bool {
        let run = self.0.partition_point(|(first, _)| *first <= tag);
        run > 0 && tag <= self.0[run - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_rise_and_gaps_were_never_posted() {
        let mut tags = PostedTags::default();
        assert!(!tags.contains(StreamTag(0)));
        for tag in [0, 1, 2, 5, 6, 9, u64::MAX] {
            assert!(tags.post(StreamTag(tag)));
            assert!(!tags.post(StreamTag(tag)) && !tags.post(StreamTag(0)));
        }
        let posted: Vec<u64> = (0..12).filter(|tag| tags.contains(StreamTag(*tag))).collect();
        assert_eq!(posted, [0, 1, 2, 5, 6, 9]);
    }

    #[test]
    fn gaps_take_bounded_memory() {
        let mut tags = PostedTags::default();
        for tag in (0..10_000).step_by(2) {
            assert!(tags.post(StreamTag(tag)));
        }
        assert_eq!(tags.0.len(), RUNS_MAX);
        assert!(tags.contains(StreamTag(0)) && tags.contains(StreamTag(9_998)));
        assert!(!tags.contains(StreamTag(9_997)) && !tags.contains(StreamTag(10_000)));
    }
}
