//! What comes from PyPI, by version and digest.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// A wheel for x86-64 Linux.
pub(crate) struct Wheel {
    name: &'static str,
    pub(crate) version: &'static str,
    megabytes: u32,
    sha256: &'static str,
}

/// The version that mlx-c and mlx-rs of the workspace are written for.
pub(crate) const MLX: Wheel = Wheel {
    name: "mlx-cpu",
    version: "0.32.2",
    megabytes: 10,
    sha256: "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
};

/// Reads headers for the bindings.
pub(crate) const CLANG: Wheel = Wheel {
    name: "libclang",
    version: "18.1.1",
    megabytes: 25,
    sha256: "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
};

/// Fetches a wheel and unpacks it to a folder. pip refuses one with another digest.
pub(crate) fn install(wheel: &Wheel, to: &Path) -> Result<()> {
    let Wheel { name, version, megabytes, sha256 } = wheel;
    println!("fetching {name} {version} from PyPI, {megabytes} MB");
    fs::create_dir(to)?;
    let list = to.with_extension("txt");
    fs::write(&list, format!("{name}=={version} --hash=sha256:{sha256}\n"))?;
    let status = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--require-hashes", "--root-user-action=ignore"])
        .arg("--target")
        .arg(to)
        .arg("--requirement")
        .arg(&list)
        .status()
        .context("python3 with pip is needed")?;
    fs::remove_file(&list)?;
    if !status.success() {
        bail!("pip could not install {name} {version}");
    }
    Ok(())
}
