//! Where the corpus comes from: what peers really say, and scripts that come far.

use blockwire::wire::{Header, Kind, body, encode_frame};
use bytes::Bytes;
use prost::Message;
use uuid::Uuid;

type Seeds = Vec<(&'static str, Vec<u8>)>;

/// A hello that fits, with everything that a hello may have.
fn hello() -> body::Hello {
    let segment = |part: body::Part| body::Segment {
        part: part.into(),
        heads: 1,
        head_dim: 8,
        dtype: body::Dtype::F16.into(),
    };
    let segments = vec![segment(body::Part::Key), segment(body::Part::Value)];
    let layers = vec![body::LayerRun { count: 2, segments }];
    body::Hello {
        version_min: 3,
        version_max: 3,
        instance: Bytes::copy_from_slice(Uuid::from_u128(1).as_bytes()),
        name: "prefill 127.0.0.1:7411".into(),
        fingerprint: Bytes::from_static(b"model"),
        model: "tiny".into(),
        geometry: Some(body::Geometry { block_tokens: 4, layers }),
        role: Bytes::from_static(b"prefill"),
        backend: "cpu 1".into(),
        pool: Some(body::PoolAccess {
            region_key: 0,
            layout: body::PoolLayout::BlockMajor.into(),
            blocks: 12,
        }),
    }
}

pub(crate) fn hellos() -> Seeds {
    let whole = hello();
    let router = body::Hello { geometry: None, pool: None, ..whole.clone() };
    let mut other = whole.clone();
    other.geometry.as_mut().unwrap().layers[0].count = 3;
    let named = [
        ("node", &whole),
        ("router", &router),
        ("other_geometry", &other),
        ("newer", &body::Hello { version_min: 4, version_max: 9, ..whole.clone() }),
        ("other_model", &body::Hello { fingerprint: Bytes::from_static(b"else"), ..whole.clone() }),
        ("other_backend", &body::Hello { backend: "mlx 1".into(), ..whole.clone() }),
    ];
    named.into_iter().map(|(name, hello)| (name, hello.encode_to_vec())).collect()
}

pub(crate) fn frames() -> Seeds {
    fn frame(kind: Kind, body: &impl Message) -> Vec<u8> {
        let header = Header::control(kind, Uuid::from_u128(7), 1);
        encode_frame(header, body).unwrap().to_vec()
    }
    let rts = body::Rts {
        tokens: 7,
        block_tokens: 4,
        meta: Bytes::from_static(b"meta"),
        blocks: [7_u32, 3].into_iter().flat_map(u32::to_le_bytes).collect(),
        lease: Some(body::Lease { slot: 2, generation: 5 }),
        ..body::Rts::default()
    };
    let streamed = body::Rts { blocks: Bytes::new(), lease: None, piece_tokens: 4, ..rts.clone() };
    let layered = body::Rts { piece_layers: 1, layered_from: 4, ..streamed.clone() };
    let part = body::PlanPart { len: 4096, stripe: 1, stripe_tag: 9 };
    let reason = || "because".to_owned();
    vec![
        ("hello", frame(Kind::Hello, &hello())),
        ("refuse", frame(Kind::Refuse, &body::Refuse { code: 2, reason: reason() })),
        ("rts", frame(Kind::Rts, &rts)),
        ("rts_in_pieces", frame(Kind::Rts, &streamed)),
        ("rts_in_layers", frame(Kind::Rts, &layered)),
        ("rtr", frame(Kind::Rtr, &body::Rtr { tag: 3, needed_from: 4, adopts: false })),
        ("atp", frame(Kind::Atp, &body::Atp { digest: u64::MAX, closing: "end".into() })),
        ("ats", frame(Kind::Ats, &body::Ats {})),
        ("decline", frame(Kind::Decline, &body::Decline { code: 3, reason: reason() })),
        ("message", frame(Kind::Message, &body::AppMessage { kind: 2, body: "hi".into() })),
        ("ping", frame(Kind::Ping, &body::Ping { nonce: 5 })),
        ("goodbye", frame(Kind::Goodbye, &body::Goodbye { reason: reason() })),
        ("payload", Header::payload(3, 65_536, 4096).encode(&[]).to_vec()),
        ("plan", frame(Kind::Plan, &body::Plan { tag: 3, parts: vec![part, part] })),
        ("unplanned", frame(Kind::Unplanned, &body::Unplanned { tag: 3, len: 9, again: true })),
        ("fence", frame(Kind::Fence, &body::Fence { number: 8 })),
        ("join", frame(Kind::Join, &body::Join { stripe: 4, nonce: vec![7; 32].into() })),
    ]
}

/// Scripts for the lying peer; see `liar::World::step` for the numbers. The link takes a byte more for each
/// operation that the session submits, and one for a map.
pub(crate) fn scripts() -> Seeds {
    // A number in a script: an index among those that are likely, and no neighbour of it.
    const N: u8 = 255;
    // What the link does with one operation, and with two.
    const TAKEN: [u8; 1] = [0];
    const BOTH_TAKEN: [u8; 2] = [0; 2];
    // The kind of side, then a hello that fits: its own is sent, the peer's memory is mapped.
    let pulls = [0, 0, 0, 0, 0];
    let pushes = [2, 0, 0, 0];
    // A payload of 7 tokens is offered in blocks 0 and 1, under a lease.
    let rts = [1, 0, N, 0, N, 1, 0, 1, 0, N, 0, 9, 9, 9, 0];
    let accept = [&[22, 0, 7][..], &BOTH_TAKEN].concat();
    let adopt = [&[22, 0, 2][..], &BOTH_TAKEN].concat();
    // The operation after the hello ends well.
    let complete = [39, 1, 2, 0];
    let (atp, ats) = ([8, 0, 0], [10, 0]);
    let commit = [&[27, 0][..], &TAKEN].concat();
    let offer = [&[18, 0, 6][..], &TAKEN].concat();
    let adopting = [&[5, 0, N, 2, N, 1, 0][..], &TAKEN].concat();
    let streaming = [&[5, 2, N, 0, N, 0, 0][..], &TAKEN].concat();
    // A sequence of 9 tokens, of which a block is there when the peer asks for all.
    let begun = [&[41, 0, 8][..], &TAKEN, &[42, 0, 0], &[5, 2, N, 0, N, 0, 0], &TAKEN].concat();
    let pushed = [&[42, 0, 0][..], &TAKEN, &[42, 0, 0], &TAKEN, &[43, 0]].concat();
    let piece_done = [39, 2, 2, 0];
    // One of 12 tokens, in three pieces, that the peer computes.
    let rts_in_pieces = [40, 2, N, 0, N, 0, N, 0, 0, N, 0, N, 0];
    let accept_pieces = [&[22, 0, 7][..], &[0; 4]].concat();
    vec![
        ("nothing", vec![]),
        ("hello", pulls.to_vec()),
        ("offered_and_pulled", [&pulls[..], &rts, &accept, &complete, &atp, &commit].concat()),
        (
            "offered_and_adopted",
            [&pulls[..], &rts, &adopt, &complete, &atp, &commit, &[14, 0, 31, 0]].concat(),
        ),
        ("offered_and_pushed", [&pushes[..], &rts, &accept, &complete, &atp, &commit].concat()),
        ("offers_and_lends", [&pulls[..], &offer, &adopting, &ats, &[32, 0, 33, 0]].concat()),
        (
            "offers_and_streams",
            [&pushes[..], &offer, &streaming, &[39, 2, 2, 0, 0], &ats, &[30, 0]].concat(),
        ),
        (
            "offers_in_pieces",
            [&pushes[..], &begun, &piece_done, &pushed, &piece_done, &piece_done, &TAKEN, &ats]
                .concat(),
        ),
        (
            "offered_in_pieces",
            [
                &pushes[..],
                &rts_in_pieces,
                &accept_pieces,
                &complete,
                &piece_done,
                &piece_done,
                &[8, 7, 0],
                &commit,
            ]
            .concat(),
        ),
        ("waits", [&pulls[..], &[33, 1, 0, 33, 1, 0, 33, 0]].concat()),
        ("everything", (0..=255).chain((0..=255).rev()).collect()),
    ]
}

/// Steps for two honest sessions; see `world::step` for the numbers.
pub(crate) fn steps() -> Seeds {
    let offered = [[0, 0, 0], [3, 0, 0], [7, 0, 0], [1, 0, 0]];
    let moved = [[5, 0, 1], [6, 0, 1], [3, 0, 0], [3, 0, 0], [10, 0, 0], [1, 0, 0]];
    // Number 1 is offered while it is computed, and its first piece moves before the last is there.
    let begun = [[0, 0, 0], [3, 0, 0], [7, 1, 0], [1, 0, 0], [15, 1, 0], [5, 0, 1], [3, 0, 0]];
    let ended = [[15, 1, 0], [15, 1, 0], [16, 1, 0], [5, 0, 1], [5, 0, 1], [3, 0, 0], [3, 0, 0]];
    let committed = [[3, 0, 0], [10, 1, 0], [1, 0, 0]];
    let pieces = [&begun[..], &ended, &committed].concat();
    let script = |way: u8, more: &[[u8; 3]]| -> Vec<u8> {
        let steps = offered.iter().chain(&moved).chain(more).flatten().copied();
        std::iter::once(way).chain(steps).collect()
    };
    vec![
        ("pushed", script(0, &[])),
        ("pushed_in_pieces", script(0, &pieces)),
        ("lingering_in_pieces", script(1, &pieces)),
        ("lingering_and_withdrawn", script(1, &[[0, 0, 0], [3, 0, 0], [7, 1, 0], [8, 1, 0]])),
        ("pulled_and_abandoned", script(2, &[[0, 0, 0], [3, 0, 0], [7, 1, 0], [9, 1, 0]])),
        ("adopted_and_recalled", script(3, &[[13, 0, 0], [3, 0, 0], [14, 0, 0], [12, 0, 0]])),
        ("dead", script(3, &[[0, 0, 0], [3, 0, 0], [7, 1, 0], [11, 0, 16]])),
    ]
}
