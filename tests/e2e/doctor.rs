//! `blockwire doctor`, as somebody runs it who sets a deployment up.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::cluster::{Carrier, Setup, runtime_dir, start_decode};
use crate::models::Model;
use crate::watchdog::{Watchdog, note_ended, note_started};

fn doctor(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_blockwire"));
    command.arg("doctor").args(arguments).env("XDG_RUNTIME_DIR", dir);
    command.env_remove("BLOCKWIRE_CLUSTER_KEY").stdin(Stdio::null());
    command
}

/// How a doctor ends, and what it says on stdout and stderr.
fn said(dir: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = doctor(dir, arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

/// A key file of this mode.
fn key_file(dir: &Path, mode: u32) -> String {
    let path = dir.join("cluster.key");
    fs::write(&path, "0123456789abcdef0123456789abcdef").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path.display().to_string()
}

/// An end that listens, and where. Dropping it kills the process.
struct Listening(Child, String);

impl Listening {
    fn start(dir: &Path, arguments: &[&str]) -> Self {
        let mut command = doctor(dir, &[&["link", "--listen"], arguments].concat());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        note_started(child.id());
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on ").and_then(|rest| rest.split(';').next());
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Self(child, address)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        note_ended(self.0.id());
    }
}

#[test]
fn a_machine_is_looked_at() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let (status, text, errors) = said(dir.path(), &[]);
    assert_eq!(status, Some(0), "{text}{errors}");
    for needle in ["cores ", "pool ", "shared memory ", "in place in", "tcp loopback ", "GB/s"] {
        assert!(text.contains(needle), "no {needle} in\n{text}");
    }

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, key) = (taken.local_addr().unwrap().to_string(), key_file(dir.path(), 0o644));
    let flags = ["--json", "--port", &port, "--cluster-key-file", &key];
    let (status, text, errors) = said(dir.path(), &flags);
    assert_eq!(status, Some(1), "{text}");
    assert!(errors.contains("2 of "), "{errors}");
    let all: Value = serde_json::from_str(&text).unwrap();
    let failed = all["findings"].as_array().unwrap().iter().filter(|one| one["verdict"] == "fail");
    let failed: Vec<_> = failed.map(|one| one["check"].as_str().unwrap()).collect();
    assert_eq!(failed, ["cluster key", "port"]);
}

#[test]
fn links_are_measured_from_both_ends() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let shm = Listening::start(dir.path(), &["shm:link"]);
    let (status, text, errors) = said(dir.path(), &["link", "shm:link"]);
    assert_eq!(status, Some(0), "{errors}");
    assert!(text.contains("1024 tokens, 128 MiB: ") && text.contains("where they are"), "{text}");
    drop(shm);

    let key = key_file(dir.path(), 0o600);
    let keyed: [&str; 2] = ["--cluster-key-file", &key];
    let tcp = Listening::start(dir.path(), &[&["tcp://127.0.0.1:0"], &keyed[..]].concat());
    for query in ["", "?stripes=2"] {
        let address = format!("{}{query}", tcp.1);
        let (status, text, errors) = said(dir.path(), &[&["link", &address], &keyed[..]].concat());
        assert_eq!(status, Some(0), "{errors}");
        assert!(text.contains("1024 tokens, 128 MiB: "), "{text}");
        assert!(!text.contains("where they are"), "{text}");
    }
    let (status, text, errors) = said(dir.path(), &["link", &tcp.1]);
    assert_eq!((status, text.as_str()), (Some(1), ""), "without the key");
    assert!(errors.contains("key"), "{errors}");
}

#[test]
fn what_cannot_be_measured_says_why() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let refused = |address: &str, status: i32, needles: &[&str]| {
        let (ended, text, errors) = said(dir.path(), &["link", address]);
        assert_eq!((ended, text.as_str()), (Some(status), ""), "{errors}");
        for needle in needles {
            assert!(errors.contains(needle), "no {needle} in {errors}");
        }
        let twice = needles.first().is_some_and(|needle| errors.matches(needle).count() > 1);
        assert!(!twice, "said twice: {errors}");
    };
    let exposed = ["link tcp://192.0.2.1:9", "--cluster-key-file", "--insecure"];
    refused("tcp://192.0.2.1:9", 2, &exposed);
    refused("tcp://127.0.0.1:9", 1, &["Connection refused", "tcp://127.0.0.1:9"]);
    refused("shm:nobody", 1, &["shm:nobody"]);
    refused("9000", 2, &["tcp://HOST:PORT", "9000"]);
    // A node serves, and is left alone.
    let node = start_decode(&Setup::new(Model::Llama, Carrier::Shm), dir.path(), "shm:decode");
    refused("shm:decode", 1, &["doctor link --listen"]);
    node.stop();
}
