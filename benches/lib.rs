//! What the benchmarks share: one file a question, every figure beside a floor of the same run.

pub mod host;

use std::path::PathBuf;
use std::process::Command;

use blockwire::endpoint::{Endpoint, EndpointOptions};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

/// The default model's path: `BLOCKWIRE_MODEL`, or what `tools/fetch-model` gives.
///
/// # Panics
/// When there is no model.
pub fn default_model() -> PathBuf {
    if let Some(path) = std::env::var_os("BLOCKWIRE_MODEL") {
        return path.into();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/fetch-model");
    let output = Command::new("python3").arg(script).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().into()
}

/// Runs a side of a connection on this thread: its endpoint, and its user as a task beside it.
///
/// # Panics
/// When the system gives no runtime, or a task panics.
pub fn run_side<T: 'static>(
    options: EndpointOptions,
    user: impl AsyncFnOnce(&Endpoint) -> T + 'static,
) -> T {
    let (endpoint, driver) = Endpoint::local(options);
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async move {
        let driving = spawn_local(driver);
        let result = spawn_local(async move { user(&endpoint).await }).await.expect("no panic");
        driving.await.expect("no panic");
        result
    })
}

/// Rounds of a benchmark: `BLOCKWIRE_BENCH_RUNS`, or 7.
pub fn runs() -> usize {
    std::env::var("BLOCKWIRE_BENCH_RUNS").ok().and_then(|n| n.parse().ok()).unwrap_or(7)
}

/// Prints figure, floor and the ratio of figure to floor.
pub fn print_ratio(what: &str, floor: &Samples, figure: &Samples) {
    let ratio = figure.median() / floor.median();
    println!("{what:<42} {ratio:>6.2} = {figure} / {floor}");
}

/// Repeated measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
        self.0.sort_by(f64::total_cmp);
    }

    /// The middle one; 0 without any.
    pub fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or_default()
    }

    /// The one below which a share of them lies; 0 without any.
    pub fn quantile(&self, share: f64) -> f64 {
        let index = (self.0.len() as f64 * share) as usize;
        self.0.get(index).copied().unwrap_or_default()
    }

    /// Smallest and largest.
    pub fn range(&self) -> (f64, f64) {
        let end = |sample: Option<&f64>| sample.copied().unwrap_or_default();
        (end(self.0.first()), end(self.0.last()))
    }
}

impl std::fmt::Display for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (low, high) = self.range();
        write!(f, "{:.1} [{low:.1}..{high:.1}]", self.median())
    }
}
