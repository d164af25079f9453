//! The two ends of a ring at once, in every order that the memory model allows (loom).
//!
//! `ring.rs` is compiled a second time here, over memory of loom's (`loom/half.rs`): no flags, no other
//! build. The doorbell is a notification: an end that waits for one that nobody sends is a deadlock,
//! which loom reports. The mutants show that it would: each leaves out what one of the pairs
//! SYNC-1 to SYNC-4 rests on, and has to fail.
#![allow(dead_code, unreachable_pub, reason = "the models use a part of the ring")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "loom/half.rs"]
mod half;
#[path = "../ring.rs"]
mod ring;

use std::rc::Rc;

use bytes::BytesMut;
use half::{LINE, Lane, Mutant, Pair, RING_LEN, half as new_half, nobody_sleeps, set_mutant};
use loom::sync::{Arc, Notify};
use loom::thread;
use ring::{Consumer, Producer};

/// Orders with more preemptions than this are not tried: three find all that is known.
const PREEMPTIONS: usize = 3;
/// Likewise for the longest model: each more makes it take ten times as long.
const FEW_PREEMPTIONS: usize = 2;

/// What the two sides ring.
struct Bells {
    news: Notify,
    space: Notify,
}

fn check(mutant: Mutant, model: fn()) {
    check_within(PREEMPTIONS, mutant, model);
}

fn check_within(preemptions: usize, mutant: Mutant, model: fn()) {
    set_mutant(mutant);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn ring() -> (Producer, Consumer) {
    let ((near, near_seen), (far, far_seen)) = (new_half(), new_half());
    let producer = Producer::new(Lane::Control, Rc::new(near), Rc::new(far_seen));
    (producer, Consumer::new(Lane::Control, Rc::new(far), Rc::new(near_seen)))
}

/// What is sent as the n-th line: no mark is zero.
fn line(number: u8) -> [u8; LINE] {
    [number + 1; LINE]
}

/// Sends `count` lines, asleep while the ring is full.
fn send(mut producer: Producer, count: u8, bells: &Bells, marked: bool) {
    for number in 0..count {
        while !producer.has_space(LINE).unwrap() {
            if !producer.sleep(LINE).unwrap() {
                bells.space.wait();
            }
            producer.wake();
        }
        if marked {
            assert_eq!(producer.begin(&line(number)).unwrap(), LINE);
            producer.finish();
        } else {
            assert_eq!(producer.write(&line(number)).unwrap(), LINE);
        }
        if producer.publish() {
            bells.news.notify();
        }
    }
}

/// Receives `count` lines as bytes that the tail tells of, asleep while there are none.
fn receive_bytes(mut consumer: Consumer, count: u8, bells: &Bells) {
    let mut got = BytesMut::new();
    while got.len() < LINE * count as usize {
        let read = consumer.read(RING_LEN, &mut got).unwrap();
        if consumer.publish() {
            bells.space.notify();
        }
        if read == 0 && !consumer.sleep(1).unwrap() {
            bells.news.wait();
        }
        consumer.wake();
    }
    assert!(got.chunks(LINE).eq((0..count).map(line)), "{got:?}");
}

/// Receives `count` lines as frames that their marks tell of, asleep while there are none.
fn receive_frames(mut consumer: Consumer, count: u8, bells: &Bells) {
    for number in 0..count {
        while !consumer.has_frame() {
            if !consumer.sleep_for_frame() {
                bells.news.wait();
            }
            consumer.wake();
        }
        let mut got = [0; LINE];
        consumer.know(LINE);
        assert!(consumer.read_whole(&mut got).unwrap());
        assert_eq!(got, line(number));
        consumer.finish();
        if consumer.publish() {
            bells.space.notify();
        }
    }
    // The tail may be behind what the marks showed.
    assert_eq!(consumer.remaining().unwrap(), 0);
}

/// One line: the receiver may sleep at any moment.
fn bytes_wake_the_receiver() {
    converse(1, false);
}

/// More lines than the ring takes: both sides may have to sleep.
fn a_full_ring_wakes_the_sender() {
    converse(3, false);
}

/// One line more than the ring has: the first is used again, while the receiver may still read it.
///
/// Nothing but SYNC-2 prevents that where several lines are read at once and given back by one store of
/// the head. So nobody sleeps here, and there are no fences of SYNC-3. Loom never changes threads
/// between the store and the fence behind it, and orders everything by such fences: with them it
/// cannot tell whether the store releases.
fn a_line_is_used_again() {
    nobody_sleeps();
    let (mut producer, mut consumer) = ring();
    let count = (RING_LEN / LINE + 1) as u8;
    let sending = thread::spawn(move || {
        for number in 0..count {
            while !producer.has_space(LINE).unwrap() {
                thread::yield_now();
            }
            assert_eq!(producer.write(&line(number)).unwrap(), LINE);
            producer.publish();
        }
    });
    let mut got = BytesMut::new();
    while got.len() < LINE * count as usize {
        if consumer.read(RING_LEN, &mut got).unwrap() == 0 {
            thread::yield_now();
        }
        consumer.publish();
    }
    assert!(got.chunks(LINE).eq((0..count).map(line)), "{got:?}");
    sending.join().unwrap();
}

fn a_frame_wakes_the_receiver() {
    converse(1, true);
}

/// Once around the ring and further, over marks of the last round.
fn frames_wake_both_sides() {
    converse(4, true);
}

fn converse(count: u8, marked: bool) {
    let (producer, consumer) = ring();
    let bells = Arc::new(Bells { news: Notify::new(), space: Notify::new() });
    let there = Arc::clone(&bells);
    let sending = thread::spawn(move || send(producer, count, &there, marked));
    if marked {
        receive_frames(consumer, count, &bells);
    } else {
        receive_bytes(consumer, count, &bells);
    }
    sending.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_and_no_byte_races() {
    check(Mutant::None, bytes_wake_the_receiver);
    check(Mutant::None, a_full_ring_wakes_the_sender);
}

#[test]
fn no_line_is_overwritten_while_it_is_read() {
    check(Mutant::None, a_line_is_used_again);
}

#[test]
fn no_wake_up_is_lost_and_no_frame_races() {
    check(Mutant::None, a_frame_wakes_the_receiver);
    check_within(FEW_PREEMPTIONS, Mutant::None, frames_wake_both_sides);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_wake_up_is_lost() {
    check(Mutant::NoDekker, bytes_wake_the_receiver);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_fences_a_frame_wakes_nobody() {
    check(Mutant::NoDekker, a_frame_wakes_the_receiver);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_acquiring_the_tail_bytes_race() {
    check(Mutant::NoAcquire(Pair::Tail), bytes_wake_the_receiver);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_releasing_the_tail_bytes_race() {
    check(Mutant::NoRelease(Pair::Tail), bytes_wake_the_receiver);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_acquiring_the_head_a_line_is_overwritten_while_it_is_read() {
    check(Mutant::NoAcquire(Pair::Head), a_line_is_used_again);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_releasing_the_head_a_line_is_overwritten_while_it_is_read() {
    check(Mutant::NoRelease(Pair::Head), a_line_is_used_again);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_acquiring_a_mark_frames_race() {
    check(Mutant::NoAcquire(Pair::Mark), a_frame_wakes_the_receiver);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn without_releasing_a_mark_frames_race() {
    check(Mutant::NoRelease(Pair::Mark), a_frame_wakes_the_receiver);
}

/// The mark of the last round stands where the next frame has not begun.
#[test]
#[should_panic(expected = "Causality violation")]
fn without_clearing_an_old_frame_is_taken_for_a_new_one() {
    check_within(FEW_PREEMPTIONS, Mutant::NoClear, frames_wake_both_sides);
}
