//! Progress on stderr: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// One job of known length.
pub(crate) struct Progress {
    label: &'static str,
    bar: Option<ProgressBar>,
    told: u64,
    total: u64,
}

impl Progress {
    /// Starts a job of `total` steps.
    pub(crate) fn new(label: &'static str, total: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:12} [{bar:40}] {pos}/{len} {elapsed}")
                .expect("the template is well-formed")
                .progress_chars("=> ");
            ProgressBar::new(total).with_style(style).with_message(label)
        });
        Self { label, bar, told: 0, total }
    }

    /// Says how far the job is. Without a terminal, a line for each quarter.
    pub(crate) fn set(&mut self, done: u64) {
        match &self.bar {
            Some(bar) => bar.set_position(done),
            None => {
                let quarter = done * 4 / self.total.max(1);
                if quarter > self.told {
                    self.told = quarter;
                    eprintln!("{}: {}%", self.label, quarter * 25);
                }
            }
        }
    }

    /// The job is done.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
