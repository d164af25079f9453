//! Handoffs that begin before their sequence is finished, over every transport.

use blockwire::endpoint::{Connection, Event, OutgoingHandoff};
use blockwire::handoff::{HandoffSender, extract_sequence_handoff, send_handoff_payload};
use blockwire::ingest::{IngestError, ingest_sequence_handoff};
use blockwire::pool::{BlockPool, KvSequence, Layout, SealedBlock};
use blockwire::session::{DeclineCode, HandoffKey, LandError, OfferError, OfferStream, PieceCut};
use bytes::Bytes;
use uuid::Uuid;

use crate::pair::{
    Pair, all_free, assert_written, copying, key, next_handoff, options, pair, run, written,
};

/// Offers a sequence of which nothing is there yet.
fn open(pair: &Pair, key: HandoffKey, tokens: usize, piece_tokens: u32) -> OutgoingHandoff {
    open_cut(pair, key, tokens, PieceCut::by_tokens(piece_tokens))
}

fn open_cut(pair: &Pair, key: HandoffKey, tokens: usize, cut: PieceCut) -> OutgoingHandoff {
    let (pool, meta) = (pair.prefill.pool.clone(), Bytes::from("meta"));
    pair.to_decode.offer_stream(key, OfferStream { pool, tokens, cut, meta })
}

fn blocks(pool: &BlockPool, tokens: usize) -> Vec<SealedBlock> {
    written(pool, tokens).run().blocks().cloned().collect()
}

async fn landed(connection: &Connection, bytes: u64) {
    while connection.stats().payload_landed < bytes {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

#[test]
fn pieces_make_the_sequence_whatever_the_block_lengths() {
    run(|wire| async move {
        for (from, to, piece) in [
            (options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16), 16),
            (options(Layout::BlockMajor, 16), options(Layout::LayerMajor, 16), 32),
            (options(Layout::LayerMajor, 16), options(Layout::BlockMajor, 8), 16),
            (options(Layout::BlockMajor, 5), options(Layout::BlockMajor, 16), 10),
            (options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 64), 48),
        ] {
            let mut pair = pair(&wire, from, to).await;
            let lengths: &[usize] = if cfg!(miri) { &[33] } else { &[1, 15, 16, 17, 33, 100] };
            for (&tokens, layers) in lengths.iter().zip([0, 1, 2].into_iter().cycle()) {
                let layered_from = if layers == 1 { piece as usize } else { 0 };
                let cut = PieceCut { tokens: piece, layered_from, layers };
                let offer = open_cut(&pair, key(), tokens, cut);
                let send = async {
                    for block in blocks(&pair.prefill.pool, tokens) {
                        offer.push(vec![block]);
                        tokio::task::yield_now().await;
                    }
                    offer.finish(vec![], "closing".into());
                    offer.committed().await
                };
                let receive = async {
                    let incoming = next_handoff(&mut pair.from_prefill).await;
                    assert_eq!(incoming.manifest().meta, "meta");
                    let options = copying(1000, 20);
                    ingest_sequence_handoff(incoming, &pair.decode.pool, options).await.unwrap()
                };
                let (sent, received) = tokio::join!(send, receive);
                sent.unwrap();
                assert_eq!(received.closing, "closing");
                assert_written(received.sequence, tokens);
            }
            all_free(&pair.prefill.pool).await;
            all_free(&pair.decode.pool).await;
        }
    });
}

#[test]
fn pieces_leave_before_the_sequence_is_finished_and_are_nobodys_before() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        // The receiver has the first block, so that the first piece is half as long as the second.
        let offer = open(&pair, key(), 70, 32);
        let incoming = next_handoff(&mut pair.from_prefill).await;
        let (pool, room) = (&pair.decode.pool, pair.decode.pool.try_reserve(4).unwrap());
        let mut landing = Box::pin(incoming.accept(pool, room, 16));
        let mut computed = blocks(&pair.prefill.pool, 70);
        let last = computed.pop().unwrap();
        offer.push(computed);
        let ahead = 48 * pair.prefill.pool.spec().token_bytes() as u64;
        tokio::select! {
            _ = &mut landing => panic!("a sequence that is not finished has landed"),
            () = landed(&pair.to_prefill, ahead) => {}
        }
        assert_eq!(pool.accounting().loaned, 4);
        // An answer later, the sender's link knows that it is done with them.
        pair.to_prefill.post(Uuid::nil(), 0, 1, Bytes::new());
        assert!(matches!(pair.from_decode.next().await, Some(Event::Message(_))));
        pair.to_decode.send(Uuid::nil(), 0, 1, Bytes::new()).await.unwrap();
        offer.finish(vec![last], Bytes::new());
        let commit = async { landing.await.unwrap().commit().await.unwrap().blocks };
        let (sent, blocks) = tokio::join!(offer.committed(), commit);
        assert_eq!(sent.unwrap().ahead_len, ahead);
        assert_eq!(pair.to_prefill.stats().payload_landed, ahead * 54 / 48);
        for (block, token) in blocks.into_iter().zip([16, 32, 48, 64]) {
            assert_eq!(block.seal().token_bytes(0)[0][0][0], token ^ 0x5a);
        }
    });
}

#[test]
fn whoever_gives_a_stream_up_at_whatever_step_the_other_hears_it_and_every_block_comes_back() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        for pushed in 0..=4 {
            for sender_leaves in [true, false] {
                let mut offer = open(&pair, key(), 64, 16);
                let incoming = next_handoff(&mut pair.from_prefill).await;
                let pool = pair.decode.pool.clone();
                let ingest = ingest_sequence_handoff(incoming, &pool, copying(100, 0));
                let mut ingest = Box::pin(ingest);
                offer.push(blocks(&pair.prefill.pool, 64)[..pushed].to_vec());
                tokio::select! {
                    biased;
                    done = &mut ingest => panic!("{done:?}, and it was not finished"),
                    () = tokio::task::yield_now() => {}
                }
                if sender_leaves {
                    drop(offer);
                    let ended = ingest.await;
                    let told = matches!(ended, Err(IngestError::Land(LandError::Withdrawn)));
                    assert!(told, "{ended:?}");
                } else {
                    drop(ingest);
                    let ended = offer.ended().await;
                    let dropped = matches!(
                        ended,
                        Err(OfferError::Declined { code: DeclineCode::DeclineDropped, .. })
                    );
                    assert!(dropped, "{ended:?}");
                }
                all_free(&pair.prefill.pool).await;
                all_free(&pair.decode.pool).await;
            }
        }
    });
}

/// A model fills the blocks meanwhile, step by step and layer by layer; the last one is not full.
#[test]
fn layers_leave_while_the_next_ones_are_written() {
    run(|wire| async move {
        for (from, to) in [(Layout::BlockMajor, 16), (Layout::LayerMajor, 8)] {
            let mut pair = pair(&wire, options(from, 16), options(Layout::BlockMajor, to)).await;
            let streams = pair.to_decode.capabilities().get.is_none();
            let (pool, tokens) = (pair.prefill.pool.clone(), 100);
            let (layers, token_len) = (pool.spec().layers.len(), pool.spec().token_bytes() as u64);
            let (connection, meta) = (pair.to_decode.clone(), Bytes::new());
            let cut = PieceCut { tokens: 32, layered_from: 0, layers: 1 };
            let mut sender =
                HandoffSender::new(connection, key(), &pool, tokens, meta).in_pieces(cut);
            let send = async {
                let mut sequence = KvSequence::new(&pool);
                sequence.push(pool.try_reserve(pool.spec().blocks_for(tokens)).unwrap()).unwrap();
                for (start, end) in [(0, 40), (40, 100)] {
                    let first = sequence.sealed().len();
                    let shared = sequence.share_layers(if end == 40 { 32 } else { end });
                    for position in start..end {
                        sequence.fill_token(position, position as u8 ^ 0x5a);
                    }
                    for layer in 0..layers - 1 {
                        sequence.layer_written(layer);
                        sender.push(first, if layer == 0 { &shared[..] } else { &[] });
                    }
                    if streams && end == tokens {
                        let amid = 68 * token_len / layers as u64 * (layers as u64 - 1);
                        landed(&pair.to_prefill, 32 * token_len + amid).await;
                    }
                    sequence.set_len(end);
                    sequence.seal_full();
                }
                let handoff = extract_sequence_handoff(&mut sequence).unwrap();
                drop(sequence);
                sender.finish(handoff, "closing".into()).await.unwrap()
            };
            let receive = async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                let options = copying(1000, 0);
                ingest_sequence_handoff(incoming, &pair.decode.pool, options).await.unwrap()
            };
            let (report, received) = tokio::join!(send, receive);
            assert_eq!(report.ahead_len > 32 * token_len, streams, "{report:?}");
            assert_written(received.sequence, tokens);
            all_free(&pool).await;
            all_free(&pair.decode.pool).await;
        }
    });
}

/// A second offer of the same key fails, and nothing of it gets into the first.
#[test]
fn an_offer_that_is_refused_touches_no_other() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let key = key();
        let first = open(&pair, key, 40, 16);
        let second = open(&pair, key, 40, 16);
        second.finish(blocks(&pair.prefill.pool, 40), "of the second".into());
        assert!(matches!(second.committed().await, Err(OfferError::Duplicate)));
        let odd = open(&pair, self::key(), 40, 10);
        assert!(matches!(odd.committed().await, Err(OfferError::Pieces)));
        first.finish(blocks(&pair.prefill.pool, 40), "of the first".into());
        let receive = async {
            let incoming = next_handoff(&mut pair.from_prefill).await;
            ingest_sequence_handoff(incoming, &pair.decode.pool, copying(100, 0)).await.unwrap()
        };
        let (sent, received) = tokio::join!(first.committed(), receive);
        sent.unwrap();
        assert_eq!(received.closing, "of the first");
        assert_written(received.sequence, 40);
    });
}

/// The one path of whoever computes: ahead where payload is pushed, at the end where it can be reached.
#[test]
fn a_sender_streams_where_something_is_gained() {
    run(|wire| async move {
        let mut pair =
            pair(&wire, options(Layout::BlockMajor, 16), options(Layout::BlockMajor, 16)).await;
        let streams = pair.to_decode.capabilities().get.is_none();
        let pool = pair.prefill.pool.clone();
        let handoff = written(&pool, 100);
        let computed: Vec<_> = handoff.run().blocks().cloned().collect();
        let (connection, key) = (pair.to_decode.clone(), key());
        let mut sender = HandoffSender::new(connection, key, &pool, 100, "meta".into());
        sender = sender.in_pieces(PieceCut { tokens: 16, layered_from: 32, layers: 1 });
        sender.push(0, &computed[..2]);
        // After a preemption it begins anew, with blocks of the same bytes.
        sender.push(0, &computed[..1]);
        sender.push(1, &computed[1..3]);
        // Nobody told of what lies between.
        sender.push(5, &computed[5..6]);
        drop(computed);
        let send = async {
            if streams {
                landed(&pair.to_prefill, 48 * pool.spec().token_bytes() as u64).await;
            }
            sender.finish(handoff, "closing".into()).await.unwrap()
        };
        let receive = async {
            let incoming = next_handoff(&mut pair.from_prefill).await;
            ingest_sequence_handoff(incoming, &pair.decode.pool, copying(1000, 0)).await.unwrap()
        };
        let (report, received) = tokio::join!(send, receive);
        assert_eq!(report.payload_len, 100 * pool.spec().token_bytes() as u64);
        assert_eq!(report.ahead_len > 0, streams, "{report:?}");
        assert_eq!(received.closing, "closing");
        assert_written(received.sequence, 100);
        // What has no end is over when the peer declines.
        let mut sender =
            HandoffSender::new(pair.to_decode.clone(), self::key(), &pool, 100, Bytes::new());
        if streams {
            sender.push(0, &blocks(&pool, 16));
            let (failed, ()) = tokio::join!(sender.failed(), async {
                let incoming = next_handoff(&mut pair.from_prefill).await;
                incoming.decline(DeclineCode::DeclineBusy, "no slot");
            });
            assert!(failed.to_string().contains("no slot"), "{failed}");
        }
        drop(sender);
        let whole =
            send_handoff_payload(&pair.to_decode, self::key(), written(&pool, 20), Bytes::new());
        let (sent, taken) = tokio::join!(whole, async {
            let incoming = next_handoff(&mut pair.from_prefill).await;
            ingest_sequence_handoff(incoming, &pair.decode.pool, copying(100, 0)).await
        });
        assert_eq!(sent.unwrap().ahead_len, 0);
        drop(taken);
        all_free(&pool).await;
    });
}
