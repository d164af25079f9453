//! The machine under the measurement: where threads run, what they cost, how far the cores are.

#[cfg_attr(not(target_os = "linux"), path = "other.rs")]
mod linux;

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use blockwire::clock;

use crate::Samples;

pub(crate) use linux::{lend_pages, lends_too_much};
pub use linux::{pin, unpin, used};

/// What a process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    /// On cpus.
    pub cpu_seconds: f64,
    /// Times that a thread left its cpu, by its own will or not.
    pub switches: u64,
}

/// 64 bytes with a sequence number in the last word, alone on a pair of cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Slot([AtomicU64; 8]);

impl Slot {
    /// Writes 56 bytes and shows them.
    pub fn send(&self, sequence: u64) {
        self.0[..7].iter().for_each(|word| word.store(sequence, Relaxed));
        self.0[7].store(sequence, Release);
    }

    /// Spins for a message and reads it.
    ///
    /// # Panics
    /// When it is another one.
    pub fn wait(&self, sequence: u64) {
        while self.0[7].load(Acquire) != sequence {
            std::hint::spin_loop();
        }
        assert!(self.0[..7].iter().all(|word| word.load(Relaxed) == sequence), "a torn message");
    }
}

/// Nanoseconds one way of 64 bytes through a [`Slot`], between cpu 0 and cpu 1, in the median: about
/// 50 where the cores are near, 230 where they are far. Virtual machines move cores: ask in every run.
pub fn core_distance() -> f64 {
    const BATCHES: u64 = 300;
    const BATCH: u64 = 100;
    let (there, back) = (Slot::default(), Slot::default());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for round in 1..=BATCHES * BATCH {
                there.wait(round);
                back.send(round);
            }
        });
        let near = scope.spawn(|| {
            pin(0);
            let mut samples = Samples::default();
            for batch in 0..BATCHES {
                let start = clock::now();
                for round in batch * BATCH + 1..=(batch + 1) * BATCH {
                    there.send(round);
                    back.wait(round);
                }
                samples.push(start.elapsed().as_nanos() as f64 / (2 * BATCH) as f64);
            }
            samples.median()
        });
        near.join().expect("the thread ends")
    })
}
