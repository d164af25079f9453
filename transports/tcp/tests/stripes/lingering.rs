//! What is cancelled keeps its memory for as long as the system reads it.
#![cfg(target_os = "linux")]

use blockwire::transport::OpError;
use blockwire_tcp::{SendWay, TcpOptions, TcpTransport};

use crate::common::*;
use crate::{STRIPES, dial, run_local};

/// Tokens of a payload of half a mebibyte: as much as is sent to a peer that does not read.
const TOKENS: usize = 128;

/// A payload is all with the system, and its receiver reads nothing: whether cancelling it ends it.
async fn ends_unread(way: SendWay) -> bool {
    let mut options = TcpOptions::default();
    options.send_way = way;
    // The system is to take a whole part before its peer reads.
    options.unsent_len_max = None;
    options.send_buffer_len = Some(4 << 20);
    let transport = TcpTransport::new(options);
    let mut listener = listen(&transport, "tcp://127.0.0.1:0").await;
    let target = listener.local_address().target().to_owned();
    let (mut near, mut far) = dial(&transport, &target, STRIPES, &mut listener).await;
    let pool = pool(300);
    let landed = land(&mut far, 1, room(&pool, TOKENS));
    let (list, ..) = payload(&pool, TOKENS, 0);
    let (len, sent) = (list.len(), stream(&mut near, 1, list));
    // The plan is on its way; nothing of the payload is read after this.
    while near.link.stats().sent() == 0 {
        until(&mut [&mut far], |_| true).await;
        until(&mut [&mut near], |_| true).await;
        tokio::task::yield_now().await;
    }
    until(&mut [&mut near], |sides| sides[0].link.stats().sent() == len).await;
    near.link.cancel(sent);
    for _ in 0..100 {
        until(&mut [&mut near], |_| true).await;
        tokio::task::yield_now().await;
    }
    let ended = near.completion(sent).is_some();
    until(&mut [&mut near, &mut far], |sides| sides[0].completion(sent).is_some()).await;
    assert!(matches!(near.outcome(sent), Some(Ok(_) | Err(OpError::Cancelled))));
    far.link.cancel(landed);
    until(&mut [&mut far], |sides| sides[0].completion(landed).is_some()).await;
    ended
}

#[test]
fn a_cancelled_payload_waits_until_its_pages_are_read() {
    run_local(async {
        assert!(ends_unread(SendWay::Copies).await, "the system has copies");
        assert!(!ends_unread(SendWay::Pages).await, "the system reads the blocks");
    });
}
