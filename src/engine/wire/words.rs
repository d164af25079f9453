//! Control frames in words, for traces.

use bytes::Bytes;

use super::{Header, Kind, body, decode_body, split_frame};

/// What a control frame says, in one line. Bytes that are none are named too.
pub fn describe(frame: &Bytes) -> String {
    let (header, content) = match split_frame(frame) {
        Ok(parts) => parts,
        Err(error) => return format!("{} bytes that are no frame ({error})", frame.len()),
    };
    let about = if header.request.is_nil() {
        String::new()
    } else {
        let id = header.request.simple().to_string();
        format!(" {}:{}", id.trim_start_matches('0'), header.epoch)
    };
    let detail = detail(header.kind, &header, content).unwrap_or_default();
    format!("{:?}{about}{detail}", header.kind)
}

fn detail(kind: Kind, header: &Header, content: Bytes) -> Option<String> {
    let text = match kind {
        Kind::Rts => {
            let rts: body::Rts = decode_body(header, content).ok()?;
            let lease = if rts.lease.is_some() { ", lent" } else { "" };
            let pieces = match rts.piece_tokens {
                0 => String::new(),
                tokens => format!(", in pieces of {tokens}"),
            };
            let layers = match rts.piece_layers {
                0 => String::new(),
                layers => format!(" and {layers} layers from {} on", rts.layered_from),
            };
            format!(
                ", {} tokens in blocks of {}{pieces}{layers}{lease}",
                rts.tokens, rts.block_tokens
            )
        }
        Kind::Rtr => {
            let rtr: body::Rtr = decode_body(header, content).ok()?;
            let way = if rtr.adopts { ", the rest is adopted" } else { "" };
            format!(", tag {}, from token {}{way}", rtr.tag, rtr.needed_from)
        }
        Kind::Atp => {
            let atp: body::Atp = decode_body(header, content).ok()?;
            format!(", digest {:016x}", atp.digest)
        }
        Kind::Decline => {
            let decline: body::Decline = decode_body(header, content).ok()?;
            format!(", {:?}: {}", decline.code(), decline.reason)
        }
        Kind::Message => {
            let message: body::AppMessage = decode_body(header, content).ok()?;
            format!(", kind {}, {} bytes", message.kind, message.body.len())
        }
        Kind::Ping | Kind::Pong => {
            let ping: body::Ping = decode_body(header, content).ok()?;
            format!(" {}", ping.nonce)
        }
        Kind::Goodbye => {
            let goodbye: body::Goodbye = decode_body(header, content).ok()?;
            format!(": {}", goodbye.reason)
        }
        Kind::Refuse => {
            let refuse: body::Refuse = decode_body(header, content).ok()?;
            format!(": {}", refuse.reason)
        }
        _ => return None,
    };
    Some(text)
}
