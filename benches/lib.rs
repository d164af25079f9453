//! What the benchmarks share: one file a question, every figure beside a floor of the same run.

pub mod blocks;
pub mod host;
pub mod nodes;
pub mod tcp;

use std::future::{Future, poll_fn};
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::channel;

use blockwire::endpoint::{Endpoint, EndpointOptions};
use blockwire::transport::{Address, Link, Transport};
use blockwire_shm::ShmTransport;
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
    as_task(async move {
        let driving = spawn_local(driver);
        let result = user(&endpoint).await;
        drop(endpoint);
        driving.await.expect("no panic");
        result
    })
}

/// Runs a task on this thread, as a driver's thread does.
///
/// # Panics
/// When the system gives no runtime, or the task panics.
pub fn as_task<T: 'static>(task: impl Future<Output = T> + 'static) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async { spawn_local(task).await.expect("no panic") })
}

/// Runs the two ends of a shared-memory link, on cpu 0 and cpu 1; gives what the near one comes to.
///
/// # Panics
/// When there is no link, or an end panics.
pub fn linked<T: 'static>(
    transport: ShmTransport,
    far: impl AsyncFnOnce(Box<dyn Link>) + Send + 'static,
    near: impl AsyncFnOnce(Box<dyn Link>) -> T + 'static,
) -> T {
    let folder = tempfile::tempdir().expect("a folder");
    let address = Address::new("shm", &folder.path().join("x.sock").to_string_lossy());
    let (bound, is_bound) = channel();
    let place = address.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            host::pin(1);
            as_task(async move {
                let mut listener = transport.listen(&place).await.expect("a free address");
                bound.send(()).expect("a dialler");
                far(poll_fn(|cx| listener.poll_accept(cx)).await.expect("a peer")).await;
            });
        });
        host::pin(0);
        is_bound.recv().expect("a listener");
        as_task(async move { near(transport.connect(&address).await.expect("a peer")).await })
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

/// The ratio of each figure to the floor of its round, as median [min..max].
pub fn ratios(figures: &[f64], floors: &[f64]) -> String {
    let ratios: Samples =
        figures.iter().zip(floors).map(|(figure, floor)| figure / floor).collect();
    let (low, high) = ratios.range();
    format!("{:.2} [{low:.2}..{high:.2}]", ratios.median())
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

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        let mut samples: Vec<_> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        Self(samples)
    }
}

impl From<&[f64]> for Samples {
    fn from(figures: &[f64]) -> Self {
        figures.iter().copied().collect()
    }
}

impl std::fmt::Display for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (low, high) = self.range();
        write!(f, "{:.1} [{low:.1}..{high:.1}]", self.median())
    }
}
