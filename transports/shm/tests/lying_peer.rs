//! A peer that lies, by the scripts of seeds (see `blockwire_conformance::script`) and by saved ones.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod liar;

use std::path::Path;

#[test]
fn fault_b43_no_lie_costs_more_than_its_link() {
    blockwire_conformance::script::play_seeds(liar::play);
}

/// Scripts that once found something.
#[test]
fn saved_scripts_stay_harmless() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        eprintln!("{}", path.display());
        liar::play(&std::fs::read(path).unwrap());
    }
}
