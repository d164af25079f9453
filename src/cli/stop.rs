//! SIGTERM and SIGINT: finish what runs, begin nothing.

use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Longest that requests in flight hold a stop up.
const DRAIN_MAX: Duration = Duration::from_secs(30);

/// Tells whoever asks that the process should stop.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<bool>);

impl Stop {
    /// Catches the signals from now on.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (sender, receiver) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("stopping");
            sender.send_replace(true);
            // Kept, so that whoever asks later hears it too.
            sender.closed().await;
        });
        Ok(Self(receiver))
    }

    /// Completes when the process should stop.
    pub(crate) async fn requested(mut self) {
        let _ = self.0.wait_for(|stop| *stop).await;
    }

    /// Completes when the process should have stopped.
    pub(crate) async fn overdue(self) {
        self.requested().await;
        tokio::time::sleep(DRAIN_MAX).await;
    }
}
