//! A deployment with a cluster key: it serves, and whoever has another key, or none, stays outside.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::client;
use crate::cluster::{Carrier, Cluster, Setup, runtime_dir, start_router};
use crate::models::{Model, completion};
use crate::node::{Node, wait_until};

const KEYS: [&str; 2] =
    ["e2e-first-0123456789abcdef0123456789", "e2e-other-0123456789abcdef0123456789"];

/// A key file, as a flag.
fn key_flag(dir: &Path, key: &str) -> &'static str {
    let path = dir.join(&key[..9]);
    fs::write(&path, key).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    Box::leak(format!("--cluster-key-file={}", path.display()).into_boxed_str())
}

#[test]
fn nodes_with_one_key_serve_and_others_stay_outside() {
    let keys = runtime_dir();
    let [right, wrong] = KEYS.map(|key| key_flag(keys.path(), key));
    let with = |flags: &[&'static str]| {
        let mut setup = Setup::new(Model::Llama, Carrier::Tcp4);
        setup.flags.extend(flags);
        setup
    };
    let cluster = Cluster::start(with(&[right]));
    let expected = cluster.wait_until_serving();
    let dir = runtime_dir();
    for (flags, here, there) in [
        (&[wrong][..], "did not accept this side's cluster key", "has another cluster key"),
        (&[], "this side has none", "the peer has no cluster key"),
    ] {
        let prefill: Vec<&str> = cluster.prefill.iter().map(Node::serving).collect();
        let other = start_router(&with(flags), dir.path(), &prefill, cluster.decode.serving());
        wait_until("the stranger is told", || other.log().contains(here));
        for node in [&cluster.decode, &cluster.prefill[0]] {
            wait_until("the node says who came", || node.log().contains(there));
        }
        let refused = client::ask(other.http(), &completion(&[5, 6, 7], 4)).unwrap_err();
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(!KEYS.iter().any(|key| other.log().contains(key)), "a key is in the log");
        other.stop();
    }
    assert_eq!(cluster.wait_until_serving(), expected);
    for node in cluster.nodes() {
        assert!(!KEYS.iter().any(|key| node.log().contains(key)), "a key is in the log");
    }
    cluster.finish();
}
