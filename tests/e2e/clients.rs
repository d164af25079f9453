//! Clients that people use against the router, unchanged: OpenAI's own, and LangChain's.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::Model;
use crate::watchdog::run;

#[test]
fn openais_client_is_served() {
    is_served("openai", "openai_client.py");
}

#[test]
fn langchains_client_is_served() {
    is_served("langchain-openai", "langchain_client.py");
}

/// Runs a script with a package of PyPI's against a router.
fn is_served(package: &str, script: &str) {
    let packages = client_packages(package);
    let cluster = Cluster::start(Setup::new(Model::SmolLm2, Carrier::Shm));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/e2e").join(script);
    let mut command = Command::new("python3");
    command
        .arg(script)
        .arg(format!("{}/v1", cluster.http()))
        .env("PYTHONPATH", &packages)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        .stderr(Stdio::piped());
    let output = run(&mut command);
    let (told, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{errors}");
    assert!(told.trim_end().ends_with("all checks passed"), "{told}");
    cluster.finish();
}

/// The folder with a client's packages, fetched once.
fn client_packages(package: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{package}-client"));
    if !folder.is_dir() {
        let mut partial = folder.clone();
        partial.set_extension(std::process::id().to_string());
        let output = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"])
            .args([partial.as_os_str(), package.as_ref()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // Whoever is second finds the first one's.
        if std::fs::rename(&partial, &folder).is_err() {
            std::fs::remove_dir_all(&partial).unwrap();
        }
    }
    folder
}
