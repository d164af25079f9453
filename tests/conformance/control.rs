//! Control frames: in order, whole, once, however many and however long.

use blockwire::transport::OpError;
use blockwire::wire::BODY_LEN_MAX;

use crate::Harness;
use crate::drive::{Pair, steps, until};
use crate::frames::{control, expect_frames, frame};
use crate::rig::Rig;
use crate::store::Random;

/// Frames of every length arrive in order and whole, in both directions at once.
pub fn control_is_ordered_and_whole<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let mut random = Random::new(3);
        let mut lens = vec![0, 1, 63, 64, 65, 4095, 4096, 65_535, 65_536, 1 << 20, 0];
        lens.extend((0..200).map(|_| random.below(3000)));
        lens.extend([1 << 20, 1, 1 << 20]);
        exchange(&mut pair, &lens).await;
    });
}

/// Thousands of small frames, all accepted before the first poll.
pub fn thousands_of_small_frames_arrive<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let mut random = Random::new(4);
        let lens: Vec<_> = (0..8000).map(|_| random.below(40)).collect();
        exchange(&mut pair, &lens).await;
    });
}

/// The longest frame arrives; one byte more is refused.
pub fn the_longest_frame_arrives<H: Harness>() {
    Rig::<H>::once(async |rig| {
        let mut pair = rig.pair().await;
        exchange(&mut pair, &[BODY_LEN_MAX, 0]).await;
        let refused = pair.near.try_submit(control(9, BODY_LEN_MAX + 1)).unwrap_err();
        assert!(matches!(refused.error, OpError::ControlTooLong(_)), "{}", refused.error);
        exchange(&mut pair, &[1]).await;
    });
}

/// A peer that does not read holds frames up at their sender; when it reads, all of them arrive.
pub fn control_is_held_back_while_the_peer_does_not_read<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        let mut pair = rig.pair().await;
        let lens = [1 << 20; 64];
        let ops: Vec<_> = (0..).zip(lens).map(|(n, l)| pair.near.submit(control(n, l))).collect();
        steps(&mut pair.near, 2000).await;
        assert!(pair.near.outstanding() > 0, "64 MiB of control waits in a queue without a limit");
        until(&mut pair, "all frames arrive", |p| p.far.received().len() == lens.len()).await;
        until(&mut pair, "all frames complete", |p| p.near.outstanding() == 0).await;
        assert!(ops.into_iter().all(|op| pair.near.take(op).outcome.is_ok()));
        expect_frames(&mut pair.far, lens);
    });
}

/// A cancelled frame is not sent, or it is sent whole; the frames around it arrive.
pub fn a_cancelled_frame_arrives_whole_or_not_at_all<H: Harness>() {
    Rig::<H>::both_ways(async |rig| {
        for step in 0..12 {
            let mut pair = rig.pair().await;
            let lens = [10, 1 << 20, 20, 1 << 20, 30, 1 << 20, 0];
            let ops: Vec<_> =
                (0..).zip(lens).map(|(n, l)| pair.near.submit(control(n, l))).collect();
            steps(&mut pair, step).await;
            for cancelled in [1, 2, 5] {
                pair.near.cancel(ops[cancelled]);
            }
            until(&mut pair, "all frames complete", |p| p.near.outstanding() == 0).await;
            let mut sent = Vec::new();
            for (number, op) in (0u32..).zip(ops) {
                match pair.near.take(op).outcome {
                    Ok(_) => sent.push(frame(number, lens[number as usize])),
                    Err(OpError::Cancelled) if [1, 2, 5].contains(&number) => {}
                    Err(error) => panic!("frame {number} failed: {error}"),
                }
            }
            until(&mut pair, "what was sent arrives", |p| p.far.received().len() >= sent.len())
                .await;
            pair.near.submit(control(99, 0));
            sent.push(frame(99, 0));
            until(&mut pair, "the last arrives", |p| p.far.received().len() >= sent.len()).await;
            assert!(*pair.far.received() == sent, "step {step}: other frames than were sent");
        }
    });
}

/// Sends these frames both ways at once and checks them.
async fn exchange(pair: &mut Pair, lens: &[usize]) {
    let mut ops = Vec::new();
    for (number, len) in (0..).zip(lens) {
        ops.push((pair.near.submit(control(number, *len)), pair.far.submit(control(number, *len))));
    }
    until(pair, "all frames arrive", |pair| {
        pair.near.received().len() >= lens.len() && pair.far.received().len() >= lens.len()
    })
    .await;
    until(pair, "all frames complete", |p| p.near.outstanding() + p.far.outstanding() == 0).await;
    for (near, far) in ops {
        assert!(pair.near.take(near).outcome.is_ok() && pair.far.take(far).outcome.is_ok());
    }
    expect_frames(&mut pair.near, lens.iter().copied());
    expect_frames(&mut pair.far, lens.iter().copied());
}
