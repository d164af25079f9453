//! Fuzzing without a fuzzer, for a stable toolchain: a committed corpus, and mutations of it.
//!
//! A fuzz body is a function from bytes to nothing that panics when something is wrong. A fuzzer calls it
//! with what it finds; [`play_corpus`] calls the same function with every file of a folder, and then with
//! mutations for some seconds. The variables are those of [`script`](super::script).
//!
//! What a body may cost is bounded here: a play that does not end within `PLAY_MAX` ends the process with
//! the input's name, and so does one that wants more memory than `MEMORY_MAX`.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::script::{Random, play_seeds_for};

/// Longest play: far beyond what a slow machine needs for the largest input.
const PLAY_MAX: Duration = Duration::from_secs(if cfg!(miri) { 600 } else { 60 });
/// Address space of a process that plays: what a test binary maps for its threads, and room for any honest
/// input many times over. An input that claims 2^60 elements is far outside.
#[cfg(all(target_os = "linux", not(miri)))]
const MEMORY_MAX: u64 = 8 << 30;
/// Seconds of mutations where no variable says another number.
const SECONDS: u64 = 2;
/// Longest mutated input, in bytes.
const INPUT_LEN_MAX: usize = 64 << 10;
/// Most mutations of one input.
const MUTATIONS_MAX: u64 = 8;

/// Plays every file of `folder`, then mutations of them.
///
/// # Panics
/// When `play` does, and when the folder holds no file.
pub fn play_corpus(folder: impl AsRef<Path>, play: impl Fn(&[u8])) {
    bound_memory();
    let watchdog = Watchdog::start();
    let corpus = read(folder.as_ref());
    for (name, bytes) in &corpus {
        watchdog.begin(name);
        play(bytes);
    }
    let files: Vec<&[u8]> = corpus.iter().map(|(_, bytes)| &bytes[..]).collect();
    play_seeds_for(SECONDS, |seed| {
        watchdog.begin(&format!("seed {seed}"));
        play(&mutated(&files, seed));
    });
}

/// Writes `seeds` to `folder` where `BLOCKWIRE_WRITE_CORPUS` is set; else checks that they are there. Other
/// files may be there too: what a fuzzer found.
///
/// # Panics
/// When a seed is missing or has other bytes.
pub fn check_seeds(folder: impl AsRef<Path>, seeds: &[(&str, Vec<u8>)]) {
    let folder = folder.as_ref();
    let writes = std::env::var_os("BLOCKWIRE_WRITE_CORPUS").is_some();
    for (name, bytes) in seeds {
        let path = folder.join(name);
        if writes {
            fs::create_dir_all(folder).expect("the folder can be made");
            fs::write(&path, bytes).expect("the seed can be written");
        }
        let found = fs::read(&path).unwrap_or_default();
        let path = path.display();
        assert!(found == *bytes, "{path} is out of date: run with BLOCKWIRE_WRITE_CORPUS=1");
    }
}

fn read(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    // Mutations choose by index: the order must be the same everywhere.
    files.sort();
    assert!(!files.is_empty(), "{} holds no corpus", folder.display());
    let with_bytes = |path: std::path::PathBuf| {
        let bytes = fs::read(&path).expect("a corpus file can be read");
        (path.display().to_string(), bytes)
    };
    files.into_iter().map(with_bytes).collect()
}

/// The input of a seed: one file of the corpus, changed in a few places.
fn mutated(files: &[&[u8]], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = files[random.below(files.len())].to_vec();
    for _ in 0..=random.next() % MUTATIONS_MAX {
        let other = files[random.below(files.len())];
        mutate(&mut bytes, other, &mut random);
    }
    bytes.truncate(INPUT_LEN_MAX);
    bytes
}

/// One change; `other` is where foreign pieces come from.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    match random.next() % 9 {
        0 => flip(bytes, at, random),
        1 | 2 => overwrite_number(bytes, at, random),
        3 | 4 => replace_digits(bytes, at, random),
        5 => {
            let len = 1 + random.below(16);
            let noise: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, noise);
        }
        6 => {
            let end = (at + random.below(64)).min(bytes.len());
            bytes.drain(at..end);
        }
        7 => {
            let from = random.below(other.len() + 1);
            let to = (from + random.below(256)).min(other.len());
            let end = (at + random.below(64)).min(bytes.len());
            bytes.splice(at..end, other[from..to].iter().copied());
        }
        _ => bytes.truncate(at),
    }
}

fn flip(bytes: &mut [u8], at: usize, random: &mut Random) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << (random.next() % 8);
    }
}

/// Puts a little-endian number that may matter over 1, 2, 4 or 8 bytes.
fn overwrite_number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let width = 1 << (random.next() % 4);
    let number = random.edge().to_le_bytes();
    for (byte, new) in bytes.iter_mut().skip(at).zip(&number[..width]) {
        *byte = *new;
    }
}

/// Puts another number in place of the next decimal one.
fn replace_digits(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let digit = |byte: &u8| byte.is_ascii_digit();
    let Some(start) = bytes[at..].iter().position(digit).map(|offset| at + offset) else { return };
    let len = bytes[start..].iter().take_while(|byte| digit(byte)).count();
    let number = match random.next() % 8 {
        0 => "-1".to_owned(),
        1 => "1e308".to_owned(),
        2 => "0.5".to_owned(),
        _ => random.edge().to_string(),
    };
    bytes.splice(start..start + len, number.into_bytes());
}

/// Ends the process when a play hangs: a thread that is stuck cannot be ended alone.
struct Watchdog {
    begun: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    fn start() -> Self {
        let (begun, inputs) = channel::<String>();
        let thread = thread::spawn(move || {
            let mut input = String::new();
            loop {
                match inputs.recv_timeout(PLAY_MAX) {
                    Ok(next) => input = next,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("{input} is still being played after {PLAY_MAX:?}");
                        std::process::abort();
                    }
                }
            }
        });
        Self { begun: Some(begun), thread: Some(thread) }
    }

    /// The input that is played from now on.
    fn begin(&self, input: &str) {
        if let Some(begun) = &self.begun {
            let _ = begun.send(input.to_owned());
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.begun.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Makes an allocation without measure fail, whatever the machine would overcommit.
#[cfg(all(target_os = "linux", not(miri)))]
fn bound_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { maximum, .. } = getrlimit(Resource::As);
    let current = Some(maximum.map_or(MEMORY_MAX, |most| most.min(MEMORY_MAX)));
    setrlimit(Resource::As, Rlimit { current, maximum }).expect("a process may bound itself");
}

#[cfg(any(not(target_os = "linux"), miri))]
fn bound_memory() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_input_and_others_differ() {
        let files: [&[u8]; 2] = [b"{\"layers\": 12, \"more\": [1, 2, 3]}", b"GGUF\x03\0\0\0"];
        let inputs: Vec<_> = (0..2000).map(|seed| mutated(&files, seed)).collect();
        assert_eq!(inputs[7], mutated(&files, 7));
        let mut different = inputs.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 1500, "{} of 2000", different.len());
        // Decimal numbers are replaced by others, and bytes by little-endian ones.
        for edge in [&b"18446744073709551615"[..], &u64::MAX.to_le_bytes()] {
            let holds = |input: &Vec<u8>| input.windows(edge.len()).any(|part| part == edge);
            assert!(inputs.iter().any(holds), "{edge:?}");
        }
    }

    #[test]
    fn nothing_is_too_short_to_mutate() {
        for seed in 0..1000 {
            mutated(&[b"", b"1"], seed);
        }
    }
}
