//! What several test modules need: where models lie, and a model small enough to make by hand.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

pub(crate) mod oracle;
pub(crate) mod sequences;
pub(crate) mod tiny_gguf;

/// A folder below `fixtures/`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// The default model's file: `BLOCKWIRE_MODEL`, else what `tools/fetch-model` finds or fetches.
pub(crate) fn default_model() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = env::var_os("BLOCKWIRE_MODEL") {
            return path.into();
        }
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/fetch-model");
        let fetched = Command::new("python3").arg(tool).stderr(Stdio::inherit()).output().unwrap();
        assert!(fetched.status.success(), "fetch-model failed; set BLOCKWIRE_MODEL to a copy");
        PathBuf::from(String::from_utf8(fetched.stdout).unwrap().trim_end())
    })
    .clone()
}
