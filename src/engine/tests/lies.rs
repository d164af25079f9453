//! A session whose peer lies: what it makes this side hold is bounded.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blockwire::clock;
use blockwire::pool::{Dtype, KvSpec, Layout, PoolShape};
use blockwire::session::{Action, Identity, Notice, Session, SessionEnd, SessionViolation, Timing};
use blockwire::transport::{Capabilities, Completion, LinkEvent, Op, OpId, OpMemory};
use blockwire::wire::{HEADER_LEN, Header, Kind, body, encode_frame};
use bytes::{Bytes, BytesMut};
use uuid::Uuid;

const CAPABILITIES: Capabilities =
    Capabilities { stream: None, get: Some(1), adopt: true, same_host: true, lingers: false };

fn session(geometry: Option<KvSpec>) -> Session {
    let identity = Identity { geometry, ..Identity::new("honest") };
    Session::new(identity, CAPABILITIES, None, Timing::default(), clock::now())
}

fn hello() -> body::Hello {
    let (part, dtype) = (body::Part::Key.into(), body::Dtype::F16.into());
    let segments = vec![body::Segment { part, heads: 1, head_dim: 8, dtype }];
    body::Hello {
        version_min: 3,
        version_max: 3,
        instance: Bytes::from_static(&[7; 16]),
        geometry: Some(body::Geometry {
            block_tokens: 4,
            layers: vec![body::LayerRun { count: 1, segments }],
        }),
        ..body::Hello::default()
    }
}

fn frame(kind: Kind, request: u128, body: &impl prost::Message) -> Bytes {
    encode_frame(Header::control(kind, Uuid::from_u128(request), 1), body).unwrap()
}

/// The same with a field that nobody knows at its end.
fn padded(kind: Kind, body: &impl prost::Message, padding: usize) -> Bytes {
    let plain = frame(kind, 9, body);
    let mut bytes = BytesMut::from(&plain[HEADER_LEN..]);
    // Field 99 of bytes, and its length as a varint.
    bytes.extend_from_slice(&[0x9a, 0x06]);
    let mut len = padding;
    while len >= 0x80 {
        bytes.extend_from_slice(&[len as u8 | 0x80]);
        len >>= 7;
    }
    bytes.extend_from_slice(&[len as u8]);
    bytes.resize(bytes.len() + padding, 0);
    let header = Header::control(kind, Uuid::from_u128(9), 1);
    let header = Header { body_len: bytes.len() as u32, ..header };
    [&header.encode(&bytes)[..], &bytes].concat().into()
}

fn hear(session: &mut Session, frame: Bytes) {
    session.handle_event(LinkEvent::Received(frame), clock::now());
}

fn notices(session: &mut Session) -> Vec<Notice> {
    std::iter::from_fn(|| session.poll_notice()).collect()
}

/// Takes every action, and ends what was submitted if `sent` says so.
fn act(session: &mut Session, next: &mut u64, sent: bool) {
    while let Some(action) = session.poll_action() {
        let Action::Submit(Op::Control(_), purpose) = action else { continue };
        *next += 1;
        session.accepted(OpId(*next), purpose);
        if sent {
            let done = Completion { op: OpId(*next), memory: OpMemory::None, outcome: Ok(0) };
            session.handle_event(LinkEvent::Completed(done), clock::now());
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "it takes a hundred thousand frames")]
fn a_peer_that_asks_and_never_reads_is_left() {
    for sent in [true, false] {
        let mut session = session(None);
        hear(&mut session, frame(Kind::Hello, 0, &hello()));
        let (mut next, mut asked) = (0, 0);
        while session.end().is_none() && asked < 200_000 {
            // Both kinds of questions: pings, and offers that are declined.
            hear(&mut session, frame(Kind::Ping, 0, &body::Ping::default()));
            hear(&mut session, frame(Kind::Rts, asked, &body::Rts::default()));
            asked += 2;
            if asked % 100 == 0 {
                act(&mut session, &mut next, sent);
            }
        }
        let left = matches!(session.end(), Some(SessionEnd::Violated(SessionViolation::Unread)));
        assert_eq!(left, !sent, "{:?}", session.end());
    }
}

#[test]
fn what_is_kept_of_a_long_frame_does_not_hold_all_of_it() {
    let geometry = KvSpec::uniform(4, 1, 1, 8, Dtype::F16);
    let mut session = session(Some(geometry));
    hear(&mut session, frame(Kind::Hello, 0, &body::Hello { geometry: None, ..hello() }));
    notices(&mut session);
    let (short, long) = (Bytes::from_static(b"x"), Bytes::from(vec![1; 100_000]));
    for (part, padding, shared) in [(short, 1 << 20, false), (long, 1000, true)] {
        let rts = body::Rts { tokens: 3, block_tokens: 4, meta: part.clone(), ..<_>::default() };
        let message = body::AppMessage { kind: 1, body: part.clone() };
        let frames = [padded(Kind::Rts, &rts, padding), padded(Kind::Message, &message, padding)];
        for frame in frames {
            let range = frame.as_ptr_range();
            hear(&mut session, frame.clone());
            let kept = match notices(&mut session).pop() {
                Some(Notice::Offered(_, manifest)) => manifest.meta,
                Some(Notice::Message(message)) => message.body,
                other => panic!("{other:?}"),
            };
            assert_eq!(kept, part);
            assert_eq!(range.contains(&kept.as_ptr()), shared, "{padding} bytes more");
        }
        hear(&mut session, frame(Kind::Withdraw, 9, &body::Withdraw {}));
        notices(&mut session);
    }
}

/// A side without a pool has no geometry to compare, so it counts with what the peer says.
#[test]
fn a_pool_beyond_all_numbers_is_refused() {
    let mut huge = hello();
    let geometry = huge.geometry.as_mut().unwrap();
    geometry.block_tokens = u32::MAX;
    let run = &mut geometry.layers[0];
    run.count = 4096;
    let segment = body::Segment { heads: u32::MAX, head_dim: u32::MAX, ..run.segments[0] };
    run.segments = vec![segment; 16];
    let layout = body::PoolLayout::LayerMajor.into();
    huge.pool = Some(body::PoolAccess { region_key: 0, layout, blocks: u32::MAX });
    let mut session = session(None);
    hear(&mut session, frame(Kind::Hello, 0, &huge));
    assert!(matches!(session.end(), Some(SessionEnd::Refused(_))), "{:?}", session.end());
    // The shape itself says so too.
    let spec = KvSpec::uniform(u32::MAX, 4096, u32::MAX, u32::MAX, Dtype::F32);
    assert!(PoolShape::new(spec, Layout::BlockMajor, u32::MAX as usize).is_err());
}

#[test]
fn what_a_peer_says_for_people_is_short_and_on_one_line() {
    let reason = format!("bye\n2026 ERROR forged{}", "!".repeat(1 << 20));
    let goodbye = frame(Kind::Goodbye, 0, &body::Goodbye { reason: reason.clone() });
    let refuse = frame(Kind::Refuse, 0, &body::Refuse { code: 1, reason });
    for last in [goodbye, refuse] {
        let mut session = session(None);
        hear(&mut session, frame(Kind::Hello, 0, &hello()));
        hear(&mut session, last);
        let said = session.end().unwrap().to_string();
        assert!(said.contains("bye 2026") && !said.contains('\n') && said.len() < 1000, "{said}");
    }
}
