//! The three rings: the engine knows no transport and no model, transports know the engine alone, the
//! runtime knows no transport. Read from `cargo metadata`, so that no import can go around it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// What each crate of the workspace may depend on, tests aside.
const ARROWS: [(&str, &[&str]); 13] = [
    ("blockwire", &[]),
    ("blockwire-mem", &["blockwire"]),
    ("blockwire-shm", &["blockwire"]),
    ("blockwire-sim", &["blockwire"]),
    ("blockwire-tcp", &["blockwire"]),
    ("blockwire-runtime", &["blockwire"]),
    ("blockwire-dissect", &["blockwire"]),
    ("blockwire-mlx-linux", &[]),
    ("blockwire-serving", &["blockwire", "blockwire-runtime"]),
    ("blockwire-conformance", &["blockwire"]),
    ("blockwire-world", &["blockwire", "blockwire-runtime", "blockwire-serving", "blockwire-sim"]),
    (
        "blockwire-cli",
        &[
            "blockwire",
            "blockwire-mem",
            "blockwire-runtime",
            "blockwire-serving",
            "blockwire-shm",
            "blockwire-tcp",
        ],
    ),
    (
        "blockwire-benches",
        &["blockwire", "blockwire-mem", "blockwire-runtime", "blockwire-shm", "blockwire-tcp"],
    ),
];

fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version=1", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut crates = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let own = package["dependencies"].as_array().into_iter().flatten();
        let own = own.filter(|d| d["kind"].is_null() && d["path"].is_string());
        crates.insert(text(&package["name"]), own.map(|d| text(&d["name"])).collect());
    }
    crates
}

#[test]
fn every_crate_depends_only_on_the_rings_inside_its_own() {
    let mut found = dependencies();
    for (name, allowed) in ARROWS {
        let allowed: BTreeSet<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let actual = found.remove(name).unwrap_or_else(|| panic!("no crate {name}"));
        let outside: Vec<_> = actual.difference(&allowed).collect();
        assert!(outside.is_empty(), "{name} must not depend on {outside:?}");
    }
    assert!(found.is_empty(), "say where these crates belong: {:?}", found.keys());
}
