//! Replays the vectors of the manual's chapter about TCP.

use std::fmt::Write;

use crate::greeting::Role;
use crate::key::ClusterKey;
use crate::seal::Sealer;

const MANUAL: &str = include_str!("../../src/engine/manual/wire.md");
const KEY: &str = "a cluster key for the manual, 0123456789abcdef";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that the manual writes down under a name.
fn written(name: &str) -> Vec<u8> {
    let line = MANUAL.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let digits = line.unwrap_or_else(|| panic!("the manual has no vector {name}"));
    let bytes = digits.as_bytes().chunks(2);
    bytes.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

#[test]
fn the_manual_says_how_greetings_proofs_and_tags_are_made() {
    let greetings = [written("greeting of the dialler"), written("greeting of the acceptor")];
    let transcript = greetings.concat();
    let binding = written("exporter of a TLS session");
    let key = ClusterKey::from_text(KEY).unwrap();
    let (ats, header) = (written("ats"), written("payload header"));
    let mut found = String::new();
    let mut add = |name: &str, bytes: &[u8]| writeln!(found, "{name}: {}", hex(bytes)).unwrap();
    for (name, greeting) in ["dialler", "acceptor"].iter().zip(&greetings) {
        let parsed = crate::greeting::reencode(greeting);
        add(&format!("greeting of the {name}"), &parsed);
    }
    let roles = [(Role::Dialler, "dialler"), (Role::Acceptor, "acceptor")];
    for (role, name) in roles {
        add(&format!("proof of the {name}"), key.proof(role, &transcript).as_bytes());
    }
    for (role, name) in roles {
        add(&format!("frame key of the {name}"), &key.of_frames(role, &transcript));
    }
    let [mut dialler, acceptor] =
        roles.map(|(role, _)| Sealer::new(key.of_frames(role, &transcript)));
    add("tag of ats as frame 0 of the dialler", &dialler.of_frame(0, &ats));
    add("tag of ats as frame 1 of the acceptor", &acceptor.of_frame(1, &ats));
    dialler.skip();
    dialler.begin(&header);
    dialler.update(&[0x5a; 4096]);
    add("tag of the payload frame as frame 1 of the dialler", &dialler.seal());
    add("exporter of a TLS session", &binding);
    let transcript = [transcript, binding].concat();
    for (role, name) in roles {
        let proof = key.proof(role, &transcript);
        add(&format!("proof of the {name} in that session"), proof.as_bytes());
    }
    for (name, bytes) in crate::striped::examples() {
        add(name, &bytes);
    }
    let vectors = MANUAL.split("```tcp-vectors\n").nth(1).and_then(|rest| rest.split("```").next());
    assert_eq!(vectors.unwrap(), found, "the wire format changed: say so in the changelog");
}
