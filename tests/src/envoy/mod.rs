//! A real Envoy for tests, demo and `make up`: started, asked, reconfigured and always ended.

mod admin;
mod client;
mod config;
mod instance;
mod options;
mod process;
pub mod stack;

pub use admin::{Admin, Metrics};
pub use client::{Connection, Reply};
pub use config::{plain_cluster, prefix_route};
pub use instance::{Envoy, Rejected};
pub use options::{EnvoyOptions, Filter, Worker};
pub use process::{Output, Process, filter_wasm, workspace_binary};
pub(crate) use process::{built_wasm, lift_open_files};

use std::time::{Duration, Instant};

/// Asks again and again until `condition` holds. Asked once more at the deadline, so that a machine that stood still
/// for as long is no failure.
///
/// # Panics
/// When the deadline has passed; `what` says what was waited for.
pub async fn eventually(deadline: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        let last = start.elapsed() > deadline;
        if condition().await {
            return;
        }
        assert!(!last, "not within {deadline:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}
