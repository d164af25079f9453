//! Two hosts in network namespaces, with a switch between them that can be told to fail.
//!
//! ```text
//!   near                    switch                     far
//!   a0 10.77.0.1 ─── pa0 ── bridge 0 ── pb0 ─── b0 10.77.0.2
//!   a1 10.77.1.1 ─── pa1 ── bridge 1 ── pb1 ─── b1 10.77.1.2
//! ```
//! Also `fd77:0::1`, `fd77:0::2` and so on. Everything is taken down with the value, also by a panic.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The two hosts and what is between them.
pub(crate) struct Net {
    near: String,
    switch: String,
    far: String,
    mtu: u32,
}

/// A host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Host {
    Near,
    Far,
}

impl Net {
    /// Builds both links; or says why that cannot be done here.
    pub(crate) fn new(test: &str, mtu: u32) -> Result<Self, String> {
        let name = |part| format!("bw-{}-{test}-{part}", std::process::id());
        let net = Self { near: name("near"), switch: name("switch"), far: name("far"), mtu };
        for namespace in [&net.near, &net.switch] {
            ip(&["netns", "add", namespace])?;
        }
        for link in 0..2 {
            let bridge = format!("br{link}");
            net.switch(&["link", "add", &bridge, "type", "bridge"])?;
            net.switch(&["link", "set", &bridge, "mtu", &mtu.to_string(), "up"])?;
            net.plug(Host::Near, link)?;
        }
        net.boot_far()?;
        Ok(net)
    }

    /// Brings the far host to life, as another machine with the same addresses.
    pub(crate) fn boot_far(&self) -> Result<(), String> {
        ip(&["netns", "add", &self.far])?;
        (0..2).try_for_each(|link| self.plug(Host::Far, link))
    }

    /// Ends the far host without a word on any link: nothing in it may be in use any more.
    pub(crate) fn crash_far(&self) {
        ip(&["netns", "del", &self.far]).unwrap();
        for link in 0..2 {
            // It goes with its other end, but not at once.
            let _ = self.switch(&["link", "del", &format!("pb{link}")]);
        }
    }

    /// Connects a host to a bridge. Its hardware address stays the same over its lives.
    fn plug(&self, host: Host, link: usize) -> Result<(), String> {
        let (letter, number) = match host {
            Host::Near => ('a', 1),
            Host::Far => ('b', 2),
        };
        let (inside, port) = (format!("{letter}{link}"), format!("p{letter}{link}"));
        let (namespace, mtu) = (self.name(host), self.mtu.to_string());
        let hardware = format!("02:77:00:00:0{link}:0{number}");
        self.switch(&[
            "link", "add", &port, "mtu", &mtu, "type", "veth", "peer", "name", &inside, "address",
            &hardware, "mtu", &mtu, "netns", namespace,
        ])?;
        self.switch(&["link", "set", &port, "master", &format!("br{link}"), "up"])?;
        let inside_of = |arguments: &[&str]| ip(&[&["-n", namespace], arguments].concat());
        inside_of(&["link", "set", "lo", "up"])?;
        inside_of(&["address", "add", &format!("10.77.{link}.{number}/24"), "dev", &inside])?;
        let six = format!("fd77:{link}::{number}/64");
        inside_of(&["-6", "address", "add", &six, "dev", &inside, "nodad"])?;
        let local = format!("fe80::{number}/64");
        inside_of(&["link", "set", &inside, "addrgenmode", "none"])?;
        inside_of(&["-6", "address", "add", &local, "dev", &inside, "nodad"])?;
        inside_of(&["link", "set", &inside, "up"])
    }

    /// Lets nothing through on a link, in either direction, and tells nobody: no reset, no loss of
    /// carrier, no unreachable.
    pub(crate) fn set_black_hole(&self, link: usize, on: bool) {
        let bridge = format!("br{link}");
        for port in ["pa", "pb"] {
            let port = format!("{port}{link}");
            // A port that belongs to no bridge keeps its carrier and swallows what comes.
            let membership = if on { &["nomaster"][..] } else { &["master", &bridge] };
            self.switch(&[&["link", "set", &port], membership].concat()).unwrap();
        }
    }

    /// Takes a host's interface down, or up again.
    pub(crate) fn set_down(&self, host: Host, link: usize, down: bool) {
        let letter = if matches!(host, Host::Near) { 'a' } else { 'b' };
        let state = if down { "down" } else { "up" };
        let interface = format!("{letter}{link}");
        ip(&["-n", self.name(host), "link", "set", &interface, state]).unwrap();
        if !down && let Host::Near = host {
            // What is assigned by hand goes with the link.
            for six in [format!("fd77:{link}::1/64"), "fe80::1/64".to_owned()] {
                let add = ["-6", "address", "add", &six, "dev", &interface, "nodad"];
                let _ = ip(&[&["-n", self.name(host)], &add[..]].concat());
            }
        }
    }

    /// Shapes what goes to a host on a link with a queue discipline; none takes the shape away.
    pub(crate) fn shape(&self, to: Host, link: usize, shape: Option<&str>) -> Result<(), String> {
        let letter = if matches!(to, Host::Near) { 'a' } else { 'b' };
        let port = format!("p{letter}{link}");
        let action = if shape.is_some() { "replace" } else { "del" };
        let mut arguments = vec!["-n", &self.switch, "qdisc", action, "dev", &port, "root"];
        arguments.extend(shape.iter().flat_map(|shape| shape.split(' ')));
        call("tc", &arguments)
    }

    /// Runs something on a thread that lives on a host, and so do the threads that it starts.
    pub(crate) fn on<T: Send>(&self, host: Host, what: impl FnOnce() -> T + Send) -> T {
        let place = format!("/var/run/netns/{}", self.name(host));
        let there = || {
            let namespace = File::open(place).unwrap();
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            what()
        };
        std::thread::scope(|scope| scope.spawn(there).join()).unwrap()
    }

    /// Bytes that a host sent through an interface.
    pub(crate) fn sent(&self, host: Host, interface: &str) -> u64 {
        let table = self.on(host, || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let prefix = format!("{interface}:");
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix(&prefix)).unwrap();
        line.split_whitespace().nth(8).unwrap().parse().unwrap()
    }

    fn name(&self, host: Host) -> &str {
        match host {
            Host::Near => &self.near,
            Host::Far => &self.far,
        }
    }

    fn switch(&self, arguments: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.switch], arguments].concat())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far, &self.switch] {
            let _ = ip(&["netns", "del", namespace]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    call("ip", arguments)
}

fn call(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {}: {}", arguments.join(" "), said.trim()))
}
