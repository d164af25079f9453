//! `host:port?key=value`, read strictly: an IPv6 address has brackets, a port is never guessed, and a
//! key that nobody knows is refused, so that a misspelt wish is not silently dropped.
//!
//! `?stripes=4` asks for a link of four connections, `?bind=eth0` says where connections start from. It may
//! stand several times: then the stripes take turns. Not with commas between the places, because lists of
//! addresses have commas between the addresses. `?io=uring` says how this side's bytes pass between socket and
//! memory; the peer sees nothing of it.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use blockwire::transport::Address;

use crate::SCHEME;
use crate::greeting::STRIPES_MAX;
use crate::options::SocketPath;

/// What is wrong with an address.
type Reason = Cow<'static, str>;

/// What to look up, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// A name or an address without brackets, with its zone.
    pub(crate) host: String,
    /// The port; 0 lets the system choose one to listen on.
    pub(crate) port: u16,
    /// Each `bind=`: where to dial from; none leaves it to the system.
    pub(crate) sources: Vec<Source>,
    /// `?stripes=`: how many connections to make, where somebody said so.
    pub(crate) stripes: Option<u16>,
    /// `?tls=key`: the connection is encrypted, and bound to the cluster key.
    pub(crate) tls: bool,
    /// `?io=`: how bytes pass between socket and memory, where somebody said so.
    pub(crate) path: Option<SocketPath>,
}

/// This end of a connection that is dialled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// An address of this host.
    Address(IpAddr),
    /// An interface by its name: whichever of its addresses suits the peer's.
    Interface(String),
}

impl Target {
    /// Reads the address of a peer.
    pub(crate) fn to_dial(address: &Address) -> Result<Self, Reason> {
        let target = Self::parse(address)?;
        if target.port == 0 {
            return Err("port 0 can be listened on, but not dialled".into());
        }
        if target.host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
            return Err("this means every interface of whoever listens: write the peer's own \
                        address"
                .into());
        }
        if target.sources.len() > usize::from(target.stripes()) {
            return Err("`bind` names more places than the link has `stripes`".into());
        }
        Ok(target)
    }

    /// Connections of the link.
    pub(crate) fn stripes(&self) -> u16 {
        self.stripes.unwrap_or(1)
    }

    /// Reads an address to listen on.
    pub(crate) fn to_listen(address: &Address) -> Result<Self, Reason> {
        let target = Self::parse(address)?;
        if !target.sources.is_empty() {
            return Err("`bind` is for dialling: listen on the interface's own address".into());
        }
        if target.stripes.is_some() {
            return Err(
                "`stripes` is for dialling: a listener takes as many as it is asked for".into()
            );
        }
        Ok(target)
    }

    /// Where a stripe of the link starts from.
    pub(crate) fn source_of(&self, stripe: u16) -> Option<&Source> {
        self.sources.iter().cycle().nth(stripe.into())
    }

    /// Whether the host is a name that was found as a loopback address other than the usual ones. Systems
    /// write 127.0.1.1 behind their own name where they have no better address.
    pub(crate) fn is_placeholder(&self, found: IpAddr) -> bool {
        let usual = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        found.is_loopback() && !usual.contains(&found) && self.host.parse::<IpAddr>().is_err()
    }

    fn parse(address: &Address) -> Result<Self, Reason> {
        if address.scheme() != SCHEME {
            return Err("not a tcp address".into());
        }
        let (place, query) = match address.target().split_once('?') {
            Some((place, query)) => (place, Some(query)),
            None => (address.target(), None),
        };
        let (host, port) = match place.strip_prefix('[') {
            Some(rest) => split_bracketed(rest)?,
            None => split_plain(place)?,
        };
        let (host, port) = (host.to_owned(), parse_port(port)?);
        let (sources, stripes, tls, path) = (Vec::new(), None, false, None);
        let mut target = Self { host, port, sources, stripes, tls, path };
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            target.take(pair)?;
        }
        if target.tls && target.path == Some(SocketPath::Uring) {
            return Err("with `tls=key` there is only `io=readiness`".into());
        }
        Ok(target)
    }

    /// Reads one `key=value` of the query.
    fn take(&mut self, pair: &str) -> Result<(), Reason> {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| format!("`{pair}` is not KEY=VALUE"))?;
        match key {
            "bind" => self.sources.push(Source::parse(value)?),
            "stripes" if self.stripes.is_some() => return Err("`stripes` stands twice".into()),
            "stripes" => self.stripes = Some(parse_stripes(value)?),
            "tls" if self.tls => return Err("`tls` stands twice".into()),
            "tls" if value == "key" => self.tls = true,
            "tls" => {
                return Err(format!("`tls={value}` is not known here, only `tls=key` is").into());
            }
            "io" if self.path.is_some() => return Err("`io` stands twice".into()),
            "io" => self.path = Some(parse_path(value)?),
            _ => {
                let known = "only `bind`, `stripes`, `tls` and `io` are";
                return Err(format!("`{key}` is not known here, {known}").into());
            }
        }
        Ok(())
    }
}

impl Source {
    fn parse(text: &str) -> Result<Self, Reason> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self::Address(ip));
        }
        if text.is_empty()
            || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte))
        {
            return Err(format!("`bind={text}` names neither an interface nor an address").into());
        }
        Ok(Self::Interface(text.to_owned()))
    }
}

fn split_bracketed(rest: &str) -> Result<(&str, &str), Reason> {
    let (host, after) = rest.split_once(']').ok_or("the bracket is not closed")?;
    let bare = host.split_once('%').map_or(host, |(bare, _zone)| bare);
    if bare.parse::<Ipv6Addr>().is_err() {
        return Err("what stands in brackets is not an IPv6 address".into());
    }
    let port = after.strip_prefix(':').ok_or("the port is missing: write [ADDRESS]:PORT")?;
    Ok((host, port))
}

fn split_plain(text: &str) -> Result<(&str, &str), Reason> {
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(
            format!("an IPv6 address needs brackets and a port: write [{text}]:PORT").into()
        );
    }
    let (host, port) = text.split_once(':').ok_or("the port is missing: write HOST:PORT")?;
    if port.contains(':') {
        return Err("an IPv6 address needs brackets: write [ADDRESS]:PORT".into());
    }
    if host.is_empty() {
        return Err("the host is missing: write 0.0.0.0 or [::] for every interface".into());
    }
    Ok((host, port))
}

fn parse_port(text: &str) -> Result<u16, Reason> {
    if text.is_empty() {
        return Err("the port is missing".into());
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("the port is not a number".into());
    }
    text.parse().map_err(|_too_large| "the port is larger than 65535".into())
}

fn parse_path(text: &str) -> Result<SocketPath, Reason> {
    match text {
        "uring" => Ok(SocketPath::Uring),
        "readiness" => Ok(SocketPath::Readiness),
        _ => Err(format!("`io={text}` is not known here, `uring` and `readiness` are").into()),
    }
}

fn parse_stripes(text: &str) -> Result<u16, Reason> {
    let number = text.parse().ok().filter(|stripes| (1..=STRIPES_MAX).contains(stripes));
    number.ok_or_else(|| format!("`stripes={text}`: a link has 1 to {STRIPES_MAX} stripes").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, Reason> {
        Target::parse(&text.parse().unwrap())
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
            let target = parse(text).unwrap();
            assert_eq!((&*target.host, target.port), (host, port), "{text}");
            assert!(target.sources.is_empty() && target.stripes.is_none(), "{text}");
        }
    }

    #[test]
    fn a_query_says_where_to_dial_from() {
        for (text, source) in [
            ("eth0", Source::Interface("eth0".into())),
            ("en5.100", Source::Interface("en5.100".into())),
            ("10.0.0.2", Source::Address([10, 0, 0, 2].into())),
            ("fd00::2", Source::Address("fd00::2".parse().unwrap())),
            ("[fd00::2]", Source::Address("fd00::2".parse().unwrap())),
        ] {
            let address = format!("tcp://[fe80::1%lo]:80?bind={text}").parse().unwrap();
            let target = Target::to_dial(&address).unwrap();
            assert_eq!((&*target.host, target.sources), ("fe80::1%lo", vec![source]), "{text}");
            assert!(Target::to_listen(&address).unwrap_err().contains("bind"));
        }
    }

    #[test]
    fn a_query_asks_for_tls_on_either_side() {
        for (text, tls) in [("", false), ("?tls=key", true), ("?bind=eth0&tls=key", true)] {
            let address = format!("tcp://host:80{text}").parse().unwrap();
            assert_eq!(Target::to_dial(&address).unwrap().tls, tls, "{text}");
        }
        assert!(Target::to_listen(&"tcp://[::]:0?tls=key".parse().unwrap()).unwrap().tls);
    }

    #[test]
    fn a_query_says_how_bytes_pass_on_this_side() {
        for (text, path) in [
            ("", None),
            ("?io=uring", Some(SocketPath::Uring)),
            ("?tls=key&io=readiness", Some(SocketPath::Readiness)),
        ] {
            let address = format!("tcp://host:80{text}").parse().unwrap();
            assert_eq!(Target::to_dial(&address).unwrap().path, path, "{text}");
            assert_eq!(Target::to_listen(&address).unwrap().path, path, "{text}");
        }
    }

    #[test]
    fn stripes_take_turns_between_the_places_that_they_start_from() {
        let target = parse("tcp://host:80?stripes=3&bind=eth0&bind=10.0.0.2").unwrap();
        assert_eq!(target.stripes, Some(3));
        let (first, second) =
            (Source::Interface("eth0".into()), Source::Address([10, 0, 0, 2].into()));
        let of = |stripe| target.source_of(stripe);
        assert_eq!((of(0), of(1), of(2)), (Some(&first), Some(&second), Some(&first)));
        assert_eq!(parse("tcp://host:80?stripes=3").unwrap().source_of(2), None);
        let address = "tcp://host:80?stripes=16".parse().unwrap();
        assert_eq!(Target::to_dial(&address).unwrap().stripes, Some(16));
        assert!(Target::to_listen(&address).unwrap_err().contains("stripes"));
        for text in ["tcp://host:80?bind=a&bind=b", "tcp://host:80?bind=a&stripes=2&bind=b&bind=c"]
        {
            assert!(Target::to_dial(&text.parse().unwrap()).unwrap_err().contains("more places"));
        }
    }

    #[test]
    fn everything_else_is_refused_with_its_reason() {
        for (text, reason) in [
            ("tcp://host", "missing"),
            ("tcp://host:", "missing"),
            ("tcp://:80", "host is missing"),
            ("tcp://::1", "write [::1]:PORT"),
            ("tcp://2605:340:cd51::1:80", "brackets"),
            ("tcp://2605:340:cd51:1:80", "brackets"),
            ("tcp://[::1]", "missing"),
            ("tcp://[::1]80", "missing"),
            ("tcp://[::1", "not closed"),
            ("tcp://[host]:80", "IPv6"),
            ("tcp://host:65536", "65535"),
            ("tcp://host:-1", "not a number"),
            ("tcp://host:80/x", "not a number"),
            ("tcp://host:+80", "not a number"),
            ("tcp://host:80?", "not KEY=VALUE"),
            ("tcp://host:80?bind", "`bind` is not KEY=VALUE"),
            ("tcp://host:80?bind=", "neither an interface"),
            ("tcp://host:80?bind=a b", "neither an interface"),
            ("tcp://host:80?bind=a&Stripe=4", "`Stripe` is not known"),
            ("tcp://host:80?tls", "`tls` is not KEY=VALUE"),
            ("tcp://host:80?tls=", "only `tls=key`"),
            ("tcp://host:80?tls=on", "only `tls=key`"),
            ("tcp://host:80?tls=key&tls=key", "`tls` stands twice"),
            ("tcp://host:80?io=epoll", "`uring` and `readiness` are"),
            ("tcp://host:80?io=uring&io=readiness", "`io` stands twice"),
            ("tcp://host:80?tls=key&io=uring", "only `io=readiness`"),
            ("tcp://host:80?stripes=2&bind=a,b", "neither an interface"),
            ("tcp://host:80?stripes=2&stripes=2", "twice"),
            ("tcp://host:80?stripes=0", "1 to 16"),
            ("tcp://host:80?stripes=17", "1 to 16"),
            ("tcp://host:80?stripes=", "1 to 16"),
            ("tcp://host:80?stripes=-1", "1 to 16"),
            ("mem:host:80", "not a tcp"),
        ] {
            let found = parse(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
    }

    #[test]
    fn a_name_for_a_loopback_address_of_its_own_is_no_place_to_listen() {
        let found = |text, ip: &str| parse(text).unwrap().is_placeholder(ip.parse().unwrap());
        assert!(found("tcp://node:0", "127.0.1.1"));
        assert!(!found("tcp://node:0", "10.0.0.1"));
        assert!(!found("tcp://localhost:0", "127.0.0.1") && !found("tcp://localhost:0", "::1"));
        assert!(!found("tcp://127.0.1.1:0", "127.0.1.1"), "whoever writes it means it");
    }

    #[test]
    fn what_only_a_listener_can_use_is_not_dialled() {
        for text in ["tcp://host:0", "tcp://0.0.0.0:80", "tcp://[::]:80", "tcp://[::0.0.0.0]:80"] {
            let address = text.parse().unwrap();
            assert!(Target::to_dial(&address).is_err(), "{text}");
            assert!(Target::to_listen(&address).is_ok(), "{text}");
        }
    }
}
