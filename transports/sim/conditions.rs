//! What a path between two hosts does to whatever travels on it.

use std::time::Duration;

use fastrand::Rng;

/// How often something goes wrong, in ten-thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chance(pub u16);

impl Chance {
    /// Never.
    pub const NEVER: Self = Self(0);

    /// Draws.
    pub fn strikes(self, random: &mut Rng) -> bool {
        // No draw where nothing can happen: an event list keeps its meaning when a fault is taken out.
        self.0 > 0 && random.u16(0..10_000) < self.0
    }
}

/// Of one path; both directions are alike. The default is immediate and faultless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// From departure to arrival, at least.
    pub latency: Duration,
    /// What may come on top of it, drawn for each thing that travels.
    pub jitter: Duration,
    /// Bytes a second in one direction; none: without limit.
    pub bandwidth: Option<u64>,
    /// Most payload bytes that arrive at once; how many is drawn.
    pub piece_len_max: usize,
    /// Longest time that a completion waits to be reported, drawn for each, so that they come out of
    /// order.
    pub completion_delay: Duration,
    /// Of a payload operation to be refused.
    pub refuse: Chance,
    /// Of a dial to be refused.
    pub refuse_dial: Chance,
    /// Of a control frame to arrive with a bit changed.
    pub corrupt_control: Chance,
    /// Of a payload to arrive with a bit changed.
    pub corrupt_payload: Chance,
    /// Of a control frame to be the beginning of a broken link's end: some frames are lost, others come
    /// twice, and then the link is reset.
    pub doom: Chance,
    /// Of frames that are under way to be lost when their sender dies.
    pub lose_tail: Chance,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            bandwidth: None,
            piece_len_max: 64 << 10,
            completion_delay: Duration::ZERO,
            refuse: Chance::NEVER,
            refuse_dial: Chance::NEVER,
            corrupt_control: Chance::NEVER,
            corrupt_payload: Chance::NEVER,
            doom: Chance::NEVER,
            lose_tail: Chance::NEVER,
        }
    }
}

impl Conditions {
    /// How long one thing travels.
    pub(crate) fn travel(&self, random: &mut Rng) -> Duration {
        self.latency + up_to(self.jitter, random)
    }

    /// How long `bytes` occupy the path.
    pub(crate) fn occupancy(&self, bytes: usize) -> Duration {
        let nanos = |rate: u64| bytes as u64 * 1_000_000_000 / rate.max(1);
        self.bandwidth.map_or(Duration::ZERO, |rate| Duration::from_nanos(nanos(rate)))
    }

    /// How many payload bytes arrive next.
    pub(crate) fn piece_len(&self, random: &mut Rng) -> usize {
        // Whole pieces half of the time: links that never cut are links too.
        let max = self.piece_len_max.max(1);
        if random.bool() { max } else { random.usize(1..=max) }
    }

    /// How long a completion waits.
    pub(crate) fn completion(&self, random: &mut Rng) -> Duration {
        up_to(self.completion_delay, random)
    }
}

fn up_to(most: Duration, random: &mut Rng) -> Duration {
    let micros = most.as_micros() as u64;
    if micros == 0 { Duration::ZERO } else { Duration::from_micros(random.u64(0..=micros)) }
}
