//! The cluster key: where it comes from, and where a node may not start without one.
//!
//! It comes from a file or from the environment, never from the value of a flag: everybody on the host
//! can read the flags of a process. The file may be read by its owner only.

use std::fs::File;
use std::io::Read;
use std::net::ToSocketAddrs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use blockwire::transport::Address;
use blockwire_tcp::ClusterKey;

use crate::model::Unusable;

/// Holds the key where no file is named.
const VARIABLE: &str = "BLOCKWIRE_CLUSTER_KEY";
/// More than any key has; what is longer is another file.
const FILE_LEN_MAX: u64 = 4096;
const HOW_TO_MAKE: &str = "make one with `(umask 077; openssl rand -hex 32 > cluster.key)`";

/// The cluster key of this process, if it has one: that of `file`, or else the environment's.
pub(crate) fn cluster_key(file: Option<&Path>) -> Result<Option<ClusterKey>, Unusable> {
    if let Some(path) = file {
        return read(path).map(Some);
    }
    let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
    let key = text.to_str().map(ClusterKey::from_text);
    match key {
        Some(Ok(key)) => Ok(Some(key)),
        Some(Err(error)) => Err(Unusable(format!("{VARIABLE}: {error}; {HOW_TO_MAKE}"))),
        None => Err(Unusable(format!("{VARIABLE} is not text; {HOW_TO_MAKE}"))),
    }
}

fn read(path: &Path) -> Result<ClusterKey, Unusable> {
    let unusable =
        |what: String| Unusable(format!("--cluster-key-file {}: {what}", path.display()));
    let system = |error: std::io::Error| unusable(format!("{error}; {HOW_TO_MAKE}"));
    let file = File::open(path).map_err(system)?;
    let about = file.metadata().map_err(system)?;
    if !about.is_file() {
        return Err(unusable("not a file".to_owned()));
    }
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(unusable(format!(
            "others than its owner may use it (mode {mode:03o}): run `chmod 600 {}`",
            path.display()
        )));
    }
    let mut text = String::new();
    let read = file.take(FILE_LEN_MAX + 1).read_to_string(&mut text);
    if read.map_err(|_| unusable(format!("not text; {HOW_TO_MAKE}")))? as u64 > FILE_LEN_MAX {
        return Err(unusable(format!("longer than {FILE_LEN_MAX} bytes, so no key")));
    }
    ClusterKey::from_text(&text).map_err(|error| unusable(format!("{error}; {HOW_TO_MAKE}")))
}

/// Refuses tcp addresses that other hosts reach, or that are on other hosts, each behind what named it: without a
/// key they would be open to everybody.
pub(crate) fn check_exposure<'a>(
    addresses: impl IntoIterator<Item = (&'a str, &'a Address)>,
) -> Result<(), Unusable> {
    for (named, address) in addresses {
        if is_exposed(address) {
            return Err(Unusable(format!(
                "{named} {address} is not on the loopback, and without a cluster key whoever reaches a \
                 port is a peer: give all nodes one --cluster-key-file ({HOW_TO_MAKE}), or add \
                 --insecure on a network that you trust"
            )));
        }
    }
    Ok(())
}

/// A name that does not resolve now is judged when it is bound or dialled.
fn is_exposed(address: &Address) -> bool {
    if address.scheme() != "tcp" {
        return false;
    }
    let target = address.target().split('?').next().unwrap_or_default();
    // The zone of a link-local address, which the standard library does not read.
    if target.starts_with('[') && target.contains('%') {
        return true;
    }
    target.to_socket_addrs().is_ok_and(|mut addresses| {
        addresses.any(|address| !address.ip().to_canonical().is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    /// What is said of a file of this text and mode.
    fn said(text: &[u8], mode: u32) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.key");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        match read(&path) {
            Ok(key) => format!("{key:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("cluster.key: ") && !error.contains("0123"), "{error}");
                error
            }
        }
    }

    #[test]
    fn a_key_file_is_private_text_of_some_length() {
        assert_eq!(said(format!("\n {TEXT}\n").as_bytes(), 0o600), "ClusterKey(..)");
        assert_eq!(said(TEXT.as_bytes(), 0o400), "ClusterKey(..)");
        for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
            assert!(said(TEXT.as_bytes(), mode).contains("chmod 600"), "{mode:o}");
        }
        assert!(said(b"0123456789", 0o600).contains("32 characters, this one has 10"));
        assert!(said(b"", 0o600).contains("openssl rand"));
        assert!(said(&[0xff; 40], 0o600).contains("not text"));
        assert!(said(&[b'x'; 5000], 0o600).contains("longer"));
        assert!(read(Path::new("/nowhere/key")).unwrap_err().to_string().contains("openssl"));
        assert!(read(Path::new("/")).unwrap_err().to_string().contains("not a file"));
    }

    #[test]
    fn addresses_off_the_loopback_are_told_from_others() {
        for address in [
            "tcp://0.0.0.0:0",
            "tcp://192.0.2.1:9",
            "tcp://[::]:0?bind=eth0",
            "tcp://[fe80::1%x]:9",
        ] {
            assert!(is_exposed(&address.parse().unwrap()), "{address}");
        }
        for address in ["tcp://127.0.0.1:0", "tcp://[::1]:9", "tcp://[::ffff:127.0.0.1]:9", "shm:x"]
        {
            assert!(!is_exposed(&address.parse().unwrap()), "{address}");
        }
    }
}
