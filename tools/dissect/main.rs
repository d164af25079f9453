//! Prints the frames in captured bytes, one line each, in the words of the simulation's traces.
//!
//! ```text
//! tcpflow -r capture.pcap                     # a file for each direction of each connection
//! cargo run -p blockwire-dissect -- FILE      # without FILE it reads standard input
//! ```
//! A line begins with the position of the frame in the bytes. What lies between frames is counted: a greeting,
//! the tags of a link with a key, the rest of a frame whose beginning was not captured. Of a link with
//! `?tls=key` nothing can be read.

use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::process::ExitCode;

use blockwire::wire::{HEADER_LEN, Header, Kind, describe};
use bytes::Bytes;

fn main() -> ExitCode {
    let file = std::env::args_os().nth(1);
    let read = match &file {
        Some(path) => std::fs::read(path),
        None => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map(|_| bytes)
        }
    };
    let bytes = match read {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) => {
            let name = file.map_or("standard input".into(), |path| path.display().to_string());
            eprintln!("{name} cannot be read: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match dissect(&bytes, &mut out).and_then(|()| out.flush()) {
        // Whoever reads has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("standard output cannot be written: {error}");
            ExitCode::FAILURE
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

/// Writes a line for each frame, and for what lies between frames.
fn dissect(bytes: &Bytes, out: &mut impl Write) -> io::Result<()> {
    let (mut at, mut known) = (0, 0);
    while at < bytes.len() {
        let Some(header) = header_at(bytes, at) else {
            at += 1;
            continue;
        };
        between(known, at, out)?;
        let head_len = HEADER_LEN + header.body_len as usize;
        let len = head_len + header.payload_len as usize;
        if bytes.len() - at < len {
            let here = bytes.len() - at;
            writeln!(out, "{at:>10}  {:?}, cut off: {here} of its {len} bytes", header.kind)?;
            return Ok(());
        }
        let words = match header.kind {
            Kind::Payload => {
                let Header { tag, offset, payload_len, .. } = header;
                format!("Payload, tag {tag}, {payload_len} bytes from {offset} on")
            }
            _ => describe(&bytes.slice(at..at + head_len)),
        };
        writeln!(out, "{at:>10}  {words}")?;
        at += len;
        known = at;
    }
    between(known, at, out)
}

fn header_at(bytes: &[u8], at: usize) -> Option<Header> {
    Header::parse(bytes[at..].first_chunk()?).ok()
}

fn between(from: usize, to: usize, out: &mut impl Write) -> io::Result<()> {
    if from == to {
        return Ok(());
    }
    writeln!(out, "{from:>10}  {} bytes between frames", to - from)
}

#[cfg(test)]
mod tests {
    use blockwire::wire::{body, encode_frame};
    use uuid::Uuid;

    use super::*;

    fn lines(bytes: Vec<u8>) -> Vec<String> {
        let mut out = Vec::new();
        dissect(&Bytes::from(bytes), &mut out).unwrap();
        String::from_utf8(out).unwrap().lines().map(|line| line.trim_start().to_owned()).collect()
    }

    fn rtr() -> Bytes {
        let body = body::Rtr { tag: 9, needed_from: 32, adopts: false };
        encode_frame(Header::control(Kind::Rtr, Uuid::from_u128(5), 2), &body).unwrap()
    }

    fn payload() -> Vec<u8> {
        // Its bytes look like a frame, and are none.
        let bytes = rtr();
        [&Header::payload(9, 64, bytes.len() as u64).encode(&[])[..], &bytes].concat()
    }

    #[test]
    fn frames_are_told_and_what_lies_between_them_is_counted() {
        let (rtr, payload) = (rtr(), payload());
        let bytes = [&[7; 48][..], &rtr, &[7; 16], &payload, &rtr].concat();
        let second = 48 + rtr.len();
        let third = second + 16 + payload.len();
        let expected = [
            "0  48 bytes between frames".to_owned(),
            "48  Rtr 5:2, tag 9, from token 32".to_owned(),
            format!("{second}  16 bytes between frames"),
            format!("{}  Payload, tag 9, {} bytes from 64 on", second + 16, rtr.len()),
            format!("{third}  Rtr 5:2, tag 9, from token 32"),
        ];
        assert_eq!(lines(bytes), expected);
    }

    #[test]
    fn a_capture_may_end_anywhere() {
        let whole = [&rtr()[..], &payload()].concat();
        for len in 0..whole.len() {
            let told = lines(whole[..len].to_vec());
            assert_eq!(told.is_empty(), len == 0);
            let first = len >= rtr().len();
            assert_eq!(told.iter().any(|line| line.contains("tag 9, from token 32")), first);
            let ends = rtr().len() + HEADER_LEN <= len || (HEADER_LEN..rtr().len()).contains(&len);
            assert_eq!(told.iter().any(|line| line.contains("cut off")), ends, "{len} bytes");
        }
    }

    #[test]
    fn what_changed_on_the_way_is_said() {
        let mut bytes = rtr().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        assert!(lines(bytes)[0].contains("no frame (checksum"));
    }
}
