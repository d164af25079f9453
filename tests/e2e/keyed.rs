//! A deployment with a cluster key: it serves, and whoever has another key, none, or no TLS where the others
//! have it, stays outside.

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

/// A deployment whose nodes speak TLS, with a key file in `dir`.
pub(crate) fn tls(model: Model, dir: &Path) -> Setup {
    let mut setup = Setup::new(model, Carrier::Tls);
    setup.flags.push(key_flag(dir, KEYS[0]));
    setup
}

#[test]
fn nodes_with_tls_serve_and_whoever_has_none_stays_outside() {
    let (keys, dir) = (runtime_dir(), runtime_dir());
    let cluster = Cluster::start(tls(Model::Llama, keys.path()));
    let expected = cluster.wait_until_serving();
    let serving = || cluster.prefill.iter().chain([&cluster.decode]).map(Node::serving);
    assert!(serving().all(|address| address.ends_with("?tls=key")));
    let plain: Vec<&str> = serving().map(|address| address.trim_end_matches("?tls=key")).collect();
    let [prefill, decode] = plain[..] else { unreachable!("there are two") };
    let other = start_router(&cluster.setup, dir.path(), &[prefill], decode);
    wait_until("the stranger is told", || other.log().contains("the peer speaks TLS"));
    for node in [&cluster.decode, &cluster.prefill[0]] {
        wait_until("the node says who came", || node.log().contains("this side speaks TLS"));
    }
    let refused = client::ask(other.http(), &completion(&[5, 6, 7], 4)).unwrap_err();
    assert_eq!(refused.status, 503, "{refused:?}");
    other.stop();
    assert_eq!(cluster.wait_until_serving(), expected);
    cluster.finish();
}

#[test]
fn a_node_does_not_start_with_tls_and_without_a_key() {
    let (setup, dir) = (Setup::new(Model::Llama, Carrier::Tls), runtime_dir());
    let flags = setup.node_flags(&["--serving-bind", &Carrier::Tls.bind("decode")]);
    let ended = Node::try_start(dir.path(), "decode", &flags).unwrap_err();
    assert!(ended.log.contains("give both sides the same key"), "{}", ended.log);
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
