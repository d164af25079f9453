//! Arbitrary bytes as the body of a hello, for each kind of side that may hear it.

use blockwire::clock;
use blockwire::pool::{BlockPool, Dtype, KvSpec, PoolOptions};
use blockwire::session::{
    Action, Identity, Notice, PoolAccess, Session, SessionEnd, SessionViolation, Timing,
};
use blockwire::transport::{Capabilities, LinkEvent, Op, RegionKey};
use blockwire::wire::{Header, Kind, split_frame};
use bytes::Bytes;
use uuid::Uuid;

const CAPABILITIES: Capabilities =
    Capabilities { stream: Some(1), get: Some(1), adopt: true, same_host: true, lingers: false };

/// Lets a node, a node that knows its peer, and a router hear a hello.
///
/// # Panics
/// When one of them takes a peer that does not fit, or refuses without a word.
pub(crate) fn play(bytes: &[u8]) {
    let spec = KvSpec::uniform(4, 2, 1, 8, Dtype::F16);
    let node = || Identity {
        geometry: Some(spec.clone()),
        fingerprint: Bytes::from_static(b"model"),
        backend: "cpu 1".into(),
        ..Identity::new("node")
    };
    hear(node(), None, bytes);
    hear(node(), Some(Uuid::from_u128(1)), bytes);
    hear(Identity::new("router"), None, bytes);
}

fn hear(ours: Identity, authenticated: Option<Uuid>, body: &[u8]) {
    let access = ours.geometry.clone().map(|spec| {
        let pool = BlockPool::new(PoolOptions::new(spec, 2)).expect("a small pool");
        PoolAccess { region: RegionKey(0), shape: pool.shape().clone() }
    });
    let session = Session::new(ours.clone(), CAPABILITIES, access, Timing::default(), clock::now());
    let mut session = session.with_authenticated(authenticated);
    assert_eq!(sent(&mut session), [Kind::Hello]);
    let header = Header::control(Kind::Hello, Uuid::nil(), 0);
    let header = Header { body_len: body.len() as u32, ..header };
    let frame = [&header.encode(body)[..], body].concat();
    session.handle_event(LinkEvent::Received(frame.into()), clock::now());
    let (sent, ready) = (sent(&mut session), ready(&mut session));
    match session.end() {
        None => {
            let peer = ready.expect("an open session has a peer");
            assert!(sent.is_empty());
            assert!(authenticated.is_none_or(|known| known == peer.instance));
            if let (Some(here), Some(there)) = (&ours.geometry, &peer.geometry) {
                assert!(here.same_geometry(there));
            }
            let said = [&peer.name, &peer.model, &peer.backend];
            assert!(said.into_iter().all(|text| text.len() <= 1024));
        }
        Some(SessionEnd::Refused(_)) => assert_eq!(sent, [Kind::Refuse]),
        Some(SessionEnd::Violated(SessionViolation::Body(_))) => assert!(sent.is_empty()),
        Some(SessionEnd::Violated(SessionViolation::Wire(_))) => assert!(body.len() > 1 << 20),
        other => panic!("{other:?}"),
    }
}

/// Kinds of the frames that the session sends.
fn sent(session: &mut Session) -> Vec<Kind> {
    let mut kinds = Vec::new();
    while let Some(action) = session.poll_action() {
        if let Action::Submit(Op::Control(frame), _) = action {
            kinds.push(split_frame(&frame).expect("a frame of this side's").0.kind);
        }
    }
    kinds
}

fn ready(session: &mut Session) -> Option<Identity> {
    std::iter::from_fn(|| session.poll_notice()).find_map(|notice| match notice {
        Notice::Ready(peer) => Some(peer),
        _ => None,
    })
}
