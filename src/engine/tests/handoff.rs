//! Handoffs between two endpoints, through every handle that a user holds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use blockwire::endpoint::{
    Connection, ConnectionError, Endpoint, EndpointOptions, Event, Events, Listening,
};
use blockwire::handoff::{
    SequenceHandoff, SequenceState, extract_sequence_handoff, send_handoff_payload,
};
use blockwire::ingest::{IngestError, ingest_sequence_handoff};
use blockwire::pool::{Backing, BlockPool, Dtype, KvSequence, KvSpec, Layout, PoolOptions};
use blockwire::session::{DeclineCode, HandoffKey, Identity, LandError, OfferError, SessionEnd};
use blockwire::transport::{Address, Transport};
use blockwire_mem::MemTransport;
use blockwire_shm::ShmTransport;
use blockwire_tcp::TcpTransport;
use bytes::Bytes;
use uuid::Uuid;

/// One side: an endpoint and its pool.
struct Side {
    endpoint: Endpoint,
    pool: BlockPool,
}

fn side(transport: &Arc<dyn Transport>, options: PoolOptions) -> Side {
    let pool = BlockPool::new(options).unwrap();
    let identity = Identity { model: "tiny".into(), ..Identity::new("side") };
    let options = EndpointOptions::new(identity, Some(pool.clone()), vec![transport.clone()]);
    Side { endpoint: Endpoint::start(options).unwrap(), pool }
}

fn options(layout: Layout, block_tokens: u32) -> PoolOptions {
    let spec = KvSpec::uniform(block_tokens, 3, 2, 8, Dtype::F16);
    PoolOptions { layout, backing: Backing::Shared, ..PoolOptions::new(spec, 64) }
}

/// A pool that no peer can map.
fn private(layout: Layout, block_tokens: u32) -> PoolOptions {
    PoolOptions { backing: Backing::Private, ..options(layout, block_tokens) }
}

/// A connected pair: the prefill side dials, the decode side listens.
struct Pair {
    prefill: Side,
    decode: Side,
    to_decode: Connection,
    _from_decode: Events,
    _to_prefill: Connection,
    from_prefill: Events,
    _listening: Listening,
}

/// A transport, and an address to listen on.
type Wire = (Arc<dyn Transport>, Address);

/// Every transport; the folder holds what they name in the file system.
fn wires(folder: &tempfile::TempDir) -> Vec<Wire> {
    let socket = format!("shm:{}/decode.sock", folder.path().display());
    let all: [(Arc<dyn Transport>, &str); 3] = [
        (Arc::new(MemTransport::default()), "mem:decode"),
        (Arc::new(ShmTransport::default()), &socket),
        (Arc::new(TcpTransport::default()), "tcp://127.0.0.1:0"),
    ];
    all.into_iter().map(|(wire, address)| (wire, address.parse().unwrap())).collect()
}

async fn pair((transport, bind): &Wire, prefill: PoolOptions, decode: PoolOptions) -> Pair {
    let (prefill, decode) = (side(transport, prefill), side(transport, decode));
    let mut listening = decode.endpoint.listen(bind).await.unwrap();
    let address = listening.local_address().clone();
    let (to_decode, _from_decode) = prefill.endpoint.connect(&address).await.unwrap();
    let (_to_prefill, from_prefill) = listening.accept().await.unwrap();
    Pair {
        prefill,
        decode,
        to_decode,
        _from_decode,
        _to_prefill,
        from_prefill,
        _listening: listening,
    }
}

fn key() -> HandoffKey {
    HandoffKey { request: Uuid::new_v4(), epoch: 1 }
}

/// A sequence whose every token has bytes of its own.
fn written(pool: &BlockPool, tokens: usize) -> SequenceHandoff {
    let mut sequence = KvSequence::new(pool);
    let mut blocks = pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap();
    let block_tokens = pool.spec().block_tokens as usize;
    for (index, block) in blocks.iter_mut().enumerate() {
        for token in 0..block_tokens as u32 {
            block.fill_token(token, (index * block_tokens + token as usize) as u8 ^ 0x5a);
        }
    }
    sequence.push(blocks).unwrap();
    sequence.set_len(tokens);
    extract_sequence_handoff(SequenceState::PoolBacked(&mut sequence)).unwrap()
}

/// Checks every byte of every token.
fn assert_written(mut sequence: KvSequence, tokens: usize) {
    assert_eq!(sequence.len(), tokens);
    let block_tokens = sequence.pool().spec().block_tokens as usize;
    let blocks = sequence.finish().to_vec();
    for token in 0..tokens {
        let bytes = blocks[token / block_tokens].token_bytes((token % block_tokens) as u32);
        let wrong = bytes.iter().flatten().flat_map(|b| b.iter()).any(|b| *b != token as u8 ^ 0x5a);
        assert!(!wrong, "token {token} is not what was sent");
    }
}

/// Runs a test over every transport.
fn run<F: Future<Output = ()>>(test: impl Fn(Wire) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    for wire in wires(&folder) {
        let scheme = wire.1.scheme().to_owned();
        runtime.block_on(async {
            let watchdog = tokio::time::timeout(Duration::from_secs(30), test(wire));
            assert!(watchdog.await.is_ok(), "the test hangs over {scheme}");
        });
    }
}

async fn next_handoff(events: &mut Events) -> blockwire::endpoint::IncomingHandoff {
    match events.next().await {
        Some(Event::Handoff(handoff)) => handoff,
        other => panic!("expected an offer, got {other:?}"),
    }
}

/// Waits until every block of a pool is free: frees may come a moment after the answer.
async fn all_free(pool: &BlockPool) {
    while pool.accounting().free != pool.accounting().total {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

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
            for tokens in [1, 15, 16, 17, 31, 32, 33, 100] {
                let handoff = written(&pair.prefill.pool, tokens);
                let bytes = handoff.payload_len();
                let before = pair.payload_copied();
                let send =
                    send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::from("meta"));
                let receive = async {
                    let incoming = next_handoff(&mut pair.from_prefill).await;
                    assert_eq!(incoming.manifest().meta, "meta");
                    ingest_sequence_handoff(incoming, &pair.decode.pool, 1000, 20).await.unwrap()
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

impl Pair {
    /// Payload bytes copied by both sides.
    fn payload_copied(&self) -> u64 {
        self.to_decode.stats().payload_copied + self._to_prefill.stats().payload_copied
    }
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
            ingest_sequence_handoff(incoming, &pair.decode.pool, 39, 0).await.unwrap_err()
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
        let refused = ingest_sequence_handoff(incoming, &pair.decode.pool, 100, 0).await;
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
            let before = pair._to_prefill.stats().payload_landed;
            let send = send_handoff_payload(&pair.to_decode, key(), handoff, Bytes::new());
            let receive = async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                let blocks = pair.decode.pool.try_reserve(blocks).unwrap();
                let landed = incoming.accept(&pair.decode.pool, blocks, from).await.unwrap();
                landed.commit().await.unwrap()
            };
            let (sent, blocks) = tokio::join!(send, receive);
            sent.unwrap();
            let token_bytes = pair.prefill.pool.spec().token_bytes() as u64;
            let expected = token_bytes * (40 - from as u64);
            assert_eq!(pair._to_prefill.stats().payload_landed - before, expected);
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
        let bf16 = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(bf16, 8) };
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
                ingest_sequence_handoff(incoming, &pair.decode.pool, 100, 0).await
            }
        );
        sent.unwrap();
        assert_written(sequence.unwrap(), 3);
    });
}

#[test]
fn messages_arrive_in_order_and_a_slow_reader_slows_the_sender_only() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let request = Uuid::new_v4();
        for index in 0..10_000u32 {
            let body = Bytes::copy_from_slice(&index.to_le_bytes());
            pair.to_decode.send(request, 0, 7, body).await.unwrap();
        }
        for index in 0..10_000u32 {
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
