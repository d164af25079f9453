//! `kill -9` of a peer: the survivor learns of it, and nothing is left.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use blockwire::pool::{Backing, Extent};
use blockwire::transport::{CloseReason, Link, Op, RegionKey, Transport};
use common::{
    SMALL_RING, accept, address, completed, drive_one, frame, pair, pool, received, room, run,
    submit, to_the_end, transport,
};

/// Where the child listens; set in the child only.
const CHILD: &str = "BLOCKWIRE_SHM_CRASH_CHILD";

/// These tests count the descriptors and mappings of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn shared_mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("/memfd:")).count()
}

/// Not a test: what the killed process does. It listens, offers a region, floods its peer, and never
/// reads what it gets.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    run(async {
        let place = address(Path::new(&dir));
        let mut listener = transport(SMALL_RING).listen(&place).await.unwrap();
        println!("listening");
        std::io::stdout().flush().unwrap();
        let mut link = accept(listener.as_mut()).await.unwrap();
        let pool = pool(600, Backing::Shared);
        link.register(pool.region()).unwrap();
        for number in 0.. {
            submit(link.as_mut(), Op::Control(frame(number, 1000)));
            let mut events = Vec::new();
            drive_one(link.as_mut(), &mut events, |events| !completed(events).is_empty()).await;
        }
    });
}

fn start_child(dir: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Until the end of the file, so that the pipe is closed before anything is counted.
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let listening = stdout.lines().map_while(Result::ok).any(|line| line.contains("listening"));
    assert!(listening, "the child did not start");
    child
}

#[test]
fn a_killed_peer_is_seen_and_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // The first runtime of a process opens what tokio keeps for all later ones.
    run(async {});
    let dir = tempfile::tempdir().unwrap();
    let place = address(dir.path());
    for round in 0..5u64 {
        let before = (descriptors(), shared_mappings());
        let mut child = start_child(dir.path());
        run(async {
            let mut link = transport(SMALL_RING).connect(&place).await.unwrap();
            let mine = pool(600, Backing::Private);
            let mut events = Vec::new();
            drive_one(link.as_mut(), &mut events, |e| received(e).len() as u64 > round * 7).await;
            assert!(shared_mappings() > before.1);
            // The child never reads, so this waits in a full ring when the child is killed.
            let control = submit(link.as_mut(), Op::Control(frame(0, 100_000)));
            let room = room(&mine, 600);
            let extents = vec![Extent { offset: 0, len: room.len() as usize }];
            let get = submit(link.as_mut(), Op::Get { region: RegionKey(0), extents, room });
            child.kill().unwrap();
            let (mut all, reason) = to_the_end(link.as_mut()).await;
            assert!(matches!(reason, CloseReason::PeerGone), "{reason}");
            let done = completed(&all);
            assert!(done.len() == 2 && done.contains(&control) && done.contains(&get));
            events.append(&mut all);
            let frames = received(&events);
            for (number, got) in frames.iter().enumerate() {
                assert_eq!(*got, frame(number as u64, 1000));
            }
            drop((link, events));
            assert_eq!(mine.accounting().free, 600);
        });
        child.wait().unwrap();
        assert_eq!((descriptors(), shared_mappings()), before, "round {round}");
        // The dead listener's socket is there, nobody answers, and the next start replaces it.
        assert!(Path::new(place.target()).exists());
        run(async {
            assert!(transport(SMALL_RING).connect(&place).await.is_err());
            drop(transport(SMALL_RING).listen(&place).await.unwrap());
        });
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn links_leave_no_descriptor_and_no_mapping() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let round = || {
        run(async {
            let [mut owner, mut puller]: [Box<dyn Link>; 2] = pair(SMALL_RING).await;
            let theirs = pool(4, Backing::Shared);
            owner.register(theirs.region()).unwrap();
            let mut events = Vec::new();
            submit(owner.as_mut(), Op::Control(frame(0, 9)));
            drive_one(owner.as_mut(), &mut events, |e| !completed(e).is_empty()).await;
            drive_one(puller.as_mut(), &mut events, |e| !received(e).is_empty()).await;
            // One that was announced and never asked for.
            owner.register(pool(4, Backing::Shared).region()).unwrap();
        });
    };
    round();
    let before = (descriptors(), shared_mappings());
    (0..20).for_each(|_| round());
    assert_eq!((descriptors(), shared_mappings()), before);
}
