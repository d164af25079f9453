//! `blockwire doctor`: what of this machine helps or hinders a node, and what to do about it.
//!
//! ```text
//! linux, macos   what the system says  ─┐
//! machine        checks of all systems ─┼─> Finding ──> a line, or JSON
//! link           a handoff, measured   ─┘
//! ```
//! A check looks at one thing, changes nothing, and ends in a [`finding::Finding`]. What it measures it measures with the
//! endpoints that nodes use, so that a link which passes here carries handoffs.

mod finding;
mod link;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "macos.rs")]
mod local;
mod machine;

use std::io::IsTerminal;

use anyhow::{Result, bail};
use serde_json::json;

use crate::args::{DoctorArgs, DoctorCommand};
use finding::Verdict;

/// Looks at this machine, or at a link to another one.
///
/// # Errors
/// Something failed: a node could not start like this, or the link carries nothing.
pub(crate) fn run(args: &DoctorArgs) -> Result<()> {
    match &args.command {
        Some(DoctorCommand::Link(link)) => link::run(link),
        None => look(args),
    }
}

fn look(args: &DoctorArgs) -> Result<()> {
    let mut findings = machine::findings(args);
    findings.extend(local::findings());
    findings.extend(link::findings());
    if args.json {
        println!("{:#}", json!({ "findings": findings }));
    } else {
        let coloured = std::io::stdout().is_terminal();
        for finding in &findings {
            print!("{}", finding.to_text(coloured));
        }
    }
    let failed = findings.iter().filter(|finding| finding.verdict == Verdict::Fail).count();
    if failed > 0 {
        bail!("{failed} of {} checks failed", findings.len());
    }
    Ok(())
}
