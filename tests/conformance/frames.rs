//! Control frames that can be told apart.

use blockwire::transport::Op;
use blockwire::wire::{HEADER_LEN, Header, Kind};
use bytes::Bytes;
use uuid::Uuid;

use crate::node::Node;
use crate::store::Random;

/// Frame `number`, with a body of noise.
pub fn frame(number: u32, body_len: usize) -> Bytes {
    let mut frame = vec![0; HEADER_LEN + body_len];
    let (head, body) = frame.split_at_mut(HEADER_LEN);
    Random::new(u64::from(number)).fill(body);
    let header = Header::control(Kind::Message, Uuid::nil(), number);
    head.copy_from_slice(&Header { body_len: body_len as u32, ..header }.encode(body));
    frame.into()
}

/// The operation that sends it.
pub fn control(number: u32, body_len: usize) -> Op {
    Op::Control(frame(number, body_len))
}

/// Takes what a node received, which has to be these frames in this order.
///
/// # Panics
/// When it is not.
pub fn expect_frames(node: &mut Node, lens: impl IntoIterator<Item = usize>) {
    let mut lens = lens.into_iter();
    for (number, len) in (0..).zip(&mut lens) {
        let found = node.received().pop_front();
        let found = found.unwrap_or_else(|| panic!("frame {number} did not arrive"));
        assert!(found == frame(number, len), "frame {number} of {len} bytes is another one");
    }
    let more = node.received().len();
    assert_eq!(more, 0, "frames arrived that nobody sent");
}
