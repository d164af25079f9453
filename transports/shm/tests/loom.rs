//! The two ends of a ring at once, in every order that the memory model allows (loom).
//!
//! `ring.rs` is compiled a second time here, over memory of loom's (`loom/half.rs`): no flags, no other
//! build. The doorbell is a notification: an end that waits for one that nobody sends is a deadlock,
//! which loom reports. The mutants show that it would: each leaves out what one of the pairs
//! SYNC-1 to SYNC-3 rests on, and has to fail.
#![allow(dead_code, unreachable_pub, reason = "the models use a part of the ring")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "loom/half.rs"]
mod half;
#[path = "../ring.rs"]
mod ring;

use std::rc::Rc;

use bytes::BytesMut;
use half::{Lane, Mutant, RING_LEN, half as new_half, set_mutant};
use loom::sync::{Arc, Notify};
use loom::thread;
use ring::{Consumer, Producer};

/// Orders with more preemptions than this are not tried: three find all that is known.
const PREEMPTIONS: usize = 3;

fn check(mutant: Mutant, model: fn()) {
    set_mutant(mutant);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

fn ring() -> (Producer, Consumer) {
    let ((near, near_seen), (far, far_seen)) = (new_half(), new_half());
    let producer = Producer::new(Lane::Control, Rc::new(near), Rc::new(far_seen));
    (producer, Consumer::new(Lane::Control, Rc::new(far), Rc::new(near_seen)))
}

/// Sends `count` bytes, asleep while the ring is full.
fn send(mut producer: Producer, count: u8, bytes: &Notify, space: &Notify) {
    let mut next = 0;
    while next < count {
        next += producer.write(&[next]).unwrap() as u8;
        if producer.publish() {
            bytes.notify();
        }
        if next < count && !producer.has_space(1).unwrap() && !producer.sleep(1).unwrap() {
            space.wait();
        }
        producer.wake();
    }
}

/// Receives `count` bytes, asleep while there are none.
fn receive(mut consumer: Consumer, count: u8, bytes: &Notify, space: &Notify) {
    let mut got = BytesMut::new();
    while got.len() < count as usize {
        let read = consumer.read(RING_LEN, &mut got).unwrap();
        if consumer.publish() {
            space.notify();
        }
        if read == 0 && !consumer.sleep(1).unwrap() {
            bytes.wait();
        }
        consumer.wake();
    }
    assert!(got.iter().copied().eq(0..count), "{got:?}");
}

/// One byte: the receiver may sleep at any moment.
fn a_byte_wakes_the_receiver() {
    converse(1);
}

/// More bytes than the ring takes: both sides may have to sleep.
fn a_full_ring_wakes_the_sender() {
    converse(RING_LEN as u8 + 1);
}

fn converse(count: u8) {
    let (producer, consumer) = ring();
    let bells = Arc::new((Notify::new(), Notify::new()));
    let there = Arc::clone(&bells);
    let sending = thread::spawn(move || send(producer, count, &there.0, &there.1));
    receive(consumer, count, &bells.0, &bells.1);
    sending.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_and_no_byte_races() {
    check(Mutant::None, a_byte_wakes_the_receiver);
    check(Mutant::None, a_full_ring_wakes_the_sender);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_wake_up_is_lost() {
    check(Mutant::NoDekker, a_byte_wakes_the_receiver);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_acquire_bytes_race() {
    check(Mutant::NoAcquire, a_byte_wakes_the_receiver);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_bytes_race() {
    check(Mutant::NoRelease, a_full_ring_wakes_the_sender);
}
