//! Addresses: a scheme that picks the transport, and what that transport reads.

use std::fmt;
use std::str::FromStr;

/// `mem:name`, `shm:`, `shm:/path/of.sock`, `tcp://host:port`, `tcp://[::1]:port`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: String,
    target: String,
}

/// Text that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an address: write mem:NAME, shm:, shm:/PATH or tcp://HOST:PORT")]
pub struct AddressError {
    text: String,
}

impl Address {
    /// An address from its two parts.
    pub fn new(scheme: &str, target: &str) -> Self {
        Self { scheme: scheme.to_owned(), target: target.to_owned() }
    }

    /// The part before the first colon, lower case.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The rest, without a leading `//`.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refuse = || AddressError { text: text.to_owned() };
        let (scheme, target) = text.split_once(':').ok_or_else(refuse)?;
        let known = !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphabetic());
        if !known {
            return Err(refuse());
        }
        Ok(Self::new(&scheme.to_ascii_lowercase(), target.strip_prefix("//").unwrap_or(target)))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slashes = if self.scheme == "tcp" { "//" } else { "" };
        write!(f, "{}:{slashes}{}", self.scheme, self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print_alike() {
        for text in ["mem:a", "shm:", "shm:/run/x.sock", "tcp://host:1", "tcp://[::1]:9000"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("TCP://h:1".parse::<Address>().unwrap().scheme(), "tcp");
        for text in ["", "host", "127.0.0.1:80", "[::1]:80", ":x"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
