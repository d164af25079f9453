//! What the peer says: frames that are almost right.

use blockwire::pool::{Digest, Layout};
use blockwire::transport::LinkEvent;
use blockwire::wire::{Header, Kind, body, encode_frame};
use bytes::Bytes;
use uuid::Uuid;

use super::{BLOCK_TOKENS, BLOCKS, World};

impl World<'_> {
    fn hear(&mut self, frame: Bytes) {
        if !self.is_closed {
            self.session.handle_event(LinkEvent::Received(frame), self.now);
        }
    }

    pub(super) fn say(&mut self, kind: Kind, body: &impl prost::Message) {
        let key = self.key();
        let header = Header::control(kind, key.request, key.epoch);
        self.hear(encode_frame(header, body).expect("a short body"));
    }

    /// A frame of a kind that is known, with a body that may be anything.
    pub(super) fn say_anything(&mut self) {
        let mut head = Header::control(Kind::Ats, Uuid::nil(), 1).encode(&[]);
        head[6..8].copy_from_slice(&u16::from(self.script.byte() % 100).to_le_bytes());
        let len = usize::from(self.script.byte() % 64);
        let body = self.script.take(len);
        head[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
        let frame = Header::parse(&head).map(|header| [&header.encode(body)[..], body].concat());
        self.hear(frame.unwrap_or_else(|_| head.to_vec()).into());
    }

    pub(super) fn hello(&mut self) {
        let (part, dtype) = (body::Part::Key.into(), body::Dtype::F16.into());
        let key = body::Segment { part, heads: 1, head_dim: 8, dtype };
        let value = body::Segment { part: body::Part::Value.into(), ..key };
        let layers = vec![body::LayerRun { count: 2, segments: vec![key, value] }];
        let mut geometry = body::Geometry { block_tokens: BLOCK_TOKENS as u32, layers };
        let mut pool = body::PoolAccess {
            region_key: 0,
            layout: body::PoolLayout::BlockMajor.into(),
            blocks: BLOCKS as u32,
        };
        let odd = self.script.byte();
        if odd & 3 == 1 {
            geometry.block_tokens = self.script.number(&[BLOCK_TOKENS, 8, 3]) as u32;
            pool.blocks = self.script.number(&[BLOCKS as u64, 1]) as u32;
            pool.layout = i32::from(self.script.byte() % 4);
        }
        if odd & 12 == 4 {
            let segment = &mut geometry.layers[0].segments[0];
            segment.heads = self.script.number(&[1]) as u32;
            segment.head_dim = self.script.number(&[8]) as u32;
            geometry.layers[0].count = self.script.number(&[2]) as u32;
        }
        self.said = match pool.layout() {
            body::PoolLayout::LayerMajor => Some((Layout::LayerMajor, pool.blocks as usize)),
            _ => Some((Layout::BlockMajor, pool.blocks as usize)),
        };
        let hello = body::Hello {
            version_min: 3,
            version_max: if odd & 48 == 16 { self.script.byte().into() } else { 3 },
            instance: Bytes::copy_from_slice(Uuid::from_u128(1).as_bytes()),
            geometry: (odd & 64 == 0).then_some(geometry),
            pool: (odd & 128 == 0).then_some(pool),
            ..body::Hello::default()
        };
        self.say(Kind::Hello, &hello);
    }

    pub(super) fn rts(&mut self) {
        let tokens = self.script.number(&[7, 8, 3, 4, 1]);
        let theirs = self.shape.as_ref().map_or(BLOCK_TOKENS, |s| s.spec().block_tokens.into());
        let block_tokens = self.script.number(&[theirs, theirs, BLOCK_TOKENS, 3]) as u32;
        let named = match self.script.byte() % 8 {
            0 => u64::from(self.script.byte()),
            _ => tokens.div_ceil(theirs.max(1)).min(64),
        };
        let ids = (0..named).map(|_| match self.script.byte() {
            250.. => self.script.number(&[BLOCKS as u64]) as u32,
            id => u32::from(id) % BLOCKS as u32,
        });
        let blocks = ids.flat_map(u32::to_le_bytes).collect();
        let slot = self.script.number(&[0, 1]) as u32;
        let lease = (!self.script.rarely(4)).then_some(body::Lease { slot, generation: 0 });
        let meta = Bytes::copy_from_slice(self.script.take(3));
        let named = body::Rts { tokens, block_tokens, meta, blocks, lease, ..body::Rts::default() };
        self.say(Kind::Rts, &named);
    }

    /// Of a sequence that is still computed.
    pub(super) fn rts_in_pieces(&mut self) {
        let tokens = self.script.number(&[7, 8, 12, 40, 1 << 31]);
        let block_tokens = self.script.number(&[BLOCK_TOKENS, BLOCK_TOKENS, 3]) as u32;
        let piece_tokens = self.script.number(&[4, 8, 1 << 31, 3]) as u32;
        let blocks = Bytes::from_static(if self.script.rarely(8) { &[0; 8] } else { &[] });
        let piece_layers = self.script.number(&[0, 1, 2, u64::from(u32::MAX)]) as u32;
        let layered_from = self.script.number(&[0, 4, 8, u64::MAX, 3]);
        let rts = body::Rts { tokens, block_tokens, piece_tokens, blocks, ..body::Rts::default() };
        let rts = body::Rts { piece_layers, layered_from, ..rts };
        self.say(Kind::Rts, &rts);
    }

    pub(super) fn rtr(&mut self) {
        let tag = self.script.number(&[0, 0, 1, 2]);
        let needed_from = self.script.number(&[0, 0, 4, 7, 8]);
        let adopts = self.script.rarely(3);
        self.say(Kind::Rtr, &body::Rtr { tag, needed_from, adopts });
    }

    /// One of few digests, so that both sides may agree; that of nothing among them, and those of pieces.
    pub(super) fn digest(&mut self) -> u64 {
        let (none, [two, three]) =
            (Digest::default().value(), [&[1; 2][..], &[1; 3]].map(Digest::of_parts));
        [1, 1, 2, none, 1, 1, two, three][usize::from(self.script.byte() % 8)]
    }
}
