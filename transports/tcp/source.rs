//! Where a connection starts from, and where peers find a listener: this host's own addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::num::NonZeroU32;

use if_addrs::{Interface, get_if_addrs};
use socket2::SockRef;
use tokio::net::TcpSocket;

use crate::address::Source;
use crate::interface;

/// Hosts of networks that are kept for documentation (RFC 5737, RFC 3849): no packet is sent there, only
/// the routing table is asked.
const FAR_AWAY: [(IpAddr, IpAddr); 2] = [
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1))),
    (IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1))),
];

impl Source {
    /// Binds a socket that is about to dial `to`.
    ///
    /// # Errors
    /// There is no such interface or address here, or none of the peer's family.
    pub(crate) fn bind(&self, socket: &TcpSocket, to: SocketAddr) -> io::Result<()> {
        let from = match self {
            Self::Address(ip) if ip.is_ipv4() == to.is_ipv4() => SocketAddr::new(*ip, 0),
            Self::Address(_) => return Err(of_other_family()),
            Self::Interface(name) => {
                let (from, index) = suitable(name, &get_if_addrs()?, to.ip())?;
                // Its address alone does not keep packets off another interface that reaches the peer
                // too. Some systems want rights for more than the address.
                if let Some(Err(error)) =
                    index.map(|index| interface::pin(&SockRef::from(socket), index, to.is_ipv4()))
                {
                    tracing::debug!(%error, name, "bound to the interface's address only");
                }
                from
            }
        };
        socket.bind(from)
    }
}

/// The address of an interface from which a peer is best dialled, and the interface's number.
fn suitable(
    name: &str,
    interfaces: &[Interface],
    to: IpAddr,
) -> io::Result<(SocketAddr, Option<NonZeroU32>)> {
    let of_name: Vec<_> = interfaces.iter().filter(|interface| interface.name == name).collect();
    if of_name.is_empty() {
        let what = format!("there is no interface `{name}` with an address here");
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, what));
    }
    let link_local = is_link_local(to);
    let best = of_name
        .into_iter()
        .filter(|interface| interface.ip().is_ipv4() == to.is_ipv4())
        .min_by_key(|interface| is_link_local(interface.ip()) != link_local)
        .ok_or_else(of_other_family)?;
    let index = best.index.and_then(NonZeroU32::new);
    let from = match best.ip() {
        IpAddr::V6(ip) if is_link_local(ip.into()) => {
            SocketAddrV6::new(ip, 0, 0, best.index.unwrap_or_default()).into()
        }
        ip => SocketAddr::new(ip, 0),
    };
    Ok((from, index))
}

fn of_other_family() -> io::Error {
    let what = "`bind` has no address of the peer's family";
    io::Error::new(io::ErrorKind::AddrNotAvailable, what)
}

/// Where peers reach what is bound to `at`. An address that stands for every interface is nothing that a
/// peer could dial: the address towards the default route takes its place, or else one of an interface,
/// or else the loopback's.
pub(crate) fn reachable(at: SocketAddr) -> SocketAddr {
    if !at.ip().is_unspecified() {
        return at;
    }
    let fitting = |ip: &IpAddr| !ip.is_loopback() && !is_link_local(*ip);
    // What listens on every IPv6 address takes IPv4 too, but not the other way round.
    let families = || [at.is_ipv4(), true].into_iter();
    let routed = families().find_map(|v4| towards_default_route(v4).filter(fitting));
    let interfaces = if routed.is_none() { get_if_addrs().unwrap_or_default() } else { Vec::new() };
    let of_interface = || {
        families().find_map(|v4| {
            let mut ips = interfaces.iter().map(Interface::ip);
            ips.find(|ip| ip.is_ipv4() == v4 && fitting(ip))
        })
    };
    let loopback = || match at {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(routed.or_else(of_interface).unwrap_or_else(loopback), at.port())
}

fn towards_default_route(v4: bool) -> Option<IpAddr> {
    let (any, far) = FAR_AWAY[usize::from(!v4)];
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether an address means something on its own network segment only.
fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use if_addrs::{IfAddr, IfOperStatus, Ifv4Addr, Ifv6Addr};

    use super::*;

    fn interface(name: &str, index: u32, ip: &str) -> Interface {
        let addr = match ip.parse().unwrap() {
            IpAddr::V4(ip) => IfAddr::V4(Ifv4Addr {
                ip,
                netmask: Ipv4Addr::BROADCAST,
                prefixlen: 32,
                broadcast: None,
            }),
            IpAddr::V6(ip) => IfAddr::V6(Ifv6Addr {
                ip,
                netmask: Ipv6Addr::UNSPECIFIED,
                prefixlen: 128,
                broadcast: None,
            }),
        };
        let (name, oper_status) = (name.to_owned(), IfOperStatus::Up);
        Interface { name, addr, index: Some(index), oper_status, is_p2p: false }
    }

    #[test]
    fn the_address_of_an_interface_suits_the_peers() {
        let all = [
            interface("lo", 1, "127.0.0.1"),
            interface("a", 2, "10.0.0.1"),
            interface("a", 2, "fe80::1"),
            interface("a", 2, "fd00::1"),
            interface("b", 3, "10.0.1.1"),
        ];
        let from = |name, to: &str| suitable(name, &all, to.parse().unwrap());
        assert_eq!(from("a", "10.9.9.9").unwrap().0, "10.0.0.1:0".parse().unwrap());
        assert_eq!(from("b", "10.0.0.9").unwrap().0, "10.0.1.1:0".parse().unwrap());
        assert_eq!(from("a", "fd00::9").unwrap().0, "[fd00::1]:0".parse().unwrap());
        assert_eq!(from("a", "fe80::9").unwrap().0, "[fe80::1%2]:0".parse().unwrap());
        assert_eq!(from("b", "10.0.0.9").unwrap().1, NonZeroU32::new(3));
        assert!(from("b", "fd00::9").unwrap_err().to_string().contains("family"));
        assert!(from("c", "10.0.0.9").unwrap_err().to_string().contains("`c`"));
    }

    #[test]
    fn every_interface_is_told_as_one() {
        for any in ["0.0.0.0:80", "[::]:80"] {
            let told = reachable(any.parse().unwrap());
            assert!(!told.ip().is_unspecified() && told.port() == 80, "{told}");
        }
        for one in ["127.0.0.1:80", "[fe80::1%1]:80", "10.0.0.1:80"] {
            let one = one.parse().unwrap();
            assert_eq!(reachable(one), one);
        }
        // What takes IPv4 only is not told by an IPv6 address.
        assert!(reachable("0.0.0.0:80".parse().unwrap()).is_ipv4());
    }
}
