//! The default model: fetched once, by the script that also works alone.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

const SCRIPT: &str = include_str!("../../tools/fetch-model");

/// The path of the default model; fetches it when it is not in the cache folder yet.
pub(crate) fn default_model() -> Result<PathBuf> {
    let mut child = Command::new("python3")
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("running python3; or name a model with --model")?;
    let mut stdin = child.stdin.take().context("no pipe to python3")?;
    stdin.write_all(SCRIPT.as_bytes())?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("the model could not be fetched; name one with --model");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
