//! `host:port`, read strictly: an IPv6 address has brackets, a port is never guessed.

use std::net::Ipv6Addr;

use blockwire::transport::Address;

use crate::SCHEME;

/// What to look up.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// A name or an address without brackets, with its zone.
    pub(crate) host: String,
    /// The port; 0 lets the system choose one to listen on.
    pub(crate) port: u16,
}

impl Target {
    /// Reads the address of a peer.
    pub(crate) fn to_dial(address: &Address) -> Result<Self, &'static str> {
        match Self::parse(address)? {
            Self { port: 0, .. } => Err("port 0 can be listened on, but not dialled"),
            target => Ok(target),
        }
    }

    /// Reads an address, or says what is wrong with it.
    pub(crate) fn parse(address: &Address) -> Result<Self, &'static str> {
        if address.scheme() != SCHEME {
            return Err("not a tcp address");
        }
        let (host, port) = match address.target().strip_prefix('[') {
            Some(rest) => split_bracketed(rest)?,
            None => split_plain(address.target())?,
        };
        Ok(Self { host: host.to_owned(), port: parse_port(port)? })
    }
}

fn split_bracketed(rest: &str) -> Result<(&str, &str), &'static str> {
    let (host, after) = rest.split_once(']').ok_or("the bracket is not closed")?;
    let bare = host.split_once('%').map_or(host, |(bare, _zone)| bare);
    if bare.parse::<Ipv6Addr>().is_err() {
        return Err("what stands in brackets is not an IPv6 address");
    }
    let port = after.strip_prefix(':').ok_or("the port is missing: write [ADDRESS]:PORT")?;
    Ok((host, port))
}

fn split_plain(text: &str) -> Result<(&str, &str), &'static str> {
    let (host, port) = text.split_once(':').ok_or("the port is missing: write HOST:PORT")?;
    if port.contains(':') {
        return Err("an IPv6 address needs brackets: write [ADDRESS]:PORT");
    }
    if host.is_empty() {
        return Err("the host is missing: write 0.0.0.0 or [::] for every interface");
    }
    Ok((host, port))
}

fn parse_port(text: &str) -> Result<u16, &'static str> {
    if text.is_empty() {
        return Err("the port is missing");
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the port is not a number");
    }
    text.parse().map_err(|_too_large| "the port is larger than 65535")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, u16), &'static str> {
        let target = Target::parse(&text.parse().unwrap())?;
        Ok((target.host, target.port))
    }

    #[test]
    fn hosts_and_ports_are_split_where_they_should_be() {
        for (text, host, port) in [
            ("tcp://10.0.0.1:9000", "10.0.0.1", 9000),
            ("tcp:10.0.0.1:9000", "10.0.0.1", 9000),
            ("tcp://node-7.local:1", "node-7.local", 1),
            ("tcp://[::1]:65535", "::1", 65535),
            ("tcp://[::]:0", "::", 0),
            ("tcp://[fe80::1%lo]:80", "fe80::1%lo", 80),
        ] {
            assert_eq!(parse(text), Ok((host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        for (text, reason) in [
            ("tcp://host", "missing"),
            ("tcp://host:", "missing"),
            ("tcp://:80", "host is missing"),
            ("tcp://::1", "brackets"),
            ("tcp://2605:340:cd51::1:80", "brackets"),
            ("tcp://[::1]", "missing"),
            ("tcp://[::1]80", "missing"),
            ("tcp://[::1", "not closed"),
            ("tcp://[host]:80", "IPv6"),
            ("tcp://host:65536", "65535"),
            ("tcp://host:-1", "not a number"),
            ("tcp://host:80/x", "not a number"),
            ("tcp://host:+80", "not a number"),
            ("mem:host:80", "not a tcp"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
        assert!(Target::to_dial(&"tcp://host:0".parse().unwrap()).is_err());
    }
}
