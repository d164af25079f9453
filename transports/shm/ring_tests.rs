//! The ring against a plain queue. `tests/loom.rs` holds the models of its two ends at once, which
//! compiles `ring.rs` a second time: hence its tests live here.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use blockwire::pool::Digest;
use bytes::BytesMut;

use crate::half::tests::half;
use crate::half::{LINE, Lane, RING_LEN_MIN, Word};
use crate::ring::{Consumer, HEAD, Producer, TAIL};

const LANE: Lane = Lane::Control;

/// Both ends of one ring, and the words through which they wake each other.
fn ring() -> (Producer, Consumer) {
    let ((near, near_seen), (far, far_seen)) = (half(RING_LEN_MIN), half(RING_LEN_MIN));
    let producer = Producer::new(LANE, Rc::new(near), Rc::new(far_seen));
    (producer, Consumer::new(LANE, Rc::new(far), Rc::new(near_seen)))
}

/// What is free beside the bytes in the ring and those whose space was not given back, after so many
/// were read in all: a line stays free, and the line of the peer's head is not cut.
fn space(written: usize, held: usize, read: usize) -> usize {
    (RING_LEN_MIN - LINE).saturating_sub(written + held + (read - held) % LINE)
}

/// Random writes, reads, sleeps and publications against a plain queue. A side that sleeps must
/// be rung by the first publication after it, and by no other.
#[test]
fn bytes_and_rings_agree_with_a_plain_queue() {
    let (mut producer, mut consumer) = ring();
    let mut oracle: VecDeque<u8> = VecDeque::new();
    let (mut written, mut shown, mut held) = (0usize, 0usize, 0usize);
    let mut total = 0;
    let (mut waits_for_bytes, mut waits_for_space) = (false, false);
    let mut random = Digest::default();
    for step in 0..200_000u32 {
        random.update(&step.to_le_bytes());
        let (choice, len) = (random.value() % 6, (random.value() >> 32) as usize % 3000);
        match choice {
            0 => {
                let bytes: Vec<u8> = (0..len).map(|i| (i as u32 ^ step) as u8).collect();
                let taken = producer.write(&bytes).unwrap();
                assert_eq!(taken, len.min(space(written, held, total)));
                oracle.extend(&bytes[..taken]);
                written += taken;
            }
            1 => {
                let news = shown < written;
                assert_eq!(producer.publish(), news && waits_for_bytes);
                waits_for_bytes &= !news;
                shown = written;
            }
            2 => {
                let mut bytes = BytesMut::new();
                let read = consumer.read(len, &mut bytes).unwrap();
                assert!(read <= len.min(shown) && (read > 0 || len.min(shown) == 0));
                assert!(bytes.iter().copied().eq(oracle.drain(..read)));
                (written, shown, held) = (written - read, shown - read, held + read);
                total += read;
            }
            3 => {
                assert_eq!(consumer.publish(), held > 0 && waits_for_space);
                waits_for_space &= held == 0;
                held = 0;
            }
            4 => {
                consumer.wake();
                waits_for_bytes = !consumer.sleep(1).unwrap();
                assert_eq!(waits_for_bytes, shown == 0);
                if !waits_for_bytes {
                    consumer.wake();
                }
            }
            _ => {
                producer.wake();
                waits_for_space = !producer.sleep(1).unwrap();
                assert_eq!(waits_for_space, space(written, held, total) == 0);
                if !waits_for_space {
                    producer.wake();
                }
            }
        }
    }
}

#[test]
fn impossible_indices_are_violations() {
    let ((near, _), (far, far_seen)) = (half(RING_LEN_MIN), half(RING_LEN_MIN));
    let mut producer = Producer::new(LANE, Rc::new(near), Rc::new(far_seen));
    assert_eq!(producer.write(&[0; 100]).unwrap(), 100);
    for head in [101, u64::MAX, 1 << 63] {
        far.store(LANE, Word::Head, head, Relaxed);
        assert_eq!(producer.sleep(1), Err(HEAD), "{head}");
    }
    let ((own, _), (peer, peer_seen)) = (half(RING_LEN_MIN), half(RING_LEN_MIN));
    let mut consumer = Consumer::new(LANE, Rc::new(own), Rc::new(peer_seen));
    for tail in [RING_LEN_MIN as u64 + 1, u64::MAX, 1 << 63] {
        peer.store(LANE, Word::Tail, tail, Relaxed);
        assert_eq!(consumer.remaining(), Err(TAIL), "{tail}");
    }
}
