//! How much memory this process can still get.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use crate::pool::{Available, MemoryLimit};

/// What the tightest limit leaves; none where the system does not say.
pub(crate) fn available() -> Option<Available> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|info| meminfo(&info));
    let machine = machine.map(|bytes| Available { bytes, limit: MemoryLimit::Machine });
    let group = control_groups().map(|bytes| Available { bytes, limit: MemoryLimit::ControlGroup });
    let space = address_space().map(|bytes| Available { bytes, limit: MemoryLimit::AddressSpace });
    [machine, group, space].into_iter().flatten().min_by_key(|available| available.bytes)
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn meminfo(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// What `RLIMIT_AS` leaves.
fn address_space() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let pages = read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').next()?.parse().ok()?;
    Some(limit.saturating_sub(pages * rustix::param::page_size() as u64))
}

/// What the tightest of this process's control groups leaves.
fn control_groups() -> Option<u64> {
    let groups = read_to_string("/proc/self/cgroup").ok()?;
    let folders = groups.lines().flat_map(folders);
    folders.filter_map(|(folder, names)| left(&folder, names)).min()
}

/// The names of one version's files.
#[derive(Clone, Copy, Debug)]
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// Of the keys of `memory.stat`, the prefix that says "with all children".
    prefix: &'static str,
}

const VERSION_1: Names =
    Names { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", prefix: "total_" };
const VERSION_2: Names = Names { limit: "memory.max", usage: "memory.current", prefix: "" };

/// The folders of a line of `/proc/self/cgroup`: the group and all groups around it. In a container the
/// path may be that of the host; then only the last folder exists.
fn folders(line: &str) -> Vec<(PathBuf, Names)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
    let roots: &[(&str, Names)] = if controllers.is_empty() {
        &[("/sys/fs/cgroup", VERSION_2), ("/sys/fs/cgroup/unified", VERSION_2)]
    } else if controllers.split(',').any(|controller| controller == "memory") {
        &[("/sys/fs/cgroup/memory", VERSION_1)]
    } else {
        &[]
    };
    let around = |(root, names): &(&str, Names)| -> Vec<(PathBuf, Names)> {
        let path = Path::new(path.trim_start_matches('/'));
        path.ancestors().map(|path| (Path::new(root).join(path), *names)).collect()
    };
    roots.iter().flat_map(around).collect()
}

/// What the group of a folder leaves; none where it has no limit.
fn left(folder: &Path, names: Names) -> Option<u64> {
    let number =
        |name: &str| -> Option<u64> { read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
    let (limit, usage) = (number(names.limit)?, number(names.usage)?);
    let stat = read_to_string(folder.join("memory.stat")).unwrap_or_default();
    Some(limit.saturating_sub(usage.saturating_sub(reclaimable(&stat, names.prefix))))
}

/// Cached files of `memory.stat`, which the kernel drops when memory is asked for.
fn reclaimable(stat: &str, prefix: &str) -> u64 {
    let value = |line: &str| -> Option<u64> {
        let (key, value) = line.strip_prefix(prefix)?.split_once(' ')?;
        matches!(key, "inactive_file" | "active_file").then(|| value.parse().ok())?
    };
    stat.lines().filter_map(value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_says_how_much_there_is() {
        assert_eq!(meminfo("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(meminfo("MemTotal: 9 kB\n"), None);
        assert!(available().is_some_and(|available| available.bytes > 0));
    }

    #[test]
    fn a_group_and_all_groups_around_it_count() {
        let paths = |line| folders(line).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        let memory = paths("4:memory:/a/b");
        let expected =
            ["memory/a/b", "memory/a", "memory/"].map(|p| Path::new("/sys/fs/cgroup").join(p));
        assert_eq!(memory, expected);
        assert_eq!(paths("4:cpu:/a"), Vec::<PathBuf>::new());
        assert_eq!(paths("0::/a")[0], Path::new("/sys/fs/cgroup/a"));
    }

    #[test]
    fn cached_files_of_a_group_can_be_had() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("memory.max", "max\n");
        write("memory.current", "700\n");
        write("memory.stat", "anon 5\nactive_file 100\ninactive_file 200\n");
        assert_eq!(left(dir.path(), VERSION_2), None);
        write("memory.max", "1000\n");
        assert_eq!(left(dir.path(), VERSION_2), Some(600));
        assert_eq!(reclaimable("active_file 1\ntotal_active_file 2\n", "total_"), 2);
    }
}
