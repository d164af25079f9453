//! Checks of Linux: what the kernel and its settings give a node.

use std::fs::{read_dir, read_to_string};
use std::path::Path;

use super::finding::Finding;

/// Mbit/s from which on a link is worth a handoff of long prompts.
const SPEED_MIN: u64 = 2500;
/// Bytes that a receive window may grow to, at least: 10 Gbit/s over a millisecond, with room.
const WINDOW_MIN: u64 = 4 << 20;
/// How shared memory gets huge pages.
pub(super) const HUGE_PAGES: &str = "`echo advise | sudo tee \
    /sys/kernel/mm/transparent_hugepage/shmem_enabled`: a pool is ready sooner, and copies are 20 to 30 % faster";

pub(super) fn findings() -> Vec<Finding> {
    let read = |path: &str| read_to_string(path).ok().map(|text| text.trim().to_owned());
    let mut findings = vec![kernel(read("/proc/sys/kernel/osrelease"))];
    findings.push(io_uring(blockwire_tcp::probe_uring().err().map(|error| error.to_string())));
    findings.push(clock_source(read(
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    )));
    findings.push(window(read("/proc/sys/net/ipv4/tcp_rmem")));
    findings.push(congestion(read("/proc/sys/net/ipv4/tcp_available_congestion_control")));
    findings.extend(interfaces(Path::new("/sys/class/net")));
    findings
}

fn kernel(release: Option<String>) -> Finding {
    let Some(release) = release else {
        return Finding::warn("kernel", "unknown", "mount /proc");
    };
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 10) {
        return Finding::ok("kernel", format!("Linux {release}"));
    }
    Finding::warn("kernel", format!("Linux {release}"), "5.10 or later is what this was tried with")
}

fn io_uring(error: Option<String>) -> Finding {
    match error {
        None => Finding::ok("io_uring", "usable (tcp://...?io=uring)"),
        Some(error) => Finding::warn(
            "io_uring",
            error,
            "only `?io=uring` needs it: allow it (kernel.io_uring_disabled, the container's seccomp profile), or \
             leave that out",
        ),
    }
}

fn clock_source(source: Option<String>) -> Finding {
    match source.as_deref() {
        None => Finding::ok("clock", "as the system has it"),
        Some(slow @ ("hpet" | "acpi_pm" | "refined-jiffies" | "jiffies")) => Finding::warn(
            "clock",
            format!("{slow}: every look at it costs microseconds"),
            "boot with `tsc=reliable` if the machine's counter can be trusted",
        ),
        Some(source) => Finding::ok("clock", source),
    }
}

/// The third number of `tcp_rmem`.
fn window(rmem: Option<String>) -> Finding {
    let most = rmem.and_then(|text| text.split_whitespace().nth(2)?.parse::<u64>().ok());
    match most {
        Some(bytes) if bytes < WINDOW_MIN => Finding::warn(
            "tcp window",
            format!("{} KiB at most", bytes >> 10),
            "far or fast links stay below line rate: `sysctl net.ipv4.tcp_rmem='4096 131072 16777216'`",
        ),
        Some(bytes) => Finding::ok("tcp window", format!("{} MiB at most", bytes >> 20)),
        None => Finding::ok("tcp window", "as the system has it"),
    }
}

fn congestion(available: Option<String>) -> Finding {
    match available {
        Some(names) if names.split_whitespace().any(|name| name == "cubic") => {
            Finding::ok("tcp congestion", "cubic for peers on this host")
        }
        _ => Finding::warn(
            "tcp congestion",
            "no cubic",
            "tcp on one host is up to 1.5 times faster with it: `modprobe tcp_cubic`",
        ),
    }
}

/// Interfaces that are up, but for the loopback, with what they say of their speed.
fn interfaces(folder: &Path) -> Vec<Finding> {
    let Ok(entries) = read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let up = names.iter().filter_map(|name| {
        let name = name.to_str().filter(|name| *name != "lo")?;
        let read = |file| read_to_string(folder.join(name).join(file)).ok();
        let is_down = read("operstate").is_some_and(|state| state.trim() == "down");
        let number = |file| read(file).and_then(|text| text.trim().parse::<u64>().ok());
        (!is_down).then(|| interface(name, number("speed"), number("mtu")))
    });
    up.collect()
}

fn interface(name: &str, speed: Option<u64>, mtu: Option<u64>) -> Finding {
    let mtu = mtu.map(|mtu| format!(", packets of {mtu}")).unwrap_or_default();
    match speed {
        Some(speed) if speed < SPEED_MIN => Finding::warn(
            "interface",
            format!("{name}: {speed} Mbit/s{mtu}"),
            "a handoff over it takes seconds: 128 KiB a token for a model of 8 billion parameters; measure with \
             `blockwire doctor link`",
        ),
        Some(speed) => Finding::ok("interface", format!("{name}: {speed} Mbit/s{mtu}")),
        None => Finding::ok("interface", format!("{name}: does not tell its speed{mtu}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn settings_are_judged_by_their_words() {
        assert_eq!(kernel(some("5.4.0-150-generic")).verdict, Verdict::Warn);
        assert_eq!(kernel(some("6.18.44")).verdict, Verdict::Ok);
        assert_eq!(kernel(some("5.10-rc1")).verdict, Verdict::Ok);
        assert_eq!(clock_source(some("hpet")).verdict, Verdict::Warn);
        assert_eq!(clock_source(some("kvm-clock")).verdict, Verdict::Ok);
        assert_eq!(window(some("4096\t131072\t33554432")).verdict, Verdict::Ok);
        assert_eq!(window(some("4096\t131072\t212992")).verdict, Verdict::Warn);
        assert_eq!(congestion(some("reno bbr cubic")).verdict, Verdict::Ok);
        assert_eq!(congestion(some("reno bbr")).verdict, Verdict::Warn);
    }

    #[test]
    fn interfaces_that_are_up_are_listed() {
        let dir = tempfile::tempdir().unwrap();
        for (name, state, speed) in [
            ("eth0", "up", "1000"),
            ("eth1", "down", "100000"),
            ("lo", "unknown", ""),
            ("veth0", "up", "10000"),
        ] {
            let folder = dir.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("operstate"), state).unwrap();
            std::fs::write(folder.join("speed"), speed).unwrap();
            std::fs::write(folder.join("mtu"), "9000\n").unwrap();
        }
        let findings = interfaces(dir.path());
        let found: Vec<_> =
            findings.iter().map(|finding| (finding.found.as_str(), finding.verdict)).collect();
        let expected = [
            ("eth0: 1000 Mbit/s, packets of 9000", Verdict::Warn),
            ("veth0: 10000 Mbit/s, packets of 9000", Verdict::Ok),
        ];
        assert_eq!(found, expected);
    }
}
