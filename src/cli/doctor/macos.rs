//! Checks of macOS: what the kernel and its settings give a node.

use std::process::Command;

use super::finding::Finding;

/// How shared memory gets huge pages.
pub(super) const HUGE_PAGES: &str = "there are none for shared memory on macOS: nothing to do";

pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![Finding::ok(
        "system",
        format!("macOS, Darwin {}", said("sysctl", &["-n", "kern.osrelease"]).unwrap_or_default()),
    )];
    findings.push(wired_limit(said("sysctl", &["-n", "iogpu.wired_limit_mb"])));
    findings.push(thunderbolt(said("ifconfig", &["bridge0"])));
    findings.push(Finding::ok(
        "local network",
        "macOS asks once whether a program may reach other hosts: see Privacy & Security, Local Network, if peers \
         are unreachable",
    ));
    findings
}

/// What a program prints, if it succeeds.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Memory that Metal may wire. 0 is the system's own choice, about two thirds of all.
fn wired_limit(megabytes: Option<String>) -> Finding {
    match megabytes.and_then(|text| text.parse::<u64>().ok()) {
        Some(0) => Finding::ok("wired memory", "the system's choice, about two thirds of all"),
        Some(megabytes) => Finding::ok("wired memory", format!("{megabytes} MiB at most")),
        None => Finding::warn(
            "wired memory",
            "the system does not say",
            "a pool and a model beyond two thirds of the memory may not fit the GPU",
        ),
    }
}

fn thunderbolt(bridge: Option<String>) -> Finding {
    match bridge {
        Some(text) if text.contains("status: active") => {
            Finding::ok("Thunderbolt", "bridge0 is active; measure it with `blockwire doctor link`")
        }
        _ => Finding::ok("Thunderbolt", "no active bridge"),
    }
}
