//! Checks that are the same on every system.

use std::net::{SocketAddr, TcpListener};

use blockwire::clock;
use blockwire::pool::{Backing, BlockPool, Dtype, KvSpec, PageKind, PoolOptions};
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use super::local::HUGE_PAGES;
use crate::args::DoctorArgs;
use crate::key;

/// Bytes of the pool that is tried.
const POOL_LEN: usize = 64 << 20;
/// Open files that a node may need: peers' links, HTTP callers, a region and its bells for each shared-memory link.
const FILES_MIN: u64 = 4096;

pub(super) fn findings(args: &DoctorArgs) -> Vec<Finding> {
    let mut findings = vec![cores(std::thread::available_parallelism().map_or(1, Into::into))];
    findings.push(processor());
    findings.push(pool());
    findings.push(open_files(getrlimit(Resource::Nofile).current));
    findings.push(locked_memory(getrlimit(Resource::Memlock).current));
    findings.push(cluster_key(args));
    findings.extend(args.port.iter().map(port));
    findings
}

fn cores(cores: usize) -> Finding {
    let found = format!("{cores} usable");
    if cores > 1 {
        return Finding::ok("cores", found);
    }
    let advice = "prefill and decode on one core take turns: give the process more (`taskset`, the container's \
                  quota), or run `--node-role single`";
    Finding::warn("cores", found, advice)
}

/// What of the processor the copies, the digest and TLS make use of.
fn processor() -> Finding {
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
        let has_avx512 = std::arch::is_x86_feature_detected!("avx512f");
        let has_aes = std::arch::is_x86_feature_detected!("aes");
        match (has_avx512, has_avx2, has_aes) {
            (true, _, true) => Finding::ok("processor", "AVX-512, AES"),
            (_, true, true) => Finding::ok("processor", "AVX2, AES"),
            (_, true, false) => {
                Finding::warn("processor", "AVX2, no AES", "`?tls=key` does not work here")
            }
            _ => Finding::warn("processor", "no AVX2", "copies, digests and models are slow here"),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    Finding::ok("processor", std::env::consts::ARCH)
}

/// Makes a pool as a node does.
fn pool() -> Finding {
    let spec = KvSpec::uniform(16, 32, 8, 128, Dtype::F16);
    let blocks = POOL_LEN / (128 << 10) / 16;
    let options = PoolOptions { backing: Backing::Shared, ..PoolOptions::new(spec, blocks) };
    let start = clock::now();
    match BlockPool::faulted_in(options, &mut |_, _| {}) {
        Ok(pool) => {
            let took = clock::now() - start;
            let pages = pool.region().pages();
            let found = format!("64 MiB of shared memory in {took:.1?}, {pages}");
            if pages == PageKind::Usual {
                return Finding::warn("pool", found, HUGE_PAGES);
            }
            Finding::ok("pool", found)
        }
        Err(error) => {
            Finding::fail("pool", error.to_string(), "give it memory, or a smaller `--kv-memory`")
        }
    }
}

fn open_files(limit: Option<u64>) -> Finding {
    match limit {
        None => Finding::ok("open files", "unlimited"),
        Some(files) if files >= FILES_MIN => Finding::ok("open files", files.to_string()),
        Some(files) => Finding::warn(
            "open files",
            format!("{files} at most"),
            format!(
                "many callers or peers need more: `ulimit -n {FILES_MIN}`, or LimitNOFILE= of the service"
            ),
        ),
    }
}

fn locked_memory(limit: Option<u64>) -> Finding {
    match limit {
        None => Finding::ok("locked memory", "unlimited"),
        // What is moved today is not locked: a pool is kept in memory by being used.
        Some(bytes) => {
            Finding::ok("locked memory", format!("{} MiB (nothing is locked)", bytes >> 20))
        }
    }
}

fn cluster_key(args: &DoctorArgs) -> Finding {
    match key::cluster_key(args.cluster_key_file.as_deref()) {
        Ok(Some(_)) => Finding::ok("cluster key", "private, long enough"),
        Ok(None) => Finding::warn(
            "cluster key",
            "none named",
            "nodes on several hosts need one: --cluster-key-file, or BLOCKWIRE_CLUSTER_KEY",
        ),
        Err(error) => {
            Finding::fail("cluster key", error.to_string(), "nodes with this key do not start")
        }
    }
}

/// Whether an address can be bound. It is free again at once.
fn port(address: &SocketAddr) -> Finding {
    match TcpListener::bind(address) {
        Ok(_listener) => Finding::ok("port", format!("{address} is free")),
        Err(error) => Finding::fail(
            "port",
            format!("{address}: {error}"),
            "choose another, or end what has it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn limits_are_judged_by_what_a_node_needs() {
        assert_eq!(cores(1).verdict, Verdict::Warn);
        assert_eq!(cores(2).verdict, Verdict::Ok);
        assert_eq!(open_files(Some(1024)).verdict, Verdict::Warn);
        assert_eq!(open_files(Some(FILES_MIN)).verdict, Verdict::Ok);
        assert_eq!(open_files(None).verdict, Verdict::Ok);
    }

    #[test]
    fn a_port_that_is_taken_is_named() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let finding = port(&address);
        assert_eq!(finding.verdict, Verdict::Fail);
        assert!(finding.found.contains(&address.to_string()), "{}", finding.found);
        drop(taken);
        assert_eq!(port(&address).verdict, Verdict::Ok);
    }
}
