//! Linux: affinity by system call, costs from /proc, memory lent to sockets.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::{fs, io};

use rustix::thread::CpuSet;

/// Keeps the calling thread on one cpu; false where the system refuses.
pub fn pin(cpu: usize) -> bool {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).is_ok()
}

/// Lets the calling thread run anywhere again.
pub fn unpin() {
    let mut cpus = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| cpus.set(cpu));
    let _ = rustix::thread::sched_setaffinity(None, &cpus);
}

/// What this process used so far, all threads together.
pub fn used() -> Option<super::Used> {
    let mut used = super::Used::default();
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        let read = |file| fs::read_to_string(task.path().join(file)).ok();
        // First field: nanoseconds on a cpu.
        used.cpu_seconds +=
            read("schedstat")?.split_whitespace().next()?.parse::<f64>().ok()? / 1e9;
        let status = read("status")?;
        let switches = status.lines().filter(|line| line.contains("ctxt_switches"));
        let counts =
            switches.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok());
        used.switches += counts.sum::<u64>();
    }
    Some(used)
}

/// Lets a socket send memory without a copy; the flags that each call needs for that.
pub(crate) fn lend_pages(stream: &TcpStream) -> io::Result<i32> {
    let one: libc::c_int = 1;
    // SAFETY: the option takes an integer, of which the system reads as many bytes as it is told.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const one).cast(),
            size_of_val(&one) as libc::socklen_t,
        )
    };
    if set == 0 { Ok(libc::MSG_ZEROCOPY) } else { Err(io::Error::last_os_error()) }
}

/// Whether the system wants some of what was lent to be free before it takes more.
pub(crate) fn lends_too_much(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOBUFS)
}
