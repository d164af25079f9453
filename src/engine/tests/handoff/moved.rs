//! Handoffs whose payload is moved, over every transport.

use blockwire::endpoint::{ConnectionError, Event};
use blockwire::handoff::send_handoff_payload;
use blockwire::ingest::{IngestError, ingest_sequence_handoff};
use blockwire::pool::{Backing, Dtype, KvSpec, Layout, PoolOptions};
use blockwire::session::{DeclineCode, LandError, OfferError, SessionEnd};
use blockwire::transport::Address;
use bytes::Bytes;
use uuid::Uuid;

use crate::pair::{
    Pair, SHARED, all_free, assert_written, copying, key, next_handoff, options, pair, private,
    run, side, written,
};

#[test]
fn sequences_of_every_length_arrive_whole_whatever_the_layouts() {
    run(|wire| async move {
        for (from, to) in [
            (options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)),
            (options(Layout::BlockMajor, 16), options(Layout::LayerMajor, 16)),
            (options(Layout::LayerMajor, 16), options(Layout::BlockMajor, 8)),
            (options(Layout::BlockMajor, 5), options(Layout::BlockMajor, 16)),
            (private(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)),
        ] {
            let shared = from.backing == Backing::Shared;
            let mut pair = pair(&wire, from, to).await;
            let lengths: &[usize] =
                if cfg!(miri) { &[17] } else { &[1, 15, 16, 17, 31, 32, 33, 100] };
            for &tokens in lengths {
                let handoff = written(&pair.prefill.pool, tokens);
                let bytes = handoff.run().payload_len();
                let before = pair.payload_copied();
                let send =
                    send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::from("meta"));
                let receive = async {
                    let incoming = next_handoff(&mut pair.from_prefill).await;
                    assert_eq!(incoming.manifest().meta, "meta");
                    ingest_sequence_handoff(incoming, &pair.decode.pool, copying(1000, 20))
                        .await
                        .unwrap()
                        .sequence
                };
                let (report, sequence) = tokio::join!(send, receive);
                assert_eq!(report.unwrap().payload_len, bytes);
                assert!(sequence.capacity() >= tokens + 20);
                assert_written(sequence, tokens);
                let can = pair.to_decode.capabilities();
                // Where the sender's pool is shared, a link that can pull does.
                let way = can.get.filter(|_| shared).or(can.stream);
                let declared = u64::from(way.unwrap());
                assert_eq!(pair.payload_copied() - before, bytes * declared);
            }
            all_free(&pair.prefill.pool).await;
            all_free(&pair.decode.pool).await;
        }
    });
}

#[test]
fn a_dropped_offer_is_declined_and_a_declined_one_says_why() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let offer = |pair: &Pair| {
            let handoff = written(&pair.prefill.pool, 40);
            let connection = pair.to_decode.clone();
            async move { send_handoff_payload(&connection, key(), handoff, Bytes::new()).await }
        };
        let (sent, ()) = tokio::join!(offer(&pair), async {
            drop(next_handoff(&mut pair.from_prefill).await);
        });
        assert!(matches!(
            sent,
            Err(OfferError::Declined { code: DeclineCode::DeclineDropped, .. })
        ));
        let (sent, ()) = tokio::join!(offer(&pair), async {
            let incoming = next_handoff(&mut pair.from_prefill).await;
            incoming.decline(DeclineCode::DeclineBusy, "no slot");
        });
        assert!(sent.unwrap_err().to_string().contains("no slot"));
        let (sent, refused) = tokio::join!(offer(&pair), async {
            let incoming = next_handoff(&mut pair.from_prefill).await;
            ingest_sequence_handoff(incoming, &pair.decode.pool, copying(39, 0)).await.unwrap_err()
        });
        assert!(matches!(refused, IngestError::TooLong { tokens: 40, limit: 39 }));
        assert!(matches!(sent, Err(OfferError::Declined { code: DeclineCode::DeclineNoRoom, .. })));
        all_free(&pair.prefill.pool).await;
        all_free(&pair.decode.pool).await;
    });
}

#[test]
fn a_withdrawn_offer_reaches_whoever_waits_for_it_at_every_phase() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        // Before it is accepted.
        let handoff = written(&pair.prefill.pool, 40);
        let send = send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new());
        let mut send = Box::pin(send);
        let incoming = tokio::select! {
            _ = &mut send => panic!("nobody accepted yet"),
            incoming = next_handoff(&mut pair.from_prefill) => incoming,
        };
        drop(send);
        all_free(&pair.prefill.pool).await;
        let refused = ingest_sequence_handoff(incoming, &pair.decode.pool, copying(100, 0)).await;
        assert!(matches!(refused, Err(IngestError::Land(LandError::Withdrawn))), "{refused:?}");
        // After it has landed, before it is committed.
        let handoff = written(&pair.prefill.pool, 40);
        let mut send =
            Box::pin(send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new()));
        let landed = tokio::select! {
            _ = &mut send => panic!("nobody committed yet"),
            landed = async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                let blocks = pair.decode.pool.try_reserve(3).unwrap();
                incoming.accept(&pair.decode.pool, blocks, 0).await.unwrap()
            } => landed,
        };
        drop(send);
        all_free(&pair.prefill.pool).await;
        // What is sent after the withdrawal arrives after it; a commit before that would hold.
        pair.to_decode.send(Uuid::nil(), 0, 1, Bytes::new()).await.unwrap();
        assert!(matches!(pair.from_prefill.next().await, Some(Event::Message(_))));
        assert!(matches!(landed.commit().await, Err(LandError::Withdrawn)));
        all_free(&pair.decode.pool).await;
    });
}

#[test]
fn what_the_receiver_has_already_is_not_sent() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        for (from, blocks) in [(32, 1), (40, 0)] {
            let handoff = written(&pair.prefill.pool, 40);
            let before = pair.to_prefill.stats().payload_landed;
            let send = send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new());
            let receive = async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                let blocks = pair.decode.pool.try_reserve(blocks).unwrap();
                let landed = incoming.accept(&pair.decode.pool, blocks, from).await.unwrap();
                landed.commit().await.unwrap().blocks
            };
            let (sent, blocks) = tokio::join!(send, receive);
            sent.unwrap();
            let token_bytes = pair.prefill.pool.spec().token_bytes() as u64;
            let expected = token_bytes * (40 - from as u64);
            assert_eq!(pair.to_prefill.stats().payload_landed - before, expected);
            for block in blocks {
                assert_eq!(block.seal().token_bytes(0)[0][0][0], 32 ^ 0x5a);
            }
        }
    });
}

#[test]
fn peers_that_do_not_fit_are_refused_by_name_and_others_go_on() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let address = pair._listening.local_address().clone();
        let bf16 = KvSpec::uniform(16, 3, 2, 8, Dtype::Bf16);
        let bf16 = PoolOptions { backing: SHARED, ..PoolOptions::new(bf16, 8) };
        let other = side(&wire.0, bf16);
        let refused = other.endpoint.connect(&address).await.unwrap_err();
        let ConnectionError::Handshake { end, .. } = &refused else { panic!("{refused}") };
        assert!(matches!(end, SessionEnd::Refused(_) | SessionEnd::RefusedByPeer(_)), "{end:?}");
        let text = refused.to_string();
        assert!(text.contains("2x8 f16") && text.contains("2x8 bf16"), "{text}");
        let unknown: Address = "quic://x:1".parse().unwrap();
        let refused = other.endpoint.connect(&unknown).await.unwrap_err();
        assert!(matches!(refused, ConnectionError::Scheme { .. }));
        let handoff = written(&pair.prefill.pool, 3);
        let (sent, sequence) = tokio::join!(
            send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new()),
            async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                ingest_sequence_handoff(incoming, &pair.decode.pool, copying(100, 0)).await
            }
        );
        sent.unwrap();
        assert_written(sequence.unwrap().sequence, 3);
    });
}

#[test]
fn a_new_name_is_told_to_those_that_come_later() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let before = pair.to_decode.peer().name.clone();
        pair.decode.endpoint.rename("the other name");
        let address = pair._listening.local_address().clone();
        let (later, _events) = pair.prefill.endpoint.connect(&address).await.unwrap();
        assert_eq!(later.peer().name, "the other name");
        assert_eq!(pair.to_decode.peer().name, before, "who is connected knows the old one");
        assert_eq!(later.peer().instance, pair.to_decode.peer().instance);
        let (arrived, _events) = pair._listening.accept().await.unwrap();
        assert_eq!(arrived.peer().instance, pair.to_prefill.peer().instance);
    });
}

#[test]
fn messages_arrive_in_order_and_a_slow_reader_slows_the_sender_only() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let request = Uuid::new_v4();
        // More than a connection takes in before it is read, which would take Miri minutes.
        let count: u32 = if cfg!(miri) { 40 } else { 10_000 };
        for index in 0..count {
            let body = Bytes::copy_from_slice(&index.to_le_bytes());
            pair.to_decode.send(request, 0, 7, body).await.unwrap();
        }
        for index in 0..count {
            let Some(Event::Message(message)) = pair.from_prefill.next().await else { panic!() };
            assert_eq!((message.request, message.kind), (request, 7));
            assert_eq!(message.body[..], index.to_le_bytes());
        }
    });
}

#[test]
fn the_end_of_a_peer_fails_what_is_open_and_frees_every_block() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let handoff = written(&pair.prefill.pool, 40);
        let connection = pair.to_decode.clone();
        let send = send_handoff_payload(&connection, key(), handoff, Bytes::new());
        let (sent, ()) = tokio::join!(send, async {
            let incoming = next_handoff(&mut pair.from_prefill).await;
            pair.decode.endpoint.shut_down();
            let blocks = pair.decode.pool.try_reserve(3).unwrap();
            let ended = incoming.accept(&pair.decode.pool, blocks, 0).await.unwrap_err();
            assert!(matches!(ended, LandError::Ended(_)), "{ended:?}");
        });
        assert!(matches!(sent, Err(OfferError::Ended(SessionEnd::Goodbye(_)))), "{sent:?}");
        assert!(matches!(connection.closed().await, SessionEnd::Goodbye(_)));
        all_free(&pair.prefill.pool).await;
        all_free(&pair.decode.pool).await;
    });
}
