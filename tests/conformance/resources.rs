//! Descriptors and threads are back at the start after many connections.
//!
//! Counted in a process of its own, which runs this one test: other tests open and close things too.

use std::process::{Command, Stdio};

use crate::Harness;
use crate::drive::{Pair, steps, until};
use crate::frames::control;
use crate::moves::{Lane, Stores, ways};
use crate::rig::{Rig, listen, skip};

/// Set in the process that counts.
const CHILD: &str = "BLOCKWIRE_CONFORMANCE_COUNTS";
/// Connections before the first count: what is made once for a process is made then.
const WARM_UP: usize = 3;
/// Connections between the counts.
const CONNECTIONS: usize = 40;

/// Forty connections, ended in every way, leave no descriptor and no thread behind. `test` is the name
/// under which the harness of this binary knows this test.
pub fn nothing_is_left_of_many_connections<H: Harness>(test: &str) {
    if !cfg!(target_os = "linux") {
        return skip("descriptors are counted in /proc/self, which only Linux has");
    }
    if std::env::var_os(CHILD).is_some() {
        return Rig::<H>::once(count::<H>);
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "the test was not found under {test}: {text}{errors}");
}

async fn count<H: Harness>(rig: &Rig<H>) {
    for round in 0..WARM_UP {
        connection(rig, round).await;
    }
    let before = open_now();
    for round in 0..CONNECTIONS {
        connection(rig, round).await;
    }
    // What a runtime or a kernel gives back a little later is not left behind.
    let mut stalls = 0;
    while open_now() != before {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        stalls += 1;
        let after = open_now();
        assert!(stalls < 200, "before: {before:#?}, after {CONNECTIONS} connections: {after:#?}");
    }
}

/// A connection with payload on it, ended in one of four ways.
async fn connection<H: Harness>(rig: &Rig<H>, round: usize) {
    let transport = rig.transport();
    let mut listener = listen(&*transport, &rig.harness().address()).await;
    let mut pair = rig.pair_of(&*transport, &mut *listener).await;
    for way in ways(pair.near.capabilities()) {
        let mut stores = Stores::small(rig, 4);
        let mut lane = Lane::open(way, &mut pair, &stores.from).await;
        stores.transfer(&mut lane, &mut pair, &[0, 1]).await;
        stores.check();
    }
    drop(listener);
    end(&mut pair, round).await;
}

async fn end(pair: &mut Pair, round: usize) {
    pair.near.submit(control(0, 1000));
    match round % 4 {
        0 => pair.near.close(),
        1 => pair.far.close(),
        2 => pair.near.kill(),
        _ => {
            steps(pair, 3).await;
            pair.far.kill();
            pair.near.kill();
            return;
        }
    }
    until(pair, "the other end closes", |p| p.near.closed().is_some() || p.far.closed().is_some())
        .await;
}

/// What is open: the number of threads, and what each descriptor is.
fn open_now() -> (usize, Vec<String>) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let names = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    // The number in `socket:[123]` differs from one to the next.
    let kind = |name: std::path::PathBuf| {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("/proc/") { "/proc".to_owned() } else { before_number(&name) }
    };
    let mut kinds: Vec<_> = names.map(kind).collect();
    kinds.sort();
    (threads, kinds)
}

fn before_number(name: &str) -> String {
    name.split(['[', ' ']).next().unwrap_or(name).to_owned()
}
