//! What cannot start says so in one clear line, and ends with status 2.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::Path;

use crate::accounts::assert_no_sockets;
use crate::client;
use crate::cluster::{Carrier, Setup, runtime_dir};
use crate::models::{Model, completion};
use crate::node::{Ended, Node};
use crate::watchdog::Watchdog;

/// Starts what must not start: status 2, and a last line that says all of `needles`.
fn assert_refused(dir: &Path, role: &str, flags: &[&str], needles: &[&str]) {
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let Ended { status, log } = match Node::try_start(dir, role, &flags) {
        Ok(node) => panic!("{role} {flags:?} started: {node:?}"),
        Err(ended) => ended,
    };
    assert_eq!(status.code(), Some(2), "{role} {flags:?}\n{log}");
    let errors: Vec<&str> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
    for needle in needles {
        assert!(errors.iter().any(|line| line.contains(needle)), "no {needle} in\n{log}");
    }
    assert!(!log.contains("panicked") && !log.contains("backtrace"), "{log}");
}

/// The flags of a llama node.
fn llama<'a>(path: &'a str, own: &[&'a str]) -> Vec<&'a str> {
    [&["--model", path, "--kv-memory=16"], own].concat()
}

#[test]
fn misconfigured_roles_end_with_one_clear_line() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let path = Model::Llama.path().display().to_string();
    let refused = |role: &str, own: &[&str], needles: &[&str]| {
        assert_refused(dir.path(), role, &llama(&path, own), needles);
    };
    let bind = ["--serving-bind", "shm:x"];
    let peers = ["--decode-peers", "shm:d"];
    refused("decode", &[], &["blockwire: --node-role decode needs --serving-bind"]);
    refused("prefill", &peers, &["blockwire: --node-role prefill needs --serving-bind"]);
    refused("prefill", &bind, &["blockwire: --node-role prefill needs --decode-peers"]);
    refused("router", &peers, &["blockwire: --node-role router needs --prefill-peers"]);
    refused("router", &["--prefill-peers", "shm:p"], &["needs --decode-peers"]);
    let exposed = ["--serving-bind", "tcp://0.0.0.0:0"];
    refused("decode", &exposed, &["--cluster-key-file", "--insecure"]);
    let far = ["--prefill-peers", "tcp://192.0.2.1:9", "--decode-peers", "shm:d"];
    refused("router", &far, &["--prefill-peers tcp://192.0.2.1:9", "--cluster-key-file"]);
    let far = ["--serving-bind", "shm:x", "--decode-peers", "tcp://192.0.2.1:9"];
    refused("prefill", &far, &["--decode-peers tcp://192.0.2.1:9", "--cluster-key-file"]);
    refused("decode", &["--serving-bind", "9000"], &["9000", "tcp://HOST:PORT"]);
    refused("decode", &["--serving-bind", "carrier-pigeon:x"], &["carrier-pigeon"]);
    refused("decode", &["--serving-bind", "shm:../x"], &["shm:../x"]);
    refused("single", &["--kv-dtype", "f8"], &["f8"]);
    let mlx = ["--runtime", "mlx", "--kv-layout", "block-major"];
    let lacking = if cfg!(feature = "mlx") { "layer-major" } else { "--features mlx" };
    refused("single", &mlx, &["blockwire: --runtime mlx", lacking]);
    refused("single", &["--block-tokens", "0"], &["0"]);
    let keyed = "--keyed-metrics";
    refused("single", &[keyed], &["blockwire: --keyed-metrics: there is no --api-key"]);
    refused("single", &[keyed, "--fallback", "single"], &["there is no --api-key"]);
    let worker = ["--serving-bind", "shm:x", keyed, "--api-key", "k"];
    refused("decode", &worker, &["decode nodes have no API keys"]);
    assert_no_sockets(dir.path());
}

#[test]
fn an_explicit_fallback_serves_alone() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let setup = Setup::new(Model::Llama, Carrier::Shm);
    for role in ["prefill", "decode", "router"] {
        let node = Node::start(dir.path(), role, &setup.node_flags(&["--fallback", "single"]));
        let answer = client::ask(node.http(), &completion(&[5, 6, 7], 4)).unwrap();
        assert_eq!(answer.tokens.len(), 4);
        assert!(node.log().contains("serving alone"), "{}", node.log());
        node.stop();
    }
}

#[test]
fn unusable_models_are_named_with_what_was_expected() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let refused = |path: &Path, needles: &[&str]| {
        let name = path.display().to_string();
        assert_refused(dir.path(), "single", &llama(&name, &[]), &[&[&name[..]], needles].concat());
    };
    refused(&dir.path().join("missing.gguf"), &["blockwire: "]);
    let text = dir.path().join("text.gguf");
    fs::write(&text, "this is no model").unwrap();
    refused(&text, &["GGUF"]);
    let cut = dir.path().join("cut.gguf");
    let mut start = vec![0; 10 << 20];
    fs::File::open(Model::SmolLm2.path()).unwrap().read_exact(&mut start).unwrap();
    fs::write(&cut, &start).unwrap();
    refused(&cut, &["bytes"]);
    fs::write(&cut, &start[..1000]).unwrap();
    refused(&cut, &[]);
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    refused(&folder, &["config.json"]);
    copy_llama(&folder);
    let weights = folder.join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() / 2]).unwrap();
    refused(&folder, &["model.safetensors"]);
    fs::write(&weights, &whole).unwrap();
    let config = fs::read_to_string(folder.join("config.json")).unwrap();
    fs::write(folder.join("config.json"), config.replace("\"llama\"", "\"abacus\"")).unwrap();
    refused(&folder, &["abacus", "llama"]);
}

/// A llama folder that a test may spoil.
pub(crate) fn copy_llama(to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(Model::Llama.path().join(file), to.join(file)).unwrap();
    }
}

/// Another checkpoint of the same shape.
pub(crate) fn change_weights(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut file = fs::File::options().read(true).write(true).open(path).unwrap();
    file.seek(SeekFrom::End(-64)).unwrap();
    let mut byte = [0];
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::End(-64)).unwrap();
    file.write_all(&[byte[0] ^ 1]).unwrap();
}

#[test]
fn fault_b37_ports_that_are_taken_give_one_clear_error() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let path = Model::Llama.path().display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = |role: &str, own: &[&str], needle: &str| {
        assert_refused(dir.path(), role, &llama(&path, own), &["blockwire: ", needle]);
    };
    refused("single", &["--http", &address], &address);
    let peers = ["--prefill-peers", "shm:p", "--decode-peers", "shm:d"];
    refused("router", &[&peers[..], &["--http", &address]].concat(), &address);
    refused("decode", &["--serving-bind", &format!("tcp://{address}")], &address);
    refused("decode", &["--serving-bind", "shm:d", "--http", &address], &address);
    let setup = Setup::new(Model::Llama, Carrier::Shm);
    let own = setup.node_flags(&["--serving-bind", "shm:taken"]);
    let node = Node::start(dir.path(), "decode", &own);
    refused("decode", &["--serving-bind", "shm:taken"], "shm:taken");
    node.stop();
    assert_no_sockets(dir.path());
}

#[test]
fn fault_b37_defaults_of_all_roles_fit_on_one_host() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let path = Model::Llama.path().display().to_string();
    let start = |role: &str, own: &[&str]| {
        let flags: Vec<String> = llama(&path, own).iter().map(|f| (*f).to_owned()).collect();
        Node::try_start(dir.path(), role, &flags)
    };
    let decode = start("decode", &["--serving-bind", "shm:d"]).unwrap();
    let prefill = ["--serving-bind", "shm:p", "--decode-peers", "shm:d"];
    let prefill = start("prefill", &prefill).unwrap();
    assert_eq!((decode.field("http="), prefill.field("http=")), (None, None));
    match start("router", &["--prefill-peers", "shm:p", "--decode-peers", "shm:d"]) {
        Ok(router) => {
            assert_eq!(router.http(), "http://127.0.0.1:8000");
            router.stop();
        }
        // Another program of this host has the port.
        Err(ended) => assert!(ended.log.contains("--http 127.0.0.1:8000"), "{}", ended.log),
    }
    prefill.stop();
    decode.stop();
    assert_no_sockets(dir.path());
}

#[test]
fn fault_b39_addresses_of_both_families_and_names() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let path = Model::Llama.path().display().to_string();
    let setup = Setup::new(Model::Llama, Carrier::Tcp4);
    for (bind, shown) in [
        ("tcp://[::1]:0", "tcp://[::1]:"),
        ("tcp://127.0.0.1:0", "tcp://127.0.0.1:"),
        ("tcp://localhost:0", "tcp://"),
    ] {
        let node = Node::start(dir.path(), "decode", &setup.node_flags(&["--serving-bind", bind]));
        assert!(node.serving().starts_with(shown), "{}", node.serving());
        assert!(!node.serving().ends_with(":0"), "{}", node.serving());
        node.stop();
    }
    for bind in ["tcp://::1", "tcp://::1:9000", "tcp://[::1]", "tcp://[::1:9000", "tcp://127.0.0.1"]
    {
        let flags = llama(&path, &["--serving-bind", bind]);
        assert_refused(dir.path(), "decode", &flags, &["blockwire: ", bind]);
    }
    let flags = llama(&path, &["--serving-bind", "tcp://::1"]);
    assert_refused(dir.path(), "decode", &flags, &["brackets"]);
    let flags = ["--model", &path, "--kv-memory=16", "--http", "[::1]:0"].map(str::to_owned);
    let node = Node::start(dir.path(), "single", &flags);
    assert!(node.http().starts_with("http://[::1]:"), "{}", node.http());
    assert_eq!(client::get(&format!("{}/health", node.http())).0, 200);
    node.stop();
}

#[test]
fn a_node_is_what_its_file_says_and_flags_win() {
    let (_watchdog, dir) = (Watchdog::start(), runtime_dir());
    let file = dir.path().join("node.toml");
    let path = file.display().to_string();
    let model = Model::Llama.path().display().to_string();
    let lines =
        ["http = '127.0.0.1:0'", "kv-memory = 16", "served-model-name = 'told'", "api-key = ['k']"];
    fs::write(&file, format!("model = '{model}'\n{}\n", lines.join("\n"))).unwrap();
    let node = Node::start(dir.path(), "single", &["--config".to_owned(), path.clone()]);
    assert_eq!(client::ask(node.http(), &completion(&[5, 6], 4)).unwrap_err().status, 401);
    assert!(client::get(&format!("{}/stats", node.http())).1.contains("\"told\""));
    node.stop();
    let flags = ["--config", &path, "--served-model-name", "said"].map(str::to_owned);
    let node = Node::start(dir.path(), "single", &flags);
    assert!(client::get(&format!("{}/stats", node.http())).1.contains("\"said\""));
    node.stop();
    fs::write(&file, format!("model = '{model}'\nkv-memroy = 16\n")).unwrap();
    let told = format!("blockwire: {path}:2: there is no `kv-memroy`; did you mean `kv-memory`?");
    assert_refused(dir.path(), "single", &["--config", &path], &[&told]);
}
