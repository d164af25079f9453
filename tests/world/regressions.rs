//! Scenarios that failed once, cut down, in files: `tests/regressions/WORLD/NAME.jsonl`. The first line has
//! the seed and what went wrong, every other one an event.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::scenario::{Event, Scenario};

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    seed: u64,
    why: String,
}

/// Where those of a world are.
pub fn folder(world: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../regressions").join(world)
}

/// All of a world, by name.
///
/// # Panics
/// When a file cannot be read.
pub fn all(world: &str) -> Vec<(String, Scenario)> {
    let Ok(files) = fs::read_dir(folder(world)) else { return vec![] };
    let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    paths.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let scenario = parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (name, scenario)
    };
    paths.into_iter().map(read).collect()
}

/// Writes a scenario down; where it is now.
///
/// # Panics
/// When it cannot be written.
pub fn save(world: &str, name: &str, scenario: &Scenario, why: &str) -> PathBuf {
    let path = folder(world).join(name).with_extension("jsonl");
    fs::create_dir_all(folder(world)).unwrap();
    fs::write(&path, print(scenario, why)).unwrap();
    path
}

fn print(scenario: &Scenario, why: &str) -> String {
    let head = Head { seed: scenario.seed, why: why.lines().next().unwrap_or_default().to_owned() };
    let mut text = serde_json::to_string(&head).unwrap() + "\n";
    for event in &scenario.events {
        text += &(serde_json::to_string(event).unwrap() + "\n");
    }
    text
}

fn parse(text: &str) -> serde_json::Result<Scenario> {
    let mut lines = text.lines();
    let head: Head = serde_json::from_str(lines.next().unwrap_or_default())?;
    let events: serde_json::Result<Vec<Event>> = lines.map(serde_json::from_str).collect();
    Ok(Scenario { seed: head.seed, events: events? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_reads_as_it_was_written() {
        for seed in 0..100 {
            let draw = [crate::engine::scenario, crate::serving::scenario][seed as usize % 2];
            let scenario = draw(seed);
            let text = print(&scenario, "this went wrong\nand that");
            assert_eq!(parse(&text).unwrap(), scenario, "{text}");
        }
    }
}
