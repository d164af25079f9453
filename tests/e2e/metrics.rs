//! What `/metrics` shows is what `docs/metrics.md` lists.

use std::collections::BTreeSet;

use crate::client::{ask, get};
use crate::cluster::{Carrier, Cluster, Setup};
use crate::models::{Model, completion};
use crate::node::Node;

const LIST: &str = include_str!("../../docs/metrics.md");

/// Names and kinds of the metrics of a role, as the list has them.
fn listed(role: &str) -> BTreeSet<(String, String)> {
    let rows = LIST.lines().filter_map(|line| line.strip_prefix("| `blockwire:"));
    let rows = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    rows.filter(|row| row[2].split(", ").any(|shower| shower == role))
        .map(|row| {
            let name = row[0].split(['`', '{']).next().unwrap();
            (name.to_owned(), row[1].to_owned())
        })
        .collect()
}

/// Those that a node shows.
fn shown(node: &Node) -> BTreeSet<(String, String)> {
    let (status, text) = get(&format!("{}/metrics", node.http()));
    assert_eq!(status, 200);
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE blockwire:"));
    lines
        .map(|line| {
            let (name, kind) = line.split_once(' ').unwrap();
            (name.to_owned(), kind.to_owned())
        })
        .collect()
}

/// Has an answer and a refusal, since what has several series has none before its first one.
fn ask_for_both(http: &str) {
    ask(http, &completion(&[5, 6, 7], 3)).unwrap();
    ask(http, &completion(&[], 3)).unwrap_err();
}

fn assert_listed(node: &Node) {
    let (listed, shown) = (listed(&node.role), shown(node));
    let missing: Vec<_> = shown.difference(&listed).collect();
    assert!(missing.is_empty(), "{} shows, and docs/metrics.md lacks, {missing:?}", node.role);
    let gone: Vec<_> = listed.difference(&shown).collect();
    assert!(gone.is_empty(), "{} lacks, and docs/metrics.md lists, {gone:?}", node.role);
}

#[test]
fn every_metric_is_listed_and_every_listed_one_is_shown() {
    let cluster = Cluster::start(Setup::new(Model::Llama, Carrier::Shm));
    ask_for_both(cluster.http());
    cluster.nodes().for_each(assert_listed);
    let single = Node::start(cluster.dir.path(), "single", &cluster.setup.node_flags(&[]));
    ask_for_both(single.http());
    assert_listed(&single);
    single.stop();
    cluster.finish();
}
