//! Linux: affinity by system call, costs from /proc.

use std::fs;

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
